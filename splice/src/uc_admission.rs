//! UC messages: carried whole, or not at all.
//!
//! UC has no ACKs, so nothing but congestion notifications slows a sender, and a receiver has no
//! use for a message of which a packet is missing. Where the queue to the peer is long, it is whole
//! messages that are dropped, as ATM switches came to do it: those that begin (early packet
//! discard), and where one finds no room in its midst after all, the rest of it (partial packet
//! discard; Romanow and Floyd, IEEE JSAC 13(4), 1995).

use roce::wire::{Kind, Packet};
use transport::{Group, Marker, Reservation, Senders};

use crate::context::Context;
use crate::stats::LanDrop;

/// The fate of the message that a queue pair is being sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum Message {
    /// Nothing is known of one.
    #[default]
    None,
    Taken,
    Dropped,
}

/// The messages to one queue pair, packet by packet.
///
/// From a quarter of what the class's queue may hold on, a share of those that begin is dropped, of
/// each queue pair's the same: all from the half on, where RC's mid-message ACKs are withheld. So
/// RC, which heeds that, has the other half. Nor is one taken for which no room is left beside what
/// is kept for others that were taken, unless there are none. A WRITE says how long it is; a SEND
/// is taken to be as long as the last SEND. What is said is believed as far as it comes: kept is as
/// much as has come of a message, 64 KiB at least and a sixteenth of the queue at most.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct UcAdmission {
    message: Message,
    /// Room kept in the class's stream for the rest of it.
    kept: Reservation,
    /// Bytes still to come of it, as was said.
    coming: usize,
    /// Bytes that have come of it.
    length: usize,
    /// How long the last SEND was.
    usual: usize,
    marker: Marker,
}

impl UcAdmission {
    /// The next packet of this host, for this class.
    pub(crate) fn take(
        &mut self,
        class: usize,
        host: Group,
        packet: &Packet<'_>,
        ctx: &mut Context<'_>,
    ) -> Result<(), LanDrop> {
        let (opcode, len) = (packet.bth.opcode, packet.payload.len());
        if opcode.starts_message() {
            self.length = 0;
            self.begin(class, host, packet, ctx);
        }
        match self.message {
            Message::None => return Err(LanDrop::Orphan),
            Message::Dropped => return Err(LanDrop::NoRoom),
            Message::Taken if !ctx.senders.has_room(class, packet.bytes.len()) => {
                self.cut(host, ctx);
                return Err(LanDrop::NoRoom);
            }
            Message::Taken => {}
        }
        self.length = self.length.saturating_add(len);
        self.coming = if opcode.ends_message() { 0 } else { self.coming.saturating_sub(len) };
        let kept = ctx.senders.promised(class, self.coming, self.length);
        ctx.senders.promise(class, host, &mut self.kept, kept);
        if opcode.ends_message() {
            self.message = Message::None;
            if opcode.kind() == Kind::Send {
                self.usual = self.length;
            }
        }
        Ok(())
    }

    fn begin(&mut self, class: usize, host: Group, packet: &Packet<'_>, ctx: &mut Context<'_>) {
        ctx.senders.promise(class, host, &mut self.kept, 0);
        let stated = packet.ext.reth().map(|reth| usize::try_from(reth.dma_length).unwrap_or(usize::MAX));
        let guess = if packet.bth.opcode.ends_message() { 0 } else { self.usual };
        self.coming = stated.unwrap_or(guess).max(packet.payload.len());
        self.message = Message::Dropped;
        let kept = ctx.senders.promised(class, self.coming, packet.payload.len());
        if ctx.senders.takes_message(class, host, kept, &mut self.marker) {
            self.message = Message::Taken;
            ctx.senders.promise(class, host, &mut self.kept, kept);
        }
    }

    /// A packet of the message under way could not be carried.
    pub(crate) fn cut(&mut self, host: Group, ctx: &mut Context<'_>) {
        self.message = Message::Dropped;
        self.abandon(host, ctx.senders);
    }

    /// Returns true if room is kept for what is to come.
    pub(crate) fn awaits(&self) -> bool {
        self.kept.bytes() > 0
    }

    /// Nothing has come for long, or will: no room is kept any more.
    pub(crate) fn abandon(&mut self, host: Group, senders: &mut Senders) {
        senders.promise(0, host, &mut self.kept, 0);
    }
}
