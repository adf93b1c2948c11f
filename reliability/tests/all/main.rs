//! Streams, paths and models in virtual time; one program, since each would be linked anew.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test may fail")]
#![allow(unreachable_pub, reason = "an example has a part of it")]

mod acknowledged;
mod allocation;
mod behaviour;
mod bottleneck;
mod completion;
mod congestion;
mod cut;
mod envelope;
mod estimator;
mod growth;
mod hybrid;
mod malformed;
mod model;
mod observer;
mod path;
mod transfer;
mod world;
