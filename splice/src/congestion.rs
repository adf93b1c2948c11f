//! Congestion on the LAN. A flow's packets end at the gateway, so whoever sent one that a switch has marked is told from here.

use std::time::{Duration, Instant};

use roce::ip::Addressing;
use roce::wire::{Bth, Ext, Opcode, Psn, Qpn, Repr};

use crate::context::Context;

/// Notifications of one flow are at least this far apart: what DCQCN has its receivers keep to (Zhu et al., SIGCOMM 2015, section 5).
const APART: Duration = Duration::from_micros(50);

/// The ECN field of an IP traffic class, and its value for Congestion Experienced.
const ECN: u8 = 3;

/// A traffic class for packets made or passed on here: not ECN-capable, since congestion notifications for them would find nobody who slows
/// down, and certainly not marked.
pub(crate) fn unmarked(tclass: u8) -> u8 {
    tclass & !ECN
}

/// When the sender of one flow's packets was last told of congestion.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Notified(Option<Instant>);

impl Notified {
    /// Looks at a packet of the flow from the LAN; `sender` is its sender's queue pair, if known.
    pub(crate) fn note(&mut self, addressing: &Addressing, sender: Option<Qpn>, ctx: &mut Context<'_>) {
        if addressing.tclass & ECN != ECN {
            return;
        }
        ctx.stats.lan_marked += 1;
        let recent = self.0.is_some_and(|last| ctx.now.saturating_duration_since(last) < APART);
        let Some(sender) = sender.filter(|_| !recent) else { return };
        self.0 = Some(ctx.now);
        let bth = Bth { becn: true, ..Bth::new(Opcode::Cnp, sender, Psn::new(0)) };
        let mut bytes = [0; 28];
        let back = Addressing {
            src: addressing.dst,
            dst: addressing.src,
            tclass: unmarked(addressing.tclass),
            ttl: crate::near_side::TTL,
            ..*addressing
        };
        if let Ok(len) = (Repr { bth, ext: Ext::None, payload: &[0; 16] }).emit(&mut bytes)
            && let Some(copy) = bytes.get(..len).and_then(|bytes| ctx.pool.copy(bytes))
        {
            ctx.lan.push(back, copy);
            ctx.stats.cnps += 1;
        }
    }
}
