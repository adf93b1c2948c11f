//! Two gateways' cores together, and one by itself; one program, since each would be linked anew.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "test code, also where no function is a test"
)]

mod allocation;
mod answers;
mod busy;
mod classes;
mod crowd;
mod fair;
mod far;
mod flood;
mod identity;
mod idle;
mod killed;
mod local;
mod long_link;
mod management;
mod messages;
mod multicast;
mod notifications;
mod ordered;
mod overtaken;
mod progress;
mod resume;
mod reuse;
mod rnr;
mod sites;
mod slow;
mod sources;
mod waiting;
mod wire;
