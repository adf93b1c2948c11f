//! Connections that keep the gateway waiting, and which of them gives way to another one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;

/// How long a connection may take to say something before it has to give way. Who asks at once is
/// heard, however many others come.
const GRACE: Duration = Duration::from_millis(100);
/// The same for the rest of a TLS handshake, which takes the client a round trip.
const SHAKING: Duration = Duration::from_secs(1);

/// How far a connection has come.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress(Arc<AtomicU8>);

/// The steps of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// Nothing has come that means anything.
    Silent,
    /// It has begun a TLS handshake.
    Shaking,
    /// It has asked.
    Asked,
}

impl Progress {
    /// The client's first words of a handshake are there.
    pub(super) fn shakes(&self) {
        self.0.store(1, Relaxed);
    }

    /// A request is there.
    pub(super) fn asks(&self) {
        self.0.store(2, Relaxed);
    }

    fn step(&self) -> Step {
        match self.0.load(Relaxed) {
            0 => Step::Silent,
            1 => Step::Shaking,
            _ => Step::Asked,
        }
    }
}

/// Connections that have asked nothing yet, the oldest first. Bound: that of all connections.
#[derive(Debug, Default)]
pub(super) struct Waiting(Vec<Place>);

#[derive(Debug)]
struct Place {
    progress: Progress,
    task: AbortHandle,
    since: Instant,
}

impl Place {
    /// Returns how long it may still take.
    fn rest(&self, now: Instant) -> Duration {
        let grace = if self.progress.step() == Step::Silent { GRACE } else { SHAKING };
        grace.saturating_sub(now.saturating_duration_since(self.since))
    }
}

impl Waiting {
    pub(super) fn add(&mut self, progress: Progress, task: AbortHandle, now: Instant) {
        self.0.push(Place { progress, task, since: now });
    }

    fn drop_others(&mut self) {
        self.0.retain(|place| place.progress.step() != Step::Asked && !place.task.is_finished());
    }

    /// Returns how long it takes until one has to give way; `None` if there is none.
    pub(super) fn patience(&mut self, now: Instant) -> Option<Duration> {
        self.drop_others();
        self.0.iter().map(|place| place.rest(now)).min()
    }

    /// Ends one, whose place is free a moment later: of those whose time is over the one that has
    /// said least, and of these the oldest.
    pub(super) fn give_way(&mut self, now: Instant) {
        self.drop_others();
        let order = |place: &Place| (!place.rest(now).is_zero(), place.progress.step());
        // The first of equals.
        let least = self.0.iter().enumerate().min_by_key(|(_, place)| order(place));
        if let Some(index) = least.map(|(index, _)| index) {
            self.0.remove(index).task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn who_says_least_gives_way_before_who_came_first() {
        let (start, at) = (Instant::now(), |millis| Duration::from_millis(millis));
        let mut waiting = Waiting::default();
        assert_eq!(waiting.patience(start), None);
        let mut add = |since: u64| {
            let (progress, task) = (Progress::default(), tokio::spawn(pending::<()>()));
            waiting.add(progress.clone(), task.abort_handle(), start + at(since));
            (progress, task)
        };
        let [far, old, young, asked] = [0, 50, 100, 0].map(&mut add);
        far.0.shakes();
        asked.0.asks();
        assert_eq!(waiting.patience(start + at(60)), Some(at(90)));
        assert_eq!(waiting.patience(start + at(150)), Some(at(0)));
        // One that is shaking hands is older, and stays.
        waiting.give_way(start + at(150));
        assert!(old.1.await.unwrap_err().is_cancelled());
        assert_eq!(waiting.patience(start + at(150)), Some(at(50)));
        waiting.give_way(start + at(200));
        assert!(young.1.await.unwrap_err().is_cancelled());
        assert_eq!(waiting.patience(start + at(200)), Some(at(800)));
        waiting.give_way(start + at(1000));
        assert!(far.1.await.unwrap_err().is_cancelled());
        waiting.give_way(start + at(1000));
        assert_eq!(waiting.patience(start + at(1000)), None);
        assert!(!asked.1.is_finished());
    }
}
