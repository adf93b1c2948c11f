//! The parts of a world.

use std::time::Duration;

use config::{Policy, Survive};
use roce::flow::near::NearConfig;
use roce::wire::Psn;
use splice::{Settings, Tuning};

use crate::host::{MAX_PACKET, QpConfig};
use linksim::impair::LinkSpec;

/// Everything that decides what happens in a [`super::World`].
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Decides the links' dice and everything else that is drawn on the way.
    pub seed: u64,
    /// Hosts have IPv6 addresses.
    pub ipv6: bool,
    /// Hosts at each site.
    pub hosts: [usize; 2],
    /// The number of each host's first queue pair. Real hosts begin alike.
    pub first_qpn: u32,
    /// The long link, or its lane 0: from site 0, from site 1. A corrupted packet is a lost one.
    pub wan: [LinkSpec; 2],
    /// The same links for each further lane. The settings say how many there are.
    pub lanes: Vec<[LinkSpec; 2]>,
    /// Between each host and its gateway, each way. A delay of at least a microsecond.
    pub lan: LinkSpec,
    /// Both gateways' settings; the prefixes behind the peer are filled in.
    pub settings: Settings,
    /// Longest WAN packet of the gateway at site 1, where it is not that of the settings. Sessions
    /// use the smaller one.
    pub max_packet_there: Option<usize>,
    /// Silence after which a session ends.
    pub dead_after: Duration,
    /// How long flows wait for a session that is lost; zero: they end with it.
    pub resume_for: Duration,
    /// The gateways' builds speak of flows that outlive the peer's process, and complete no message
    /// locally.
    pub survives: bool,
    /// Bytes in which each gateway retains what outlives its process; 0: it retains nothing.
    pub retained: usize,
    /// The programs' connections.
    pub connections: Vec<Connection>,
    /// Packets that no gateway terminates.
    pub bursts: Vec<Burst>,
    /// The faults, and when they happen.
    pub faults: Vec<(Duration, Fault)>,
    /// Policies adopted on the way: when, at which site. A gateway that comes after a crash has the
    /// latest of its site.
    pub reloads: Vec<(Duration, usize, Policy)>,
    /// Probability that a malformed packet comes in with a WAN packet, as from a peer gone mad.
    pub garbage: f64,
    /// The settings' bounds are so narrow that flows may end of them.
    pub narrow: bool,
    /// Virtual time from the begin of a connection's life within which every operation must have
    /// ended.
    pub patience: Duration,
}

/// Two queue pairs that belong together, at site 0 and site 1.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The host of each end, within its site.
    pub hosts: [usize; 2],
    /// Both queue pairs' settings.
    pub qp: QpConfig,
    /// One after the other. Without any, it has its queue pairs for others to use.
    pub lives: Vec<Life>,
}

/// A connection from its establishment to its end.
#[derive(Clone, Debug, Default)]
pub struct Life {
    /// Pause before, since the end of the life before, and of whatever else had either queue pair.
    pub pause: Duration,
    /// Whose queue pair each end has: that of this connection, which stands at the same host there.
    /// `None`: the connection's own.
    pub queue_pairs: [Option<usize>; 2],
    /// Each end's first PSN.
    pub psn: [Psn; 2],
    /// The work that each end asks of the other.
    pub work: [Work; 2],
}

/// The work of one end's program.
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// In this order.
    pub ops: Vec<Op>,
    /// Operations posted and not completed at a time, at least 1.
    pub depth: usize,
    /// From one posting to the next.
    pub think: Duration,
    /// When this end posts its receives, from the life's begin on.
    pub receives_after: Duration,
    /// From one receive to the next.
    pub receives_every: Duration,
    /// Every so many-th operation asks for an event at its target, if it takes a receive there; 0:
    /// none.
    pub solicited_every: usize,
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// SEND of so many bytes, with an immediate or without.
    Send(u32, Option<u32>),
    /// SEND of so many bytes that makes a key of the target's invalid.
    SendInvalidate(u32),
    /// WRITE of so many bytes, with an immediate or without.
    Write(u32, Option<u32>),
    /// READ of so many bytes.
    Read(u32),
    /// Fetch-and-add.
    FetchAdd(u64),
    /// Compare-and-swap that finds what it expects.
    CompareSwap(u64),
    /// ATOMIC WRITE of this number.
    AtomicWrite(u64),
    /// FLUSH of so many bytes.
    Flush(u32),
    /// WRITE of so many bytes (more than none) to a key that is not valid: refused with NAK 62.
    BadKey(u32),
}

impl Op {
    /// Bytes moved.
    #[must_use]
    pub fn len(self) -> u32 {
        match self {
            Self::Send(len, _)
            | Self::SendInvalidate(len)
            | Self::Write(len, _)
            | Self::Read(len)
            | Self::BadKey(len) => len,
            Self::FetchAdd(_) | Self::CompareSwap(_) | Self::AtomicWrite(_) => 8,
            Self::Flush(_) => 0,
        }
    }

    /// Returns true if no byte is moved.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns true if the target must have posted a receive.
    #[must_use]
    pub fn takes_receive(self) -> bool {
        self.is_send() || matches!(self, Self::Write(_, Some(_)))
    }

    /// Returns true if it fills the receive.
    pub(super) fn is_send(self) -> bool {
        matches!(self, Self::Send(..) | Self::SendInvalidate(_))
    }

    /// Returns true if it leaves a number in the cell that all of its kind have in common.
    pub(super) fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd(_) | Self::CompareSwap(_) | Self::AtomicWrite(_))
    }

    /// Returns the number that an atomic leaves where this one was.
    pub(super) fn applied(self, before: u64) -> u64 {
        match self {
            Self::FetchAdd(add) => before.wrapping_add(add),
            Self::CompareSwap(value) | Self::AtomicWrite(value) => value,
            _ => before,
        }
    }
}

/// Packets of other transports, from the first host of a site to that of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// When.
    pub at: Duration,
    /// From where.
    pub site: usize,
    /// Opcode byte: UD, UC, CNP, unknown ones.
    pub opcode: u8,
    /// Destination queue pair: 1 is connection management's.
    pub qpn: u32,
    /// Bytes after the BTH, a multiple of 4.
    pub len: usize,
    /// How many.
    pub count: usize,
}

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// Nothing passes the long link for so long. Beyond [`Scenario::dead_after`] the session ends.
    Partition(Duration),
    /// A gateway dies; a new one stands in its place after `down`, the other notices after
    /// `noticed`.
    Crash {
        /// Whose.
        site: usize,
        /// Time without any gateway.
        down: Duration,
        /// Time until the other ends the session.
        noticed: Duration,
    },
    /// The control connection is replaced: both end the session and begin another.
    Reconnect,
    /// Another process takes a gateway's place: with its snapshot, after `down`.
    Upgrade {
        /// Whose.
        site: usize,
        /// Time without any gateway.
        down: Duration,
    },
    /// A gateway's process stands still, and then goes on. What comes meanwhile it never sees.
    Pause {
        /// Whose.
        site: usize,
        /// For how long. From [`Scenario::dead_after`] on the session is lost to both.
        time: Duration,
    },
    /// A host is cut from its LAN, for so long or for good.
    Silence {
        /// Its site.
        site: usize,
        /// Which.
        host: usize,
        /// `None`: for good; its programs are gone, too.
        time: Option<Duration>,
    },
    /// A gateway's first class is given other schemes, as `auto` would. No fault, and to be noticed
    /// by nobody.
    Tune {
        /// Whose.
        site: usize,
        /// Which.
        tuning: Tuning,
    },
    /// From now on a direction of the long link drops WAN packets longer than this, plaintext
    /// bytes. No fault where the gateways find out how long packets may be, if it is no less than
    /// every path carries.
    Mtu {
        /// From whose gateway.
        site: usize,
        /// The longest that passes.
        packet: usize,
    },
    /// From now on a lane of the long link is like this, but for how long packets it carries. No
    /// fault where it is not the first: others go on.
    Lane {
        /// From whose gateway.
        site: usize,
        /// Which.
        lane: usize,
        /// As it is from now on.
        link: LinkSpec,
    },
    /// A program closes its queue pair, whatever is under way.
    Stop {
        /// Whose.
        connection: usize,
        /// Which end.
        site: usize,
    },
}

/// Returns true if a seed has messages that are done locally: about a quarter, and none of those
/// that once broke a rule.
pub(super) fn is_local(seed: u64) -> bool {
    matches!(seed % 31, 7..=9 | 11..=15)
}

/// A gateway that is away for so long costs its requesters one or two of their retries.
pub(super) const LONGEST_UPGRADE: Duration = Duration::from_millis(100);

impl Scenario {
    /// A clean world without programs: build on it with the public fields.
    #[must_use]
    pub fn new(seed: u64, settings: Settings) -> Self {
        Self {
            seed,
            ipv6: false,
            hosts: [1, 1],
            first_qpn: 17,
            wan: [LinkSpec::default(); 2],
            lanes: Vec::new(),
            lan: LinkSpec { delay: Duration::from_micros(5), ..LinkSpec::default() },
            settings,
            max_packet_there: None,
            dead_after: Duration::from_secs(5),
            resume_for: Duration::ZERO,
            survives: !is_local(seed),
            retained: 0,
            connections: Vec::new(),
            bursts: Vec::new(),
            faults: Vec::new(),
            reloads: Vec::new(),
            garbage: 0.0,
            narrow: false,
            patience: Duration::from_secs(120),
        }
    }

    /// Returns true if every operation must succeed: nothing goes wrong that the gateways do not
    /// hide.
    #[must_use]
    pub fn is_benign(&self) -> bool {
        let hidden = |fault: &Fault| match fault {
            Fault::Partition(time) => *time < self.dead_after || self.outage() <= self.resume_for,
            Fault::Pause { .. } => self.outage() <= self.resume_for,
            Fault::Reconnect => !self.resume_for.is_zero(),
            Fault::Upgrade { down, .. } => *down < self.resume_for.min(LONGEST_UPGRADE),
            Fault::Silence { time, .. } => time.is_some(),
            Fault::Tune { .. } => true,
            Fault::Lane { lane, .. } => *lane > 0,
            Fault::Mtu { packet, .. } => {
                *packet >= self.max_packet() || self.settings.find_mtu && *packet >= self.settings.base_packet
            }
            _ => false,
        };
        self.hides(hidden)
    }

    /// Returns true if every operation must succeed although gateways die: their requesters still
    /// have all that was not acknowledged by its target, or it is retained. Otherwise no message
    /// may be acknowledged in parts.
    #[must_use]
    pub fn outlives_crashes(&self) -> bool {
        let away = |fault: &Fault| match fault {
            Fault::Crash { down, noticed, .. } => *down + *noticed,
            Fault::Partition(time) => *time,
            _ => Duration::ZERO,
        };
        let time: Duration = self.faults.iter().map(|(_, fault)| away(fault)).sum();
        let hidden = |fault: &Fault| match fault {
            Fault::Crash { .. } => true,
            Fault::Tune { .. } => true,
            Fault::Reconnect => true,
            Fault::Partition(time) => *time < self.dead_after,
            _ => false,
        };
        let is_short = |connection: &Connection| {
            let ops = connection.lives.iter().flat_map(|life| &life.work).flat_map(|work| &work.ops);
            let fits = |op: &Op| matches!(op, Op::Read(_)) || op.len() <= connection.qp.mtu.bytes();
            // Only the first message of a connection could also be a later incarnation's.
            let mut later = connection.lives.iter().flat_map(|life| &life.work).map(|work| work.ops.first());
            let is_known = self.is_retaining() && later.all(|first| first.is_none_or(fits));
            connection.lives.len() == 1 && (is_known || ops.into_iter().all(fits))
        };
        self.survives && time < self.resume_for && self.connections.iter().all(is_short) && self.hides(hidden)
    }

    /// Returns true if parts of messages that are acknowledged early are retained, or none is.
    fn is_retaining(&self) -> bool {
        let survive = |class: &config::Class| match class.survive {
            Survive::Session => false,
            Survive::Process => self.retained > 0,
            Survive::Gateway => true,
        };
        self.settings.policy.classes().iter().all(survive)
    }

    fn hides(&self, hidden: impl Fn(&Fault) -> bool) -> bool {
        let silence = self.faults.iter().map(|(_, fault)| match fault {
            Fault::Silence { time: Some(time), .. } => *time,
            _ => Duration::ZERO,
        });
        let heard = silence.sum::<Duration>() < self.settings.target_dead / 2;
        let clean = |connection: &Connection| {
            let lost = |op: &Op| match op {
                Op::BadKey(_) => true,
                Op::AtomicWrite(_) | Op::Flush(_) => connection.qp.forgets_addresses,
                _ => false,
            };
            let ready = |work: &Work| !work.ops.iter().any(lost);
            connection.qp.retry_cnt == 7
                && connection.qp.rnr_retry == 7
                && connection.lives.iter().all(|life| life.work.iter().all(ready))
        };
        heard
            && !self.narrow
            && self.settings.lan_mtu >= MAX_PACKET
            && self.faults.iter().all(|(_, fault)| hidden(fault))
            && self.connections.iter().all(clean)
    }

    /// How long nothing passes the link, in all.
    #[must_use]
    pub fn outage(&self) -> Duration {
        let cuts = self.faults.iter().map(|(_, fault)| match fault {
            Fault::Partition(time) | Fault::Pause { time, .. } => *time,
            _ => Duration::ZERO,
        });
        cuts.sum()
    }

    /// Longest WAN packet that both gateways take.
    #[must_use]
    pub fn max_packet(&self) -> usize {
        self.settings.max_packet.min(self.max_packet_there.unwrap_or(usize::MAX))
    }

    /// Returns true if the gateways may lose every trace of a flow: both crash, or their bounds let
    /// them take no flow.
    pub(super) fn is_forgetful(&self) -> bool {
        self.narrow || self.is_traceless()
    }

    /// Returns true if both gateways die.
    pub(super) fn is_traceless(&self) -> bool {
        let crashes = |dead| {
            self.faults.iter().any(|(_, fault)| matches!(fault, Fault::Crash { site, .. } if *site == dead))
        };
        crashes(0) && crashes(1)
    }

    /// How long a finished world must rest until its gateways have forgotten everything.
    #[must_use]
    pub fn rest(&self) -> Duration {
        self.settings.idle_flow * 5
            + self.settings.linger * 3
            + self.settings.target_dead * 2
            + NearConfig::default().silence * 2
            + self.resume_for
    }
}
