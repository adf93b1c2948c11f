//! Completion-time models: how long does a message take under a scheme, in the mean and at any
//! percentile?
//!
//! Here live [`production`] (what our streams do), [`paper`] (the published formulas, for
//! comparison) and [`mod@plan`] (which scheme where). Everything is a function of a
//! [`Link`](crate::link::Link) and a size; nothing here measures, waits or decides. A distribution
//! is in closed form, so it costs microseconds: `cargo bench -p reliability --bench model`.

mod candidate;
mod completion;
mod losses;
pub mod paper;
pub mod plan;

pub mod production;

pub use candidate::{Block, Candidate};
pub use completion::Completion;
pub(crate) use completion::seconds;
pub use plan::plan;
pub use production::{Message, Timers, completion};
