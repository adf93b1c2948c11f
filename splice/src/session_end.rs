//! The end of a session.

use std::time::Duration;

/// How a session ended. With the class's `refuse` it decides what the requesters here get to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum SessionEnd {
    /// It was lost, and its flows could not go on: nobody came back in time, or another process.
    /// By default they meet the silence that they would meet without gateways.
    Lost,
    /// Either gateway ended it on purpose. By default they are refused at once.
    Closed,
}

/// How long a requester that is refused by silence, or whose target is silent, gets no answer.
pub(crate) const SILENCE: Duration = Duration::from_secs(30);
