//! Reliability layers on the public interface: selective repeat, erasure coding, and a choice of
//! both.
//!
//! A message is cut into parts, and a part is a streaming send.
//! [`Scheme::SrRto`] repeats a chunk that was not acknowledged in time.
//! [`Scheme::SrNack`] repeats it as soon as the receiver names it.
//! [`Scheme::Ec`] adds a second send with parity chunks to each part of `k` chunks.
//! If too much of both was lost, the receiver asks for selective repeat after the fallback timeout.
//!
//! Both sides use the same scheme for the same message, since sends and receives match by order.
//! Lengths are agreed on above. Like the core, layers have no I/O and no clock.
//!
//! Both sides measure the round trip by echoes, and the sender its rate, all the time.
//! [`Sending::path`] tells both, for [`choose`]; `switch` takes another scheme for later messages.

mod coded;
mod letter;
mod meter;
mod receiving;
mod sending;

use std::time::{Duration, Instant};

use fec::Code;
use reliability::link::Link;
use reliability::model::{Candidate, Timers};
use reliability::selector::{Allowed, Bucket, Config, Estimate, Load, Objective, Selector};

use crate::shape::Shape;

pub use meter::Path;
pub use receiving::{ReceiveError, Receiving};
pub use sending::{Sending, TransferError};

/// Messages that a side may have under way.
pub const MOST_MESSAGES: usize = 1024;

/// Parts of messages that may wait for their slots.
pub const MOST_PARTS: usize = 1 << 20;

/// A way to repair losses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scheme {
    /// Selective repeat after a timeout.
    SrRto,
    /// Selective repeat of chunks that the receiver names, and after a timeout.
    SrNack,
    /// Parity chunks, and selective repeat where they do not suffice.
    Ec(Code),
}

/// Timers of a layer at its start. The default multiples are those of the published model.
///
/// Round trip and rate are measured from then on, and each timer keeps its ratio to the round trip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Round-trip time.
    pub rtt: Duration,
    /// Rate of the sender, in bit/s: it tells when a chunk leaves.
    pub rate: u64,
    /// Time after which a chunk that left and was not acknowledged is repeated.
    pub rto: Duration,
    /// Time that a chunk may be overtaken before it is taken to be lost.
    pub reorder: Duration,
    /// Slack of the fallback timeout.
    pub slack: Duration,
    /// Time from posting after which a receiver asks for selective repeat, whatever came.
    pub global: Duration,
}

impl Timing {
    /// Derives all timers: RTO 3 RTT, reordering RTT / 8, slack RTT / 4, global 4 RTT.
    #[must_use]
    pub fn new(rtt: Duration, rate: u64) -> Self {
        Timing { rtt, rate, rto: rtt * 3, reorder: rtt / 8, slack: rtt / 4, global: rtt * 4 }
    }

    /// Returns these timers for another round trip and rate, with the same ratios.
    #[must_use]
    fn at(&self, rtt: Duration, rate: u64) -> Self {
        if self.rtt.is_zero() {
            return Timing { rtt, rate, ..*self };
        }
        let ratio = rtt.as_secs_f64() / self.rtt.as_secs_f64();
        let scale =
            |timer: Duration| Duration::try_from_secs_f64(timer.as_secs_f64() * ratio).unwrap_or(timer);
        Timing {
            rtt,
            rate,
            rto: scale(self.rto),
            reorder: scale(self.reorder),
            slack: scale(self.slack),
            global: scale(self.global),
        }
    }

    /// Returns how long `bytes` take to leave.
    fn injection(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 * 8.0 / self.rate.max(1) as f64)
    }

    /// Pause between two reports on a part.
    fn report(&self) -> Duration {
        self.rtt / 4
    }
}

/// A scheme that does not fit a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a part has {chunks} chunks, and the largest message {most}")]
pub struct SchemeError {
    /// Chunks of a part.
    pub chunks: u64,
    /// Chunks of the largest message.
    pub most: u64,
}

/// A text that names no scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a scheme is rto, nack, mds:K,M or xor:K,M")]
pub struct UnknownScheme;

/// `rto`, `nack`, `mds:K,M` or `xor:K,M`.
impl std::str::FromStr for Scheme {
    type Err = UnknownScheme;

    fn from_str(text: &str) -> Result<Self, UnknownScheme> {
        let code = |of: &str, make: fn(usize, usize) -> Result<Code, _>| {
            let (k, m) = of.split_once(',').ok_or(UnknownScheme)?;
            let number = |text: &str| text.parse().map_err(|_| UnknownScheme);
            make(number(k)?, number(m)?).map(Scheme::Ec).map_err(|_| UnknownScheme)
        };
        match text.split_once(':') {
            None if text == "rto" => Ok(Scheme::SrRto),
            None if text == "nack" => Ok(Scheme::SrNack),
            Some(("mds", of)) => code(of, Code::mds),
            Some(("xor", of)) => code(of, Code::xor),
            _ => Err(UnknownScheme),
        }
    }
}

impl Scheme {
    /// Checks that parts and parity fit into messages of the queue pair.
    ///
    /// # Errors
    /// [`SchemeError`]
    pub fn check(&self, shape: &Shape) -> Result<(), SchemeError> {
        let most = u64::from(shape.max_message() / shape.chunk());
        let chunks = match self {
            Scheme::SrRto | Scheme::SrNack => 0,
            // Each part has two slots.
            Scheme::Ec(_) if shape.slots() < 2 => return Err(SchemeError { chunks: 2, most: 1 }),
            Scheme::Ec(code) => code.k().max(code.m()) as u64,
        };
        if chunks > most { Err(SchemeError { chunks, most }) } else { Ok(()) }
    }

    /// Bytes of a full part.
    fn part(&self, shape: &Shape) -> usize {
        match self {
            Scheme::SrRto | Scheme::SrNack => shape.max_message() as usize,
            Scheme::Ec(code) => code.k() * shape.chunk() as usize,
        }
    }

    /// Lengths of the parts of a message of `bytes` bytes.
    fn parts(&self, shape: &Shape, bytes: usize) -> impl ExactSizeIterator<Item = usize> + use<> {
        let part = self.part(shape);
        (0..bytes.div_ceil(part)).map(move |at| part.min(bytes - at * part))
    }

    fn code(&self) -> Option<&Code> {
        match self {
            Scheme::SrRto | Scheme::SrNack => None,
            Scheme::Ec(code) => Some(code),
        }
    }
}

/// Chooses the scheme for messages of `bytes` bytes: the layer `auto`.
///
/// It asks [`reliability::selector`] with the chunk as its packet.
/// `link` describes single packets; a chunk is lost if one of its packets is.
/// [`Path::link`] makes it of what is measured.
/// Both sides come to the same choice from the same arguments.
#[must_use]
pub fn choose(shape: &Shape, link: &Link, bytes: u64, percentile: f64, now: Instant) -> Scheme {
    let packets = f64::from(shape.packets_per_chunk());
    let drop = 1.0 - (1.0 - link.drop()).powf(packets);
    let chunks = Link { drop, burst: 1.0, packet: shape.chunk() as usize, ..*link };
    let allowed = Allowed { hybrid: false, ..Allowed::ALL };
    // A part is a message of the queue pair, so blocks are no longer than that.
    let most = shape.max_message() / shape.chunk();
    let max_block = u8::try_from(most).unwrap_or(u8::MAX);
    let objective = Objective { percentile, max_overhead: 0.5, max_block, allowed };
    let mut selector = Selector::new(objective, Config { timers: timers(link.rtt), ..Config::default() });
    let estimate = Estimate::exact(chunks);
    let decision = selector.evaluate(Bucket::of(bytes), &Load::default(), &estimate, now);
    let code = match decision.chosen.candidate {
        Candidate::Sr | Candidate::Hybrid(_) => None,
        Candidate::Xor(block) => Code::xor(block.k.into(), block.m.into()).ok(),
        Candidate::Mds(block) => Code::mds(block.k.into(), block.m.into()).ok(),
    };
    code.map(Scheme::Ec).filter(|scheme| scheme.check(shape).is_ok()).unwrap_or(Scheme::SrNack)
}

/// Returns the timers that layers have on a path of this round trip, as the model takes them.
fn timers(rtt: Duration) -> Timers {
    let timing = Timing::new(rtt, 0);
    let round_trips = |time: Duration| time.as_secs_f64() / rtt.as_secs_f64().max(f64::MIN_POSITIVE);
    Timers {
        reorder_time: timing.reorder,
        // Parity leaves at once.
        flush: Duration::ZERO,
        beta: round_trips(timing.slack),
        alpha: round_trips(timing.rto.saturating_sub(rtt)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::QpAttr;

    #[test]
    fn schemes_are_known_by_their_names() {
        let codes = [("mds:8,3", Code::mds(8, 3)), ("xor:32,8", Code::xor(32, 8))];
        for (text, code) in codes {
            assert_eq!(text.parse(), Ok(Scheme::Ec(code.unwrap())));
        }
        assert_eq!(["rto", "nack"].map(str::parse), [Ok(Scheme::SrRto), Ok(Scheme::SrNack)]);
        for text in ["", "none", "sr", "mds", "mds:", "mds:8", "mds:8,3,1", "mds:-8,3", "xor:0,0", "rto:1,1"]
        {
            assert_eq!(text.parse::<Scheme>(), Err(UnknownScheme), "{text}");
        }
    }

    /// Published: over 25 ms coding wins from 128 KiB on at losses of 1e-4, and repetition below
    /// 1e-6.
    #[test]
    fn the_choice_follows_the_loss() {
        let attr = QpAttr { in_flight_log: 28, ..QpAttr::default() };
        let shape = Shape::new(&attr).unwrap();
        let link = Link::new(10_000_000_000, Duration::from_millis(25), 0.0, 1024);
        #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
        let now = Instant::now();
        let at = |drop| choose(&shape, &link.with_drop(drop), 8 << 20, 99.9, now);
        assert_eq!(at(0.0), Scheme::SrNack);
        assert!(matches!(at(1e-4), Scheme::Ec(_)));
        // 32 chunks a message: a longer code would have to be cut, and then be weaker than it was
        // judged to be.
        let attr = QpAttr { in_flight_log: 28, messages_log: 7, ..attr };
        let short = Shape::new(&attr).unwrap();
        for drop in [1e-5, 1e-4, 1e-3] {
            let Scheme::Ec(code) = choose(&short, &link.with_drop(drop), 32 << 20, 99.99, now) else {
                panic!("{drop}: no code");
            };
            let lost = 1.0 - (1.0 - drop).powi(64);
            let block = Link::new(1, Duration::ZERO, lost, 1);
            let fails = reliability::model::lost_more_than(&block, code.m(), code.k() + code.m());
            assert!(code.k() <= 32 && fails < 1e-5, "{drop}: {code:?} fails {fails:.1e}");
        }
    }
}
