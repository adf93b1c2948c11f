//! TLS of the TCP listener: who is turned away before a request.

use std::io;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::server::Acceptor;
use tokio_rustls::server::TlsStream;

use super::waiting::Progress;
use crate::renewal::Tls;

/// The first byte of a TLS connection: a handshake record (RFC 8446, 5.1).
const HANDSHAKE: u8 = 22;

/// The answer to plain HTTP.
const PLAIN: &[u8] = b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n\
                       Connection: close\r\n\r\nthis listener speaks TLS: ask at https://\n";

/// Shakes hands with a client. `None`: it speaks plain HTTP, and was told so.
///
/// # Errors
/// The connection broke, or the client takes no TLS 1.3 or not this certificate.
pub(super) async fn accept(
    tls: &Tls,
    mut stream: TcpStream,
    progress: &Progress,
) -> io::Result<Option<TlsStream<TcpStream>>> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 0 {
        return Ok(None);
    }
    if first != [HANDSHAKE] {
        stream.write_all(PLAIN).await?;
        stream.shutdown().await?;
        linger(stream).await;
        return Ok(None);
    }
    // Half a ClientHello is no sign of a client.
    let hello = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
    progress.shakes();
    hello.into_stream(tls.current().config()).await.map(Some)
}

/// Reads what a client has sent, as far as it is there: a close with unread bytes is a reset, which
/// may overtake the answer.
async fn linger(stream: TcpStream) {
    let mut rest = [0; 4096];
    // A request that is longer is none that anybody sends here.
    for _ in 0..4 {
        match stream.try_read(&mut rest) {
            Ok(1..) => {}
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests;
