//! A session that comes while another one is up, and what is logged of it.

use tracing::Level;

use super::*;

/// Another gateway that has the peer's certificate and address: whoever reads the log learns from
/// where each speaks.
#[test]
fn a_session_that_replaces_one_that_is_up_is_warned_of_with_both_addresses() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let told = || std::fs::read_to_string(log.path()).unwrap();
    let start = |config| {
        let control = Control::bind(config).unwrap();
        (control.local_addr().unwrap(), run(control))
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let speak = async {
        let (address, (mut b, _b, _)) = start(config("b", "a", ANYWHERE, ANYWHERE));
        let (former, _a) = start(config("a", "b", ANYWHERE, address));
        assert!(matches!(b.recv().await, Some(Event::Up(_))));
        assert_eq!(told(), "");
        let (now, _a) = start(config("a", "b", ANYWHERE, address));
        assert!(matches!(b.recv().await, Some(Event::Down(DownReason::Replaced))));
        (former, now)
    };
    let warnings = tracing_subscriber::fmt().with_max_level(Level::WARN).with_ansi(false);
    let warnings = warnings.with_writer(Arc::new(log.reopen().unwrap())).finish();
    let (former, now) = tracing::subscriber::with_default(warnings, || patiently(&runtime, speak));
    let both = format!("former={former} now={now}");
    let is_told = |line: &str| line.contains("replaces one that is up") && line.ends_with(&both);
    assert!(told().lines().any(is_told), "{}", told());
}
