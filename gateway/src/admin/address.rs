//! Addresses of admin listeners as people write them.

use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// The examples' port.
const PORT: u16 = 9464;
/// How long one of a name's addresses is tried.
const TRY: Duration = Duration::from_millis(500);

/// Reads an address and port, or a name that is looked up. Without a port it is the examples' one,
/// 9464.
///
/// If a name has several addresses, the first at which somebody listens is taken.
///
/// # Errors
/// A line that says what is wrong.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address);
    }
    if let Ok(ip) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, PORT));
    }
    let (name, port) = match text.rsplit_once(':') {
        Some((name, "")) => (name, PORT),
        Some((name, port)) => (name, port.parse().map_err(|_| format!("{port:?} is no port"))?),
        None => (text, PORT),
    };
    if let Ok(ip) = name.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, port));
    }
    if name.is_empty() {
        return Err("no address; such as 127.0.0.1:9464 or localhost".to_owned());
    }
    let found =
        (name, port).to_socket_addrs().map_err(|error| format!("cannot look {name:?} up: {error}"))?;
    let found: Vec<SocketAddr> = found.collect();
    let listens = |address: &&SocketAddr| TcpStream::connect_timeout(address, TRY).is_ok();
    let chosen = if found.len() > 1 { found.iter().find(listens) } else { None };
    chosen.or(found.first()).copied().ok_or_else(|| format!("{name:?} has no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_without_a_port_are_taken() {
        for (text, address) in [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("127.0.0.1", "127.0.0.1:9464"),
            ("127.0.0.1:", "127.0.0.1:9464"),
            ("[::1]:80", "[::1]:80"),
            ("[::1]:", "[::1]:9464"),
            ("::1", "[::1]:9464"),
        ] {
            assert_eq!(parse_address(text), Ok(address.parse().unwrap()), "{text}");
        }
        for text in ["localhost", "localhost:", "localhost:9464"] {
            let address = parse_address(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert!(address.ip().is_loopback() && address.port() == 9464, "{text}: {address}");
        }
        for text in ["", ":", ":80", "localhost:http1", "localhost:70000", "no such name:1"] {
            assert!(parse_address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn of_several_addresses_one_that_listens_is_taken() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(parse_address(&format!("localhost:{port}")), Ok(listener.local_addr().unwrap()));
    }
}
