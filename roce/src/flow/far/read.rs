//! Responder side: a READ towards the target: which response comes next, what it must look like,
//! and the request for the rest.

use crate::flow::horizon::{MAX_MESSAGE, MtuSet};
use crate::wire::{Aeth, BTH_LEN, Bth, Kind, Opcode, Packet, PathMtu, Place, Psn};

/// Progress of one READ.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Progress {
    pub(super) start: Psn,
    /// PSNs it consumes; 0 while unknown.
    pub(super) span: u32,
    /// Responses taken.
    pub(super) answered: u32,
    /// Bytes that were in them.
    pub(super) taken: u32,
    /// Bytes asked for.
    pub(super) length: u32,
    /// Times the rest was asked for since the last of them.
    pub(super) asks: u32,
    /// Times a gap in its responses was the reason to ask again.
    pub(super) gaps: u32,
    /// Where its first piece ends, once that was asked for; before, and of a READ that is not
    /// cut, 0.
    pub(super) cut: u32,
}

/// A response taken: what it is to a requester that asked for the READ as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) opcode: Opcode,
    pub(super) complete: bool,
    /// The path MTU was learnt from it.
    pub(super) learnt: bool,
    /// A further piece begins with it: the target counts one message more than the requester.
    pub(super) surplus: bool,
}

/// So many requests for the same response are in vain before it is asked for alone: the LAN may
/// always lose the end of a long answer.
const STUCK: u32 = 8;

/// After so many gaps only what is missing is asked for: on a LAN that reorders, where there is a
/// gap behind every other response, all that came would come again each time.
const TORN: u32 = 16;

/// Every path MTU divides it.
const LARGEST: u32 = 4096;

/// Rounded up to whole packets of so many bytes; of what is asked for in pieces nothing comes near
/// the highest number.
fn padded(bytes: u32, mtu: u32) -> u32 {
    bytes.checked_next_multiple_of(mtu).unwrap_or(u32::MAX)
}

impl Progress {
    pub(super) fn next(&self) -> Psn {
        self.start + self.answered
    }

    pub(super) fn end(&self) -> Psn {
        self.start + self.span
    }

    /// PSNs that a request of this kind consumes, or, of a READ whose path MTU is not known yet,
    /// at most.
    pub(super) fn most_psns(&self, kind: Kind, mtu: MtuSet) -> u32 {
        if kind != Kind::Read || self.span != 0 {
            return self.span.max(1);
        }
        let mtu = mtu.known().and_then(|mtu| PathMtu::from_bytes(mtu as usize));
        mtu.unwrap_or(PathMtu::B256).psn_span(self.length)
    }

    /// Bytes of READ data still to come.
    pub(super) fn left(&self) -> usize {
        self.between(0, self.length)
    }

    /// Bytes that a request for `from .. to` brings, without those taken before: none if it is for
    /// more than any message may have, since the target refuses that.
    pub(super) fn between(&self, from: u32, to: u32) -> usize {
        if self.length > MAX_MESSAGE { 0 } else { to.saturating_sub(from.max(self.taken)) as usize }
    }

    /// Where the piece ends that begins `from` bytes into the READ. Counted from the READ's end, so
    /// that the rest of a READ is cut where the READ was, whoever asks again for it and from where:
    /// Soft-RoCE answers again only what lies within one request that it has had (`rxe_resp.c`,
    /// `duplicate_request`).
    pub(super) fn piece_end(&self, from: u32, piece: u32, mtu: MtuSet) -> u32 {
        if from < self.cut {
            return self.cut;
        }
        let left = self.length.saturating_sub(from);
        // One longer than any message may be is the target's to refuse.
        if left <= piece || self.length > MAX_MESSAGE {
            return self.length;
        }
        let left = padded(left, mtu.known().unwrap_or(LARGEST));
        from + (left - 1) % piece + 1
    }

    /// Where to ask again, if it was asked for before: where the request began that the missing
    /// response belongs to. From then on Soft-RoCE answers only what lies at or after the place
    /// asked for (`rxe_resp.c`, `duplicate_request`, sets `va_org`), and the requester may still
    /// want what was taken here: it may have lost it, or its timer has it ask again. Only if that
    /// brings nothing, the missing response itself is asked for.
    pub(super) fn resume_at(&self, piece: u32, mtu: MtuSet) -> u32 {
        if self.taken == 0 || self.is_stuck() {
            return self.taken;
        }
        if self.taken < self.cut {
            return 0;
        }
        let end = padded(self.piece_end(self.taken, piece, mtu), mtu.known().unwrap_or(LARGEST));
        end.saturating_sub(piece).max(self.cut).min(self.taken)
    }

    fn is_stuck(&self) -> bool {
        self.asks >= STUCK || self.gaps >= TORN
    }

    /// A response before the one that stands next.
    pub(super) fn is_behind(&self, psn: Psn) -> bool {
        psn.is_within(self.start, self.answered)
    }

    /// Takes the response that stands at [`next`](Progress::next), of a READ asked for in pieces of
    /// `piece` bytes if it is longer. `None`: its size or place does not fit, so it is no answer to
    /// this READ.
    ///
    /// After a restart in mid-range, and with each piece, the target starts anew with First; the
    /// requester, who knows nothing of it, must see Middle. And where the requester itself asks for
    /// the rest of a READ, it must see First, but Soft-RoCE goes on with Middle (`rxe_resp.c`,
    /// `read_reply`, in state `rdatm_res_state_replay`).
    fn take(&mut self, packet: &Packet<'_>, mtu: &mut MtuSet, piece: u32) -> Option<Taken> {
        let payload = packet.payload.len();
        let place = packet.bth.opcode.place();
        let in_pieces = self.cut != 0 || self.length > piece && self.length <= MAX_MESSAGE;
        let ends = || mtu.known().is_some_and(|mtu| self.ends_at(self.answered, mtu));
        // The last packet of a piece is one in the middle of the READ.
        let last = matches!(place, Place::Last | Place::Only) && (!in_pieces || ends());
        let expected = match (last, self.answered) {
            // The first packet of all teaches the path MTU, or that the whole is not larger.
            (false, 0) => usize::try_from(self.length).ok().filter(|&length| payload < length),
            (true, 0) => usize::try_from(self.length).ok(),
            _ => self.payload_at(self.answered, mtu.known()?),
        };
        let fits = match (last, self.answered) {
            (false, 0) => expected.is_some() && payload.is_power_of_two() && (256..=4096).contains(&payload),
            (true, 0) => expected == Some(payload) && payload <= 4096,
            _ => expected == Some(payload) && last == self.ends_at(self.answered, mtu.known()?),
        };
        if !fits {
            return None;
        }
        let learnt = match (last, self.answered) {
            (false, 0) => mtu.learn_full(payload),
            (true, 0) => mtu.learn_fits(payload),
            _ => false,
        };
        let opcode = match (self.answered == 0, last) {
            (true, true) => Opcode::ReadResponseOnly,
            (true, false) => Opcode::ReadResponseFirst,
            (false, false) => Opcode::ReadResponseMiddle,
            (false, true) => Opcode::ReadResponseLast,
        };
        let before = self.taken.checked_sub(1);
        let surplus = in_pieces && before.is_some_and(|at| self.is_cut_after(at, piece, *mtu));
        self.answered += 1;
        self.asks = 0;
        self.taken += u32::try_from(payload).unwrap_or(0);
        if last {
            self.span = self.answered;
        }
        Some(Taken { opcode, complete: last, learnt, surplus })
    }

    /// Its end, and where it was cut first if that is not where a READ of this length is cut with
    /// this path MTU.
    pub(super) fn odd_cut(&self, piece: u32, mtu: u32) -> Option<(Psn, Psn)> {
        let whole = padded(self.length, mtu);
        let is_odd = self.cut != 0 && !(whole - self.cut).is_multiple_of(piece);
        is_odd.then_some((self.start + self.cut / mtu, self.start + whole / mtu))
    }

    /// Returns true if a piece ends with the byte at this place.
    fn is_cut_after(&self, at: u32, piece: u32, mtu: MtuSet) -> bool {
        let unit = mtu.known().unwrap_or(LARGEST);
        let left = padded(self.length, unit).saturating_sub(at + 1);
        at + 1 == self.cut || at >= self.cut && left != 0 && left.is_multiple_of(piece)
    }

    fn payload_at(&self, index: u32, mtu: u32) -> Option<usize> {
        let offset = index.checked_mul(mtu)?;
        let left = self.length.checked_sub(offset)?;
        usize::try_from(left.min(mtu)).ok()
    }

    fn ends_at(&self, index: u32, mtu: u32) -> bool {
        u64::from(index + 1) * u64::from(mtu) >= u64::from(self.length)
    }

    /// The PSN of the byte at this place; that of the first one while the path MTU is unknown.
    pub(super) fn psn_at(&self, offset: u32, mtu: MtuSet) -> Psn {
        self.start + mtu.known().map_or(0, |mtu| offset / mtu)
    }

    /// Turns the request's bytes in `out` into the request for the bytes `from .. to`.
    pub(super) fn ask(&self, out: &mut [u8], from: u32, to: u32, mtu: MtuSet) -> Option<()> {
        if from > 0 {
            mtu.known()?;
        }
        Bth::set_psn(out.first_chunk_mut()?, self.psn_at(from, mtu));
        let reth = out.get_mut(BTH_LEN..)?;
        let va: &mut [u8; 8] = reth.first_chunk_mut()?;
        *va = u64::from_be_bytes(*va).wrapping_add(from.into()).to_be_bytes();
        let length: &mut [u8; 4] = reth.get_mut(12..)?.first_chunk_mut()?;
        *length = to.checked_sub(from)?.to_be_bytes();
        Some(())
    }
}

/// Takes the response that stands next for an operation of this kind; `None` if it is none.
pub(super) fn take(
    kind: Kind,
    read: &mut Progress,
    packet: &Packet<'_>,
    mtu: &mut MtuSet,
    piece: u32,
) -> Option<Taken> {
    let opcode = packet.bth.opcode;
    let fits = match kind {
        Kind::Read if opcode.kind() == Kind::ReadResponse => return read.take(packet, mtu, piece),
        Kind::Read => false,
        Kind::Atomic => opcode == Opcode::AtomicAcknowledge,
        _ => opcode == Opcode::ReadResponseOnly && packet.payload.is_empty(),
    };
    if !fits {
        return None;
    }
    read.answered = 1;
    Some(Taken { opcode, complete: true, learnt: false, surplus: false })
}

/// The AETH to go with `opcode`, which replaces the packet's own; `said`, what the target said
/// last, for one that has none.
pub(super) fn aeth_for(opcode: Opcode, packet: &Packet<'_>, said: Aeth) -> Option<Aeth> {
    match opcode {
        Opcode::ReadResponseMiddle => None,
        _ => Some(packet.ext.aeth().copied().unwrap_or(said)),
    }
}
