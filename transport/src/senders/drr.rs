//! Which stream sends next when the link is short.

/// Streams in the order in which they send.
///
/// Streams that share a turn are asked one after the other in it. Strict by rank, the lowest first;
/// turns of one rank share the link evenly, by deficit round robin (Shreedhar and Varghese, SIGCOMM
/// 1995): one that sends without end takes its share and no more, and what one leaves the others
/// have. So that no rank starves, a turn that did not come while those of lower ranks sent
/// [`SHARE`] packets' worth of bytes comes before them: whatever the ranks, one with something to
/// send gets about one packet in `SHARE + 1`, or as much less as others are in the same position.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct DrrScheduler {
    /// By rank.
    turns: Vec<Turn>,
    /// Bytes that those of lower ranks may send before a stream is asked.
    patience: usize,
    /// Bytes that may be sent in a turn: no less than a packet.
    quantum: isize,
    /// The longest wait there is.
    longest: usize,
}

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Turn {
    /// Who sent last stands last.
    streams: Vec<usize>,
    rank: u8,
    /// Bytes that those of lower ranks sent since it was last asked.
    waited: usize,
    /// Bytes that it may send before it is the next one's turn; negative: it sent more.
    credit: isize,
}

/// Packets of others for one that waits.
pub(super) const SHARE: usize = 16;
/// Bytes that a stream may send in its turn, at least.
const LEAST_QUANTUM: isize = 16 << 10;

impl DrrScheduler {
    /// Creates the turns of streams that share one with its rank, for packets of `max_packet` bytes
    /// at most.
    pub(super) fn new(turns: impl Iterator<Item = (Vec<usize>, u8)>, max_packet: usize) -> Self {
        let mut turns: Vec<_> =
            turns.map(|(streams, rank)| Turn { streams, rank, waited: 0, credit: 0 }).collect();
        turns.sort_by_key(|turn| turn.rank);
        let quantum = isize::try_from(max_packet).unwrap_or(isize::MAX).max(LEAST_QUANTUM);
        Self { turns, patience: SHARE * max_packet, quantum, longest: 0 }
    }

    /// Asks one stream after the other until one has a packet; `poll` says how long it is.
    pub(super) fn serve<T>(
        &mut self,
        mut poll: impl FnMut(usize) -> Option<(usize, T)>,
    ) -> Option<(usize, T)> {
        if self.longest >= self.patience {
            for index in 0..self.turns.len() {
                if let Some(turn) = self.turns.get_mut(index).filter(|turn| turn.waited >= self.patience) {
                    turn.waited = 0;
                    if let Some(served) = turn.ask(&mut poll) {
                        self.waited(index, served.0);
                        return Some(served);
                    }
                }
            }
        }
        let mut first = 0;
        while let Some(rank) = self.turns.get(first).map(|turn| turn.rank) {
            let equals = self.turns.iter().skip(first).take_while(|turn| turn.rank == rank).count();
            if let Some(served) = self.serve_equals(first, equals, &mut poll) {
                return Some(served);
            }
            first += equals;
        }
        self.longest = 0;
        None
    }

    /// Those that are asked, by rank.
    #[cfg(test)]
    pub(super) fn streams(&self) -> Vec<usize> {
        self.turns.iter().flat_map(|turn| turn.streams.iter().copied()).collect()
    }

    /// Asks the streams of one rank, `equals` of them from `first` on; the first of them is the one
    /// whose turn it is.
    fn serve_equals<T>(
        &mut self,
        first: usize,
        equals: usize,
        poll: &mut impl FnMut(usize) -> Option<(usize, T)>,
    ) -> Option<(usize, T)> {
        // Once more than there are: the first may have used its credit up.
        for _ in 0..=equals {
            let turn = self.turns.get_mut(first)?;
            turn.waited = 0;
            if turn.credit > 0
                && let Some(served) = turn.ask(poll)
            {
                turn.credit -= isize::try_from(served.0).unwrap_or(isize::MAX);
                self.waited(first, served.0);
                return Some(served);
            }
            // Who has nothing to send saves nothing up.
            turn.credit = turn.credit.min(0);
            self.turns.get_mut(first..first + equals)?.rotate_left(1);
            self.turns.get_mut(first)?.credit += self.quantum;
        }
        None
    }

    /// All of higher ranks have waited while one sent `bytes`.
    fn waited(&mut self, served: usize, bytes: usize) {
        let Some(rank) = self.turns.get(served).map(|turn| turn.rank) else { return };
        for turn in self.turns.iter_mut().filter(|turn| turn.rank > rank) {
            turn.waited = turn.waited.saturating_add(bytes);
        }
        self.longest = self.turns.iter().map(|turn| turn.waited).max().unwrap_or(0);
    }
}

impl Turn {
    fn ask<T>(&mut self, poll: &mut impl FnMut(usize) -> Option<(usize, T)>) -> Option<(usize, T)> {
        let (index, served) =
            self.streams.iter().enumerate().find_map(|(index, stream)| Some((index, poll(*stream)?)))?;
        self.streams.rotate_left(index + 1);
        Some(served)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: usize = 1000;

    /// Bytes that each stream sends of `total` packets, with what each still has to send, in
    /// packets of its length.
    fn play(ranks: &[u8], lengths: &[usize], mut left: Vec<usize>, total: usize) -> (Vec<usize>, Vec<usize>) {
        let each = ranks.iter().enumerate().map(|(stream, rank)| (vec![stream], *rank));
        let mut turns = DrrScheduler::new(each, PACKET);
        let (mut sent, mut order) = (vec![0; ranks.len()], Vec::new());
        for _ in 0..total {
            let served = turns.serve(|stream| {
                left[stream] = left[stream].checked_sub(1)?;
                Some((lengths[stream], stream))
            });
            let Some((len, stream)) = served else { break };
            sent[stream] += len;
            order.push(stream);
        }
        (sent, order)
    }

    #[test]
    fn the_lowest_rank_goes_first_and_the_others_get_their_share() {
        let (sent, order) = play(&[5, 1, 3], &[PACKET; 3], vec![usize::MAX; 3], 18_000);
        assert_eq!(&order[..18], [&[1; 16][..], &[2, 0]].concat(), "by rank among those that waited, too");
        // Each of the two sends one packet to sixteen of the first.
        assert_eq!(sent, [1000 * PACKET, 16_000 * PACKET, 1000 * PACKET]);
    }

    #[test]
    fn equals_share_evenly_whatever_their_packets() {
        for total in [5000, 9999, 10_000] {
            let (sent, _) = play(&[2, 2, 2], &[PACKET / 10, PACKET, PACKET / 3], vec![usize::MAX; 3], total);
            let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
            assert!(most - least <= LEAST_QUANTUM as usize + PACKET, "{sent:?}");
        }
        let (sent, order) = play(&[2, 2, 2], &[PACKET; 3], vec![100, 300, 300], 700);
        assert_eq!(sent, [100 * PACKET, 300 * PACKET, 300 * PACKET], "what one leaves the others have");
        let last = order.iter().rposition(|stream| *stream == 0).unwrap();
        assert!((250..350).contains(&last), "in turn until it had no more: {last}");
    }

    #[test]
    fn the_share_is_of_bytes_so_small_packets_of_others_do_not_count_as_large_ones() {
        let (sent, _) = play(&[0, 1], &[PACKET / 10, PACKET], vec![usize::MAX; 2], 16_100);
        // 160 packets of a tenth, then one.
        assert_eq!(sent, [1_600_000, 100 * PACKET]);
    }

    #[test]
    fn a_stream_with_nothing_to_send_earns_nothing_for_later() {
        let mut turns = DrrScheduler::new([(vec![0], 0), (vec![1], 1)].into_iter(), PACKET);
        let mut idle_asked = 0;
        for _ in 0..1000 {
            turns.serve(|stream| {
                idle_asked += usize::from(stream == 1);
                (stream == 0).then_some((PACKET, ()))
            });
        }
        assert!((55..=65).contains(&idle_asked), "{idle_asked}");
        // Now it has: one packet at once at most, then its share.
        let mut order = Vec::new();
        for _ in 0..34 {
            turns.serve(|stream| {
                order.push(stream);
                Some((PACKET, ()))
            });
        }
        assert!((2..=3).contains(&order.iter().filter(|stream| **stream == 1).count()), "{order:?}");
    }

    #[test]
    fn who_shares_a_turn_has_no_more_than_others() {
        let mut turns =
            DrrScheduler::new([(vec![0, 1, 2], 0), (vec![3], 0), (vec![4, 5], 1)].into_iter(), PACKET);
        let mut sent = [0_usize; 6];
        for _ in 0..17_000 {
            let served = turns.serve(|stream| (stream != 1).then_some((PACKET, stream)));
            sent[served.unwrap().1] += 1;
        }
        assert_eq!(sent[1], 0);
        for (streams, expected) in [([0, 2], 4000), ([3, 3], 8000), ([4, 5], 500)] {
            for stream in streams {
                assert!(sent[stream].abs_diff(expected) <= 20, "{sent:?}");
            }
        }
    }

    #[test]
    fn whoever_waits_is_served_within_a_bound() {
        // One stream above, fifteen below: nobody waits for more than what all others may send
        // before it.
        let ranks: Vec<u8> = (0..16).collect();
        let (_, order) = play(&ranks, &[PACKET; 16], vec![usize::MAX; 16], 20_000);
        for stream in 0..16 {
            let at: Vec<usize> = (0..order.len()).filter(|index| order[*index] == stream).collect();
            let gap = at.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
            assert!(gap <= SHARE + 16, "stream {stream} waited for {gap} packets");
        }
    }
}
