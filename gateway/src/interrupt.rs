//! SIGINT and SIGTERM for commands that run for a while and clean up after themselves.

use std::io;
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

/// As a shell reports a program that SIGINT ended.
const INTERRUPTED: i32 = 130;

/// From now on the first signal sets the flag, and the second one ends the process at once. Needs a
/// runtime whose threads run by themselves.
///
/// `further`: signals that count like SIGINT and SIGTERM. Whoever may run under nohup(1) has none.
///
/// # Errors
/// The system refuses a handler.
pub fn watch(runtime: &Runtime, further: &[SignalKind]) -> io::Result<Arc<AtomicBool>> {
    watch_before(runtime, further, || ())
}

/// Watches as [`watch`] does. The second signal has `at_last` done before the end, which that
/// holds up.
///
/// # Errors
/// The system refuses a handler.
pub fn watch_before(runtime: &Runtime, further: &[SignalKind], at_last: fn()) -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let _guard = runtime.enter();
    for kind in [SignalKind::interrupt(), SignalKind::terminate()].iter().chain(further) {
        let (seen, mut signals) = (Arc::clone(&flag), signal(*kind)?);
        runtime.spawn(async move {
            while signals.recv().await.is_some() {
                if seen.swap(true, Ordering::Release) {
                    at_last();
                    exit(INTERRUPTED);
                }
            }
        });
    }
    Ok(flag)
}
