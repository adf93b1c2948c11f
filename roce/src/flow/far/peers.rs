//! Responder side: the two queue pairs of a flow.

use crate::cm::Terms;
use crate::flow::rewritten::{Reply, Style};
use crate::wire::{Aeth, Bth, Psn, Qpn};

/// Target and requester, as packets and connection management tell them.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Peers {
    style: Style,
    target: Option<Qpn>,
    /// 0 while no response has told it.
    requester: Qpn,
}

/// Terms that connection management has agreed on for them.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Agreed {
    /// The requester takes RNR without end.
    is_patient: bool,
    /// READs and atomics that the target holds, if connection management told it; otherwise 0.
    max_reads: u8,
}

impl Agreed {
    pub(super) fn on(terms: &Terms) -> Agreed {
        Agreed { is_patient: terms.retries_without_end(), max_reads: terms.max_reads }
    }

    pub(super) fn is_patient(self) -> bool {
        self.is_patient
    }

    /// READs and atomics that the target holds; `otherwise`, if that is not known.
    pub(super) fn max_reads(self, otherwise: usize) -> usize {
        if self.max_reads == 0 { otherwise } else { self.max_reads.into() }
    }
}

impl Peers {
    pub(super) fn new() -> Peers {
        Peers { style: Style::DEFAULT, target: None, requester: Qpn::default() }
    }

    /// A target whose requester is not known.
    pub(super) fn of_target(target: Qpn, pkey: u16) -> Peers {
        Peers { style: Style::new(pkey), target: Some(target), ..Peers::new() }
    }

    /// A request tells the target's.
    pub(super) fn note_request(&mut self, bth: &Bth) {
        (self.style, self.target) = (Style::of(bth), Some(bth.dest_qp));
    }

    /// A response tells the requester's.
    pub(super) fn note_response(&mut self, bth: &Bth) {
        self.requester = bth.dest_qp;
    }

    pub(super) fn target(&self) -> Option<Qpn> {
        self.target
    }

    pub(super) fn style(&self) -> Style {
        self.style
    }

    pub(super) fn reply(&self, psn: Psn, aeth: Aeth) -> Reply {
        Reply::acknowledge(self.style, self.requester, psn, aeth)
    }
}
