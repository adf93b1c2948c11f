//! What both sides' flow tables share while they handle one input.

use std::time::Instant;

use roce::pairing::Pairings;

use crate::Settings;
use crate::lan_queue::LanQueue;
use crate::memory::Memory;
use crate::pool::Pool;
use crate::senders::Senders;
use crate::stats::Stats;

/// Records of one flow that may wait for an earlier one: more than any flow has on its way.
pub(crate) const REORDER: u32 = 1 << 16;

/// Borrowed from the gateway for one call.
pub(crate) struct Context<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) senders: &'a mut Senders,
    pub(crate) lan: &'a mut LanQueue,
    pub(crate) pool: &'a Pool,
    pub(crate) pairings: &'a mut Pairings,
    pub(crate) memory: &'a mut Memory,
    pub(crate) stats: &'a mut Stats,
    pub(crate) now: Instant,
}
