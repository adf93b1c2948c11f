//! Flows that one event tells of together: so many, and some by name.

/// Flows named: what an event has room for.
const NAMED: usize = 6;

/// Flows that were not told of yet. Bound: as many as are named.
#[derive(Debug, Default)]
pub(super) struct Together {
    /// Those told of, as the metric counts them.
    told: u64,
    /// Those that there is news of.
    seen: u64,
    named: Vec<String>,
}

impl Together {
    pub(super) fn name(&mut self, ends: String) {
        self.seen += 1;
        if self.named.len() < NAMED {
            self.named.push(ends);
        }
    }

    /// Returns what is to be told, which is `what` of as many as the metric counts by now, and how
    /// many of these there was no news of.
    pub(super) fn take(&mut self, counted: u64, what: &str) -> Option<(String, u64)> {
        let new = counted.saturating_sub(self.told);
        if new == 0 {
            return None;
        }
        self.told = counted;
        let (named, seen) = (std::mem::take(&mut self.named), std::mem::take(&mut self.seen));
        // Those of the process whose place this one took are told of already.
        if seen == 0 {
            return None;
        }
        let more = match new.saturating_sub(named.len() as u64) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let text = format!("{new} {what}: {}{more}", named.join(", "));
        Some((text, new.saturating_sub(seen)))
    }
}
