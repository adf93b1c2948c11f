//! The contents of /flows, and how `longhaul flows` shows them.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use session::message::{Direction, Pairing};

/// Flows told of at most.
const MOST: usize = 10_000;

/// Flows whose two queue pairs are known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FlowList {
    /// How many there are.
    pub total: usize,
    /// The first 10,000 of them.
    pub flows: Vec<Flow>,
}

/// A flow of a terminated queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Flow {
    /// "near": the requester is at this site; "far": the target is.
    pub side: String,
    /// The requester's address.
    pub requester: IpAddr,
    /// The requester's queue pair, if it is known.
    pub requester_qpn: Option<u32>,
    /// The target's address.
    pub target: IpAddr,
    /// The target's queue pair.
    pub target_qpn: u32,
}

impl FlowList {
    pub(super) fn of(threads: impl Iterator<Item = Arc<[Pairing]>>) -> Self {
        let mut list = Self::default();
        for thread in threads {
            list.total += thread.len();
            let room = MOST.saturating_sub(list.flows.len());
            list.flows.extend(thread.iter().take(room).map(Flow::of));
        }
        list
    }

    /// Keeps the flows of one host.
    #[must_use]
    pub fn of_host(mut self, host: IpAddr) -> Self {
        self.flows.retain(|flow| [flow.requester, flow.target].contains(&host));
        self
    }
}

impl Flow {
    fn of(pairing: &Pairing) -> Self {
        let side = match pairing.direction {
            Direction::Outbound => "near",
            Direction::Inbound => "far",
        };
        Self {
            side: side.to_owned(),
            requester: pairing.requester,
            requester_qpn: pairing.requester_qpn,
            target: pairing.target,
            target_qpn: pairing.target_qpn,
        }
    }
}

impl fmt::Display for FlowList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<5} {:<28} {:<28}", "side", "requester, queue pair", "target, queue pair")?;
        for flow in &self.flows {
            let qpn = flow.requester_qpn.map_or_else(|| "?".to_owned(), |qpn| format!("{qpn:#x}"));
            let requester = format!("{} {qpn}", flow.requester);
            let target = format!("{} {:#x}", flow.target, flow.target_qpn);
            writeln!(f, "{:<5} {requester:<28} {target}", flow.side)?;
        }
        match self.total - self.flows.len().min(self.total) {
            0 => Ok(()),
            more => writeln!(f, "{more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_of_all_threads_are_listed_and_bounded() {
        let flow = |number: u32| Pairing {
            direction: if number.is_multiple_of(2) { Direction::Outbound } else { Direction::Inbound },
            requester: [10, 0, 0, 1].into(),
            target: [10, 0, 1, 1].into(),
            target_qpn: number,
            requester_qpn: Some(0x11),
            psn: None,
            src_port: 0xc000,
        };
        let threads: Vec<Arc<[Pairing]>> = vec![(0..2).map(flow).collect(), (2..3).map(flow).collect()];
        let list = FlowList::of(threads.into_iter());
        assert_eq!((list.total, list.flows.len()), (3, 3));
        let shown = list.to_string();
        assert!(shown.contains("near  10.0.0.1 0x11                10.0.1.1 0x0\n"), "{shown}");
        assert!(shown.contains("far   10.0.0.1 0x11                10.0.1.1 0x1\n"), "{shown}");
        assert!(list.clone().of_host([10, 0, 0, 9].into()).flows.is_empty());
        assert_eq!(list.of_host([10, 0, 1, 1].into()).flows.len(), 3);
        let many = FlowList::of(std::iter::once((0..20_000).map(flow).collect()));
        assert_eq!((many.total, many.flows.len()), (20_000, MOST));
    }
}
