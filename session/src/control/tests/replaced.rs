//! A session that comes while another one is up, and what is logged of it.

use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};

use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Metadata, Subscriber};

use super::*;

/// The warnings that are logged, a line each.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = String::new();
        event.record(&mut |field: &Field, value: &dyn Debug| line += &format!("{field}={value:?} "));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Control in the runtime that this is called in; its address, and its events.
fn start(config: Config) -> (SocketAddr, mpsc::Receiver<Event>, mpsc::Sender<Command>) {
    let (events, received) = mpsc::channel(4);
    let (commands, given) = mpsc::channel(4);
    let control = Control::bind(config).unwrap();
    let address = control.local_addr().unwrap();
    tokio::spawn(control.run(events, given));
    (address, received, commands)
}

/// Another gateway that has the peer's certificate and address: whoever reads the log learns from
/// where each speaks.
#[test]
fn a_session_that_replaces_one_that_is_up_is_warned_of_with_both_addresses() {
    let warnings = Warnings::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let speak = async {
        let (address, mut b, _b) = start(config("b", "a", ANYWHERE, ANYWHERE));
        let (former, _events, _a) = start(config("a", "b", ANYWHERE, address));
        assert!(matches!(b.recv().await, Some(Event::Up(_))));
        assert_eq!(*warnings.0.lock().unwrap(), [""; 0]);
        let (now, _events, _a) = start(config("a", "b", ANYWHERE, address));
        assert!(matches!(b.recv().await, Some(Event::Down(DownReason::Replaced))));
        (former, now)
    };
    let (former, now) = tracing::subscriber::with_default(warnings.clone(), || patiently(&runtime, speak));
    let told = warnings.0.lock().unwrap();
    let both = format!("former={former} now={now} ");
    assert!(
        told.iter().any(|line| line.contains("replaces one that is up") && line.contains(&both)),
        "{told:?}"
    );
}
