//! The ring: what each site sends, receives and adds up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fec::Code;
use sdr::layers::{Receiving, Scheme, Sending, Timing, choose};
use sdr::udp::now;
use sdr::{Buffer, ControlPath, QpAttr, RecvQp, SendQp, Shape};

use crate::Result;

/// Sites of the rings that are compared.
pub(crate) const SITES: usize = 4;
/// Their steps.
pub(crate) const STEPS: usize = steps(SITES);

/// Returns the steps until every site has all sums: half of them carry sums, and half totals.
pub(crate) const fn steps(sites: usize) -> usize {
    2 * sites - 2
}

/// A layer to be compared, with its name.
pub(crate) type Named = (&'static str, Scheme);

/// Share of runs whose time is compared.
pub(crate) const COMPARED: f64 = 0.999;

/// Returns the layers that are compared. The last one is `auto`.
///
/// It is chosen for messages of `bytes` bytes. A run is late if one of its messages is, so each has
/// to be in time more often than a run.
pub(crate) fn schemes(attr: &QpAttr, drop: f64, bytes: u64) -> Result<Vec<Named>> {
    let shape = Shape::new(attr)?;
    let link = reliability::link::Link::new(attr.rate, attr.rtt, drop, attr.mtu.bytes() as usize);
    let percentile = 100.0 * COMPARED.powf(1.0 / (SITES * STEPS) as f64);
    Ok(vec![
        ("sr rto", Scheme::SrRto),
        ("sr nack", Scheme::SrNack),
        ("mds(32,8)", Scheme::Ec(Code::mds(32, 8)?)),
        ("xor(32,8)", Scheme::Ec(Code::xor(32, 8)?)),
        ("auto", choose(&shape, &link, bytes, percentile, now())),
    ])
}

/// Returns a scheme as its options spell it.
pub(crate) fn text(scheme: &Scheme) -> String {
    match scheme {
        Scheme::SrRto => "rto".to_owned(),
        Scheme::SrNack => "nack".to_owned(),
        Scheme::Ec(code) => {
            let kind = if code.kind() == fec::Kind::Xor { "xor" } else { "mds" };
            format!("{kind}:{},{}", code.k(), code.m())
        }
    }
}

/// A site's two queue pairs: to the next one, and from the one before it.
pub(crate) struct Ends {
    pub(crate) send: SendQp,
    pub(crate) to_next: ControlPath,
    pub(crate) receive: RecvQp,
    pub(crate) from_last: ControlPath,
}

/// Returns the ends of each site, from those of each link: the sending one at site i, the other at
/// i + 1.
pub(crate) fn around<T>(near: Vec<T>, mut far: Vec<T>) -> impl Iterator<Item = (T, T)> {
    far.rotate_right(1);
    near.into_iter().zip(far)
}

/// One site: it sends to the next one, and receives from the one before.
pub(crate) struct Site {
    index: usize,
    /// Sites of its ring.
    sites: usize,
    /// Numbers to be added up, a segment for each site.
    segments: Vec<Vec<u64>>,
    step: usize,
    sending: Sending,
    to_next: ControlPath,
    receiving: Receiving,
    from_last: ControlPath,
    is_under_way: bool,
    /// When all sums were there.
    done_at: Option<Instant>,
}

impl Site {
    /// Site `index` of so many. `numbers`: those of a segment.
    pub(crate) fn new(
        (index, sites): (usize, usize),
        numbers: usize,
        scheme: &Scheme,
        timing: Timing,
        ends: Ends,
        now: Instant,
    ) -> Result<Self> {
        // Each number is its place, times the site's number from 1.
        let number = |segment, at| (segment * numbers + at) as u64 * (index as u64 + 1);
        Ok(Site {
            index,
            sites,
            segments: (0..sites)
                .map(|segment| (0..numbers).map(|at| number(segment, at)).collect())
                .collect(),
            step: 0,
            sending: Sending::new(ends.send, scheme.clone(), timing, now)?,
            to_next: ends.to_next,
            receiving: Receiving::new(ends.receive, scheme.clone(), timing, now)?,
            from_last: ends.from_last,
            is_under_way: false,
            done_at: None,
        })
    }

    /// Returns true if all sums are right.
    pub(crate) fn is_right(&self) -> bool {
        let sites: u64 = (1..=self.sites as u64).sum();
        self.segments.iter().flatten().zip(0..).all(|(found, at)| *found == at * sites)
    }

    /// Returns when all sums were there.
    pub(crate) fn done_at(&self) -> Option<Instant> {
        self.done_at
    }

    /// Returns true if the next site has all that this one sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.sending.is_idle()
    }

    /// Sends, receives and adds up as far as that goes.
    pub(crate) fn poll(&mut self, now: Instant) -> Result<()> {
        let sites = self.sites;
        while self.step < steps(sites) {
            // First sums travel, then totals.
            let sent = (self.index + 2 * sites - self.step) % sites;
            let received = (sent + sites - 1) % sites;
            if !self.is_under_way {
                let numbers = self.segments.get(sent).into_iter().flatten();
                let bytes: Vec<u8> = numbers.flat_map(|number| number.to_le_bytes()).collect();
                self.receiving.expect(bytes.len())?;
                self.sending.send(&Arc::new(Buffer::from(bytes)))?;
                self.is_under_way = true;
            }
            self.receiving.poll(&self.from_last, now)?;
            let Some(bytes) = self.receiving.take() else {
                break;
            };
            let is_sum = self.step < sites - 1;
            let numbers = self.segments.get_mut(received).into_iter().flatten();
            for (number, came) in numbers.zip(bytes.as_chunks().0) {
                let came = u64::from_le_bytes(*came);
                *number = if is_sum { number.wrapping_add(came) } else { came };
            }
            self.step += 1;
            self.is_under_way = false;
            if self.step == steps(sites) {
                self.done_at = Some(now);
            }
        }
        self.receiving.poll(&self.from_last, now)?;
        self.sending.poll(&self.to_next, now)?;
        Ok(())
    }
}

/// Returns the value below which `share` of the times are. The times are sorted.
pub(crate) fn quantile(times: &[Duration], share: f64) -> Duration {
    let last = times.len().saturating_sub(1);
    times.get((last as f64 * share).ceil() as usize).copied().unwrap_or_default()
}
