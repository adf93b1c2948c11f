//! Requests and flows that outlive a process, as /status tells of them.

use std::fmt;

use reliability::human;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::telemetry::{Snapshot, Telemetry};

/// Requests that outlive the process, and flows whose process has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SurvivalStatus {
    /// "on"; "off": a class is to survive a process, and nothing is retained for it in one thread
    /// at least; "unused": none is, and nothing is retained.
    pub retention: String,
    /// Why nothing is retained, and what to do about it.
    #[serde(default)]
    pub why: Option<String>,
    /// Requests retained.
    pub packets: u64,
    /// Requests that there is room for.
    pub room_packets: u64,
    /// Bytes of the requests retained.
    pub bytes: u64,
    /// Bytes that there is room for.
    pub limit: u64,
    /// Flows of which requests are retained.
    pub flows: u64,
    /// Flows among these that the process before knew, and whose requesters have not come back.
    pub orphaned: u64,
    /// Requests not retained for want of room, since the start.
    pub unretained: u64,
    /// Times that a target was sent what it lacked, since the start.
    pub carried: u64,
    /// Flows of local requesters that are to go on after the end of a process, and have not yet.
    pub restoring: u64,
    /// Flows of local requesters that went on so, since the start.
    pub restored: u64,
    /// Flows that were to go on so and ended in an error first, since the start.
    pub unrestored: u64,
    /// Flows of earlier sessions that are kept in mind, to end them at both programs.
    pub remembered: u64,
}

const ON: &str = "on";
const OFF: &str = "off";
const UNUSED: &str = "unused";

impl SurvivalStatus {
    pub(super) fn new(telemetry: &Telemetry, snapshot: &Snapshot) -> Self {
        let is_off = snapshot.retention_off.iter().any(|off| *off > 0);
        let retention = match snapshot.retention_room_packets {
            _ if is_off => OFF,
            0 => UNUSED,
            _ => ON,
        };
        Self {
            retention: retention.to_owned(),
            why: telemetry.no_retention(),
            packets: snapshot.retention_packets,
            room_packets: snapshot.retention_room_packets,
            bytes: snapshot.retention_bytes,
            limit: snapshot.retention_limit_bytes,
            flows: snapshot.retention_flows,
            orphaned: snapshot.retention_orphans,
            unretained: snapshot.retention_unretained,
            carried: snapshot.retention_carried,
            restoring: snapshot.flows_restoring,
            restored: snapshot.flows_restored,
            unrestored: snapshot.flows_unrestored,
            remembered: snapshot.flows_remembered,
        }
    }

    /// Returns true if requests are retained, and false if they are to be and are not.
    #[must_use]
    pub fn retains(&self) -> Option<bool> {
        match self.retention.as_str() {
            ON => Some(true),
            OFF => Some(false),
            _ => None,
        }
    }

    /// Returns true if a class is to survive a process, and would not.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.retention == OFF
    }

    /// Returns what is retained, or why nothing is, in a line.
    #[must_use]
    pub fn retained(&self) -> String {
        if self.retention != ON {
            let why = self.why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
            return format!("nothing outlives the process ({}){why}", self.retention);
        }
        let (held, most) = (human::size(self.bytes), human::size(self.limit));
        let orphaned = match self.orphaned {
            0 => String::new(),
            flows => format!(", {flows} of the process before"),
        };
        format!("{held} of {most} retained in {} packets for {} flows{orphaned}", self.packets, self.flows)
    }

    /// Returns what became of flows whose process ended, in a line; `None`: there were none.
    #[must_use]
    pub fn flows(&self) -> Option<String> {
        let Self { restoring, restored, unrestored, remembered, .. } = self;
        let any = restoring + restored + unrestored + remembered > 0;
        any.then(|| {
            format!(
                "after a process: {restored} restored, {unrestored} ended, {restoring} to come; \
                 {remembered} ended flows kept in mind"
            )
        })
    }

    pub(super) fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Of an older gateway nothing is known.
        if !self.retention.is_empty() {
            writeln!(f, "survive  {}", self.retained())?;
        }
        match self.flows() {
            Some(flows) => writeln!(f, "         {flows}"),
            None => Ok(()),
        }
    }
}
