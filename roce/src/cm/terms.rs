//! The terms of a connection, on which a REQ and its REP agree.

use super::{Rep, Req, Timeout};
use crate::wire::{PathMtu, Psn};

/// The terms of two programs for one direction of their connection: requests of the one, executed
/// by the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Terms {
    /// Path MTU; `None` for a reserved code.
    pub path_mtu: Option<PathMtu>,
    /// READs and atomics that the requester may have outstanding and the target holds; 0: none.
    pub max_reads: u8,
    /// RNR retries of the requester, 0 to 7; see [`Terms::retries_without_end`].
    pub rnr_retry: u8,
    /// The ACK timeout that the requester is to have at least, as the other side's message named it
    /// here; 0: it names none.
    pub ack_timeout: Timeout,
    /// Retries of the requester after an ACK timeout, 0 to 7.
    pub retries: u8,
}

/// One direction's part of what one message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Offer {
    /// The first PSN that its receiver will send.
    pub peer_first_psn: Psn,
    /// READs and atomics that the sender holds.
    holds: u8,
    /// READs and atomics that it will have outstanding.
    depth: u8,
    /// RNR retries of the receiver's queue pair.
    rnr_retry: u8,
    /// A REQ's local ACK timeout, a REP's target ACK delay.
    ack_timeout: Timeout,
}

impl Offer {
    pub(crate) const fn of_req(req: &Req<'_>) -> Offer {
        Offer {
            peer_first_psn: req.starting_psn(),
            holds: req.responder_resources(),
            depth: req.initiator_depth(),
            rnr_retry: req.rnr_retry_count(),
            ack_timeout: req.local_ack_timeout(),
        }
    }

    pub(crate) const fn of_rep(rep: &Rep<'_>) -> Offer {
        Offer {
            peer_first_psn: rep.starting_psn(),
            holds: rep.responder_resources(),
            depth: rep.initiator_depth(),
            rnr_retry: rep.rnr_retry_count(),
            ack_timeout: rep.target_ack_delay(),
        }
    }

    /// Returns the terms of the requests that go to the sender of the other offer. How often to
    /// retry after RNR each says of its receiver (volume 1, 12.7.24; `cm_init_qp_rts_attr` of
    /// Linux); so it is with the ACK timeout (`cm_ack_timeout`). The request's path MTU and retries
    /// hold for both directions.
    pub(crate) fn terms(&self, other: &Offer, path_mtu: Option<PathMtu>, retries: u8) -> Terms {
        Terms {
            path_mtu,
            max_reads: self.depth.min(other.holds),
            rnr_retry: other.rnr_retry,
            ack_timeout: other.ack_timeout,
            retries,
        }
    }
}

impl Terms {
    /// Returns true if the requester takes RNR for as long as it lasts, as programs mostly want it
    /// to.
    pub const fn retries_without_end(&self) -> bool {
        self.rnr_retry == 7
    }
}
