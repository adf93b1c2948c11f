//! The 32-bit immediate of a packet.
//!
//! ```text
//! message id 10 bits | packet offset 18 bits | fragment of the user's immediate 4 bits
//! ```
//!
//! The offset counts packets from the start of the receive buffer.
//! The user's immediate is sampled over packets: offset `i` carries nibble `i mod 8`.
//! So any packets with all eight residues give it whole.

/// Bits of message id, packet offset and fragment.
pub const SPLIT: [u8; 3] = [10, 18, 4];

/// Logarithm of the most message slots.
pub const MAX_SLOTS_LOG: u32 = 10;

/// Packets that an immediate numbers.
pub const MAX_PACKETS: u32 = 1 << 18;

/// Packets that a message needs to carry an immediate.
pub const IMM_PACKETS: u32 = 8;

/// A packet's immediate, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketImm {
    /// Message id: the slot.
    pub id: u32,
    /// Offset in packets from the start of the receive buffer.
    pub offset: u32,
    /// Nibble `offset mod 8` of the user's immediate.
    pub fragment: u8,
}

impl PacketImm {
    /// Returns the immediate as it is sent. Bits beyond each field are cut off.
    #[must_use]
    pub const fn encode(self) -> u32 {
        (self.id & 0x3ff) << 22 | (self.offset & 0x3_ffff) << 4 | (self.fragment & 0xf) as u32
    }

    /// Takes an immediate apart.
    #[must_use]
    pub const fn decode(imm: u32) -> Self {
        PacketImm { id: imm >> 22, offset: imm >> 4 & 0x3_ffff, fragment: (imm & 0xf) as u8 }
    }
}

/// Returns the fragment of `user` that the packet at `offset` carries.
#[must_use]
pub const fn fragment(user: u32, offset: u32) -> u8 {
    (user >> (4 * (offset % IMM_PACKETS)) & 0xf) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_split_stands_where_it_is_documented() {
        let imm = PacketImm { id: 0x3ff, offset: 0, fragment: 0 };
        assert_eq!(imm.encode(), 0xffc0_0000);
        let imm = PacketImm { id: 1, offset: 0x2_0001, fragment: 0xa };
        assert_eq!(imm.encode(), 0x0060_001a);
        assert_eq!(PacketImm::decode(0x0060_001a), imm);
        assert_eq!(SPLIT.iter().map(|bits| u32::from(*bits)).sum::<u32>(), u32::BITS);
    }

    #[test]
    fn eight_fragments_are_the_immediate() {
        let whole = (16..24).map(|offset| u32::from(fragment(0x1234_abcd, offset)) << (4 * (offset % 8)));
        assert_eq!(whole.sum::<u32>(), 0x1234_abcd);
    }
}
