//! Congestion. A flow's packets end at the gateway, so whoever sent one that a switch has marked is
//! told from here; and the queue towards the peer marks as a switch's does, since LANs are mostly
//! faster than the long link.

use std::time::{Duration, Instant};

use roce::ip::Addressing;
use roce::wire::{Bth, Ext, Opcode, Psn, Qpn, Repr};

use crate::context::Context;
use crate::lan_queue::TTL;

/// Notifications of one flow are at least this far apart: what DCQCN has its receivers keep to (Zhu
/// et al., SIGCOMM 2015, section 5).
const APART: Duration = Duration::from_micros(50);

/// The ECN field of an IP traffic class, and its value for Congestion Experienced.
const ECN: u8 = 3;
/// The value that NICs send ECN-capable packets with.
const ECT_0: u8 = 2;

/// The traffic class of notifications. DSCP 48 is what NICs send theirs with unless told otherwise
/// (mlx5 `CNP_DSCP_P1`), so switches give it a priority of its own: in the flow's they would wait
/// in the queue that they tell of. Not ECN-capable: nobody sends fewer of them for being marked.
const TCLASS: u8 = 48 << 2;

/// A traffic class for packets to a requester: not ECN-capable, since congestion notifications for
/// them would find nobody who slows down, and certainly not marked.
pub(crate) fn unmarked(tclass: u8) -> u8 {
    tclass & !ECN
}

/// A traffic class for packets to a target, which go more slowly after congestion notifications:
/// ECN-capable if the requester's are, so that a switch treats them as it would those.
pub(crate) fn capable(tclass: u8) -> u8 {
    if tclass & ECN == 0 { tclass } else { unmarked(tclass) | ECT_0 }
}

/// The traffic class of a packet whose sender was told of its mark: as before the switch that set
/// it.
pub(crate) fn without_mark(tclass: u8) -> u8 {
    if tclass & ECN == ECN { tclass & !ECN | ECT_0 } else { tclass }
}

/// When the sender of one flow's packets was last told of congestion.
#[serde_with::serde_as]
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Notified(#[serde_as(as = "Option<snapshot::At>")] Option<Instant>);

impl Notified {
    /// Looks at a packet of the flow from the LAN; `sender` is its sender's queue pair, if known.
    pub(crate) fn note(
        &mut self,
        addressing: &Addressing,
        bth: &Bth,
        sender: Option<Qpn>,
        ctx: &mut Context<'_>,
    ) {
        if addressing.tclass & ECN != ECN {
            return;
        }
        ctx.stats.lan_marked += 1;
        self.tell(addressing, bth, sender, ctx);
    }

    /// Tells the sender of a packet of the flow to slow down, unless it was told just now.
    pub(crate) fn tell(
        &mut self,
        addressing: &Addressing,
        bth: &Bth,
        sender: Option<Qpn>,
        ctx: &mut Context<'_>,
    ) {
        let recent = self.0.is_some_and(|last| ctx.now.saturating_duration_since(last) < APART);
        let Some(sender) = sender.filter(|_| !recent) else { return };
        self.0 = Some(ctx.now);
        // In the partition of the packet that it answers (RoCEv2 annex, A17.9.3).
        let bth = Bth { becn: true, pkey: bth.pkey, ..Bth::new(Opcode::Cnp, sender, Psn::new(0)) };
        let mut bytes = [0; 28];
        let back =
            Addressing { src: addressing.dst, dst: addressing.src, tclass: TCLASS, ttl: TTL, ..*addressing };
        if let Ok(len) = (Repr { bth, ext: Ext::None, payload: &[0; 16] }).emit(&mut bytes)
            && let Some(copy) = bytes.get(..len).and_then(|bytes| ctx.pool.copy(bytes))
        {
            ctx.lan.push(back, copy);
            ctx.stats.cnps += 1;
        }
    }
}
