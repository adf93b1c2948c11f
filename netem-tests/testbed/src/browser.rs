//! Chromium without a screen, for tests that look at a page.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use crate::http;

/// For a browser to start and to run a script that measures.
const PATIENCE: Duration = Duration::from_secs(60);
/// A longer body is cut.
const MAX_BODY: u64 = 1 << 20;

/// Opens `url` in a browser that knows nothing yet, with these further arguments, and returns its
/// output.
///
/// # Errors
/// There is no Chromium, or it fails: its own words.
pub fn browse(url: &str, arguments: &[&str]) -> io::Result<String> {
    let profile = tempfile::tempdir()?;
    let output = chromium(profile.path()).args(arguments).arg(url).output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}

fn chromium(profile: &Path) -> Command {
    let mut chromium = Command::new("chromium");
    chromium.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]);
    chromium.args(["--disable-background-networking", "--disable-dev-shm-usage"]);
    chromium.arg(format!("--user-data-dir={}", profile.display()));
    chromium
}

/// Returns the page at `url` as it is after its scripts have run for these milliseconds of the
/// browser's own time.
///
/// # Errors
/// See [`browse`].
pub fn page(url: &str, milliseconds: u32) -> io::Result<String> {
    browse(url, &[&format!("--virtual-time-budget={milliseconds}"), "--dump-dom"])
}

/// A window that a page stands in.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Width and height in CSS pixels.
    pub size: (u32, u32),
    /// The user prefers dark pages.
    pub is_dark: bool,
}

impl Window {
    fn arguments(self) -> [String; 2] {
        let (width, height) = self.size;
        // Blink's number of the scheme: 0 is dark, and 1 is light.
        let scheme = u8::from(!self.is_dark);
        [format!("--window-size={width},{height}"), format!("--blink-settings=preferredColorScheme={scheme}")]
    }
}

/// Draws the page at `url` into a file as it stands in a window, after so many milliseconds of the
/// browser's own time.
///
/// # Errors
/// See [`browse`].
pub fn picture(url: &str, window: Window, milliseconds: u32, to: &Path) -> io::Result<()> {
    let [size, scheme] = window.arguments();
    let (budget, to) = (format!("--virtual-time-budget={milliseconds}"), to.display());
    browse(url, &[&size, &scheme, &budget, &format!("--screenshot={to}")]).map(drop)
}

/// Opens the page of an admin listener with a script of the caller's own, and returns what that
/// posts to `measured`.
///
/// The browser gets the page and all that it asks for through a server of ours, since the page
/// itself takes no foreign scripts. The window has no frame: those with one have a least width.
///
/// # Errors
/// There is no Chromium, or the script posts nothing.
pub fn measure(page: SocketAddr, window: Window, script: &str) -> io::Result<String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let own = listener.local_addr()?;
    let profile = tempfile::tempdir()?;
    let mut browser = chromium(profile.path())
        .args(window.arguments())
        .arg(format!("--app=http://{own}/"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let (tell, told) = channel();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for stream in listener.incoming().flatten() {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let tell = tell.clone();
                // A browser connects ahead of its requests, too, and may leave it at that.
                scope.spawn(move || serve(&stream, page, script, &tell));
            }
        });
        let measured = told.recv_timeout(PATIENCE);
        // It would stay for good.
        let ended = browser.kill().and_then(|()| browser.wait());
        is_over.store(true, Ordering::Relaxed);
        // Wakes who listens.
        drop(TcpStream::connect(own));
        ended?;
        measured.map_err(|_| io::Error::other("the script posts nothing"))
    })
}

/// Answers one request: of the page with the script in it, of the script, or of the admin listener.
fn serve(mut stream: &TcpStream, page: SocketAddr, script: &str, tell: &Sender<String>) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(stream);
    let (mut request, mut line, mut length) = (String::new(), String::new(), 0);
    reader.read_line(&mut request)?;
    while reader.read_line(&mut line)? > 2 {
        let (name, value) = line.split_once(':').unwrap_or_default();
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
        line.clear();
    }
    let path = request.split(' ').nth(1).unwrap_or_default();
    let (kind, body) = match path {
        "/measured" => {
            let mut body = String::new();
            reader.take(MAX_BODY.min(length)).read_to_string(&mut body)?;
            // Nobody waits any more once there was one.
            let _ = tell.send(body);
            ("text/plain", String::new())
        }
        "/measure.js" => ("text/javascript", script.to_owned()),
        "/" => {
            let (_, html) = http::exchange(page, "GET", path)?;
            let tag = "<script src=\"measure.js\" defer></script></body>";
            ("text/html; charset=utf-8", html.replace("</body>", tag))
        }
        _ => {
            let kind = match path.rsplit_once('.') {
                Some((_, "css")) => "text/css",
                Some((_, "js")) => "text/javascript",
                _ => "application/json",
            };
            (kind, http::exchange(page, "GET", path)?.1)
        }
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.0 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}
