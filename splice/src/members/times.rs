//! Times of members.

use std::time::Duration;

/// Times of the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Between two beats, and two words to the own site.
    pub beat: Duration,
    /// A member of the own site that says nothing for so long is dead.
    pub dead: Duration,
    /// How long a lease lasts after the beat that it was extended by. More than a round trip and
    /// some beats.
    pub lease: Duration,
    /// Between two claims of a pair on the same peers.
    pub retry: Duration,
    /// A member that was outbid for a pair claims it again only after this.
    pub hold_off: Duration,
    /// A pair that nothing comes for is forgotten after this.
    pub idle: Duration,
    /// A peer remembers its agreement for so long after the lease's end. Who has a lease again by
    /// then, and was replaced by nobody, goes on with its flows.
    pub remembered: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            beat: Duration::from_millis(100),
            dead: Duration::from_millis(500),
            lease: Duration::from_secs(1),
            retry: Duration::from_millis(50),
            hold_off: Duration::from_secs(1),
            idle: Duration::from_secs(300),
            remembered: Duration::from_secs(600),
        }
    }
}

impl Times {
    /// The time that a peer counts a lease for: an eighth longer, since clocks do not go alike.
    pub(super) fn lease_by_peer(&self) -> Duration {
        self.lease + self.lease / 8
    }

    /// The time after which, without a new fault, each pair that something comes for has one
    /// speaker: its owner. `rtt`: the longest round trip between members.
    #[must_use]
    pub fn settled_within(&self, rtt: Duration) -> Duration {
        self.dead + self.lease_by_peer() + self.hold_off + 4 * (self.beat + self.retry + rtt)
    }
}
