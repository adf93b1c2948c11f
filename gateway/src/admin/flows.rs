//! The contents of /flows, and how `longhaul flows` shows them.

use std::fmt;
use std::net::IpAddr;

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use splice::{FlowReport, FlowSide, FlowState};

use crate::telemetry::ShownFlows;

/// Flows told of at most.
const MOST: usize = 10_000;

/// The halves of flows that are at this site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FlowList {
    /// The site of the peer that they cross to; empty from a gateway that does not tell.
    #[serde(default)]
    pub peer: String,
    /// How many there are of those asked for.
    pub total: usize,
    /// The first 10,000 of them, or as many as were asked for.
    pub flows: Vec<Flow>,
}

/// A flow of a terminated queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Flow {
    /// "near": the requester is at this site; "far": the target is.
    pub side: String,
    /// The requester's address.
    pub requester: IpAddr,
    /// The requester's queue pair, if it is known.
    pub requester_qpn: Option<u32>,
    /// The target's address.
    pub target: IpAddr,
    /// The target's queue pair.
    pub target_qpn: u32,
    /// The class of its last message: of its requests for "near", of its answers for "far".
    pub class: String,
    /// How it stands.
    pub state: State,
}

/// How a flow stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum State {
    /// Something is under way
    Active,
    /// Nothing is under way
    Idle,
    /// It waits for room towards the peer or at its target
    HeldBack,
    /// Its session is lost, and it waits for the next one
    Waiting,
    /// It has ended in an error, and is there to tell its program so
    Failed,
}

/// Which flows are asked for. Each part that is there has to fit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowFilter {
    /// One of its two hosts.
    pub host: Option<IpAddr>,
    /// Its class, or a part of it. A class has the flows of all its parts.
    pub class: Option<String>,
    /// How it stands.
    pub state: Option<State>,
    /// Tell of no more than so many.
    pub most: Option<usize>,
}

impl FlowFilter {
    /// Takes a part of a query; `None` if there is no such.
    pub(super) fn take(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "host" => self.host = Some(value.parse().ok()?),
            "class" => self.class = Some(value.to_owned()),
            "state" => self.state = Some(State::from_str(value, false).ok()?),
            "most" => self.most = Some(value.parse().ok()?),
            _ => return None,
        }
        Some(())
    }

    /// Returns the path with the query that [`FlowFilter::take`] reads.
    pub fn target(&self, path: &str) -> String {
        let state = self.state.and_then(|state| state.to_possible_value());
        let parts = [
            self.host.map(|host| format!("host={host}")),
            self.class.as_ref().map(|class| format!("class={class}")),
            state.map(|state| format!("state={}", state.get_name())),
            self.most.map(|most| format!("most={most}")),
        ];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        if parts.is_empty() { path.to_owned() } else { format!("{path}?{}", parts.join("&")) }
    }

    fn fits(&self, flow: &FlowReport, class: &str) -> bool {
        self.host.is_none_or(|host| [flow.requester, flow.target].contains(&host))
            && self.class.as_ref().is_none_or(|name| config::names_class(name, class))
            && self.state.is_none_or(|state| state == State::of(flow.state))
    }
}

impl FlowList {
    /// Looks at each flow once; there are no more than threads show.
    pub(super) fn of(threads: &[ShownFlows], filter: &FlowFilter) -> Self {
        let most = filter.most.map_or(MOST, |most| most.min(MOST));
        let mut list = Self::default();
        for thread in threads {
            let classes = thread.policy.as_ref().map_or(&[][..], |policy| policy.classes());
            for flow in &*thread.flows {
                let class = classes.get(flow.class).map_or("", |class| &class.name);
                if filter.fits(flow, class) {
                    list.total += 1;
                    if list.flows.len() < most {
                        list.flows.push(Flow::of(flow, class));
                    }
                }
            }
        }
        list
    }
}

impl State {
    fn of(state: FlowState) -> Self {
        match state {
            FlowState::Active => Self::Active,
            FlowState::Idle => Self::Idle,
            FlowState::HeldBack => Self::HeldBack,
            FlowState::Waiting => Self::Waiting,
            FlowState::Failed => Self::Failed,
        }
    }

    /// In a word or two.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Idle => "idle",
            Self::HeldBack => "held back",
            Self::Waiting => "waiting",
            Self::Failed => "failed",
        }
    }
}

impl Flow {
    fn of(flow: &FlowReport, class: &str) -> Self {
        let side = match flow.side {
            FlowSide::Near => "near",
            FlowSide::Far => "far",
        };
        Self {
            side: side.to_owned(),
            requester: flow.requester,
            requester_qpn: flow.requester_qpn.map(|qpn| qpn.get()),
            target: flow.target,
            target_qpn: flow.target_qpn.get(),
            class: class.to_owned(),
            state: State::of(flow.state),
        }
    }
}

impl fmt::Display for FlowList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let titles = ["requester, queue pair", "target, queue pair"];
        writeln!(f, "{:<5} {:<28} {:<28} {:<9} class", "side", titles[0], titles[1], "state")?;
        for flow in &self.flows {
            let qpn = flow.requester_qpn.map_or_else(|| "?".to_owned(), |qpn| format!("{qpn:#x}"));
            let requester = format!("{} {qpn}", flow.requester);
            let target = format!("{} {:#x}", flow.target, flow.target_qpn);
            let (side, state, class) = (&flow.side, flow.state.text(), &flow.class);
            writeln!(f, "{side:<5} {requester:<28} {target:<28} {state:<9} {class}")?;
        }
        match self.total - self.flows.len().min(self.total) {
            0 => Ok(()),
            more => writeln!(f, "{more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use config::Policy;
    use roce::wire::Qpn;

    use super::*;

    const POLICY: &str = "[[class]]\nname = \"bulk\"\nmatch = { dscp = [8] }\nscheme = \"sr\"\n[[class]]\nname = \"default\"\nscheme = \"sr\"\n";

    fn flow(number: u32) -> FlowReport {
        let is_even = number.is_multiple_of(2);
        FlowReport {
            side: if is_even { FlowSide::Near } else { FlowSide::Far },
            requester: [10, 0, 0, 1].into(),
            requester_qpn: Some(Qpn::new(0x11)),
            target: [10, 0, 1, 1].into(),
            target_qpn: Qpn::new(number),
            class: usize::from(is_even),
            state: if number == 2 { FlowState::HeldBack } else { FlowState::Idle },
        }
    }

    fn thread(numbers: std::ops::Range<u32>) -> ShownFlows {
        let policy = Policy::parse(Path::new("policy.toml"), POLICY).unwrap();
        let policy = Some(Arc::new(policy));
        ShownFlows { policy, flows: numbers.map(flow).collect(), ..ShownFlows::default() }
    }

    #[test]
    fn flows_of_all_threads_are_listed_and_bounded() {
        let threads = [thread(0..2), thread(2..3)];
        let list = FlowList::of(&threads, &FlowFilter::default());
        assert_eq!((list.total, list.flows.len()), (3, 3));
        let shown = list.to_string();
        let near = "near  10.0.0.1 0x11                10.0.1.1 0x0                 idle      default\n";
        assert!(shown.contains(near), "{shown}");
        let far = "far   10.0.0.1 0x11                10.0.1.1 0x1                 idle      bulk\n";
        assert!(shown.contains(far) && shown.contains(" held back default\n"), "{shown}");
        let many = FlowList::of(&[thread(0..20_000)], &FlowFilter::default());
        assert_eq!((many.total, many.flows.len()), (20_000, MOST));
        assert!(many.to_string().ends_with("\n10000 more\n"));
        let few = FlowList::of(&[thread(0..9)], &FlowFilter { most: Some(2), ..FlowFilter::default() });
        assert_eq!((few.total, few.flows.len()), (9, 2));
    }

    /// Flows beyond the first 10,000 are found as well.
    #[test]
    fn flows_are_asked_for_by_host_class_and_state() {
        let threads = [thread(10_000..30_000), thread(0..9)];
        let count = |query: &str| {
            let mut filter = FlowFilter::default();
            for (key, value) in query.split('&').filter_map(|part| part.split_once('=')) {
                filter.take(key, value).unwrap();
            }
            assert_eq!(
                filter.target("/flows"),
                if query.is_empty() { "/flows".to_owned() } else { format!("/flows?{query}") }
            );
            FlowList::of(&threads, &filter).total
        };
        assert_eq!(count(""), 20_009);
        assert_eq!(count("host=10.0.1.1"), 20_009);
        assert_eq!(count("host=fd00::1"), 0);
        assert_eq!(count("class=default"), 10_005);
        assert_eq!(count("class=none"), 0);
        assert_eq!(count("state=held_back"), 1);
        assert_eq!(count("host=10.0.0.1&class=default&state=held_back"), 1);
        assert_eq!(count("class=bulk&state=held_back"), 0);
        for (key, value) in [("host", "x"), ("state", "busy"), ("state", "Idle"), ("most", "-1"), ("x", "1")]
        {
            assert_eq!(FlowFilter::default().take(key, value), None, "{key}={value}");
        }
    }

    #[test]
    fn a_class_has_the_flows_of_its_parts() {
        let text = "[[class]]\nname = \"default\"\nscheme = \"auto\"\ndivide = [\"64 KiB\"]\n";
        let policy = Some(Arc::new(Policy::parse(Path::new("policy.toml"), text).unwrap()));
        let threads = [ShownFlows { policy, flows: (0..5).map(flow).collect(), ..ShownFlows::default() }];
        let count = |class: &str| {
            let filter = FlowFilter { class: Some(class.to_owned()), ..FlowFilter::default() };
            FlowList::of(&threads, &filter).total
        };
        assert_eq!((count("default"), count("default/64KiB"), count("default/1KiB")), (5, 2, 0));
    }
}
