//! Operators hear of what goes wrong: among the events, in the log, and by an alert.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::prometheus::{Prometheus, RULES};

/// News that each gateway has to tell: the kind of the event, a part of its log line, the alert.
const NEWS: [(&str, &str, Option<&str>); 11] = [
    ("started", "gateway started", None),
    ("session_up", "session up", None),
    ("session_lost", "session lost", Some("LonghaulSessionDown")),
    ("data_path", "control is up, and no data crosses", Some("LonghaulDataPathDead")),
    ("wan_down", "no way from ", Some("LonghaulWanDown")),
    ("wan_up", "the way to the peer begins again", None),
    ("lan_down", "the LAN interface is not usable", Some("LonghaulLanDown")),
    ("lan_up", "the LAN interface is up again", None),
    ("lan_mistake", "RoCE with IP options", Some("LonghaulLanMistake")),
    ("guard_restored", "were missing, and are back", Some("LonghaulGuardRemoved")),
    ("policy", "policy", Some("LonghaulPolicyRefused")),
];
/// Kinds of events that a gateway may tell besides.
const OTHERS: [&str; 2] = ["pressure_began", "pressure_ended"];

/// All that is heard of gateways a and b.
pub(super) struct Told {
    prometheus: Prometheus,
    /// Events of each, by number.
    events: [BTreeMap<u64, gateway::events::Event>; 2],
}

impl Told {
    /// Rules that wait for minutes would hear nothing of what lasts for seconds.
    pub(super) fn start(targets: [SocketAddr; 2]) -> Self {
        let rules: Vec<&str> = RULES.lines().filter(|line| !line.trim_start().starts_with("for: ")).collect();
        let mut prometheus = Prometheus::start(&targets, &rules.join("\n"));
        prometheus.wait_for("a scrape", |prometheus| prometheus.count("up == 1") == targets.len());
        Self { prometheus, events: Default::default() }
    }

    /// Takes a gateway's answer to `/events`.
    pub(super) fn note(&mut self, site: usize, answer: &str) {
        let answer: gateway::events::Events = serde_json::from_str(answer).unwrap();
        self.events[site].extend(answer.events.into_iter().map(|event| (event.number, event)));
    }

    /// `log`: that of b, which loses lines while its disk is full only.
    pub(super) fn judge(mut self, log: &str) {
        for (events, site) in self.events.iter().zip(["a", "b"]) {
            let mut kinds = BTreeMap::<&str, usize>::new();
            events.values().for_each(|event| *kinds.entry(&event.kind).or_default() += 1);
            println!("{site}: {kinds:?}");
            for (kind, line, _) in NEWS {
                let count = kinds.remove(kind).unwrap_or(0);
                assert!(count > 0, "{site}: no event {kind}: {events:?}");
                assert!(site == "a" || log.contains(line), "no line {line:?} in the log of {site}:\n{log}");
            }
            kinds.retain(|kind, _| !OTHERS.contains(kind));
            assert!(kinds.is_empty(), "{site}: events of other kinds: {events:?}");
        }
        let alerts = NEWS.iter().filter_map(|(_, _, alert)| *alert);
        let wanted = alerts.flat_map(|alert| [(alert, "a"), (alert, "b")]);
        for (alert, site) in wanted.chain([("LonghaulClockWrong", "a")]) {
            let fired = format!(
                "count_over_time(ALERTS{{alertname=\"{alert}\",alertstate=\"firing\",site=\"{site}\"}}[1h])"
            );
            self.prometheus.wait_for(&fired, |prometheus| prometheus.count(&fired) > 0);
        }
    }
}
