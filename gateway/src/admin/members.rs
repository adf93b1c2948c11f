//! Several gateways of a site, as /status tells of them.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::telemetry::Snapshot;

/// The gateways of this site, in what goes to the peer's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MembersStatus {
    /// Gateways that take part now, as this one sees them.
    pub live: Vec<String>,
    /// Gateways that do not.
    pub absent: Vec<String>,
    /// Pairs of hosts that this gateway speaks for; with the first gateway of the peer's site, as
    /// all that follow.
    pub pairs: u64,
    /// Pairs whose flows went to another gateway of the peer's site, or were forgotten because
    /// another one had spoken here. Counted from the start, as all that follow.
    pub moved: u64,
    /// Their flows.
    pub flows_moved: u64,
    /// Packets of local hosts handed over to the gateway that speaks for them.
    pub handed_over: u64,
    /// Packets dropped that came to a gateway that does not speak for their hosts.
    pub dropped: u64,
}

impl MembersStatus {
    /// `others`: the other gateways of the site, and whether they take part.
    pub(super) fn new(own: &str, others: impl Iterator<Item = (String, bool)>, snapshot: &Snapshot) -> Self {
        let (live, absent): (Vec<_>, Vec<_>) = others.partition(|(_, takes_part)| *takes_part);
        let names = |some: Vec<(String, bool)>| some.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        let (mut live, mut absent) = (names(live), names(absent));
        // All that take part are counted, this one among them.
        let takes_part = snapshot.members_live > live.len() as u64;
        (if takes_part { &mut live } else { &mut absent }).push(own.to_owned());
        live.sort_unstable();
        absent.sort_unstable();
        Self {
            live,
            absent,
            pairs: snapshot.host_pairs,
            moved: snapshot.host_pairs_moved,
            flows_moved: snapshot.flows_moved,
            handed_over: snapshot.lan_handed_over,
            dropped: snapshot.members_dropped.iter().sum(),
        }
    }

    pub(super) fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |names: &[String]| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        write!(f, "members  live: {}", list(&self.live))?;
        if !self.absent.is_empty() {
            write!(f, "; absent: {}", list(&self.absent))?;
        }
        let Self { pairs, moved, flows_moved, handed_over, dropped, .. } = self;
        writeln!(f, "; {pairs} pairs of hosts here")?;
        writeln!(
            f,
            "         {moved} pairs moved, with {flows_moved} flows; {handed_over} packets handed over, \
             {dropped} dropped"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_part_is_told_by_name() {
        let snapshot = |members_live| Snapshot {
            members_live,
            host_pairs: 34,
            host_pairs_moved: 3,
            flows_moved: 9,
            lan_handed_over: 120,
            members_dropped: [1, 2, 3],
            ..Snapshot::default()
        };
        let text = |members_live, others: &[(&str, bool)]| {
            let others = others.iter().map(|(name, takes_part)| ((*name).to_owned(), *takes_part));
            let status = MembersStatus::new("a2", others, &snapshot(members_live));
            struct Shown(MembersStatus);
            impl fmt::Display for Shown {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    self.0.write(f)
                }
            }
            Shown(status).to_string()
        };
        assert_eq!(
            text(2, &[("a1", true), ("a3", false)]),
            "members  live: a1, a2; absent: a3; 34 pairs of hosts here\n         3 pairs moved, with 9 flows; \
             120 packets handed over, 6 dropped\n"
        );
        assert!(text(1, &[("a1", true)]).starts_with("members  live: a1; absent: a2; "));
        assert!(text(0, &[("a1", false)]).starts_with("members  live: none; absent: a1, a2; "));
        assert!(text(1, &[]).starts_with("members  live: a2; 34 "));
    }
}
