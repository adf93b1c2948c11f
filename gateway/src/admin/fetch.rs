//! The client of `longhaul status` and `longhaul record`: one GET, bounded in time and size.

use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

const TIME: Duration = Duration::from_secs(5);
const MAX_BODY: usize = 4 << 20;

/// Why nothing came back.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// No connection.
    #[error("nothing answers at {address}: {source}")]
    Connect {
        /// The address tried.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The exchange broke off, or is no HTTP.
    #[error("{address} does not answer as a gateway: {source}")]
    Http {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: hyper::Error,
    },
    /// The path cannot stand in a request.
    #[error("not a request: {0}")]
    Request(#[from] hyper::http::Error),
    /// Not 200.
    #[error("{address} answers {status}")]
    Status {
        /// The address.
        address: SocketAddr,
        /// What it answered.
        status: StatusCode,
    },
    /// The body broke off, is longer than 4 MiB, or no text.
    #[error("the answer of {address} cannot be used: {reason}")]
    Body {
        /// The address.
        address: SocketAddr,
        /// Why.
        reason: String,
    },
    /// More than 5 s.
    #[error("{0} does not answer in time")]
    Timeout(SocketAddr),
}

/// Fetches a path ("/status") of an admin listener.
///
/// # Errors
/// See [`FetchError`].
pub async fn fetch(address: SocketAddr, path: &str) -> Result<String, FetchError> {
    timeout(TIME, exchange(address, path)).await.map_err(|_| FetchError::Timeout(address))?
}

async fn exchange(address: SocketAddr, path: &str) -> Result<String, FetchError> {
    let http = |source| FetchError::Http { address, source };
    let request = Request::get(path).header(HOST, address.to_string()).body(Empty::<Bytes>::new())?;
    let stream =
        TcpStream::connect(address).await.map_err(|source| FetchError::Connect { address, source })?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(http)?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(http)?;
        if response.status() != StatusCode::OK {
            return Err(FetchError::Status { address, status: response.status() });
        }
        let body = Limited::new(response.into_body(), MAX_BODY).collect().await;
        let body = body.map_err(|error| FetchError::Body { address, reason: error.to_string() })?;
        String::from_utf8(body.to_bytes().into())
            .map_err(|error| FetchError::Body { address, reason: error.to_string() })
    };
    // The connection has to be driven for the exchange to go on; its own end says nothing that the exchange does not.
    tokio::pin!(exchange);
    tokio::select! {
        result = &mut exchange => result,
        _ = connection => exchange.await,
    }
}
