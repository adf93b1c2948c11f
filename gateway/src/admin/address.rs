//! Addresses of admin listeners as people write them.

use std::fmt;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls_pki_types::ServerName;
use session::identity::{client_config, client_config_for};
use tokio_rustls::rustls::ClientConfig;

use super::admission::Token;
use crate::causes::chain;

/// Where a gateway under systemd has its admin socket.
pub const SOCKET: &str = "/run/longhaul/admin.sock";

/// Names the file with the system's authorities, as for OpenSSL.
const SYSTEM_AUTHORITIES: &str = "SSL_CERT_FILE";

/// The examples' port.
const PORT: u16 = 9464;
/// How long one of a name's addresses is tried.
const TRY: Duration = Duration::from_millis(500);

/// Where a gateway's admin listener is asked, and by whom.
#[derive(Clone, Debug)]
pub struct Endpoint {
    way: Way,
    token: Option<Token>,
    /// The peer asked about.
    peer: Option<String>,
}

/// The way to an admin listener.
#[derive(Clone, Debug)]
pub(super) enum Way {
    Tcp(SocketAddr),
    Tls { server: ServerName<'static>, host: String, address: SocketAddr, tls: Arc<ClientConfig> },
    Unix(PathBuf),
}

/// An address of an admin listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `admin.listen`.
    Tcp(SocketAddr),
    /// `admin.listen` with a certificate for this host name or address.
    Tls(String, SocketAddr),
    /// `admin.socket`.
    Unix(PathBuf),
}

impl Endpoint {
    /// Asks at `address`, with the token if there is one. Over TLS, it trusts the authorities in
    /// the PEM file `authority`, or else the system's.
    ///
    /// # Errors
    /// A line that names the file.
    pub fn new(address: Address, token: Option<Token>, authority: Option<&Path>) -> Result<Self, String> {
        let way = match address {
            Address::Tcp(address) => Way::Tcp(address),
            Address::Unix(path) => Way::Unix(path),
            Address::Tls(host, address) => {
                let system = std::env::var_os(SYSTEM_AUTHORITIES).map(PathBuf::from);
                let tls = client_config(authority, system.as_deref()).map_err(|error| chain(&error))?;
                let server = ServerName::try_from(host.clone());
                let server = server.map_err(|_| format!("{host:?} is no host name or address"))?;
                Way::Tls { server, host, address, tls: Arc::new(tls) }
            }
        };
        Ok(Self { way, token, peer: None })
    }

    /// Asks the gateway with this certificate, whatever names that has, and no other.
    ///
    /// # Errors
    /// A line that names the file.
    pub fn with_certificate(address: SocketAddr, certificate: &Path) -> Result<Self, String> {
        let tls = client_config_for(certificate).map_err(|error| chain(&error))?;
        let (server, host) = (ServerName::from(address.ip()), address.ip().to_string());
        let way = Way::Tls { server, host, address, tls: Arc::new(tls) };
        Ok(Self { way, token: None, peer: None })
    }

    /// Asks a gateway of this file on this machine: at its socket if that is there or all that it
    /// has, else at its address, where a certificate is known and need not be for the address.
    ///
    /// # Errors
    /// A line that names the file.
    pub fn of_file(admin: &config::Admin) -> Result<Self, String> {
        let listen = match (&admin.socket, admin.listen) {
            (Some(socket), listen) if listen.is_none() || socket.exists() => {
                return Self::new(Address::Unix(socket.clone()), None, None);
            }
            (_, Some(listen)) => listen,
            (_, None) => return Err("the gateway file has no admin.listen and no admin.socket".to_owned()),
        };
        let token = admin.token.as_deref().map(Token::read).transpose()?;
        let at = match &admin.tls {
            None => Self::from(listen),
            Some(tls) => Self::with_certificate(listen, &tls.certificate)?,
        };
        Ok(at.with_token(token))
    }

    /// The same with a token, if there is one.
    #[must_use]
    pub fn with_token(self, token: Option<Token>) -> Self {
        Self { token, ..self }
    }

    /// The same, asked about one of a gateway's peers.
    #[must_use]
    pub fn about(&self, peer: Option<&str>) -> Self {
        Self { peer: peer.map(str::to_owned), ..self.clone() }
    }

    /// Returns the name of the peer that is asked about, if one is.
    pub fn peer(&self) -> Option<&str> {
        self.peer.as_deref()
    }

    /// Returns a path with what it asks for besides.
    pub(super) fn target(&self, path: &str) -> String {
        match &self.peer {
            None => path.to_owned(),
            Some(peer) => format!("{path}{}peer={peer}", if path.contains('?') { '&' } else { '?' }),
        }
    }

    pub(super) fn way(&self) -> &Way {
        &self.way
    }

    pub(super) fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        Self { way: Way::Tcp(address), token: None, peer: None }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.way {
            Way::Tcp(address) => address.fmt(f),
            Way::Tls { host, address, .. } => write!(f, "https://{}", authority_of(host, address.port())),
            Way::Unix(path) => path.display().fmt(f),
        }
    }
}

/// Parses the name of a peer's site.
///
/// # Errors
/// A line that says what is wrong.
pub fn site_name(text: &str) -> Result<String, String> {
    match config::is_site_name(text) {
        true => Ok(text.to_owned()),
        false => Err("not the name of a site".to_owned()),
    }
}

/// Returns host and port as in a URL.
pub(super) fn authority_of(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

impl Address {
    /// Where to ask unless told otherwise: the service's socket if this machine has one, else the
    /// examples' address.
    pub fn usual() -> Self {
        let socket = Path::new(SOCKET);
        if socket.exists() { Self::Unix(socket.to_owned()) } else { Self::Tcp(([127, 0, 0, 1], PORT).into()) }
    }

    /// Reads `https://` and what [`parse_address`] reads, a path with a slash in it or behind
    /// `unix:`, or an address alone.
    ///
    /// # Errors
    /// A line that says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(rest) = text.strip_prefix("https://") {
            let rest = rest.strip_suffix('/').unwrap_or(rest);
            let address = parse_address(rest)?;
            return Ok(Self::Tls(host_of(rest), address));
        }
        if let Some(rest) = text.strip_prefix("http://") {
            return parse_address(rest.strip_suffix('/').unwrap_or(rest)).map(Self::Tcp);
        }
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.strip_prefix("//").unwrap_or(path).into()));
        }
        if text.contains('/') {
            return Ok(Self::Unix(text.into()));
        }
        // The name of a host, even if there is such a file: what it means must not depend on the
        // folder that somebody is in.
        let path = |reason: &str| format!("{reason}; if it is the path of a socket, write ./{text}");
        if is_socket(Path::new(text)) {
            return Err(path("without a slash it is the name of a host, and there is a socket of this name"));
        }
        let like_path = text.ends_with(".sock") || text.ends_with(".socket");
        parse_address(text).map(Self::Tcp).map_err(|error| if like_path { path(&error) } else { error })
    }
}

fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Tls(host, address) => write!(f, "https://{}", authority_of(host, address.port())),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// Returns the host of what [`parse_address`] reads, without port and brackets.
fn host_of(text: &str) -> String {
    let bare = text.trim_matches(['[', ']']);
    if bare.parse::<IpAddr>().is_ok() {
        return bare.to_owned();
    }
    let host = text.rsplit_once(':').map_or(text, |(host, _)| host);
    host.trim_matches(['[', ']']).to_owned()
}

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
    fn urls_say_if_the_listener_speaks_tls() {
        for (text, host, address) in [
            ("https://127.0.0.1:80", "127.0.0.1", "127.0.0.1:80"),
            ("https://127.0.0.1", "127.0.0.1", "127.0.0.1:9464"),
            ("https://[::1]:80/", "::1", "[::1]:80"),
            ("https://[::1]", "::1", "[::1]:9464"),
        ] {
            let parsed = Address::parse(text);
            assert_eq!(parsed, Ok(Address::Tls(host.to_owned(), address.parse().unwrap())), "{text}");
            let endpoint = Endpoint::new(parsed.unwrap(), None, None).unwrap();
            assert_eq!(endpoint.to_string(), format!("https://{address}"));
        }
        let Ok(Address::Tls(host, _)) = Address::parse("https://localhost:80/") else { panic!() };
        assert_eq!(host, "localhost");
        assert_eq!(Address::parse("http://127.0.0.1:80/"), Ok(Address::Tcp("127.0.0.1:80".parse().unwrap())));
        for text in ["https://", "https:///", "https://127.0.0.1/status", "http://"] {
            assert!(Address::parse(text).is_err(), "{text}");
        }
        let missing = Address::Tls("localhost".to_owned(), ([127, 0, 0, 1], 1).into());
        let error = Endpoint::new(missing, None, Some(Path::new("no-such.crt"))).unwrap_err();
        assert!(error.contains("no-such.crt"), "{error}");
    }

    #[test]
    fn what_has_a_slash_is_a_socket() {
        assert_eq!(Address::parse("./admin.sock"), Ok(Address::Unix("./admin.sock".into())));
        for text in ["unix:/run/admin.sock", "unix:///run/admin.sock"] {
            assert_eq!(Address::parse(text), Ok(Address::Unix("/run/admin.sock".into())), "{text}");
        }
        assert_eq!(Address::parse("unix:admin.sock"), Ok(Address::Unix("admin.sock".into())));
        assert_eq!(Address::parse("127.0.0.1"), Ok(Address::Tcp("127.0.0.1:9464".parse().unwrap())));
        let error = Address::parse("no-such-host.sock").unwrap_err();
        assert!(error.contains("cannot look") && error.ends_with("write ./no-such-host.sock"), "{error}");
        let error = Address::parse("no such name:1").unwrap_err();
        assert!(!error.contains("./"), "{error}");
    }

    /// Tests share one working folder, so the socket has a name of its own there.
    #[test]
    fn a_socket_without_a_slash_is_told_of() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let name = format!("{}.s", folder.path().file_name().unwrap().to_str().unwrap());
        let path = Path::new(&name);
        let socket = std::os::unix::net::UnixListener::bind(path).unwrap();
        let parsed = Address::parse(&name);
        drop(socket);
        std::fs::remove_file(path).unwrap();
        let error = parsed.unwrap_err();
        assert!(
            error.ends_with(&format!("a socket of this name; if it is the path of a socket, write ./{name}")),
            "{error}"
        );
    }

    #[test]
    fn a_gateway_with_a_socket_alone_is_asked_there() {
        let example = include_str!("../../../docs/examples/gateway-a.toml");
        let of = |keys: &str| {
            let text = example.replace("listen = \"127.0.0.1:9464\"", keys);
            let gateway = config::Gateway::parse(Path::new("/etc/a.toml"), &text).unwrap();
            Endpoint::of_file(&gateway.admin.unwrap()).unwrap().to_string()
        };
        assert_eq!(of("socket = \"no-such.sock\""), "/etc/no-such.sock");
        assert_eq!(of("listen = \"127.0.0.1:9464\"\nsocket = \"no-such.sock\""), "127.0.0.1:9464");
    }

    #[test]
    fn of_several_addresses_one_that_listens_is_taken() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(parse_address(&format!("localhost:{port}")), Ok(listener.local_addr().unwrap()));
    }
}
