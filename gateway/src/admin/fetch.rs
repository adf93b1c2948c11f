//! The client of `longhaul status`, `healthy`, `record` and `reload`: one request, bounded in time
//! and size.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{self, CertificateError};

use super::address::{Endpoint, Way, authority_of};
use super::health::Health;
use crate::requests::Answer;

const TIME: Duration = Duration::from_secs(5);
const MAX_BODY: usize = 4 << 20;

/// Why nothing came back.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// No connection.
    #[error(
        "nothing answers at {address}: {source}; a gateway that still waits for an interface or an address does \
         not answer yet (see its log); --admin names the gateway's admin.listen or admin.socket"
    )]
    Connect {
        /// The address tried.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// No TLS, or a certificate that is not trusted.
    #[error("{address} cannot be asked over TLS: {source}; {remedy}")]
    Tls {
        /// The address tried.
        address: String,
        /// Why.
        source: io::Error,
        /// And what to do about it.
        remedy: &'static str,
    },
    /// The exchange broke off, or is no HTTP.
    #[error("{address} does not answer as a gateway: {source}")]
    Http {
        /// The address.
        address: String,
        /// Why.
        source: hyper::Error,
    },
    /// The path cannot stand in a request.
    #[error("not a request: {0}")]
    Request(#[from] hyper::http::Error),
    /// Not 200.
    #[error("{address} answers {status}: {}", text.trim_end())]
    Status {
        /// The address.
        address: String,
        /// The status that it answered with.
        status: StatusCode,
        /// And what else it said.
        text: String,
    },
    /// Not what this version expects.
    #[error("{address} speaks of something this version does not know: {source}")]
    Unknown {
        /// The address.
        address: String,
        /// In which way.
        source: serde_json::Error,
    },
    /// The body broke off, is longer than 4 MiB, or no text.
    #[error("the answer of {address} cannot be used: {reason}")]
    Body {
        /// The address.
        address: String,
        /// Why.
        reason: String,
    },
    /// More than 5 s.
    #[error("{0} does not answer in time")]
    Timeout(String),
}

/// Fetches a path ("/status") of an admin listener.
///
/// # Errors
/// See [`FetchError`].
pub async fn fetch(endpoint: &Endpoint, path: &str) -> Result<String, FetchError> {
    match within_time(endpoint, Method::GET, &endpoint.target(path)).await? {
        (StatusCode::OK, text) => Ok(text),
        (status, text) => Err(refused(endpoint.to_string(), status, text)),
    }
}

/// Fetches a path as [`fetch`] does, and reads the answer.
///
/// # Errors
/// See [`FetchError`].
pub async fn ask<T: DeserializeOwned>(endpoint: &Endpoint, path: &str) -> Result<T, FetchError> {
    let text = fetch(endpoint, path).await?;
    let unknown = |source| FetchError::Unknown { address: endpoint.to_string(), source };
    serde_json::from_str(&text).map_err(unknown)
}

/// Asks whether hosts' packets are to come to a gateway. That they are not is an answer, too.
///
/// # Errors
/// See [`FetchError`].
pub async fn health(endpoint: &Endpoint) -> Result<Health, FetchError> {
    let address = endpoint.to_string();
    match within_time(endpoint, Method::GET, &endpoint.target("/healthy")).await? {
        (StatusCode::OK | StatusCode::SERVICE_UNAVAILABLE, text) => {
            serde_json::from_str(&text).map_err(|source| FetchError::Unknown { address, source })
        }
        (status, text) => Err(refused(address, status, text)),
    }
}

/// Has a gateway read its policy file again. A file that was refused is an answer, too.
///
/// # Errors
/// See [`FetchError`].
pub async fn reload(endpoint: &Endpoint) -> Result<Answer, FetchError> {
    let address = endpoint.to_string();
    match within_time(endpoint, Method::POST, "/reload").await? {
        (StatusCode::OK | StatusCode::UNPROCESSABLE_ENTITY, text) => {
            serde_json::from_str(&text).map_err(|source| FetchError::Unknown { address, source })
        }
        (status, text) => Err(refused(address, status, text)),
    }
}

/// A token is what commands name a file for; the gateway's own words are for HTTP clients.
fn refused(address: String, status: StatusCode, text: String) -> FetchError {
    let text = match status {
        StatusCode::UNAUTHORIZED => {
            "it asks for a token: --admin-token FILE with that of its admin.token".to_owned()
        }
        _ => text,
    };
    FetchError::Status { address, status, text }
}

async fn within_time(
    endpoint: &Endpoint,
    method: Method,
    path: &str,
) -> Result<(StatusCode, String), FetchError> {
    let late = |_| FetchError::Timeout(endpoint.to_string());
    timeout(TIME, connect(endpoint, method, path)).await.map_err(late)?
}

async fn connect(
    endpoint: &Endpoint,
    method: Method,
    path: &str,
) -> Result<(StatusCode, String), FetchError> {
    let none = |source| FetchError::Connect { address: endpoint.to_string(), source };
    let mut request = Request::builder().method(method).uri(path);
    if let Some(token) = endpoint.token() {
        request = request.header(AUTHORIZATION, token.header());
    }
    match endpoint.way() {
        Way::Tcp(address) => {
            let request = request.header(HOST, address.to_string()).body(Empty::new())?;
            exchange(TcpStream::connect(address).await.map_err(none)?, request, endpoint).await
        }
        Way::Tls { server, host, address, tls } => {
            let request = request.header(HOST, authority_of(host, address.port())).body(Empty::new())?;
            let stream = TcpStream::connect(address).await.map_err(none)?;
            let stream = TlsConnector::from(Arc::clone(tls)).connect(server.clone(), stream).await;
            exchange(stream.map_err(|source| not_over_tls(endpoint, source))?, request, endpoint).await
        }
        Way::Unix(path) => {
            let request = request.header(HOST, "localhost").body(Empty::new())?;
            exchange(UnixStream::connect(path).await.map_err(none)?, request, endpoint).await
        }
    }
}

/// Says what an operator can do about it.
fn not_over_tls(endpoint: &Endpoint, source: io::Error) -> FetchError {
    let cause = source.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    let remedy = match cause {
        Some(rustls::Error::InvalidMessage(_)) => "if it has no admin.certificate, ask without https://",
        Some(rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        )) => "--admin-authority names the authority that signed its certificate",
        Some(rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => "ask by a name or address that the certificate has",
        Some(rustls::Error::InvalidCertificate(CertificateError::Other(_))) => {
            "a certificate has to be one for servers (basicConstraints CA:FALSE), or stand in --admin-authority itself"
        }
        _ => "see the gateway's log at LONGHAUL_LOG=debug",
    };
    FetchError::Tls { address: endpoint.to_string(), source, remedy }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    request: Request<Empty<Bytes>>,
    endpoint: &Endpoint,
) -> Result<(StatusCode, String), FetchError> {
    let http = |source| FetchError::Http { address: endpoint.to_string(), source };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(http)?;
    let unusable = |reason: String| FetchError::Body { address: endpoint.to_string(), reason };
    let exchange = async {
        let response = sender.send_request(request).await.map_err(http)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_BODY).collect().await;
        let body = body.map_err(|error| unusable(error.to_string()))?;
        let text = String::from_utf8(body.to_bytes().into());
        text.map(|text| (status, text)).map_err(|error| unusable(error.to_string()))
    };
    // The connection has to be driven for the exchange to go on; its own end says nothing that the
    // exchange does not.
    tokio::pin!(exchange);
    tokio::select! {
        result = &mut exchange => result,
        _ = connection => exchange.await,
    }
}
