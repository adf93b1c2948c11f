//! The chooser's thread: it sleeps nearly always, and shares nothing with the packet path.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use config::Policy;
use splice::Tuning;
use tokio::sync::watch;

use crate::cells::Cells;
use crate::choose::{Chooser, PathSnapshot};
use crate::telemetry::{ClassSnapshot, Snapshot, Telemetry, WorkerCounters};

const EVERY: Duration = Duration::from_millis(500);

/// Runs until it is dropped.
pub(super) struct ChooserThread {
    /// `None` once it is to end.
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ChooserThread {
    /// Starts it, with what each data-plane thread sees. `order` hands a policy, the index of a
    /// class in it and what to set on the class's streams to all of them.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub(super) fn start(
        mut chooser: Chooser,
        sightings: Vec<watch::Receiver<PathSnapshot>>,
        telemetry: Arc<Telemetry>,
        order: impl Fn(&Arc<Policy>, usize, Tuning) + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new().name("chooser".to_owned()).spawn(move || {
            let counts = telemetry.plane();
            let mut cells = None;
            loop {
                let sightings = sightings.iter().map(|sighting| sighting.borrow().clone());
                // While the data-plane threads do not agree, at the next time.
                if let Some(sighting) = PathSnapshot::of_all(sightings) {
                    for (class, tuning) in chooser.step(&sighting, Instant::now()) {
                        order(&sighting.policy, class, tuning);
                    }
                    let before = cells.replace(Arc::clone(&sighting.cells));
                    show(&chooser, &sighting.cells, before.as_deref(), &counts);
                    telemetry.set_choices(chooser.choices().collect());
                }
                if stopped.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

/// Counts changes of schemes in their classes' cells.
fn show(chooser: &Chooser, cells: &Cells, before: Option<&Cells>, counts: &WorkerCounters) {
    let mut snapshot = Snapshot::default();
    for (class, switches) in chooser.switches() {
        if let Some(cell) = cells.order().get(class) {
            snapshot.set_switches(*cell, switches);
        }
    }
    for cell in before.into_iter().flat_map(|before| cells.changed(before)) {
        counts.restart(cell, &ClassSnapshot::default());
    }
    counts.store(&snapshot);
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
