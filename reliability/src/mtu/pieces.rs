//! Packets longer than the path carries by now, cut in two or more and joined.

use crate::estimator::LaneId;
use crate::stream::wire::{Kind, Reader, Start, Writer};
use crate::stream::{Malformed, StreamId};

/// Bytes before a piece.
pub const PIECE_HEADER: usize = 16;
/// Pieces of a packet, at most.
const MOST: u8 = 32;
/// Packets that are joined at a time; a piece of a newer one drops the oldest.
const JOINED: usize = 64;
/// Longest packet that is joined.
const LONGEST: usize = super::LARGEST;

/// Cuts one packet at a time. A piece that is lost costs the whole packet, which its stream
/// repairs; what the path carries by now is cut so only until it is acknowledged, since new packets
/// are built for the path as it is. All pieces of a packet leave on one lane: the receiver joins
/// each lane's by themselves, so that it need not keep them for as long as the slowest lane takes.
#[derive(Debug, Default)]
pub struct Cutter {
    packet: Vec<u8>,
    lane: LaneId,
    id: u32,
    index: u8,
    count: u8,
    piece: usize,
}

impl Cutter {
    /// Takes a packet, to leave on this lane in pieces of so many bytes with their headers. One
    /// that would take more than 32 is dropped, as the path would have.
    pub fn cut(&mut self, packet: &[u8], lane: LaneId, longest: usize) {
        self.lane = lane;
        self.packet.clear();
        self.packet.extend_from_slice(packet);
        self.id = self.id.wrapping_add(1);
        self.index = 0;
        let count = packet.len().div_ceil(longest.saturating_sub(PIECE_HEADER).max(1));
        self.count = u8::try_from(count).ok().filter(|count| *count <= MOST).unwrap_or(0);
        // Alike, so that the last is no longer than the others.
        self.piece = packet.len().div_ceil(count.max(1));
    }

    /// The pieces left are none any more: they are too long by now.
    pub fn clear(&mut self) {
        self.count = 0;
    }

    /// Writes the next piece; its lane and length.
    pub fn poll(&mut self, out: &mut [u8]) -> Option<(LaneId, usize)> {
        if self.index >= self.count {
            return None;
        }
        let offset = usize::from(self.index) * self.piece;
        let end = self.packet.len().min(offset + self.piece);
        let piece = self.packet.get(offset..end)?;
        let (head, rest) = out.split_at_mut_checked(PIECE_HEADER)?;
        let mut writer = Writer::new(head);
        writer.start(Kind::Piece, 0, StreamId(0));
        writer.put(&self.id.to_be_bytes());
        writer.put(&(self.packet.len() as u16).to_be_bytes());
        writer.put(&(offset as u16).to_be_bytes());
        writer.put(&[self.index, self.count, 0, 0]);
        rest.get_mut(..piece.len())?.copy_from_slice(piece);
        let len = PIECE_HEADER + piece.len();
        self.index += 1;
        Some((self.lane, len))
    }
}

/// Joins the pieces of up to 64 packets of up to 9000 bytes at a time, that came on one lane.
/// Copies of a piece change nothing.
///
/// Rule: `docs/protocol.md#rule-piece`.
#[derive(Debug, Default)]
pub struct Joiner {
    /// By number modulo their count.
    packets: Vec<Partial>,
}

#[derive(Clone, Debug, Default)]
struct Partial {
    id: u32,
    count: u8,
    /// Bit by bit.
    arrived: u32,
    bytes: Vec<u8>,
}

impl Joiner {
    /// Takes a PIECE; the packet, if it is the last that was missing.
    ///
    /// # Errors
    /// [`Malformed`], and nothing has changed.
    pub fn handle(&mut self, packet: &[u8]) -> Result<Option<&[u8]>, Malformed> {
        let mut reader = Reader(packet);
        let Start { kind, .. } = reader.start()?;
        if kind != Kind::Piece {
            return Err(Malformed::Direction(kind));
        }
        let (id, total, offset) = (reader.u32()?, usize::from(reader.u16()?), usize::from(reader.u16()?));
        let [index, count, _, _] = reader.array()?;
        let piece = reader.0;
        let end = offset + piece.len();
        if index >= count || count > MOST || piece.is_empty() || end > total || total > LONGEST {
            return Err(Malformed::Piece);
        }
        if self.packets.is_empty() {
            self.packets.resize(JOINED, Partial::default());
        }
        let place = id as usize % JOINED;
        let Some(partial) = self.packets.get_mut(place) else { return Ok(None) };
        if partial.count > 0 && (id.wrapping_sub(partial.id) as i32) < 0 {
            // Overtaken by 64 packets.
            return Ok(None);
        }
        if (partial.id, partial.count, partial.bytes.len()) != (id, count, total) {
            partial.bytes.clear();
            partial.bytes.resize(total, 0);
            (partial.id, partial.count, partial.arrived) = (id, count, 0);
        }
        let all = u32::MAX >> (32 - u32::from(count));
        if partial.arrived == all {
            return Ok(None);
        }
        if let Some(to) = partial.bytes.get_mut(offset..end) {
            to.copy_from_slice(piece);
        }
        partial.arrived |= 1 << index;
        Ok((partial.arrived == all).then_some(&*partial.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(cutter: &mut Cutter, packet: &[u8], longest: usize) -> Vec<Vec<u8>> {
        cutter.cut(packet, LaneId(3), longest);
        let mut pieces = Vec::new();
        let mut out = [0; 9000];
        while let Some((lane, len)) = cutter.poll(&mut out) {
            assert!(lane == LaneId(3) && len <= longest, "{lane:?}: {len} of {longest}");
            pieces.push(out[..len].to_vec());
        }
        pieces
    }

    #[test]
    fn a_packet_comes_whole_out_of_its_pieces_in_any_order_and_once() {
        let mut cutter = Cutter::default();
        let mut joiner = Joiner::default();
        for (len, longest, count) in
            [(8940, 1168, 8), (8940, 516, 18), (1440, 1168, 2), (2, 1168, 1), (3, 17, 3)]
        {
            let packet: Vec<u8> = (0..len).map(|at| (at * 7 % 251) as u8).collect();
            let mut pieces = pieces(&mut cutter, &packet, longest);
            assert_eq!(pieces.len(), count);
            pieces.reverse();
            let last = pieces.pop().unwrap();
            for piece in pieces.iter().chain(&pieces) {
                assert_eq!(joiner.handle(piece), Ok(None));
            }
            assert_eq!(joiner.handle(&last).unwrap(), Some(&*packet));
            assert_eq!(joiner.handle(&last), Ok(None), "a copy");
        }
    }

    #[test]
    fn what_lies_outside_its_packet_changes_nothing() {
        let mut cutter = Cutter::default();
        let packet = [5; 100];
        let good = pieces(&mut cutter, &packet, 80);
        let mut joiner = Joiner::default();
        joiner.handle(&good[0]).unwrap();
        // Kind, total, offset, index, count, count of more than there may be.
        for (at, value) in [(0, 1), (8, 255), (10, 1), (12, 2), (13, 1), (13, 33)] {
            let mut bad = good[1].clone();
            bad[at] = value;
            assert!(joiner.handle(&bad).is_err(), "byte {at}");
        }
        assert!(joiner.handle(&good[1][..PIECE_HEADER]).is_err() && joiner.handle(&good[1][..9]).is_err());
        assert_eq!(joiner.handle(&good[1]).unwrap(), Some(&packet[..]));
    }

    #[test]
    fn a_packet_of_too_many_pieces_is_dropped_and_unfinished_ones_make_room() {
        let mut cutter = Cutter::default();
        assert_eq!(pieces(&mut cutter, &[1; 100], 19).len(), 0);
        let mut joiner = Joiner::default();
        let packets: Vec<_> = (0..65).map(|fill| pieces(&mut cutter, &[fill; 100], 80)).collect();
        for packet in &packets {
            joiner.handle(&packet[0]).unwrap();
        }
        assert_eq!(joiner.handle(&packets[0][1]), Ok(None), "dropped for the 65th");
        assert_eq!(joiner.handle(&packets[1][1]).unwrap(), Some(&[1; 100][..]));
    }

    #[test]
    fn a_late_piece_does_not_displace_a_newer_packet() {
        let (mut cutter, mut joiner) = (Cutter::default(), Joiner::default());
        let sent: Vec<_> = (0..=JOINED as u8).map(|fill| pieces(&mut cutter, &[fill; 2000], 1200)).collect();
        let (first, last) = (&sent[0], &sent[JOINED]);
        assert_eq!((first.len(), last.len()), (2, 2));
        assert_eq!(joiner.handle(&first[0]).unwrap(), None);
        assert_eq!(joiner.handle(&last[0]).unwrap(), None);
        assert_eq!(joiner.handle(&first[1]).unwrap(), None);
        assert_eq!(joiner.handle(&last[1]).unwrap(), Some(&[JOINED as u8; 2000][..]));
    }
}
