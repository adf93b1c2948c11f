//! Requester side: flows whose mid-message ACKs are withheld until their class's stream has
//! drained.

use std::time::{Duration, Instant};

use config::MAX_CLASSES;

use super::{NearKey, NearSide};
use crate::back_pressure::Lists;
use crate::context::Context;

/// Room that requesters were told of whose packets were refused, and that they may come for now.
///
/// In each [`EACH`] they are told one for every [`PACKETS`] bytes of headroom, one at least, the
/// first refused first. So not all come at once where many wait, to be refused again.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Grants([Grant; MAX_CLASSES]);

#[serde_with::serde_as]
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
struct Grant {
    #[serde_as(as = "Option<snapshot::At>")]
    since: Option<Instant>,
    bytes: usize,
}

/// A turn on the LAN, and some.
const EACH: Duration = Duration::from_millis(1);
/// Bytes that a requester is taken to come with: 32 packets of 4 KiB.
const PACKETS: usize = 128 << 10;

impl Grants {
    /// Takes one if there is one.
    fn take(&mut self, class: usize, headroom: usize, now: Instant) -> bool {
        let Some(grant) = self.0.get_mut(class) else { return true };
        if grant.since.is_none_or(|since| now.saturating_duration_since(since) >= EACH) {
            *grant = Grant { since: Some(now), bytes: 0 };
        }
        let has_room = grant.bytes + PACKETS <= headroom.max(PACKETS);
        grant.bytes += if has_room { PACKETS } else { 0 };
        has_room
    }
}

impl NearSide {
    pub(crate) fn has_withheld(&self) -> bool {
        !self.withheld.is_empty()
    }

    /// A stream has drained: mid-message ACKs may flow again.
    pub(crate) fn release_withheld(&mut self, ctx: &mut Context<'_>) {
        for class in 0..MAX_CLASSES {
            while ctx.senders.has_headroom(class)
                && let Some(slot) = self.withheld.pop(class)
            {
                let Some(flow) = self.flows.get_mut(slot) else { continue };
                flow.places.withheld.leave(class);
                if flow.near.is_refused() && !self.grants.take(class, ctx.senders.headroom(class), ctx.now) {
                    self.withheld.add_first(slot, &mut flow.places.withheld, class);
                    break;
                }
                // Its messages may take another class by now, on whose list it stands if it has to.
                if flow.class_of(flow.demand.judged.into(), ctx.classes) == class
                    && !flow.places.awaits_target
                {
                    flow.near.set_writable(true, ctx.now);
                    self.touch(slot);
                }
            }
        }
    }

    /// The classes are others now: whoever is held back waits for the stream of the one that its
    /// last request would take now. All others come to theirs with their next packet.
    pub(crate) fn reclassify(&mut self, ctx: &mut Context<'_>) {
        let held: Vec<NearKey> = self.withheld.drain().collect();
        for slot in &held {
            if let Some(flow) = self.flows.get_mut(*slot) {
                flow.places.withheld = Lists::default();
            }
        }
        for slot in held {
            let Some(flow) = self.flows.get_mut(slot) else { continue };
            let class = flow.class_of(flow.demand.judged.into(), ctx.classes);
            self.withheld.add(slot, &mut flow.places.withheld, class);
        }
        self.release_withheld(ctx);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "no other way to get an Instant")]
    #[test]
    fn as_many_are_told_of_room_as_it_may_be_enough_for() {
        let start = Instant::now();
        let mut grants = Grants::default();
        let mut told = |headroom, at| (0..100).filter(|_| grants.take(1, headroom, start + at)).count();
        assert_eq!(told(4 << 20, Duration::ZERO), 32);
        assert_eq!(told(4 << 20, Duration::from_micros(999)), 0, "those may be on their way");
        assert_eq!(told(1 << 20, EACH), 8);
        assert_eq!(told(10, 2 * EACH), 1, "whoever is first gets there");
        assert!(grants.take(2, 10, start));
    }
}
