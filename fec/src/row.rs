//! One parity of a block whose packets are all at hand.

use crate::{Code, Engine, PARITY_OVERHEAD, gf};

/// Why there is no such parity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// The code has fewer parities.
    #[error("there is no parity {index} in a code with {m}")]
    NoSuchParity {
        /// The parity asked for.
        index: usize,
        /// The code's.
        m: usize,
    },
    /// There are more packets than the code has.
    #[error("more packets than the {k} of a block")]
    TooMuchData {
        /// The code's.
        k: usize,
    },
    /// A packet does not fit into the buffer, or its length into 16 bits.
    #[error("a packet of {len} bytes does not fit")]
    TooLong {
        /// Bytes of the packet.
        len: usize,
    },
}

/// Writes parity `index` of a block to `out`, as an [`Encoder`](crate::Encoder) makes it; its
/// length is returned.
///
/// `packets` are the block's data packets from the first on, all that were encoded. Where an
/// encoder spreads the work over the packets for parities known beforehand, this takes a pass over
/// the whole block for a single one: for parities that turn out to be needed later. What stands in
/// `out` beyond the parity, and on error, is unspecified.
pub fn parity_row<'a>(
    engine: &dyn Engine,
    code: &Code,
    index: usize,
    packets: impl IntoIterator<Item = &'a [u8]>,
    out: &mut [u8],
) -> Result<usize, RowError> {
    if index >= code.m() {
        return Err(RowError::NoSuchParity { index, m: code.m() });
    }
    let room = out.len();
    let too_long = |len| RowError::TooLong { len };
    let (head, body) = out.split_first_chunk_mut::<PARITY_OVERHEAD>().ok_or(too_long(room))?;
    let mut header = [0; PARITY_OVERHEAD];
    let mut longest = 0;
    for (j, packet) in packets.into_iter().enumerate() {
        if j >= code.k() {
            return Err(RowError::TooMuchData { k: code.k() });
        }
        let length = u16::try_from(packet.len()).map_err(|_| too_long(packet.len()))?;
        if packet.len() > longest {
            body.get_mut(longest..packet.len()).ok_or(too_long(packet.len()))?.fill(0);
            longest = packet.len();
        }
        let coef = code.coefficient(index, j);
        if coef == 0 {
            continue;
        }
        for (sum, byte) in header.iter_mut().zip(length.to_be_bytes()) {
            *sum ^= gf::mul(coef, byte);
        }
        if let Some(body) = body.get_mut(..packet.len()) {
            engine.mul_add(coef, packet, body);
        }
    }
    *head = header;
    Ok(PARITY_OVERHEAD + longest)
}
