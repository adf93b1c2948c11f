//! The published model of a ring, beside what is measured.
//!
//! From "SDR-RDMA" (arXiv 2505.05366), section 4.2: a ring of N sites takes `(2N - 2)(C + mu)` at
//! least in the mean, where `mu` is the mean of one transfer and C is 0 here.
//! The model loses chunks as a whole, and repairs all of a part that parity does not recover.
//! The layers keep each packet that came. So the model is a bound for chunks of one packet, and
//! where parity suffices.

use fec::{Code, Kind};
use reliability::link::Link;
use reliability::model::{Completion, lost_more_than};
use sdr::layers::{Scheme, Timing};
use sdr::{QpAttr, Shape};

use crate::ring::STEPS;

/// Returns the least mean of a run, in seconds, by the published formulas.
pub(crate) fn mean(attr: &QpAttr, shape: &Shape, scheme: &Scheme, bytes: u64, drop: f64) -> f64 {
    let chunks = bytes.div_ceil(shape.chunk().into()) as f64;
    let packets = f64::from(shape.packets_per_chunk());
    let model = Model {
        injection: f64::from(shape.chunk()) * 8.0 / attr.rate as f64,
        rtt: attr.rtt.as_secs_f64(),
        drop: -(packets * (-drop).ln_1p()).exp_m1(),
    };
    let one = match scheme {
        Scheme::SrRto => model.repeat(chunks, 3.0),
        Scheme::SrNack => model.repeat(chunks, 1.0),
        Scheme::Ec(code) => model.coded(chunks, code, Timing::new(attr.rtt, attr.rate)),
    };
    STEPS as f64 * one
}

/// A link, by the chunk.
struct Model {
    injection: f64,
    rtt: f64,
    drop: f64,
}

impl Model {
    /// `E[max X_i] + RTT` with `X_i = i T + O (Y_i - 1)` and `O = rto RTT + T`.
    fn repeat(&self, chunks: f64, rto: f64) -> f64 {
        let period = rto * self.rtt + self.injection;
        let lost = std::iter::successors(Some(self.drop), |lost| Some(lost * self.drop));
        let floor = chunks * self.injection + self.rtt;
        let rounds = (period, period);
        Completion::in_rounds(floor, (chunks, self.injection), rounds, lost, 0.0).mean_seconds()
    }

    /// `(M + ceil(M / R)) T + RTT + P_fb (beta RTT + E[T_SR(E[fail] k)])`. A message without
    /// fallback does not wait for its parity, which the formula counts.
    fn coded(&self, chunks: f64, code: &Code, timing: Timing) -> f64 {
        let (k, m) = (code.k(), code.m());
        let link = Link::new(1, timing.rtt, self.drop, 1);
        let fails = match code.kind() {
            Kind::Mds => lost_more_than(&link, m, k + m),
            Kind::Xor => {
                let group = lost_more_than(&link, 1, k.div_ceil(m) + 1);
                -(m as f64 * (-group).ln_1p()).exp_m1()
            }
        };
        let parts = (chunks / k as f64).ceil();
        let fallback = -(parts * (-fails).ln_1p()).exp_m1();
        let injection = (chunks + parts * m as f64) * self.injection;
        let failed = (parts * fails / fallback.max(f64::MIN_POSITIVE)).max(1.0);
        let beta = timing.slack.as_secs_f64();
        injection + self.rtt + fallback * (beta + self.repeat(failed * k as f64, 3.0))
    }
}
