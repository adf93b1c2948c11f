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
/// # Errors
/// The system refuses a handler.
pub fn watch(runtime: &Runtime) -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&flag);
    let _guard = runtime.enter();
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    runtime.spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if seen.swap(true, Ordering::Release) {
                exit(INTERRUPTED);
            }
        }
    });
    Ok(flag)
}
