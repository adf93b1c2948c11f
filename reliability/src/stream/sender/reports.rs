//! A [`Sender`]'s way with REPORTs: what they acknowledge, ask for and measure.

use std::time::{Duration, Instant};

use super::Sender;
use super::loss::MAX_TIMEOUT;
use super::queue::Slot;
use super::redundancy::Asked;
use super::wire::{self, Malformed, Report};
use crate::bitmap::WORD;

/// The longest that a receiver may wait for overtaken packets, if that is more than a round trip.
const MOST_REORDER_TIME: Duration = Duration::from_millis(10);

impl Sender {
    /// Takes a REPORT.
    ///
    /// # Errors
    /// [`Malformed`] if it is none, belongs to another stream or acknowledges what was never sent;
    /// it changed nothing.
    pub fn handle_report(&mut self, packet: &[u8], now: Instant) -> Result<(), Malformed> {
        self.clock.advance(now);
        let (report, words, nacks) = Report::parse(packet)?;
        if report.stream != self.config.stream {
            return Err(Malformed::Stream(report.stream));
        }
        if report.cumulative > self.queue.next() {
            return Err(Malformed::Report);
        }
        self.stats.reports += 1;
        self.stats.reported_arrived = self.stats.reported_arrived.max(report.arrived);
        let known = self.measure(&report);
        self.acknowledge(&report, words, known);
        self.advertised = u64::from(report.window);
        self.limit = self.limit.max(report.cumulative.saturating_add(self.advertised));
        for nack in nacks {
            let nack = wire::Nack::parse(*nack);
            let first = report.cumulative + u64::from(nack.first);
            for sequence in first..(first + u64::from(nack.run)).min(self.queue.next()) {
                self.stats.nacks += 1;
                let asked = Asked { sequence, report: report.number, known };
                if !nack.any || !self.redundancy.answers(&asked, &self.queue) {
                    self.loss.nack(sequence, known, &mut self.queue);
                }
            }
        }
        self.redundancy.answer(&self.outlook());
        self.loss.heard(known);
        self.loss.settle(&self.queue);
        self.adopt_scheme();
        Ok(())
    }

    /// Takes the RTT sample, and returns up to which sending time the report tells what has
    /// arrived.
    fn measure(&mut self, report: &Report) -> u64 {
        // An echo from before the stream began, or held longer than its packet has been away, says
        // nothing. The latter looks like a round trip of nearly all that sending times span.
        let Some(heard) = self.clock.micros().checked_sub(report.hold.into()) else { return 0 };
        let sent = u64::from(report.echo) * wire::TIME_UNIT;
        let elapsed = heard.wrapping_sub(sent) % wire::TIME_SPAN;
        if elapsed > heard || elapsed >= wire::TIME_SPAN / 2 {
            return 0;
        }
        let newer = self.last_report.is_none_or(|last| (report.number.wrapping_sub(last) as i32) > 0);
        if newer {
            self.last_report = Some(report.number);
            self.rtt.sample(Duration::from_micros(elapsed));
            self.set_reorder_time(Duration::from_micros(u64::from(report.reorder_time)));
            self.foresee();
        }
        self.clock.micros() - elapsed
    }

    /// The receiver waits so long before it asks. One that waits longer than any timeout never
    /// asks, and no timeout need wait for it. Nor is more believed than twice of what a receiver
    /// may wait.
    fn set_reorder_time(&mut self, time: Duration) {
        let never = time >= MAX_TIMEOUT;
        let time = time.min(2 * self.rtt.smoothed().max(MOST_REORDER_TIME));
        if time != self.config.reorder_time && !never {
            self.config.reorder_time = time;
            self.loss.set_reorder(time);
            self.redundancy.set_reorder_time(time);
        }
    }

    fn acknowledge(&mut self, report: &Report, words: &[[u8; 8]], known: u64) {
        let start = (report.cumulative & !(WORD - 1)) + u64::from(report.offset) * WORD;
        let end = report.cumulative.max(start + words.len() as u64 * WORD);
        self.redundancy.before_acknowledging(end, &self.queue);
        for sequence in self.queue.base()..report.cumulative {
            self.count_if_spurious(sequence, known);
            self.queue.acknowledge(sequence);
        }
        // Not yet released, so that the bitmap of what is acknowledged holds all of the words
        // below.
        let words = words.iter().map(|bytes| u64::from_be_bytes(*bytes));
        for (at, word) in (start..self.queue.next()).step_by(WORD as usize).zip(words) {
            let mut fresh = self.queue.unacknowledged(at) & word;
            while fresh != 0 {
                let sequence = at + u64::from(fresh.trailing_zeros());
                self.count_if_spurious(sequence, known);
                self.queue.acknowledge(sequence);
                fresh &= fresh - 1;
            }
        }
        self.queue.release();
        self.redundancy.settle(&mut self.queue);
    }

    fn count_if_spurious(&mut self, sequence: u64, known: u64) {
        // With extra copies it cannot be told which one of them was needed.
        let needless = |slot: &Slot| {
            let left_after = slot.sent >= known + wire::TIME_UNIT;
            !slot.acknowledged && slot.tries > 0 && !slot.queued && !slot.copied && left_after
        };
        if self.queue.slot(sequence).is_some_and(needless) {
            self.stats.spurious_repairs += 1;
        }
    }
}
