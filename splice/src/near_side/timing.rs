//! Requester side: how long messages take, of a flow at its requester's side.

use std::time::{Duration, Instant};

use roce::wire::{Packet, Psn};

/// PSNs between a message's end and the next request, beyond which the message is another
/// incarnation's, and is not waited for.
const FAR: u32 = 1 << 22;

/// The message whose time is taken. A flow has one at a time: the first that begins after the one
/// before was whole.
#[serde_with::serde_as]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) enum Timing {
    /// None.
    #[default]
    Idle,
    /// Its first packet came then, and not yet its last.
    Coming {
        #[serde_as(as = "snapshot::At")]
        since: Instant,
    },
    /// All of it was carried, in this class; it ends before this PSN.
    Carried {
        #[serde_as(as = "snapshot::At")]
        since: Instant,
        end: Psn,
        class: usize,
    },
}

impl Timing {
    /// The flow's next request packet was carried, in this class; the next one has the PSN `next`.
    pub(super) fn follow(&mut self, packet: &Packet<'_>, class: usize, next: Psn, now: Instant) {
        let opcode = packet.bth.opcode;
        let is_awaited = match *self {
            Self::Carried { end, .. } => next.distance(end).unsigned_abs() <= FAR,
            _ => false,
        };
        if opcode.starts_message() && !is_awaited {
            *self = Self::Coming { since: now };
        }
        if let Self::Coming { since } = *self
            && opcode.ends_message()
        {
            *self = Self::Carried { since, end: next, class };
        }
    }

    /// Everything before `done` is acknowledged or answered by the target. Returns the message's
    /// class and time if it is among that.
    pub(super) fn complete(&mut self, done: Psn, now: Instant) -> Option<(usize, Duration)> {
        match *self {
            Self::Carried { since, end, class } if !done.is_before(end) => {
                *self = Self::Idle;
                Some((class, now.saturating_duration_since(since)))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use roce::wire::{Bth, Ext, Opcode, Qpn, Repr};

    use super::*;
    use crate::test_clock;

    #[test]
    fn one_message_at_a_time_is_timed_from_its_first_packet_to_its_answer() {
        let begin = test_clock();
        let at = |millis| begin + Duration::from_millis(millis);
        let mut timing = Timing::default();
        let carry = |timing: &mut Timing, opcode, psn: u32, class, millis| {
            let mut out = [0; 64];
            let bth = Bth::new(opcode, Qpn::new(9), Psn::new(psn));
            let len = Repr { bth, ext: Ext::None, payload: &[1; 4] }.emit(&mut out).unwrap();
            let packet = Packet::parse(&out[..len]).unwrap();
            timing.follow(&packet, class, Psn::new(psn).next(), at(millis));
        };
        // The rest of a message whose beginning was not seen.
        carry(&mut timing, Opcode::SendLast, 4, 1, 0);
        assert_eq!(timing, Timing::Idle);
        carry(&mut timing, Opcode::SendFirst, 5, 1, 1);
        assert_eq!(timing.complete(Psn::new(6), at(2)), None, "more is to come");
        carry(&mut timing, Opcode::SendLast, 6, 2, 3);
        carry(&mut timing, Opcode::SendOnly, 7, 1, 4);
        assert_eq!(timing.complete(Psn::new(6), at(5)), None, "its last packet is outstanding");
        let timed = timing.complete(Psn::new(7), at(31));
        assert_eq!(timed, Some((2, Duration::from_millis(30))), "in the class of its last packet");
        assert_eq!(timing.complete(Psn::new(8), at(32)), None, "the second was not timed");
        carry(&mut timing, Opcode::SendOnly, 8, 1, 40);
        assert_eq!(timing.complete(Psn::new(9), at(41)), Some((1, Duration::from_millis(1))));
        // The queue pair begins anew elsewhere, and nobody waits for what it had under way.
        carry(&mut timing, Opcode::SendOnly, 9, 1, 50);
        carry(&mut timing, Opcode::SendOnly, 0x80_0000, 1, 60);
        assert_eq!(timing.complete(Psn::new(0x80_0001), at(61)), Some((1, Duration::from_millis(1))));
    }
}
