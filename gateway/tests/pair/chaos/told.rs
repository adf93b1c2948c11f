//! Operators hear of what goes wrong: among the events, in the log, and by an alert.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use gateway::events::EventKind;

use crate::prometheus::{Prometheus, RULES};

/// Something that gateways have to tell.
struct News {
    kind: EventKind,
    /// A part of its log line.
    line: &'static str,
    alert: Option<&'static str>,
    /// Who tells it.
    sites: &'static [&'static str],
}

const BOTH: &[&str] = &["a", "b"];

/// Every kind of event.
const NEWS: [News; EventKind::ALL.len()] = [
    told(EventKind::Started, "gateway started"),
    told(EventKind::SessionUp, "session up"),
    alerted(EventKind::SessionLost, "session lost", "LonghaulSessionDown"),
    alerted(EventKind::DataPath, "control is up, and no data crosses", "LonghaulDataPathDead"),
    alerted(EventKind::WanDown, "no way from ", "LonghaulWanDown"),
    told(EventKind::WanUp, "the way to the peer begins again"),
    alerted(EventKind::LanDown, "the LAN interface is not usable", "LonghaulLanDown"),
    told(EventKind::LanUp, "the LAN interface is up again"),
    alerted(EventKind::LanMistake, "RoCE with IP options", "LonghaulLanMistake"),
    alerted(EventKind::GuardRestored, "were missing, and are back", "LonghaulGuardRemoved"),
    told(EventKind::ClockSet, "this machine's clock was set "),
    alerted(EventKind::Policy, "policy", "LonghaulPolicyRefused"),
    told(EventKind::FlowOpened, "flow opened: "),
    alerted(EventKind::FlowFailed, "flow failed: ", "LonghaulFlowsFailing"),
    alerted(EventKind::PressureBegan, "back-pressure began", "LonghaulBackPressure"),
    told(EventKind::PressureEnded, "back-pressure ended"),
    told(EventKind::Identity, "identity: certificate "),
    told(EventKind::Expiry, "expires"),
    told(EventKind::Upgraded, "took over from the gateway that ran here"),
    told(EventKind::UpgradeFailed, "another process wanted to take over, and has not"),
    // The hosts with work are at a.
    News { sites: &["a"], ..told(EventKind::FlowRestored, "go on after the end of a process") },
    // The site that dials takes sessions from nobody.
    News { sites: &["b"], ..alerted(EventKind::Impostor, "reason=address", "LonghaulImpostor") },
];

const fn told(kind: EventKind, line: &'static str) -> News {
    News { kind, line, alert: None, sites: BOTH }
}

const fn alerted(kind: EventKind, line: &'static str, alert: &'static str) -> News {
    News { alert: Some(alert), ..told(kind, line) }
}

/// All that is heard of gateways a and b.
pub(super) struct Told {
    prometheus: Prometheus,
    /// Events of each, by process and number.
    events: [BTreeMap<(u64, u64), gateway::events::Event>; 2],
    /// Processes of each that are gone.
    gone: [u64; 2],
}

impl Told {
    /// Rules that wait for minutes would hear nothing of what lasts for seconds.
    pub(super) fn start(targets: [SocketAddr; 2]) -> Self {
        let rules: Vec<&str> = RULES.lines().filter(|line| !line.trim_start().starts_with("for: ")).collect();
        let mut prometheus = Prometheus::start(&targets, &rules.join("\n"));
        prometheus.wait_for("a scrape", |prometheus| prometheus.count("up == 1") == targets.len());
        Self { prometheus, events: Default::default(), gone: [0; 2] }
    }

    /// Takes a gateway's answer to `/events`.
    pub(super) fn note(&mut self, site: usize, answer: &str) {
        let answer: gateway::events::Events = serde_json::from_str(answer).unwrap();
        let process = self.gone[site];
        self.events[site].extend(answer.events.into_iter().map(|event| ((process, event.number), event)));
    }

    /// The next events are another process's, which counts anew.
    pub(super) fn begin_anew(&mut self, site: usize) {
        self.gone[site] += 1;
    }

    /// `log`: that of b, which loses lines while its disk is full only.
    pub(super) fn judge(&mut self, log: &str) {
        for (events, site) in self.events.iter().zip(["a", "b"]) {
            let mut kinds = BTreeMap::<&str, usize>::new();
            events.values().for_each(|event| *kinds.entry(&event.kind).or_default() += 1);
            println!("{site}: {kinds:?}");
            for News { kind, line, sites, .. } in NEWS {
                let count = kinds.remove(kind.name()).unwrap_or(0);
                let is_due = sites.contains(&site);
                assert!(count > 0 || !is_due, "{site}: no event {kind:?}: {events:?}");
                assert!(
                    site == "a" || !is_due || log.contains(line),
                    "no line {line:?} in the log of {site}:\n{log}"
                );
            }
            assert!(kinds.is_empty(), "{site}: events of other kinds: {events:?}");
            let failed = events.values().filter(|event| event.kind == EventKind::FlowFailed.name());
            for event in failed {
                assert!(event.text.contains(" 0xf00000: target_dead"), "{site}: a flow ended: {event}");
            }
        }
        for News { alert, sites, .. } in NEWS {
            let Some(alert) = alert else { continue };
            sites.iter().for_each(|site| self.expect(alert, site));
        }
        for alert in ["LonghaulClockWrong", "LonghaulRestarts"] {
            BOTH.iter().for_each(|site| self.expect(alert, site));
        }
    }

    fn expect(&mut self, alert: &str, site: &str) {
        let fired = format!(
            "count_over_time(ALERTS{{alertname=\"{alert}\",alertstate=\"firing\",site=\"{site}\"}}[1h])"
        );
        self.prometheus.wait_for(&fired, |prometheus| prometheus.count(&fired) > 0);
    }
}
