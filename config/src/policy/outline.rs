//! The outline of a class: its effect in a line.

use super::{Allowed, Block, Class, Completion, Refuse, Scheme, Survive};

impl Class {
    /// Scheme, shape, overhead and the longest burst of losses that it repairs by parity alone, in
    /// one line without the name.
    pub fn outline(&self) -> String {
        let mut line = match &self.scheme {
            Scheme::None => "none: nothing is repaired".to_owned(),
            Scheme::Sr { alpha } => {
                format!("sr: each loss costs a round trip, timeout {} RTT, no overhead", 1.0 + alpha)
            }
            Scheme::Xor(block) => coded("xor", block, xor_burst(block)),
            Scheme::Mds(block) => coded("mds", block, u32::from(block.m)),
            Scheme::Hybrid(block) => hybrid(block),
            Scheme::Auto(allowed) => self.automatic(*allowed),
        };
        if self.priority > 0 {
            line += &format!(", priority {}", self.priority);
        }
        if self.completion == Completion::Local {
            line += ", completes locally";
        }
        match self.refuse {
            Some(Refuse::Silence) => line += ", refuses by silence",
            Some(Refuse::Nak) => line += ", refuses by NAK",
            None => {}
        }
        let is_remote = self.completion == Completion::Remote;
        line += match self.survive {
            Survive::Session if is_remote => ", survives lost sessions only",
            Survive::Gateway => ", survives a gateway's end",
            Survive::Session | Survive::Process => "",
        };
        line
    }

    fn automatic(&self, allowed: Allowed) -> String {
        let allowed = allowed.names().collect::<Vec<_>>().join(", ");
        let most = percent(self.max_overhead);
        let divided = match self.divide.as_slice() {
            [] => String::new(),
            sizes => {
                let sizes: Vec<_> = sizes.iter().map(ToString::to_string).collect();
                format!(", apart for messages up to {}, and longer ones", sizes.join(", "))
            }
        };
        format!(
            "auto: the best of {allowed} for the {}th percentile, overhead {most} % at most{divided}",
            self.percentile
        )
    }
}

/// Where it is no more than selective repeat, there is no parity to survive anything by; what a
/// block gets at first is `m` at most.
fn hybrid(block: &Block) -> String {
    let Block { k, m, interleave, .. } = block;
    let overhead = percent(f64::from(*m) / f64::from(*k));
    let interleaved = if *interleave > 1 { format!(" interleaved by {interleave}") } else { String::new() };
    format!(
        "hybrid: sr, and where that would cost a round trip k = {k}, m = {m} at most{interleaved}, overhead {overhead} % at most"
    )
}

fn coded(name: &str, block: &Block, burst: u32) -> String {
    let Block { k, m, interleave, .. } = block;
    let overhead = percent(f64::from(*m) / f64::from(*k));
    let burst = burst * u32::from(*interleave);
    let interleaved = if *interleave > 1 { format!(" interleaved by {interleave}") } else { String::new() };
    let packets = if burst == 1 { "packet" } else { "packets" };
    format!(
        "{name}: k = {k}, m = {m}{interleaved}, overhead {overhead} %, survives a burst of {burst} {packets}"
    )
}

/// The longest run of losses, wherever in a full block it begins, that hits no parity's group twice
/// (a group is a parity and what it is over). Within the data that is m. Past the end of the data
/// come the parities in the order of their groups, while the last data packets are of the groups up
/// to (k - 1) mod m: where m does not divide k, the run closes on itself sooner.
fn xor_burst(block: &Block) -> u32 {
    match block.k % block.m {
        0 => u32::from(block.m),
        rest => u32::from(rest),
    }
}

/// At most one decimal.
fn percent(share: f64) -> f64 {
    (share * 1000.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Duration;

    /// Returns true if XOR restores a block of which the packets `start .. start + len` (data, then
    /// parities) are lost.
    fn xor_survives(block: &Block, start: u32, len: u32) -> bool {
        let (k, m) = (u32::from(block.k), u32::from(block.m));
        let mut hits = vec![0; m as usize];
        for packet in start..(start + len).min(k + m) {
            let group = if packet < k { packet % m } else { packet - k };
            hits[group as usize] += 1;
        }
        hits.iter().all(|hits| *hits <= 1)
    }

    #[test]
    fn the_burst_of_xor_is_the_longest_that_no_start_fails() {
        for k in 1..=40 {
            for m in 1..=k {
                let block = Block { k, m, interleave: 1, flush: Duration::millis(5) };
                let burst = xor_burst(&block);
                let starts = 0..u32::from(k) + u32::from(m);
                assert!(starts.clone().all(|start| xor_survives(&block, start, burst)), "k {k}, m {m}");
                assert!(!starts.clone().all(|start| xor_survives(&block, start, burst + 1)), "k {k}, m {m}");
            }
        }
    }
}
