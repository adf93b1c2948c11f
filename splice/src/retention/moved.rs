//! Requests retained of a flow, on their way to another gateway of this process.

use std::time::Instant;

use roce::ip::Addressing;
use roce::pairing::FlowKey;
use roce::wire::{Packet, Psn};

use super::orphans::Orphan;
use super::{Retention, Run};

/// The requests of one flow, in no gateway's memory.
#[derive(Debug)]
pub(crate) struct Moved {
    addressing: Addressing,
    /// By ascending PSN: each from BTH to padding, and whether its target had completed a message
    /// of the connection before it came.
    requests: Vec<(Vec<u8>, bool)>,
    acknowledged: Option<Psn>,
}

impl Retention {
    /// Takes out what is retained of a flow. `None`: there is nothing, or not all of it is whole.
    pub(crate) fn take_out(&mut self, mut run: Run, key: &FlowKey, addressing: Addressing) -> Option<Moved> {
        let mut moved = Moved { addressing, requests: Vec::new(), acknowledged: run.acknowledged };
        self.reads.begin_again((*self.memory).as_mut());
        let (mut next, mut is_whole) = (run.head, true);
        while let Some(slot) = next.filter(|_| is_whole) {
            let mut request = Vec::new();
            is_whole = self.copy(slot, key, &mut request);
            moved.requests.push((request, self.head(slot).is_some_and(|head| head.is_later)));
            next = self.link(slot).next;
        }
        self.reads.end((*self.memory).as_mut());
        self.clear(&mut run);
        Some(moved).filter(|moved| is_whole && !moved.requests.is_empty())
    }

    /// Takes out what nobody has come for of the flows that are meant.
    pub(crate) fn take_orphans(&mut self, is_meant: impl Fn(&FlowKey) -> bool) -> Vec<(FlowKey, Moved)> {
        let meant = self.orphans.meant(is_meant);
        let take = |(key, src_port): (FlowKey, u16)| {
            let (src, dst) = (key.requester, key.target);
            let addressing = Addressing { src, dst, src_port, tclass: 0, ttl: 64 };
            let run = self.adopt(&key);
            Some((key, self.take_out(run, &key, addressing)?))
        };
        meant.into_iter().filter_map(take).collect()
    }

    /// Takes in what another gateway retained of a flow, for whoever goes on with it until then.
    /// `group`: that of its requester. Without room for all of it, nothing is kept.
    pub(crate) fn take_in(&mut self, key: FlowKey, moved: &Moved, group: u8, until: Instant) {
        self.forget(&key);
        let mut run = Run::default();
        let is_kept = moved.requests.iter().all(|(request, is_later)| {
            Packet::parse(request)
                .is_ok_and(|packet| self.put(&mut run, group, (&moved.addressing, &packet), *is_later))
        });
        if !is_kept {
            return self.clear(&mut run);
        }
        run.acknowledged = moved.acknowledged;
        self.orphans.add(key, Orphan { run, src_port: moved.addressing.src_port });
        self.orphans.keep_until(until);
    }
}
