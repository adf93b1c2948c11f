//! One request to an admin listener, as any HTTP client might send it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// For connecting, and for each silence within an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest answer that is read.
const MAX_ANSWER: u64 = 4 << 20;

/// Sends a request without a body; returns the answer's status code and body.
///
/// HTTP/1.0, so that the answer ends with the connection and is never chunked.
pub(super) fn exchange(address: SocketAddr, method: &str, path: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(stream, "{method} {path} HTTP/1.0\r\nHost: {address}\r\nContent-Length: 0\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER).read_to_string(&mut answer)?;
    parse(&answer).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no HTTP answer"))
}

/// Status code and body.
fn parse(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let mut words = head.strip_prefix("HTTP/1.")?.split_ascii_whitespace();
    let code = words.nth(1)?.parse().ok()?;
    Some((code, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_code_and_a_body() {
        let answer = "HTTP/1.1 422 Unprocessable Entity\r\nConnection: close\r\n\r\n{\"a\":\r\n\r\n1}";
        assert_eq!(parse(answer), Some((422, "{\"a\":\r\n\r\n1}".to_owned())));
        for wrong in ["", "HTTP/1.1 200 OK\r\n", "SSH-2.0\r\n\r\n", "HTTP/1.1 ok\r\n\r\n"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
