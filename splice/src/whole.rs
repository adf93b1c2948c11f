//! UC messages: carried whole, or not at all.
//!
//! UC has no ACKs, so nothing but congestion notifications slows a sender, and a receiver has no use for a message of which a packet is missing. Where the
//! queue to the peer is long, it is whole messages that are dropped, as ATM switches came to do it: those that begin (early packet discard), and where one
//! finds no room in its midst after all, the rest of it (partial packet discard; Romanow and Floyd, IEEE JSAC 13(4), 1995).

use roce::wire::{Kind, Packet};

use crate::congestion::Marker;
use crate::context::Context;
use crate::senders::{Claim, Senders};
use crate::stats::LanDrop;

/// What became of the message that a queue pair is being sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Message {
    /// Nothing is known of one.
    #[default]
    None,
    Taken,
    Dropped,
}

/// The messages to one queue pair, packet by packet.
///
/// From a quarter of what the class's queue may hold on, a share of those that begin is dropped, of each queue pair's the same: all from the half on, where RC's
/// mid-message ACKs are withheld. So RC, which heeds that, has the other half. Nor is one taken for all of which no room is left beside what is to come of others that
/// were taken, unless there are no others. A WRITE says how long it is; a SEND is taken to be as long as the last SEND.
#[derive(Debug, Default)]
pub(crate) struct Whole {
    message: Message,
    /// What is still to come of it, in the class's stream.
    coming: Claim,
    /// What has come of it.
    length: usize,
    /// How long the last SEND was.
    usual: usize,
    marker: Marker,
}

impl Whole {
    /// The next packet, for this class.
    pub(crate) fn take(
        &mut self,
        class: usize,
        packet: &Packet<'_>,
        ctx: &mut Context<'_>,
    ) -> Result<(), LanDrop> {
        let (opcode, len) = (packet.bth.opcode, packet.payload.len());
        if opcode.starts_message() {
            self.length = 0;
            self.begin(class, packet, ctx);
        }
        match self.message {
            Message::None => return Err(LanDrop::Orphan),
            Message::Dropped => return Err(LanDrop::NoRoom),
            Message::Taken if !ctx.senders.has_room(class, packet.bytes.len()) => {
                self.cut(ctx);
                return Err(LanDrop::NoRoom);
            }
            Message::Taken => {}
        }
        self.length = self.length.saturating_add(len);
        let left = if opcode.ends_message() { 0 } else { self.coming.bytes().saturating_sub(len) };
        ctx.senders.promise(class, &mut self.coming, left);
        if opcode.ends_message() {
            self.message = Message::None;
            if opcode.kind() == Kind::Send {
                self.usual = self.length;
            }
        }
        Ok(())
    }

    fn begin(&mut self, class: usize, packet: &Packet<'_>, ctx: &mut Context<'_>) {
        ctx.senders.promise(class, &mut self.coming, 0);
        let stated = packet.ext.reth().map(|reth| usize::try_from(reth.dma_length).unwrap_or(usize::MAX));
        let guess = if packet.bth.opcode.ends_message() { 0 } else { self.usual };
        let length = stated.unwrap_or(guess).max(packet.payload.len());
        self.message = Message::Dropped;
        if ctx.senders.takes_message(class, length, &mut self.marker) {
            self.message = Message::Taken;
            ctx.senders.promise(class, &mut self.coming, length);
        }
    }

    /// A packet of the message under way could not be carried.
    pub(crate) fn cut(&mut self, ctx: &mut Context<'_>) {
        self.message = Message::Dropped;
        self.abandon(ctx.senders);
    }

    /// Whether room is kept for what is to come.
    pub(crate) fn awaits(&self) -> bool {
        self.coming.bytes() > 0
    }

    /// Nothing has come for long, or will: no room is kept any more.
    pub(crate) fn abandon(&mut self, senders: &mut Senders) {
        senders.promise(0, &mut self.coming, 0);
    }
}
