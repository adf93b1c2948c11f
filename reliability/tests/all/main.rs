//! Streams, paths and models in virtual time; one program, since each would be linked anew.

mod acknowledged;
mod allocation;
mod behaviour;
mod bottleneck;
mod completion;
mod congestion;
mod envelope;
mod estimator;
mod growth;
mod hybrid;
mod malformed;
mod model;
mod observer;
mod paper;
mod path;
mod transfer;
mod world;
