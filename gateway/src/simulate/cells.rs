//! Many transfers, shared by threads.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use indicatif::{ProgressBar, ProgressStyle};
use linksim::transfer::{Failure, Outcome, Transfer};

/// A transfer that has run.
pub struct Cell {
    /// The transfer that was run.
    pub transfer: Transfer,
    /// How it went.
    pub outcome: Outcome,
}

/// As many as this process may use.
#[must_use]
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Runs the transfers on so many threads; they come back in the order in which they were given.
/// Each is seeded by itself, so it is the same on any number of threads.
///
/// # Errors
/// The first failure in the order given.
pub fn run(transfers: Vec<Transfer>, threads: usize) -> Result<Vec<Cell>, Failure> {
    let outcomes = map(&transfers, threads, |_, outcome| outcome)?;
    let cells = transfers.into_iter().zip(outcomes);
    Ok(cells.map(|(transfer, outcome)| Cell { transfer, outcome }).collect())
}

/// The same, of each outcome keeping only what `of` makes of it: an outcome holds megabytes.
///
/// # Errors
/// As [`run`].
pub fn map<T: Send>(
    transfers: &[Transfer],
    threads: usize,
    of: impl Fn(&Transfer, Outcome) -> T + Sync,
) -> Result<Vec<T>, Failure> {
    let bar = bar(transfers.iter().map(|transfer| transfer.packets() * transfer.messages).sum());
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.min(transfers.len()) {
            scope.spawn(|| {
                while let Some((index, transfer)) = take(&next, transfers) {
                    let outcome = run_one(transfer, &bar).map(|outcome| of(transfer, outcome));
                    outcomes.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((index, outcome));
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut outcomes = outcomes.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    outcomes.sort_by_key(|(index, _)| *index);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

fn take<'a>(next: &AtomicUsize, transfers: &'a [Transfer]) -> Option<(usize, &'a Transfer)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    Some((index, transfers.get(index)?))
}

fn run_one(transfer: &Transfer, bar: &ProgressBar) -> Result<Outcome, Failure> {
    let packets = transfer.packets();
    let mut shown = 0;
    transfer.run(&mut |done| {
        bar.inc((done - shown) * packets);
        shown = done;
    })
}

/// Counts data packets. Shows itself only on a terminal.
fn bar(packets: u64) -> ProgressBar {
    let bar = ProgressBar::new(packets);
    // A template that does not parse would show as the default one.
    let template = "{bar:32} {percent:>3} %  {human_pos} of {human_len} packets  {elapsed}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
