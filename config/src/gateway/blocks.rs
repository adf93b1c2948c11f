//! Blocks of a policy that are too large for a gateway's link.

use miette::Severity;

use super::Gateway;
use crate::policy::Policy;
use crate::problem::{Problem, Source};
use crate::read;

/// A class whose blocks the link cannot fill within the flush deadline: they close short, and their
/// overhead exceeds m / k.
pub(crate) struct SlowBlocks {
    pub(crate) warning: Problem,
    /// For the place of the rate.
    pub(crate) found: String,
    /// Place of the class in the policy's file.
    class: usize,
}

impl SlowBlocks {
    /// Returns the warning, at its class in the text of the policy, if there is one.
    pub(crate) fn in_policy(self, source: Option<&Source>) -> Problem {
        let Self { warning, found, class } = self;
        let place = |key: &str| {
            let source = source?;
            Some((source, read::locate(source.inner(), &format!("class.{class}.{key}"))?))
        };
        match place("flush").or_else(|| place("k")) {
            Some((source, span)) => warning.at(source, span, found),
            None => warning,
        }
    }
}

pub(crate) fn slow_blocks(gateway: &Gateway, policy: &Policy) -> Vec<SlowBlocks> {
    let mut warnings = Vec::new();
    for (index, class) in policy.written().enumerate() {
        let Some(block) = class.scheme.block() else {
            continue;
        };
        let seconds = |packet: u16| {
            let bits = u64::from(block.k) * u64::from(block.interleave) * u64::from(packet) * 8;
            bits as f64 / gateway.peer.rate.bits_per_second() as f64
        };
        // Packets become as long as the path carries them.
        let (usual, longest) = (gateway.wan.usual_packet(), gateway.wan.longest_packet());
        let is_slow = |packet: u16| seconds(packet) > block.flush.get().as_secs_f64();
        let (packet, condition) = match () {
            () if is_slow(usual) => (usual, String::new()),
            () if is_slow(longest) => (longest, format!(" if the path carries packets of {longest} bytes")),
            () => continue,
        };
        let message = format!(
            "class {}: its blocks close early at this rate{condition}, with more overhead than m / k",
            class.name
        );
        let time = seconds(packet) * 1e3;
        let found = format!(
            "filling a block with packets of {packet} bytes takes {time:.1} ms, flush is {}",
            block.flush
        );
        let help = format!("in the policy: flush = \"{} ms\", or a smaller k or interleave", time.ceil());
        let warning = Problem::new(Severity::Warning, message).help(Some(help));
        warnings.push(SlowBlocks { warning, found, class: index });
    }
    warnings
}
