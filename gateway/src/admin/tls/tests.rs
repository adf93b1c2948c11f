//! The listener over TLS, on loopback.

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use super::*;
use crate::admin::tests::{admin, listening};
use crate::admin::{Address, Admin, Endpoint, FetchError, Listener, fetch, reload};
use crate::renewal::ListenerRenewal;
use crate::telemetry::{Telemetry, Validity};

const NEVER: Duration = Duration::from_secs(100_000);
const HOUR: Duration = Duration::from_secs(60 * 60);

/// Makes a certificate for this machine, which is its own authority, and its key.
fn make(dir: &Path) -> config::AdminTls {
    make_with(dir, IsCa::NoCa)
}

fn make_with(dir: &Path, is_ca: IsCa) -> config::AdminTls {
    let names = ["127.0.0.1".to_owned(), "localhost".to_owned()];
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(names).unwrap();
    params.is_ca = is_ca;
    let certificate = params.self_signed(&key).unwrap();
    let files = config::AdminTls { certificate: dir.join("admin.crt"), key: dir.join("admin.key") };
    fs::write(&files.certificate, certificate.pem()).unwrap();
    fs::write(&files.key, key.serialize_pem()).unwrap();
    fs::set_permissions(&files.key, Permissions::from_mode(0o600)).unwrap();
    files
}

async fn serving(admin: Arc<Admin>, tls: &Arc<Tls>, time: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(admin.serve_within(Listener::Tls(listener, Arc::clone(tls)), time, true));
    address
}

fn endpoint(host: &str, address: SocketAddr, authority: &Path) -> Endpoint {
    Endpoint::new(Address::Tls(host.to_owned(), address), None, Some(authority)).unwrap()
}

/// A listener with a certificate of its own, and who trusts it.
async fn listener(time: Duration) -> (tempfile::TempDir, Arc<Tls>, Endpoint) {
    let folder = tempfile::tempdir().unwrap();
    let files = make(folder.path());
    let tls = Arc::new(Tls::open(&files).unwrap());
    let address = serving(admin(Instant::now()).0, &tls, time).await;
    let endpoint = endpoint("127.0.0.1", address, &files.certificate);
    (folder, tls, endpoint)
}

fn address(endpoint: &Endpoint) -> SocketAddr {
    endpoint.to_string().trim_start_matches("https://").parse().unwrap()
}

#[tokio::test]
async fn a_scrape_over_tls_checks_the_certificate() {
    let (folder, _, by_address) = listener(HOUR).await;
    let own = folder.path().join("admin.crt");
    assert!(fetch(&by_address, "/metrics").await.unwrap().contains("longhaul_build_info"));
    let at = address(&by_address);
    fetch(&endpoint("localhost", at, &own), "/status").await.unwrap();
    let other = tempfile::tempdir().unwrap();
    let other = make(other.path()).certificate;
    for (host, authority, remedy) in [
        ("127.0.0.1", &other, "--admin-authority"),
        ("gw.example", &own, "a name or address that the certificate"),
    ] {
        let refused = fetch(&endpoint(host, at, authority), "/status").await.unwrap_err();
        assert!(matches!(refused, FetchError::Tls { .. }), "{refused}");
        assert!(refused.to_string().contains(remedy), "{refused}");
    }
    // A reload gets as far as without TLS: here nobody is left to do it.
    let stopping = reload(&by_address).await.unwrap_err().to_string();
    assert!(stopping.contains("answers 503"), "{stopping}");
}

/// `openssl req -x509` makes such ones by itself.
#[tokio::test]
async fn a_certificate_that_is_an_authority_is_its_own() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let [files, other] =
        [&folder, &other].map(|folder| make_with(folder.path(), IsCa::Ca(BasicConstraints::Unconstrained)));
    let tls = Arc::new(Tls::open(&files).unwrap());
    let at = serving(admin(Instant::now()).0, &tls, HOUR).await;
    fetch(&endpoint("127.0.0.1", at, &files.certificate), "/status").await.unwrap();
    let refused = fetch(&endpoint("gw.example", at, &files.certificate), "/status").await.unwrap_err();
    assert!(refused.to_string().contains("a name or address that the certificate"), "{refused}");
    let refused = fetch(&endpoint("127.0.0.1", at, &other.certificate), "/status").await.unwrap_err();
    assert!(refused.to_string().contains("--admin-authority"), "{refused}");
    // As `check --live` does, which has the certificate from the gateway's file.
    let known = |path: &Path| Endpoint::with_certificate(at, path).unwrap();
    fetch(&known(&files.certificate), "/status").await.unwrap();
    let refused = fetch(&known(&other.certificate), "/status").await.unwrap_err();
    assert!(matches!(refused, FetchError::Tls { .. }), "{refused}");
}

#[tokio::test]
async fn each_side_is_told_if_the_other_speaks_no_tls() {
    let (folder, _, by_tls) = listener(HOUR).await;
    let plain = fetch(&address(&by_tls).into(), "/metrics").await.unwrap_err().to_string();
    assert!(plain.contains("answers 400") && plain.contains("ask at https://"), "{plain}");
    let mut stream = TcpStream::connect(address(&by_tls)).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut text = Vec::new();
    stream.read_to_end(&mut text).await.unwrap();
    assert_eq!(text, PLAIN);
    // A listener without a certificate.
    let at = listening(&admin(Instant::now()).0).await;
    let refused = fetch(&endpoint("127.0.0.1", at, &folder.path().join("admin.crt")), "/status").await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("ask without https://"), "{refused}");
}

/// Who says nothing, or begins a handshake and no more, has to give way.
#[tokio::test]
async fn idle_handshakes_do_not_delay_a_scrape() {
    let (_folder, _, endpoint) = listener(NEVER).await;
    let mut idle = Vec::new();
    for nth in 0..64 {
        let mut stream = TcpStream::connect(address(&endpoint)).await.unwrap();
        if nth % 2 == 0 {
            stream.write_all(&[HANDSHAKE, 3, 1, 2, 0, 1]).await.unwrap();
        }
        idle.push(stream);
    }
    for _ in 0..3 {
        let answer = timeout(Duration::from_secs(60), fetch(&endpoint, "/metrics")).await;
        answer.expect("no place is free").unwrap();
    }
    drop(idle);
}

/// Passes bytes on each way, but that each waits for a while.
async fn far_away(from: TcpListener, to: SocketAddr) {
    let (near, _) = from.accept().await.unwrap();
    let far = TcpStream::connect(to).await.unwrap();
    let ((mut a, mut b), (mut c, mut d)) = (near.into_split(), far.into_split());
    let carry = async |from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf| {
        let mut bytes = [0; 4096];
        while let Ok(len @ 1..) = from.read(&mut bytes).await {
            tokio::time::sleep(Duration::from_millis(75)).await;
            if to.write_all(&bytes[..len]).await.is_err() {
                break;
            }
        }
    };
    tokio::join!(carry(&mut a, &mut d), carry(&mut c, &mut b));
}

/// A scraper whose handshake takes longer than silent clients may be silent, among many of those.
#[tokio::test]
async fn a_scraper_far_away_is_answered_at_the_first_try() {
    let (folder, _, by_address) = listener(NEVER).await;
    let at = address(&by_address);
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let through = endpoint("localhost", proxy.local_addr().unwrap(), &folder.path().join("admin.crt"));
    let mut idle = Vec::new();
    for _ in 0..32 {
        idle.push(TcpStream::connect(at).await.unwrap());
    }
    let (proxy, scrape) = (tokio::spawn(far_away(proxy, at)), fetch(&through, "/metrics"));
    tokio::pin!(scrape);
    // Each takes somebody's place, as soon as that has been silent for long enough.
    let text = loop {
        tokio::select! {
            text = &mut scrape => break text,
            stream = TcpStream::connect(at) => idle.push(stream.unwrap()),
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    assert!(text.unwrap().contains("longhaul_build_info"));
    proxy.abort();
}

#[tokio::test]
async fn a_handshake_has_no_more_time_than_a_connection() {
    let (_folder, _, endpoint) = listener(Duration::from_millis(20)).await;
    for first in [&[][..], &[HANDSHAKE, 3, 1, 2, 0, 1]] {
        let mut stream = TcpStream::connect(address(&endpoint)).await.unwrap();
        stream.write_all(first).await.unwrap();
        let mut text = Vec::new();
        // Closed by the gateway, whether by a reset or in order.
        let _ = stream.read_to_end(&mut text).await;
        assert!(text.is_empty(), "{text:?}");
    }
}

/// Looks until this holds: a look has to end, and files have to be the same at two.
async fn look_until(renewal: &mut ListenerRenewal, holds: impl Fn() -> bool) {
    for _ in 0..100_000 {
        renewal.look().await;
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("nobody notices");
}

#[tokio::test]
async fn a_certificate_is_replaced_while_the_listener_serves() {
    let (folder, tls, first) = listener(HOUR).await;
    let telemetry = Arc::new(Telemetry::new(Instant::now()));
    let mut renewal = ListenerRenewal::new(Arc::clone(&tls), Arc::clone(&telemetry));
    assert_eq!(telemetry.expiry(Validity::Admin), tls.current().valid_until());
    assert!(renewal.read().await.map(|read| renewal.adopt(read)).unwrap().is_none(), "it is the same");
    let events =
        |words: &str| serde_json::to_string(&telemetry.events().since(0)).unwrap().matches(words).count();

    // A bad file is told of once, and changes nothing.
    let files = tls.files().clone();
    let good = fs::read(&files.key).unwrap();
    fs::write(&files.key, "no key").unwrap();
    let refused = renewal.read().await.unwrap_err();
    assert!(refused.contains("admin.key"), "{refused}");
    look_until(&mut renewal, || events("refused: ") > 0).await;
    for _ in 0..50 {
        renewal.look().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(events("refused: "), 1);
    fetch(&first, "/status").await.unwrap();

    // Another one is noticed, and clients see it; those of the first do not trust it.
    fs::write(&files.key, good).unwrap();
    make(folder.path());
    look_until(&mut renewal, || events("certificate of the admin listener") > 0).await;
    assert!(fetch(&first, "/status").await.is_err());
    fetch(&endpoint("127.0.0.1", address(&first), &files.certificate), "/status").await.unwrap();
    // And so by a reload, at once.
    make(folder.path());
    let read = renewal.read().await.unwrap();
    let change = renewal.adopt(read).unwrap();
    assert!(change.contains("expires at"), "{change}");
    fetch(&endpoint("127.0.0.1", address(&first), &files.certificate), "/status").await.unwrap();
}

#[test]
fn what_is_wrong_names_file_fault_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let files = make(folder.path());
    fs::set_permissions(&files.key, Permissions::from_mode(0o644)).unwrap();
    let wrong = Tls::open(&files).unwrap_err();
    assert!(
        wrong.contains("admin.key: others may read it (mode 0644)") && wrong.contains("chmod o="),
        "{wrong}"
    );
    fs::set_permissions(&files.key, Permissions::from_mode(0o600)).unwrap();
    fs::write(&files.key, KeyPair::generate().unwrap().serialize_pem()).unwrap();
    let wrong = Tls::open(&files).unwrap_err();
    assert!(wrong.contains("admin.crt, ") && wrong.contains("admin.key: certificate and key"), "{wrong}");
    let missing = config::AdminTls { certificate: PathBuf::from("no-such.crt"), ..files };
    assert!(Tls::open(&missing).unwrap_err().contains("no-such.crt"));
}

/// The program that most scripts ask by.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl_is_answered() {
    let (folder, _, endpoint) = listener(HOUR).await;
    let ask = |arguments: &[&str]| {
        let mut curl = std::process::Command::new("curl");
        curl.args(["--silent", "--show-error", "--noproxy", "*", "--max-time", "60"]).args(arguments);
        let output = tokio::task::block_in_place(|| curl.output()).unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), String::from_utf8(output.stdout).unwrap(), error)
    };
    let (url, own) = (format!("{endpoint}/metrics"), folder.path().join("admin.crt"));
    let own = own.to_str().unwrap();
    let (is_answered, text, error) = ask(&["--cacert", own, &url]);
    assert!(is_answered && text.contains("longhaul_build_info"), "{error}");
    let (is_answered, _, error) = ask(&[&url]);
    assert!(!is_answered && error.contains("certificate"), "{error}");
    let (_, text, error) = ask(&[&url.replace("https", "http")]);
    assert!(text.contains("ask at https://"), "{text} {error}");
    let (is_answered, _, error) = ask(&["--cacert", own, "--tls-max", "1.2", &url]);
    assert!(!is_answered && !error.is_empty(), "TLS 1.2 is none of ours");
}
