//! The end of a session.

/// How a session ended. With the class's `refuse` it decides what the requesters here get to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum SessionEnd {
    /// It was lost, and its flows could not go on: nobody came back in time, or another process.
    /// By default they meet the silence that they would meet without gateways.
    Lost,
    /// Either gateway ended it on purpose. By default they are refused at once.
    Closed,
}
