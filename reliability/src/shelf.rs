//! Emptied byte buffers by size, kept for reuse, every byte of them counted.

/// The least a buffer holds.
const LEAST: usize = 32;
/// Sizes between a power of two and the next: a buffer is at most a sixteenth larger than asked
/// for.
const STEPS: usize = 16;
const STEP_BITS: u32 = STEPS.ilog2();
/// Doublings of [`LEAST`] that are kept: buffers of up to 128 KiB. Longer ones go back to the
/// allocator.
const DOUBLINGS: usize = 13;
/// Bytes that a kept buffer takes on its stack, which doubles when it grows.
const PLACE: usize = 2 * size_of::<Vec<u8>>();

/// Keeps emptied buffers by their size.
///
/// # Bounds
/// The owner bounds what is kept: it asks for [`Shelf::bytes`] and calls [`Shelf::shrink`]. Nothing
/// is allocated once as many buffers of each size are kept as are needed.
#[derive(Debug)]
pub struct Shelf {
    stacks: Vec<Vec<Vec<u8>>>,
    bytes: usize,
}

impl Default for Shelf {
    fn default() -> Self {
        Self::new()
    }
}

impl Shelf {
    /// An empty shelf.
    #[must_use]
    pub fn new() -> Self {
        Self { stacks: Vec::new(), bytes: 0 }
    }

    /// The capacity of the buffer that [`Shelf::take`] gives for so many bytes.
    #[must_use]
    pub fn size_for(len: usize) -> usize {
        size_and_place(len).0
    }

    /// Returns an empty buffer with room for `len` bytes and a capacity of [`Shelf::size_for`] it;
    /// the last one given back of its size, if any.
    #[must_use]
    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let (size, place) = size_and_place(len);
        match self.stacks.get_mut(place).and_then(Vec::pop) {
            Some(buffer) => {
                self.bytes -= size + PLACE;
                buffer
            }
            None => Vec::with_capacity(size),
        }
    }

    /// Takes a buffer back. One that did not come from a shelf, or has grown since, is freed.
    pub fn give(&mut self, mut buffer: Vec<u8>) {
        let (size, place) = size_and_place(buffer.capacity());
        if size != buffer.capacity() || place >= DOUBLINGS * STEPS {
            return;
        }
        if self.stacks.len() <= place {
            self.stacks.resize_with(place + 1, Vec::new);
        }
        if let Some(stack) = self.stacks.get_mut(place) {
            buffer.clear();
            stack.push(buffer);
            self.bytes += size + PLACE;
        }
    }

    /// Bytes that are kept.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Frees buffers, the largest first, until no more than `most` bytes are kept.
    pub fn shrink(&mut self, most: usize) {
        while self.bytes > most
            && let Some(stack) = self.stacks.last_mut()
        {
            match stack.pop() {
                Some(buffer) => self.bytes -= buffer.capacity() + PLACE,
                None => drop(self.stacks.pop()),
            }
        }
        if most == 0 {
            *self = Self::new();
        }
    }
}

/// The size of the buffer for `len` bytes, and the place of those of its size.
fn size_and_place(len: usize) -> (usize, usize) {
    let len = len.max(LEAST);
    let shift = (len - 1).ilog2() - STEP_BITS;
    let units = ((len - 1) >> shift) + 1;
    // `units` is from 17 to 32, and 32 for the least length.
    let first = LEAST.ilog2() - 1 - STEP_BITS;
    (units << shift, (shift - first) as usize * STEPS + units - (STEPS + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_ascend_with_their_places_and_exceed_what_was_asked_for_by_a_sixteenth_at_most() {
        let mut last = (0, 0);
        for len in 0..70_000 {
            let (size, place) = size_and_place(len);
            assert!(size >= len && size <= len.max(LEAST) + len / STEPS, "{len}: {size}");
            assert_eq!(size_and_place(size), (size, place), "{len}");
            assert!(
                (size > last.0) == (place > last.1) || len == 0,
                "{len}: {size} at {place} after {last:?}"
            );
            last = (size, place);
        }
        assert!(last.1 < DOUBLINGS * STEPS);
    }

    #[test]
    fn what_is_kept_is_counted_and_given_back() {
        let mut shelf = Shelf::new();
        let counted = allocation_counter::measure(|| {
            let mut buffers: Vec<_> = (0..1000).map(|len| shelf.take(len * 7)).collect();
            buffers.drain(..).for_each(|buffer| shelf.give(buffer));
        });
        let kept = shelf.bytes() as i64;
        assert!(counted.bytes_current <= kept + 10_000, "{} of {kept}", counted.bytes_current);
        let (one, other) = (shelf.take(999), shelf.take(999));
        assert_eq!((one.capacity(), one.capacity()), (Shelf::size_for(999), other.capacity()));
        let address = one.as_ptr();
        shelf.give(one);
        let again = shelf.take(999);
        assert_eq!(again.as_ptr(), address);
        shelf.shrink(1000);
        assert!(shelf.bytes() <= 1000);
        shelf.shrink(0);
        assert_eq!(shelf.bytes(), 0);
    }

    #[test]
    fn a_buffer_that_grew_is_not_kept() {
        let mut shelf = Shelf::new();
        let mut buffer = shelf.take(100);
        buffer.extend_from_slice(&[1; 1001]);
        shelf.give(buffer);
        shelf.give(Vec::new());
        assert_eq!(shelf.bytes(), 0);
    }
}
