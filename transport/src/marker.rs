//! Picks a share of what joins a queue, by the queue's length.

/// Marks packets for the length of the queue that they join, as the congestion point of DCQCN does
/// (Zhu et al., SIGCOMM 2015, section 3.1).
///
/// It marks none below five eighths of the bound, all from seven eighths on, and a share that grows
/// in between. Below, mid-message ACKs are withheld already; above, packets are dropped. Evenly
/// instead of at random.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Marker {
    /// The fraction of a mark that the packets before have left over.
    share: f64,
}

impl Marker {
    /// Returns whether to mark a packet that finds so much of `most` in the queue.
    pub(crate) fn marks(&mut self, queued: usize, most: usize) -> bool {
        self.picks(queued, most, 0.625)
    }

    /// Returns whether to pick what finds so much of `most` in the queue: nothing up to the part
    /// `from` of it, all from a quarter more on.
    pub(crate) fn picks(&mut self, queued: usize, most: usize, from: f64) -> bool {
        let filled = queued as f64 / most.max(1) as f64;
        let share = ((filled - from) / 0.25).clamp(0.0, 1.0);
        self.share += share;
        let picks = share > 0.0 && self.share >= 1.0;
        if picks {
            self.share -= 1.0;
        }
        picks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_marked_grows_with_the_queue() {
        let marked = |queued: usize| {
            let mut marker = Marker::default();
            (0..1000).filter(|_| marker.marks(queued, 800)).count()
        };
        assert_eq!(
            [0, 500, 550, 600, 650, 700, 800, 900].map(marked),
            [0, 0, 250, 500, 750, 1000, 1000, 1000]
        );
        assert!(!Marker::default().marks(0, 0));
    }
}
