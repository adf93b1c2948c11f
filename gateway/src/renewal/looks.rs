//! Looks at files that may change by themselves, away from the threads that serve others.

use tokio::task::{JoinHandle, spawn_blocking};

use super::files::{Found, Stamp};

/// Seconds between two looks at the files. A change counts once it is there at two looks, since
/// certificate and key are seldom replaced at one moment.
const LOOK_EVERY: u32 = 5;

/// Knows which state of the files is in force, and which was refused.
pub(super) struct Looks<T> {
    /// In force.
    stamp: Stamp,
    /// At the last look, if it was another one than that in force.
    seen: Option<Stamp>,
    /// Files that were read and found bad.
    refused: Option<Stamp>,
    ticks: u32,
    /// A look that has not ended.
    looking: Option<JoinHandle<Found<T>>>,
}

impl<T: Send + 'static> Looks<T> {
    /// The files were in this state before they were read.
    pub(super) fn new(stamp: Stamp) -> Self {
        Self { stamp, seen: None, refused: None, ticks: 0, looking: None }
    }

    /// Returns the state in force.
    pub(super) fn stamp(&self) -> &Stamp {
        &self.stamp
    }

    /// Called about every second. Begins a look now and then, and returns the outcome of an earlier
    /// one if files have changed. Waits for nothing.
    pub(super) async fn tick(
        &mut self,
        stamp: impl FnOnce() -> Stamp + Send + 'static,
        load: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Option<(Stamp, Result<T, String>)> {
        let mut changed = None;
        if let Some(looking) = self.looking.take_if(|looking| looking.is_finished())
            && let Ok(found) = looking.await
        {
            self.seen = match found {
                Found::Known => None,
                Found::Changing(stamp) => Some(stamp),
                Found::Changed(stamp, loaded) => {
                    changed = Some((stamp.clone(), loaded));
                    Some(stamp)
                }
            };
        }
        self.ticks += 1;
        if self.looking.is_none() && self.ticks >= LOOK_EVERY {
            self.ticks = 0;
            let (known, seen) = (self.stamp.clone(), self.seen.clone());
            self.looking = Some(spawn_blocking(move || Found::of(stamp(), &known, seen.as_ref(), load)));
        }
        changed
    }

    /// Files in this state are in force.
    pub(super) fn adopted(&mut self, stamp: Stamp) {
        self.stamp = stamp;
        (self.seen, self.refused) = (None, None);
    }

    /// Files in this state were refused. Returns true if that is news. Those whose time is still to
    /// come are read again.
    pub(super) fn refused(&mut self, stamp: Stamp) -> bool {
        self.refused.replace(stamp.clone()) != Some(stamp)
    }
}
