//! Outgoing datagrams, kept in batches that one `sendmsg` can carry.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;

/// The largest UDP payload, which a whole GSO batch must fit: the kernel builds it as one IPv4
/// packet first.
pub(super) const MAX_UDP_PAYLOAD: usize = 65_507;

/// Batches kept at most, whatever their size; small packets to ever changing peers reach it before
/// the bytes run out.
const MAX_BATCHES: usize = 1024;

/// Datagrams in one contiguous buffer, written in place.
///
/// Neighbours of equal length for one destination and from one lane form a *batch*; a shorter one
/// joins as its last. A lane's batches leave in order, and one lane's need not wait for another's.
/// When the buffer's bytes or [`MAX_BATCHES`] are used up, [`reserve`](Self::reserve) answers
/// `None` until something was sent.
pub(super) struct SendQueue {
    buffer: Box<[u8]>,
    batches: VecDeque<Batch>,
    /// Where the next packet is written: behind all batches, between which there may be gaps.
    tail: usize,
    /// Bytes of all batches.
    waiting: usize,
    /// Bytes the last reservation granted, so that a commit cannot claim more.
    granted: usize,
}

/// Equal-length datagrams from one lane for one destination, next to each other; the last may be
/// shorter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batch {
    pub(super) lane: usize,
    pub(super) destination: SocketAddr,
    /// Length of each datagram but the last.
    pub(super) segment: usize,
    pub(super) start: usize,
    pub(super) end: usize,
    /// True while another datagram may still join.
    open: bool,
}

impl Batch {
    pub(super) fn bytes(&self) -> Range<usize> {
        self.start..self.end
    }

    /// Datagrams in it.
    pub(super) fn datagrams(&self) -> usize {
        (self.end - self.start).div_ceil(self.segment)
    }
}

impl SendQueue {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            buffer: vec![0; capacity.max(MAX_UDP_PAYLOAD)].into_boxed_slice(),
            batches: VecDeque::with_capacity(MAX_BATCHES),
            tail: 0,
            waiting: 0,
            granted: 0,
        }
    }

    /// Room for one datagram of up to `len` bytes, or `None` when the queue is full.
    pub(super) fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.granted = 0;
        if len > MAX_UDP_PAYLOAD || self.batches.len() >= MAX_BATCHES {
            return None;
        }
        if self.buffer.len() - self.tail < len {
            self.compact();
        }
        let slot = self.buffer.get_mut(self.tail..self.tail + len)?;
        self.granted = len;
        Some(slot)
    }

    /// The first `len` bytes of the last reservation.
    pub(super) fn reserved(&self, len: usize) -> Option<&[u8]> {
        self.buffer.get(self.tail..self.tail + len.min(self.granted))
    }

    /// Takes the first `len` bytes of the last reservation as a datagram from a lane for
    /// `destination`; a batch holds at most `max_segments`. Whether there was anything to take.
    pub(super) fn commit(
        &mut self,
        len: usize,
        (lane, destination): (usize, SocketAddr),
        max_segments: usize,
    ) -> bool {
        let len = len.min(std::mem::take(&mut self.granted));
        if len == 0 {
            return false;
        }
        let start = self.tail;
        self.tail += len;
        self.waiting += len;
        if let Some(last) = self.batches.back_mut()
            && last.open
            && last.end == start
            && (last.lane, last.destination) == (lane, destination)
            && len <= last.segment
        {
            last.end += len;
            last.open = len == last.segment && has_room(last, max_segments);
            return true;
        }
        let mut batch = Batch { lane, destination, segment: len, start, end: start + len, open: true };
        batch.open = has_room(&batch, max_segments);
        self.batches.push_back(batch);
        true
    }

    /// Closes the batch: the datagram committed next begins another.
    pub(super) fn close(&mut self) {
        if let Some(last) = self.batches.back_mut() {
            last.open = false;
        }
    }

    /// The batch after the `nth` oldest ones, and its bytes.
    pub(super) fn get(&self, nth: usize) -> Option<(Batch, &[u8])> {
        let batch = *self.batches.get(nth)?;
        Some((batch, self.buffer.get(batch.bytes())?))
    }

    /// Forgets the first bytes of a batch: whole datagrams, not all.
    pub(super) fn advance(&mut self, nth: usize, bytes: usize) {
        if let Some(batch) = self.batches.get_mut(nth) {
            batch.start += bytes;
            self.waiting -= bytes;
        }
    }

    /// Forgets a batch. The oldest ones are forgotten at least cost.
    pub(super) fn remove(&mut self, nth: usize) -> Option<Batch> {
        let removed = self.batches.remove(nth)?;
        self.waiting -= removed.end - removed.start;
        if self.batches.is_empty() {
            self.tail = 0;
        }
        Some(removed)
    }

    /// Bytes waiting to be sent.
    pub(super) fn backlog(&self) -> usize {
        self.waiting
    }

    /// Returns true if more waits than half of what there may be.
    pub(super) fn is_half_full(&self) -> bool {
        self.waiting > self.buffer.len() / 2 || self.batches.len() > MAX_BATCHES / 2
    }

    /// Moves what waits to the front of the buffer. Only after the kernel refused a part of an
    /// earlier flush are there gaps to close.
    fn compact(&mut self) {
        let mut end = 0;
        for batch in &mut self.batches {
            if batch.start > end {
                self.buffer.copy_within(batch.bytes(), end);
            }
            (batch.start, batch.end) = (end, end + batch.end - batch.start);
            end = batch.end;
        }
        self.tail = end;
    }
}

fn has_room(batch: &Batch, max_segments: usize) -> bool {
    batch.datagrams() < max_segments && batch.end - batch.start + batch.segment <= MAX_UDP_PAYLOAD
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);
    const B: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 2);

    fn put(queue: &mut SendQueue, len: usize, fill: u8, to: SocketAddr) -> bool {
        let Some(slot) = queue.reserve(2000.max(len)) else {
            return false;
        };
        slot[..len].fill(fill);
        queue.commit(len, (0, to), 64);
        true
    }

    fn shape(queue: &SendQueue) -> Vec<(usize, usize)> {
        queue.batches.iter().map(|batch| (batch.segment, batch.datagrams())).collect()
    }

    #[test]
    fn equal_lengths_join_and_a_shorter_one_closes() {
        let mut queue = SendQueue::new(1 << 18);
        for len in [1000, 1000, 999, 1000, 1001, 5] {
            assert!(put(&mut queue, len, 0, A));
        }
        assert_eq!(shape(&queue), [(1000, 3), (1000, 1), (1001, 2)]);
        assert_eq!(queue.backlog(), 5005);
    }

    #[test]
    fn a_datagram_alone_neither_joins_nor_is_joined() {
        let mut queue = SendQueue::new(1 << 18);
        let alone = |queue: &mut SendQueue| {
            queue.close();
            queue.reserve(1000).unwrap();
            queue.commit(900, (0, A), 1);
        };
        put(&mut queue, 1000, 0, A);
        alone(&mut queue);
        put(&mut queue, 900, 0, A);
        assert_eq!(shape(&queue), [(1000, 1), (900, 1), (900, 1)]);
    }

    #[test]
    fn another_destination_starts_another_batch() {
        let mut queue = SendQueue::new(1 << 18);
        for to in [A, A, B, A] {
            assert!(put(&mut queue, 100, 0, to));
        }
        assert_eq!(shape(&queue), [(100, 2), (100, 1), (100, 1)]);
    }

    #[test]
    fn another_lane_starts_another_batch() {
        let mut queue = SendQueue::new(1 << 18);
        for lane in [0, 0, 1, 1, 0] {
            queue.reserve(100).unwrap();
            queue.commit(100, (lane, A), 64);
        }
        assert_eq!(shape(&queue), [(100, 2), (100, 2), (100, 1)]);
        assert_eq!(queue.batches.iter().map(|batch| batch.lane).collect::<Vec<_>>(), [0, 1, 0]);
    }

    #[test]
    fn a_batch_stays_below_the_segment_and_the_byte_limit() {
        let mut queue = SendQueue::new(1 << 18);
        (0..65).for_each(|_| assert!(put(&mut queue, 100, 0, A)));
        (0..46).for_each(|_| assert!(put(&mut queue, 1448, 0, B)));
        assert_eq!(shape(&queue), [(100, 64), (100, 1), (1448, 45), (1448, 1)]);
    }

    #[test]
    fn full_refuses_and_compacts_once_something_left() {
        let mut queue = SendQueue::new(MAX_UDP_PAYLOAD);
        let mut filled = 0u8;
        while put(&mut queue, 1500, filled, A) {
            filled += 1;
        }
        assert_eq!(shape(&queue), [(1500, 43)], "44 fit, but a reservation asks for 2000");
        assert!(put(&mut queue, 100, 99, B) == (queue.buffer.len() - queue.tail >= 2000));
        queue.remove(0);
        assert_eq!(queue.backlog(), 0);
        (0..43).for_each(|fill| assert!(put(&mut queue, 1000 + usize::from(fill) / 22, fill, A)));
        assert_eq!(shape(&queue), [(1000, 22), (1001, 21)]);
        while put(&mut queue, 1001, 77, A) {}
        queue.remove(0);
        assert!(put(&mut queue, 1002, 88, B), "the gap is closed");
        let (batch, bytes) = queue.get(0).unwrap();
        assert_eq!((batch.start, batch.segment, bytes[0], bytes[1001]), (0, 1001, 22, 23));
        let last = *queue.batches.back().unwrap();
        assert!(queue.buffer[last.bytes()].iter().all(|&byte| byte == 88));
    }

    #[test]
    fn what_waits_among_others_is_kept_whole_and_in_its_place() {
        let mut queue = SendQueue::new(MAX_UDP_PAYLOAD);
        let put = |queue: &mut SendQueue, lane: usize, fill: u8| {
            let Some(slot) = queue.reserve(1000) else { return false };
            slot.fill(fill);
            queue.commit(1000, (lane, A), 1)
        };
        for fill in 0..60 {
            assert!(put(&mut queue, usize::from(fill) % 3, fill));
        }
        // The second lane's stay.
        let mut nth = 0;
        while let Some((batch, _)) = queue.get(nth) {
            match batch.lane {
                1 => nth += 1,
                _ => assert!(queue.remove(nth).is_some()),
            }
        }
        assert_eq!((queue.backlog(), queue.is_half_full()), (20_000, false));
        assert!((100..145).all(|fill| put(&mut queue, 0, fill)) && !put(&mut queue, 0, 0));
        assert!(queue.is_half_full());
        let fills: Vec<_> = (0..65).map(|nth| queue.get(nth).unwrap().1[999]).collect();
        assert!(fills.into_iter().eq((0..20).map(|nth| 3 * nth + 1).chain(100..145)));
        // One that is followed by a gap takes no further datagram.
        let mut queue = SendQueue::new(MAX_UDP_PAYLOAD);
        for lane in [0, 1, 0] {
            queue.reserve(100).unwrap();
            queue.commit(100, (lane, A), 64);
        }
        queue.remove(2);
        queue.remove(1);
        queue.reserve(100).unwrap().fill(7);
        queue.commit(100, (0, A), 64);
        assert_eq!(shape(&queue), [(100, 1), (100, 1)]);
        assert_eq!(queue.get(1).unwrap().1, [7; 100]);
    }

    #[test]
    fn a_commit_takes_no_more_than_was_reserved() {
        let mut queue = SendQueue::new(1 << 18);
        queue.reserve(10).unwrap();
        queue.commit(100, (0, A), 64);
        queue.commit(100, (0, A), 64);
        assert_eq!(shape(&queue), [(10, 1)]);
        assert!(queue.reserve(MAX_UDP_PAYLOAD + 1).is_none());
    }

    #[test]
    fn the_number_of_batches_is_bounded() {
        let mut queue = SendQueue::new(1 << 22);
        let sent = (0..2 * MAX_BATCHES)
            .take_while(|index| put(&mut queue, 10, 0, if index % 2 == 0 { A } else { B }))
            .count();
        assert_eq!(sent, MAX_BATCHES);
    }
}
