//! The contents of /status, and how `longhaul status` shows them.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use config::{Policy, Rate};
use reliability::congestion::Mode;
use reliability::human;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::choice::ChoiceStatus;
use super::lanes::LaneStatus;
use super::mistakes::LanMistakes;
use super::mtu::MtuStatus;
use super::session::SessionStatus;
use super::spread::Spread;
use super::surroundings::Surroundings;
use super::units::{scheme_name, seconds, share};
use crate::cells::Cells;
use crate::telemetry::{ClassSnapshot, FAR, NEAR, PolicyInfo, Snapshot, Telemetry, Unit};
use crate::zone;

/// A gateway at one time. Times are in seconds, rates are averages over the last second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// The program's version.
    pub version: String,
    /// This site.
    pub site: String,
    /// The peer's site.
    pub peer: String,
    /// The sites of all peers that the gateway has; each has a status of its own.
    #[serde(default)]
    pub peers: Vec<String>,
    /// The peer's control address.
    pub peer_address: SocketAddr,
    /// The rate that the link is provisioned for, bit/s.
    pub link_rate: u64,
    /// Time since the start.
    pub uptime: f64,
    /// The session with the peer.
    pub session: SessionStatus,
    /// How the sides of the gateway stand.
    #[serde(flatten)]
    pub surroundings: Surroundings,
    /// The path to the peer; absent until the peer has reported on it, and while nothing crosses.
    #[serde(default)]
    pub path: Option<PathStatus>,
    /// How long packets between the gateways are; absent without a session.
    #[serde(default)]
    pub mtu: Option<MtuStatus>,
    /// The lanes to the peer; none without a session.
    #[serde(default)]
    pub lanes: Vec<LaneStatus>,
    /// The rates of traffic.
    pub rates: Rates,
    /// Flows of terminated queue pairs.
    pub flows: Flows,
    /// Buffers in use.
    pub buffers: Buffers,
    /// Counts of what slows local requesters.
    #[serde(default)]
    pub back_pressure: BackPressure,
    /// The policy in force.
    pub policy: PolicyStatus,
    /// The policy's classes in their order.
    pub classes: Vec<ClassStatus>,
    /// Packets from local hosts that cannot cross as they are, for mistakes in the hosts' set-up.
    #[serde(default)]
    pub lan_mistakes: LanMistakes,
    /// The choices for the streams of the classes of scheme `auto`, and why they were made.
    #[serde(default)]
    pub choices: Vec<ChoiceStatus>,
}

/// The path to the peer. Shares are from 0 to 1; `[low, likely, high]` holds the truth in 19 of 20
/// cases.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PathStatus {
    /// Share of packets lost since the path last changed.
    pub drop: [f64; 3],
    /// The same over ten minutes, whatever changed.
    pub drop_long_run: [f64; 3],
    /// Packets that `drop` rests on.
    pub packets: u64,
    /// Mean number of packets lost in a row; absent while none is lost.
    pub burst: Option<[f64; 3]>,
    /// Packets that the peer's machine dropped because it was too slow; no losses of the path.
    #[serde(default)]
    pub overrun: u64,
    /// Share of the losses that came with signs of congestion.
    pub congestive: f64,
    /// Smallest round-trip time of five to ten minutes, smoothed, variation.
    pub rtt: [f64; 3],
    /// The rate that arrives at the peer, bit/s with all headers, over about a second.
    pub delivered_bits: f64,
    /// The most of it in the last half minute to minute.
    pub delivered_peak_bits: f64,
    /// Share of packets that arrive after one sent later.
    pub reordered: f64,
    /// How far they lag behind at most, in packets.
    pub lag_packets: u64,
    /// How long they lag behind at most.
    pub lag: f64,
    /// Share of packets that arrive twice.
    pub duplicates: f64,
    /// Share of ECN-capable packets that arrive marked Congestion Experienced.
    pub ce: f64,
    /// Since the last report.
    pub age: f64,
    /// The rate that reports on the peer's packets are thinned to, bit/s, since the way to the peer
    /// carries no more; absent if they are not.
    #[serde(default)]
    pub reports_bits: Option<f64>,
    /// How much is sent; absent where `peer.rate` is.
    #[serde(default)]
    pub congestion: Option<CongestionStatus>,
}

/// With `peer.congestion = "adaptive"`: how the path is shared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CongestionStatus {
    /// The law in force: [`Mode::name`].
    pub mode: String,
    /// The rate sent, bit/s with all headers.
    pub rate_bits: f64,
    /// Bytes that may be in flight.
    pub window: u64,
    /// Bytes that are.
    pub in_flight: u64,
    /// The least queueing delay of the last round trip.
    pub queueing: f64,
    /// Round-trip time without queues.
    pub base_rtt: f64,
    /// Times less was sent because of congestion.
    pub yields: u64,
    /// Times that reports failed to come.
    pub silences: u64,
}

/// The policy in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyStatus {
    /// Its file; without one there is one class, selective repeat.
    pub file: Option<PathBuf>,
    /// Counts the files adopted, from 1 at the start.
    pub generation: u64,
    /// When it was read: RFC 3339, UTC.
    pub loaded: String,
    /// Files refused since the start.
    pub refused: u64,
}

/// Rates per second. Those of the link are absent without a session; if it is blocked, so are those
/// of what is received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rates {
    /// From local hosts, bit/s of IP packets.
    pub lan_received_bits: f64,
    /// To local hosts, bit/s of IP packets.
    pub lan_sent_bits: f64,
    /// To the peer, bit/s of UDP payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wan_sent_bits: Option<f64>,
    /// From the peer, bit/s of UDP payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wan_received_bits: Option<f64>,
    /// From local hosts, packets.
    pub lan_received_packets: f64,
    /// To local hosts, packets.
    pub lan_sent_packets: f64,
    /// To the peer, datagrams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wan_sent_packets: Option<f64>,
    /// From the peer, datagrams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wan_received_packets: Option<f64>,
    /// Datagrams sent again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repairs: Option<f64>,
    /// Packets recovered from parity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decoded: Option<f64>,
}

/// Flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Flows {
    /// Open, with their requester here.
    pub near: u64,
    /// Open, with their target here.
    pub far: u64,
    /// Those whose partner queue pair is not known yet.
    pub unpaired: u64,
    /// Opened since the start.
    pub opened: u64,
    /// Ended in an error that the programs saw.
    pub failed: u64,
}

/// Buffers in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Buffers {
    /// Packet buffers for local targets.
    pub count: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Bytes in them at most.
    #[serde(default)]
    pub limit: u64,
    /// Flow timers pending.
    pub timers: u64,
}

/// Counts of what slows local requesters, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackPressure {
    /// Packets that came while so much waited for the link that their sender is to be told.
    pub marked: u64,
    /// Congestion notifications sent to local hosts.
    pub notified: u64,
    /// Records refused because their stream was full.
    pub refused: u64,
}

/// A class and its streams.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClassStatus {
    /// Its name in the policy file.
    pub name: String,
    /// Its scheme by the policy, as "mds(32,8)".
    pub scheme: String,
    /// Bytes waiting to be sent for the first time.
    pub backlog_bytes: u64,
    /// Bytes sent and not yet acknowledged.
    pub in_flight_bytes: u64,
    /// Data packets sent for the first time, since the start.
    pub sent: u64,
    /// Data packets sent again.
    pub repairs: u64,
    /// Parity packets sent.
    pub parity: u64,
    /// Data packets received, each once.
    pub received: u64,
    /// Data packets recovered from parity.
    pub decoded: u64,
    /// Data packets received in vain.
    pub duplicates: u64,
    /// Packets lost for good.
    pub abandoned: u64,
    /// How long data packets waited here before they were first sent; absent if none was.
    #[serde(default)]
    pub queueing: Option<Spread>,
    /// How long messages from local hosts took, from their first packet to their target's answer;
    /// absent if none was timed.
    #[serde(default)]
    pub completion: Option<Spread>,
}

impl Status {
    /// Returns true if packets can cross: there is a session, no way of its data path is known to
    /// be dead, and hosts can use the LAN.
    pub fn is_up(&self) -> bool {
        self.session.is_up() && !self.surroundings.lan.is_down()
    }

    /// Returns true if control is up, and the data path is not.
    pub fn is_blocked(&self) -> bool {
        self.session.is_blocked()
    }

    pub(super) fn new(
        config: &config::Gateway,
        policy: &Policy,
        cells: &Cells,
        telemetry: &Telemetry,
        rates: Rates,
        now: Instant,
    ) -> Self {
        let (snapshot, session) = (telemetry.snapshot(now), telemetry.session_info());
        let crosses = snapshot.session_up > 0;
        let PolicyInfo { generation, loaded, refused } = telemetry.policy_info();
        let loaded = OffsetDateTime::from(loaded).replace_nanosecond(0).map(|time| time.format(&Rfc3339));
        let numbers = cells.order().iter().filter_map(|cell| snapshot.classes.get(*cell));
        let classes = policy.classes().iter().zip(numbers);
        let peer = &config.peer;
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            site: config.site.name.clone(),
            peer: peer.name.clone(),
            peer_address: zone::at_now(peer.address, peer.zone.as_deref()).unwrap_or(peer.address),
            link_rate: peer.rate.bits_per_second(),
            uptime: seconds(snapshot.uptime_micros),
            session: SessionStatus::new(telemetry, &snapshot, &session, now),
            surroundings: Surroundings::new(telemetry, &snapshot, now),
            path: PathStatus::new(&snapshot).filter(|_| crosses),
            mtu: MtuStatus::new(&snapshot),
            lanes: LaneStatus::all(&snapshot, crosses),
            rates: rates.known(session.connected, crosses),
            flows: Flows {
                near: side(&snapshot.flows, NEAR),
                far: side(&snapshot.flows, FAR),
                unpaired: snapshot.flows_unpaired,
                opened: snapshot.flows_opened.iter().sum(),
                failed: snapshot.flows_failed.iter().sum(),
            },
            buffers: Buffers {
                count: snapshot.buffers,
                bytes: snapshot.buffer_bytes,
                limit: snapshot.buffer_limit_bytes,
                timers: snapshot.timers,
            },
            back_pressure: BackPressure {
                marked: snapshot.lan_backlog_marked,
                notified: snapshot.lan_cnps,
                refused: snapshot.classes.iter().map(|class| class.records_refused).sum(),
            },
            policy: PolicyStatus {
                file: config.policy.file.clone(),
                generation,
                // Years beyond 9999 have no such form.
                loaded: loaded.ok().and_then(Result::ok).unwrap_or_default(),
                refused,
            },
            classes: classes.map(|(class, numbers)| ClassStatus::new(class, numbers)).collect(),
            lan_mistakes: LanMistakes::new(&snapshot),
            choices: Vec::new(),
            peers: vec![peer.name.clone()],
        }
    }
}

impl PathStatus {
    fn new(snapshot: &Snapshot) -> Option<Self> {
        let congestion = CongestionStatus::new(snapshot);
        let shares = |values: [u64; 3]| values.map(share);
        let [_, lag_packets] = snapshot.path_extent_packets;
        let [_, lag] = snapshot.path_extent_micros;
        let burst = snapshot.path_burst.map(|packets| packets as f64 / Unit::MeanPackets.scale());
        (snapshot.path_packets > 0).then(|| Self {
            drop: shares(snapshot.path_drop),
            drop_long_run: shares(snapshot.path_drop_long_run),
            packets: snapshot.path_packets,
            burst: (snapshot.path_burst != [0; 3]).then_some(burst),
            overrun: snapshot.path_overrun,
            congestive: share(snapshot.path_congestive),
            rtt: snapshot.path_rtt_micros.map(seconds),
            delivered_bits: snapshot.path_delivered_bytes as f64 * 8.0,
            delivered_peak_bits: snapshot.path_delivered_peak_bytes as f64 * 8.0,
            reordered: share(snapshot.path_reordered),
            lag_packets,
            lag: seconds(lag),
            duplicates: share(snapshot.path_duplicates),
            ce: share(snapshot.path_ce),
            age: seconds(snapshot.path_age_micros),
            reports_bits: (snapshot.reports_thinned_bytes > 0)
                .then_some(snapshot.reports_thinned_bytes as f64 * 8.0),
            congestion,
        })
    }
}

impl ClassStatus {
    fn new(class: &config::Class, numbers: &ClassSnapshot) -> Self {
        Self {
            name: class.name.clone(),
            scheme: scheme_name(&class.scheme),
            backlog_bytes: numbers.backlog_bytes,
            in_flight_bytes: numbers.in_flight_bytes,
            sent: numbers.sent_data,
            repairs: numbers.sent_repairs,
            parity: numbers.sent_parity,
            received: numbers.received_data,
            decoded: numbers.decoded,
            duplicates: numbers.received_duplicates,
            abandoned: numbers.abandoned,
            queueing: None,
            completion: None,
        }
    }
}

impl Rates {
    /// The averages between two snapshots.
    pub fn between(earlier: &Snapshot, later: &Snapshot, elapsed: Duration) -> Self {
        let rate = |count: fn(&Snapshot) -> u64| {
            count(later).saturating_sub(count(earlier)) as f64 / elapsed.as_secs_f64()
        };
        let each = |snapshot: &Snapshot, count: fn(&ClassSnapshot) -> u64| {
            snapshot.classes.iter().map(count).sum::<u64>()
        };
        let over_classes =
            |count| each(later, count).saturating_sub(each(earlier, count)) as f64 / elapsed.as_secs_f64();
        Self {
            lan_received_bits: rate(|s| s.lan_received_bytes) * 8.0,
            lan_sent_bits: rate(|s| s.lan_sent_bytes) * 8.0,
            wan_sent_bits: Some(rate(|s| s.wan_sent_bytes) * 8.0),
            wan_received_bits: Some(rate(|s| s.wan_received_bytes) * 8.0),
            lan_received_packets: rate(|s| s.lan_received_packets),
            lan_sent_packets: rate(|s| s.lan_sent_packets),
            wan_sent_packets: Some(rate(|s| s.wan_sent_packets)),
            wan_received_packets: Some(rate(|s| s.wan_received_packets)),
            repairs: Some(over_classes(|c| c.sent_repairs)),
            decoded: Some(over_classes(|c| c.decoded)),
        }
    }

    /// Leaves out what is not known of the link.
    fn known(self, is_connected: bool, crosses: bool) -> Self {
        match is_connected {
            true if crosses => self,
            true => self.without_received(),
            false => self.without_peer(),
        }
    }

    /// The same for a link that nothing comes by.
    fn without_received(self) -> Self {
        Self { wan_received_bits: None, wan_received_packets: None, decoded: None, ..self }
    }

    /// The same without those of the link.
    fn without_peer(self) -> Self {
        let Self { lan_received_bits, lan_sent_bits, lan_received_packets, lan_sent_packets, .. } = self;
        Self { lan_received_bits, lan_sent_bits, lan_received_packets, lan_sent_packets, ..Self::default() }
    }
}

fn side(sides: &[u64; 2], index: usize) -> u64 {
    sides.get(index).copied().unwrap_or(0)
}

impl fmt::Display for Status {
    /// Several lines of text for a terminal, in fixed columns.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "longhaul {}, site {}, up for {}", self.version, self.site, human::span(self.uptime))?;
        let rate = Rate::from_bits_per_second(self.link_rate);
        writeln!(f, "peer     {} at {}, link provisioned for {rate}", self.peer, self.peer_address)?;
        let has_way = !self.surroundings.wan.is_down();
        self.session.write(self.peer_address.port().saturating_add(1), has_way, f)?;
        self.surroundings.write(f)?;
        if let Some(path) = &self.path {
            path.write(f)?;
        }
        if let Some(mtu) = &self.mtu {
            mtu.write(f)?;
        }
        if self.lanes.len() > 1 || self.lanes.iter().any(|lane| !lane.is_in_use()) {
            self.lanes.iter().try_for_each(|lane| writeln!(f, "{lane}"))?;
        }
        let flows = &self.flows;
        writeln!(
            f,
            "flows    {} near, {} far, {} unpaired; {} opened, {} failed",
            flows.near, flows.far, flows.unpaired, flows.opened, flows.failed
        )?;
        if let Some(members) = &self.surroundings.members {
            members.write(f)?;
        }
        self.surroundings.survival.write(f)?;
        self.lan_mistakes.write(f)?;
        let held = &self.buffers;
        writeln!(
            f,
            "held     {} buffers with {}, {} timers",
            held.count,
            human::size(held.bytes),
            held.timers
        )?;
        let policy = &self.policy;
        let file = policy.file.as_deref().map_or_else(|| "no file".into(), |file| file.to_string_lossy());
        write!(f, "policy   {file}, generation {}, read {}", policy.generation, policy.loaded)?;
        match policy.refused {
            0 => writeln!(f)?,
            refused => writeln!(f, "; {refused} refused")?,
        }
        writeln!(f)?;
        self.write_rates(f)?;
        writeln!(f)?;
        self.write_classes(f)
    }
}

impl CongestionStatus {
    fn new(snapshot: &Snapshot) -> Option<Self> {
        let mode = usize::try_from(snapshot.congestion_mode).ok()?.checked_sub(1)?;
        Some(Self {
            mode: Mode::ALL.get(mode)?.name().to_owned(),
            rate_bits: snapshot.congestion_rate_bytes as f64 * 8.0,
            window: snapshot.congestion_window_bytes,
            in_flight: snapshot.congestion_in_flight_bytes,
            queueing: seconds(snapshot.congestion_queueing_micros),
            base_rtt: seconds(snapshot.congestion_base_micros),
            yields: snapshot.congestion_yields,
            silences: snapshot.congestion_silences,
        })
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "         adaptive ({}): {}, {} of {} in flight, queueing {}, {} yields",
            self.mode,
            human::rate(self.rate_bits),
            human::size(self.in_flight),
            human::size(self.window),
            human::seconds(self.queueing),
            self.yields
        )
    }
}

impl PathStatus {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [low, likely, high] = self.drop.map(human::share);
        let [_, long_run, _] = self.drop_long_run.map(human::share);
        write!(f, "path     drop {likely} ({low} to {high}; {long_run} in the long run)")?;
        match self.burst {
            Some([low, likely, high]) => writeln!(
                f,
                ", bursts of {likely:.1} ({low:.1} to {high:.1}), {} congestive",
                human::share(self.congestive)
            )?,
            None => writeln!(f)?,
        }
        if self.overrun > 0 {
            writeln!(f, "         {} more dropped by the peer's machine, which was too slow", self.overrun)?;
        }
        let [minimum, smoothed, variation] = self.rtt.map(human::seconds);
        writeln!(f, "         RTT {smoothed}, at least {minimum}, variation {variation}")?;
        writeln!(
            f,
            "         {} arrive, {} at most of late; last report {} ago",
            human::rate(self.delivered_bits),
            human::rate(self.delivered_peak_bits),
            human::span(self.age)
        )?;
        let lag = || format!(" by up to {} packets or {}", self.lag_packets, human::seconds(self.lag));
        let lag = (self.lag_packets > 0 || self.lag > 0.0).then(lag);
        writeln!(
            f,
            "         {} out of order{}, {} twice, {} marked CE",
            human::share(self.reordered),
            lag.unwrap_or_default(),
            human::share(self.duplicates),
            human::share(self.ce)
        )?;
        if let Some(bits) = self.reports_bits {
            writeln!(
                f,
                "         reports to the peer are thinned to {}: the way there carries no more",
                human::rate(bits)
            )?;
        }
        self.congestion.iter().try_for_each(|congestion| congestion.write(f))
    }
}

impl Status {
    fn write_rates(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rates = &self.rates;
        let shown = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), human::si);
        writeln!(f, "{:<22}{:>14}{:>14}", "", "bit/s", "packets/s")?;
        for (name, bits, packets) in [
            ("from local hosts", Some(rates.lan_received_bits), Some(rates.lan_received_packets)),
            ("to local hosts", Some(rates.lan_sent_bits), Some(rates.lan_sent_packets)),
            ("to the peer", rates.wan_sent_bits, rates.wan_sent_packets),
            ("from the peer", rates.wan_received_bits, rates.wan_received_packets),
        ] {
            writeln!(f, "{name:<22}{:>14}{:>14}", shown(bits), shown(packets))?;
        }
        writeln!(f, "{:<22}{:>14}{:>14}", "sent again", "", shown(rates.repairs))?;
        writeln!(f, "{:<22}{:>14}{:>14}", "recovered from parity", "", shown(rates.decoded))
    }

    /// The class's scheme, and of `auto` what is in force on the bulk stream.
    pub(crate) fn scheme_of(&self, class: &ClassStatus) -> String {
        let is_it = |choice: &&ChoiceStatus| choice.class == class.name && choice.stream == "bulk";
        let in_force = self.choices.iter().find(is_it).and_then(|choice| choice.scheme.as_deref());
        in_force.map_or_else(|| class.scheme.clone(), |in_force| format!("{}: {in_force}", class.scheme))
    }

    /// Each class's scheme, and why it is what it is: the text of `longhaul status --why`.
    pub fn why(&self) -> String {
        let mut text = String::new();
        for class in &self.classes {
            let mut choices = self.choices.iter().filter(|choice| choice.class == class.name).peekable();
            text += &match choices.peek() {
                None => format!("class {}: {}, as the policy file says\n", class.name, class.scheme),
                Some(choice) => choice.heading(),
            };
            text.extend(choices.map(ToString::to_string));
        }
        text
    }

    fn write_classes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let schemes: Vec<String> = self.classes.iter().map(|class| self.scheme_of(class)).collect();
        let wide = schemes.iter().map(String::len).max().unwrap_or(0).max(11) + 2;
        let width = self.classes.iter().map(|class| class.name.len()).max().unwrap_or(0).max(5) + 2;
        writeln!(
            f,
            "{:<width$}{:<wide$}{:>10}{:>10}{:>9}{:>9}{:>9}{:>10}{:>9}{:>9}{:>7}",
            "class",
            "scheme",
            "backlog",
            "in flight",
            "sent",
            "again",
            "parity",
            "received",
            "decoded",
            "double",
            "lost"
        )?;
        for (class, scheme) in self.classes.iter().zip(&schemes) {
            writeln!(
                f,
                "{:<width$}{:<wide$}{:>10}{:>10}{:>9}{:>9}{:>9}{:>10}{:>9}{:>9}{:>7}",
                class.name,
                scheme,
                human::size(class.backlog_bytes),
                human::size(class.in_flight_bytes),
                human::si(class.sent as f64),
                human::si(class.repairs as f64),
                human::si(class.parity as f64),
                human::si(class.received as f64),
                human::si(class.decoded as f64),
                human::si(class.duplicates as f64),
                human::si(class.abandoned as f64),
            )?;
        }
        Ok(())
    }
}
