//! Flows of a data-plane thread, as it shows them now and then.

use std::sync::Arc;

use config::Policy;
use splice::{FlowReport, Patience};

/// All flows of a thread as they stood when it last looked.
#[derive(Clone, Debug, Default)]
pub struct ShownFlows {
    /// The policy that their classes are of; `None` before the first look.
    pub policy: Option<Arc<Policy>>,
    /// Each half of a flow that is here.
    pub flows: Arc<[FlowReport]>,
    /// How patient requesters are, for `longhaul doctor`.
    pub patience: Arc<[Patience]>,
}
