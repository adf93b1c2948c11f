//! Who may ask: the listeners, the token, and the names that a request may be for.

use std::fmt;
use std::fs::{self, Permissions};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HOST};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_rustls::server::TlsStream;

use super::tls;
use super::waiting::Progress;
use crate::renewal::Tls;
use crate::retention::runtime_directory;

/// A token has so many characters.
const TOKEN: std::ops::RangeInclusive<usize> = 16..=256;

/// A bearer token. Its text is shown nowhere.
#[derive(Clone)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Reads the token that a file holds, without white space around it.
    ///
    /// # Errors
    /// A line that says what is wrong: the file, or that its text is no token.
    pub fn read(path: &Path) -> Result<Self, String> {
        let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let token = str::from_utf8(&bytes).ok().and_then(|text| Self::new(text.trim()));
        token.ok_or_else(|| {
            let (least, most) = (TOKEN.start(), TOKEN.end());
            format!("{}: a token has {least} to {most} visible ASCII characters", path.display())
        })
    }

    fn new(text: &str) -> Option<Self> {
        let is_fit = TOKEN.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_fit.then(|| Self(text.to_owned()))
    }

    /// The value of `Authorization`.
    pub(super) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// Compares in a time that depends on the lengths alone.
    fn is_in(&self, headers: &HeaderMap) -> bool {
        let Some(value) = headers.get(AUTHORIZATION) else { return false };
        let given = value.as_bytes().split_at_checked("Bearer ".len());
        given.is_some_and(|(scheme, token)| {
            scheme.eq_ignore_ascii_case(b"bearer ")
                && verify_slices_are_equal(token, self.0.as_bytes()).is_ok()
        })
    }
}

/// The socket, the token and the certificate, opened before a gateway gives up what it needs for
/// that.
#[derive(Debug, Default)]
pub struct Doors {
    socket: Option<StdUnixListener>,
    token: Option<Token>,
    tls: Option<Arc<Tls>>,
}

impl Doors {
    /// Opens the socket, and reads token and certificate. Under systemd, a socket without a path of
    /// its own is in the unit's runtime directory.
    ///
    /// # Errors
    /// A line that names the file.
    pub fn open(admin: Option<&config::Admin>) -> Result<Self, String> {
        let path = Self::path(admin);
        let Some(admin) = admin else { return Ok(Self::default()) };
        let read = Self::read(admin)?;
        let socket = path.as_deref().map(open_socket).transpose()?;
        Ok(Self { socket, ..read })
    }

    /// Goes on with another process's socket.
    ///
    /// # Errors
    /// A line that names the file.
    pub fn adopt(admin: &config::Admin, socket: StdUnixListener) -> Result<Self, String> {
        Ok(Self { socket: Some(socket), ..Self::read(admin)? })
    }

    /// Reads what the TCP listener needs, if there is to be one.
    fn read(admin: &config::Admin) -> Result<Self, String> {
        if admin.listen.is_none() {
            return Ok(Self::default());
        }
        let token = admin.token.as_deref().map(Token::read).transpose()?;
        let tls = admin.tls.as_ref().map(Tls::open).transpose()?;
        Ok(Self { socket: None, token, tls: tls.map(Arc::new) })
    }

    /// Returns the path of the socket that a gateway with this file opens, if any.
    #[must_use]
    pub fn path(admin: Option<&config::Admin>) -> Option<PathBuf> {
        let usual = || Some(runtime_directory()?.join("admin.sock"));
        admin?.socket.clone().or_else(usual)
    }

    /// Returns the path of the socket at which a gateway with this file answers that runs already.
    /// Where the file names none, the unit's counts if it is there.
    #[must_use]
    pub fn path_of_running(admin: Option<&config::Admin>, of_unit: &Path) -> Option<PathBuf> {
        let unit = || (admin.is_some() && of_unit.exists()).then(|| of_unit.to_owned());
        Self::path(admin).or_else(unit)
    }

    /// The socket.
    #[must_use]
    pub fn socket(&self) -> Option<&StdUnixListener> {
        self.socket.as_ref()
    }

    /// The certificate, with which the TCP listener speaks TLS.
    #[must_use]
    pub fn tls(&self) -> Option<&Arc<Tls>> {
        self.tls.as_ref()
    }

    /// Takes all apart.
    pub fn into_parts(self) -> (Option<StdUnixListener>, Option<Token>, Option<Arc<Tls>>) {
        (self.socket, self.token, self.tls)
    }
}

/// Opens a socket for this user alone. One that nobody listens at makes room.
fn open_socket(path: &Path) -> Result<StdUnixListener, String> {
    let wrong = |error: io::Error| format!("cannot open the admin socket {}: {error}", path.display());
    // What is no socket refuses connections, too.
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let refuses = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && StdUnixStream::connect(path).is_err_and(refuses) {
        fs::remove_file(path).map_err(wrong)?;
    }
    let socket = StdUnixListener::bind(path).map_err(wrong)?;
    fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(wrong)?;
    socket.set_nonblocking(true).map_err(wrong)?;
    Ok(socket)
}

/// A listening socket.
#[derive(Debug)]
pub enum Listener {
    /// `admin.listen`.
    Tcp(TcpListener),
    /// `admin.listen` with a certificate.
    Tls(TcpListener, Arc<Tls>),
    /// `admin.socket`.
    Unix(UnixListener),
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Client {
    /// Somebody at this address.
    Remote(IpAddr),
    /// Somebody who may open the socket: this user, or root.
    Local,
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Remote(address) => address.fmt(f),
            Self::Local => f.write_str("the socket"),
        }
    }
}

/// A connection that has come.
pub(super) enum Arrival {
    /// It may ask.
    Open(Box<dyn Stream>),
    /// It has to shake hands before it may.
    Shaking(TcpStream, Arc<Tls>),
}

impl Arrival {
    /// Shakes hands if need be. `None`: the client has gone, or has been told to come otherwise.
    pub(super) async fn open(self, progress: &Progress) -> io::Result<Option<Box<dyn Stream>>> {
        match self {
            Self::Open(stream) => Ok(Some(stream)),
            Self::Shaking(stream, tls) => {
                let shaken = tls::accept(&tls, stream, progress).await?;
                Ok(shaken.map(|stream| Box::new(stream) as Box<dyn Stream>))
            }
        }
    }
}

/// A connection of any kind.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {
    /// Returns the socket if it is a Unix socket.
    fn into_unix(self: Box<Self>) -> Option<UnixStream>;
}

impl Stream for TcpStream {
    fn into_unix(self: Box<Self>) -> Option<UnixStream> {
        None
    }
}

impl Stream for TlsStream<TcpStream> {
    fn into_unix(self: Box<Self>) -> Option<UnixStream> {
        None
    }
}

impl Stream for UnixStream {
    fn into_unix(self: Box<Self>) -> Option<UnixStream> {
        Some(*self)
    }
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl Listener {
    pub(super) async fn accept(&self) -> io::Result<(Arrival, Client)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, from) = listener.accept().await?;
                Ok((Arrival::Open(Box::new(stream)), Client::Remote(from.ip())))
            }
            Self::Tls(listener, tls) => {
                let (stream, from) = listener.accept().await?;
                Ok((Arrival::Shaking(stream, Arc::clone(tls)), Client::Remote(from.ip())))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok((Arrival::Open(Box::new(stream)), Client::Local))
            }
        }
    }
}

/// Why a request gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// It is for another host: a web page may have its name point here (DNS rebinding).
    Host,
    /// The request is for several hosts. Another reader of it may see another one meant.
    Hosts,
    /// It lacks the token.
    Token,
}

/// Judges the names that a request is for. Addresses cannot be made to point elsewhere.
pub(super) fn is_for_us(headers: &HeaderMap, hosts: &[String]) -> bool {
    // No browser leaves it out.
    let Some(host) = headers.get(HOST) else { return true };
    let Ok(host) = host.to_str() else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let literal = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    match literal {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => {
            name.parse::<IpAddr>().is_ok_and(|address| address.is_ipv4())
                || name.eq_ignore_ascii_case("localhost")
                || hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
        }
    }
}

/// Returns true if no token is asked for, or the right one is there.
pub(super) fn has_token(headers: &HeaderMap, token: Option<&Token>) -> bool {
    token.is_none_or(|token| token.is_in(headers))
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};

    use super::*;

    fn with(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn addresses_and_known_names_are_for_us() {
        let hosts = ["gw-a.example".to_owned()];
        for host in [
            "127.0.0.1:9464",
            "127.0.0.1",
            "[::1]:9464",
            "[::1]",
            "localhost:1",
            "LOCALHOST",
            "GW-a.example:9464",
        ] {
            assert!(is_for_us(&with(HOST, host), &hosts), "{host}");
        }
        assert!(is_for_us(&HeaderMap::new(), &hosts));
        for host in [
            "evil.example",
            "evil.example:9464",
            "127.0.0.1.evil.example",
            "localhost.evil",
            "",
            "[::1",
            "::1",
            "[evil]",
        ] {
            assert!(!is_for_us(&with(HOST, host), &hosts), "{host:?}");
        }
    }

    #[test]
    fn a_token_is_compared_whole() {
        let token = Token::new("0123456789abcdef");
        for value in ["Bearer 0123456789abcdef", "bearer 0123456789abcdef"] {
            assert!(has_token(&with(AUTHORIZATION, value), token.as_ref()), "{value}");
        }
        for value in
            ["Bearer 0123456789abcde", "Bearer 0123456789abcdef0", "Basic 0123456789abcdef", "Bearer ", ""]
        {
            assert!(!has_token(&with(AUTHORIZATION, value), token.as_ref()), "{value}");
        }
        assert!(!has_token(&HeaderMap::new(), token.as_ref()) && has_token(&HeaderMap::new(), None));
        assert_eq!(format!("{:?}", token.unwrap()), "Token");
    }

    #[test]
    fn a_token_file_holds_one_long_word() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        assert!(Token::read(&path).unwrap_err().contains("token"));
        for (text, is_fit) in
            [("0123456789abcdef\n", true), ("short", false), ("0123456789 abcdefg", false), ("", false)]
        {
            fs::write(&path, text).unwrap();
            assert_eq!(Token::read(&path).is_ok(), is_fit, "{text:?}");
        }
        fs::write(&path, b"0123456789abcde\xff").unwrap();
        let error = Token::read(&path).unwrap_err();
        assert!(error.ends_with("token: a token has 16 to 256 visible ASCII characters"), "{error}");
    }

    /// A file of `longhaul init` names none, and the unit has one.
    #[test]
    fn a_running_gateways_socket_is_the_units_where_the_file_names_none() {
        let folder = tempfile::tempdir().unwrap();
        let unit = folder.path().join("admin.sock");
        let admin = |key: &str| {
            let text = include_str!("../../../docs/examples/gateway-a.toml");
            let text = text.replace("[admin]\n", &format!("[admin]\n{key}\n"));
            config::Gateway::parse(Path::new("gateway.toml"), &text).unwrap().admin
        };
        let found = |admin: Option<config::Admin>| Doors::path_of_running(admin.as_ref(), &unit);
        assert_eq!(found(admin("")), None, "nobody is there");
        let _listener = open_socket(&unit).unwrap();
        assert_eq!(found(admin("")), Some(unit.clone()));
        assert_eq!(found(admin("socket = \"own.sock\"")), Some("own.sock".into()));
        assert_eq!(found(None), None, "it answers nobody");
    }

    #[test]
    fn a_socket_left_behind_makes_room_and_one_in_use_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        let first = open_socket(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(open_socket(&path).unwrap_err().contains("admin.sock"));
        drop(first);
        assert!(path.exists());
        open_socket(&path).unwrap();
        // What is no socket stays.
        let file = folder.path().join("file");
        fs::write(&file, "kept").unwrap();
        assert!(open_socket(&file).is_err());
        assert!(file.exists());
    }
}
