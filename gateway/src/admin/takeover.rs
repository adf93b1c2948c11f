//! A process that wants to take over: its connection leaves HTTP, and goes to the gateway.

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::upgrade::{OnUpgrade, on};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustix::process::geteuid;
use tokio::net::UnixStream;
use tracing::{debug, warn};

use super::admission::{Client, Stream};
use super::{TEXT, reply, wrong_method};
use crate::requests::{HeirPlace, Requests};
use crate::upgrade::NAME;

/// Lets a process in that wants to take over, one at a time: by the Unix socket, and of this user
/// or root.
pub(super) fn answer(
    requests: &Requests,
    mut request: Request<Incoming>,
    client: Client,
) -> Response<Full<Bytes>> {
    if request.method() != Method::POST {
        return wrong_method("POST");
    }
    if client != Client::Local {
        let text = format!("a take-over is not taken from {client}, but by admin.socket only\n");
        return reply(StatusCode::FORBIDDEN, TEXT, text);
    }
    let is_meant = request.headers().get(UPGRADE).is_some_and(|name| name.as_bytes() == NAME.as_bytes());
    if !is_meant {
        return reply(StatusCode::BAD_REQUEST, TEXT, format!("only with Upgrade: {NAME}\n"));
    }
    let Some(place) = requests.heir() else {
        let text = "another process is about to take over, or the gateway is stopping\n".to_owned();
        return reply(StatusCode::CONFLICT, TEXT, text);
    };
    tokio::spawn(hand_on(on(&mut request), place));
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    response.headers_mut().insert(UPGRADE, HeaderValue::from_static(NAME));
    response
}

async fn hand_on(upgraded: OnUpgrade, place: HeirPlace) {
    let upgraded = match upgraded.await {
        Ok(upgraded) => upgraded,
        Err(error) => return debug!(%error, "a process that wanted to take over has gone"),
    };
    let parts = upgraded.downcast::<TokioIo<Box<dyn Stream>>>().ok();
    // It waits for this side to speak, so nothing of its has been read.
    let stream = parts.filter(|parts| parts.read_buf.is_empty()).and_then(|parts| {
        let stream = parts.io.into_inner().into_unix()?;
        is_ours(&stream).then_some(stream)
    });
    match stream.and_then(|stream| stream.into_std().ok()) {
        Some(stream) => place.fill(stream).await,
        None => warn!("a process that wanted to take over is not this user's, or spoke out of turn"),
    }
}

/// Returns true for a process of this user or root.
fn is_ours(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|other| other.uid() == 0 || other.uid() == geteuid().as_raw())
}
