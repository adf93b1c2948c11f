//! The chooser's thread: it sleeps nearly always, and shares nothing with the packet path.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use config::Policy;
use splice::Tuning;
use tokio::sync::watch;

use super::{Chooser, Sighting};
use crate::telemetry::{ClassSnapshot, Snapshot, Telemetry};

const EVERY: Duration = Duration::from_millis(500);

/// Runs until it is dropped.
pub struct ChooserThread {
    /// `None` once it is to end.
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ChooserThread {
    /// Starts it, with what each data-plane thread sees. `order` hands a policy, the index of a class in it and what to set on the class's streams to all of them.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(
        mut chooser: Chooser,
        sightings: Vec<watch::Receiver<Sighting>>,
        telemetry: Arc<Telemetry>,
        order: impl Fn(&Arc<Policy>, usize, Tuning) + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new().name("chooser".to_owned()).spawn(move || {
            let counts = telemetry.plane();
            let look = || Sighting::of_all(sightings.iter().map(|sighting| sighting.borrow().clone()));
            let mut cells = look().map(|sighting| sighting.cells);
            while let Some(sighting) = look() {
                for (class, tuning) in chooser.step(&sighting, Instant::now()) {
                    order(&sighting.policy, class, tuning);
                }
                let mut snapshot = Snapshot::default();
                for (class, switches) in chooser.switches() {
                    if let Some(cell) = sighting.cells.order().get(class) {
                        snapshot.set_switches(*cell, switches);
                    }
                }
                for cell in cells.iter().flat_map(|before| sighting.cells.changed(before)) {
                    counts.restart(cell, &ClassSnapshot::default());
                }
                cells = Some(Arc::clone(&sighting.cells));
                counts.store(&snapshot);
                telemetry.set_choices(chooser.choices().collect());
                if stopped.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for ChooserThread {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // If it panicked, the schemes stayed what they were, and the panic has been printed.
            let _ = thread.join();
        }
    }
}
