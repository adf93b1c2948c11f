//! When reports go out, and what stands in them.

use std::time::Duration;

use super::blocks::{Lost, bits_from};
use super::{Receiver, Window};
use crate::bitmap::WORD;
use crate::stream::report_interval;
use crate::stream::wire::{self, NACK, REPORT_HEADER, Report};

/// After this many packets half of an interval does for a report ...
const PACKETS: u64 = 128;
/// ... or after the window's extent divided by this, if that is more: a report grows with the
/// extent.
const EXTENT_SHARE: u64 = 16;
/// After so many bytes of so many packets it is due whatever the clock says: an eighth of what a
/// sender has room for at least.
const BYTES: u64 = 2 << 20;
/// Packets of the extent for each microsecond between reports of losses: bitmaps are then 64 Mbit/s
/// at most, whatever the extent.
const EXTENT_MICROS: u64 = 64;
/// Reports of copies keep this distance from one another at most, and a quarter of the round-trip
/// time if that is less; so long nothing comes after what seems to be the sender's last packet ...
const ON_REQUEST: u64 = 1_000;
/// ... but no less than this.
const ON_REQUEST_LEAST: u64 = 100;
/// The sending times of packets this far apart in arrival are not compared: the timestamp may have
/// wrapped in between.
const ECHO_VALID: u64 = 10_000_000;
/// Half of how far sending times count before they wrap.
const ECHO_HALF: u32 = (wire::TIME_SPAN / wire::TIME_UNIT / 2) as u32;
/// Without arrivals, reports of something missing become rarer up to this interval ...
const LONGEST: u64 = 1_000_000;
/// ... and end after this many: it is the sender's turn then.
const UNANSWERED: u32 = 16;

/// All times in microseconds of the receiver's clock.
///
/// Rule: `docs/protocol.md#rule-report-when`.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Schedule {
    interval: u64,
    on_request: u64,
    due: Option<u64>,
    /// When a report is due unless another packet comes before: the last one was to be the last.
    #[serde(skip)]
    tail: Option<u64>,
    last_report: Option<u64>,
    /// When the last report on request was sent.
    last_requested: Option<u64>,
    /// The next report answers a request.
    requested: bool,
    last_arrival: u64,
    /// Timestamp of the packet sent last, and when it arrived.
    echo: Option<(u32, u64)>,
    /// Packets since the last report, and their bytes.
    packets: u64,
    #[serde(skip)]
    bytes: u64,
    /// Reports since the last packet.
    unanswered: u32,
    /// The last report told that something is missing.
    lacking: bool,
    number: u32,
    /// The next word of a report that needs several packets.
    part: Option<u64>,
    nacks: Vec<[u8; NACK]>,
}

impl Schedule {
    pub(super) fn new(rtt: Duration) -> Self {
        let mut schedule = Self {
            interval: 0,
            on_request: 0,
            due: None,
            tail: None,
            last_report: None,
            last_requested: None,
            requested: false,
            last_arrival: 0,
            echo: None,
            packets: 0,
            bytes: 0,
            unanswered: 0,
            lacking: false,
            number: 0,
            part: None,
            nacks: Vec::new(),
        };
        schedule.set_rtt(rtt);
        schedule
    }

    pub(super) fn due(&self) -> Option<u64> {
        self.due.into_iter().chain(self.tail).min()
    }

    pub(super) fn last_arrival(&self) -> u64 {
        self.last_arrival
    }

    pub(super) fn set_rtt(&mut self, rtt: Duration) {
        self.interval = report_interval(rtt).as_micros() as u64;
        self.on_request = (rtt.as_micros() as u64 / 4).clamp(ON_REQUEST_LEAST, ON_REQUEST);
    }

    /// A packet of so many bytes arrived.
    pub(super) fn arrived(&mut self, bytes: usize, timestamp: u32, now: u64) {
        self.last_arrival = now;
        self.tail = None;
        self.packets += 1;
        self.bytes += bytes as u64;
        self.unanswered = 0;
        let newer = |(last, at): (u32, u64)| {
            timestamp.wrapping_sub(last) % (2 * ECHO_HALF) < ECHO_HALF || at + ECHO_VALID < now
        };
        if self.echo.is_none_or(newer) {
            self.echo = Some((timestamp, now));
        }
    }

    /// Makes sure that a report follows the arrival of a packet.
    pub(super) fn pace(&mut self, now: u64, extent: u64) {
        let are_many = self.packets >= PACKETS.max(extent / EXTENT_SHARE);
        if are_many && self.bytes >= BYTES {
            return self.at(now);
        }
        let interval = if are_many { self.interval / 2 } else { self.interval };
        self.at(self.last_report.map_or(now, |last| last + interval).max(now));
    }

    /// The sender has nothing more for now, and wants a report: at once, but not for each packet of
    /// many after which more came nevertheless. Reports of another cause do not count, or the one
    /// that a full-rate transfer has just had would hold up the one that ends it.
    pub(super) fn end(&mut self, now: u64) {
        self.request(now, self.on_request.max(self.interval / 2));
        self.tail = Some(now + self.on_request);
    }

    /// A copy came, or a packet beyond the window: the sender does not know what is here.
    pub(super) fn hurry(&mut self, now: u64) {
        self.request(now, self.on_request);
    }

    /// A report is wanted at once, or as long after the last one that was wanted.
    fn request(&mut self, now: u64, apart: u64) {
        self.requested = true;
        self.at(self.last_requested.map_or(now, |last| last + apart).max(now));
    }

    /// Nothing is missing any more. If the last report told otherwise, the sender may be waiting
    /// for nothing but this: it is told at once, which at most doubles the reports.
    pub(super) fn whole(&mut self, now: u64) {
        if self.lacking {
            self.at(now);
        }
    }

    /// Something was lost: a report is wanted at once, but not for each loss of many, and the less
    /// often the longer the bitmap is that it repeats.
    pub(super) fn alarm(&mut self, now: u64, extent: u64) {
        let spacing = (self.interval / 8).clamp(100, 1_000).max((extent / EXTENT_MICROS).min(self.interval));
        self.at(self.last_report.map_or(now, |last| last + spacing).max(now));
    }

    fn at(&mut self, time: u64) {
        self.due = Some(self.due.map_or(time, |due| due.min(time)));
    }

    /// A whole report was written.
    fn reported(&mut self, now: u64, incomplete: bool) {
        self.number = self.number.wrapping_add(1);
        self.part = None;
        (self.packets, self.bytes) = (0, 0);
        self.last_report = Some(now);
        if std::mem::take(&mut self.requested) {
            self.last_requested = Some(now);
        }
        self.unanswered = self.unanswered.saturating_add(1);
        self.lacking = incomplete;
        (self.due, self.tail) = (None, None);
        if incomplete && self.unanswered <= UNANSWERED {
            let backoff = self.unanswered.saturating_sub(4).min(20);
            self.due = Some(now + (self.interval << backoff).min(LONGEST));
        }
    }
}

impl Receiver {
    pub(super) fn write_report(&mut self, out: &mut [u8]) -> Option<usize> {
        if self.schedule.due().is_none_or(|due| due > self.clock.micros()) {
            return None;
        }
        let start = self.window.cumulative & !(WORD - 1);
        let from = self.schedule.part.unwrap_or(start).max(start);
        let (to, words) = self.write_words(from, out)?;
        let nacks = self.schedule.nacks.len();
        let (echo, arrival) = self.schedule.echo.unwrap_or((0, self.clock.micros()));
        let header = Report {
            stream: self.config.stream,
            number: self.schedule.number,
            cumulative: self.window.cumulative,
            arrived: self.stats.arrived,
            echo,
            hold: u32::try_from(self.clock.micros() - arrival).unwrap_or(u32::MAX),
            window: self.window.size as u32,
            offset: ((from - start) / WORD) as u32,
            reorder_time: u32::try_from(self.config.reorder_time.as_micros()).unwrap_or(u32::MAX),
            words: words as u16,
            nacks: nacks as u16,
        };
        header.emit(out.first_chunk_mut()?);
        let list = REPORT_HEADER + words * 8;
        let end = list + nacks * NACK;
        out.get_mut(list..end)?.copy_from_slice(self.schedule.nacks.as_flattened());
        if to >= self.window.highest {
            let incomplete = self.window.cumulative < self.window.highest;
            self.schedule.reported(self.clock.micros(), incomplete);
        } else {
            self.schedule.part = Some(to);
        }
        Some(end)
    }

    /// Writes as many words from `from` on as fit together with their NACKs; where the next part
    /// starts, and the number of words.
    fn write_words(&mut self, from: u64, out: &mut [u8]) -> Option<(u64, usize)> {
        self.schedule.nacks.clear();
        self.blocks.select_anew();
        let mut room = out.len().min(usize::from(u16::MAX)).checked_sub(REPORT_HEADER)?;
        let known = self.lost();
        let mut at = from;
        let mut words = 0;
        while at < self.window.highest {
            let (lost, any) = self.wanted(at, known);
            let starts = |lost: u64| (lost & !(lost << 1)).count_ones() as usize;
            let runs = starts(lost & !any) + starts(lost & any);
            let Some(rest) = room.checked_sub(8 + runs * NACK) else {
                break;
            };
            room = rest;
            let place = REPORT_HEADER + words * 8;
            out.get_mut(place..place + 8)?.copy_from_slice(&self.window.report_word(at).to_be_bytes());
            self.list(at, lost, any);
            words += 1;
            at += WORD;
        }
        // Too little room for even one word: rather no report than an endless one.
        (words > 0 || at >= self.window.highest).then_some((at, words))
    }

    /// The packets of the word at `at` that the sender is asked for, and those of them that stand
    /// for any of their block.
    fn wanted(&mut self, at: u64, lost: Lost) -> (u64, u64) {
        match self.window.missing(at, lost.horizon) {
            0 => (0, 0),
            missing => self.blocks.wanted(at, missing, lost, &self.window),
        }
    }

    /// Adds the runs of `lost` to the NACK list, those of `any` apart from the others.
    fn list(&mut self, at: u64, mut lost: u64, any: u64) {
        self.stats.nacks += u64::from(lost.count_ones());
        while lost != 0 {
            let start = lost.trailing_zeros();
            let is_any = any >> start & 1 == 1;
            let alike = lost & if is_any { any } else { !any };
            let run = (alike >> start).trailing_ones();
            let first = (at + u64::from(start)).saturating_sub(self.window.cumulative) as u32;
            self.schedule.nacks.push(wire::Nack { first, run: run as u16, any: is_any }.emit());
            lost &= !(((1_u128 << run) - 1) << start) as u64;
        }
    }
}

impl Window {
    /// The bitmap's word at `at` as it is reported: everything below `cumulative` is done.
    fn report_word(&self, at: u64) -> u64 {
        self.bits.word(at) | !bits_from(at, self.cumulative)
    }

    /// The packets in the word at `at` that are missing, up to `end`.
    pub(super) fn missing(&self, at: u64, end: u64) -> u64 {
        !self.bits.word(at) & bits_from(at, self.cumulative) & !bits_from(at, end.min(self.highest))
    }
}
