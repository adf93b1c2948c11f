//! The time that a gateway's state takes from one process to the next.

use std::io::Write;
use std::net::IpAddr;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use gateway::upgrade::{Extent, Room, Waiting, open_room};
use roce::ip::{Addressing, Datagram};
use roce::wire::{Bth, Ext, Opcode, Psn, Qpn, Repr};
use snapshot::{Beside, Written};
use splice::{Copying, Gateway, Settings};

use super::BenchError;

/// `longhaul-lab bench upgrade`: a gateway's packets copied ahead to shared memory, and then its
/// snapshot written and read there, by flows and by what waits in them. No traffic runs meanwhile.
#[derive(Debug, Clone)]
pub struct Upgrade {
    /// Flows, and bytes that wait in all of them together.
    pub cases: Vec<(u32, u64)>,
    /// Rounds of each; the median is shown.
    pub rounds: u32,
    /// Data-plane threads, each with its part of the flows.
    pub threads: u8,
}

const PAYLOAD: usize = 1024;
/// Bytes copied at a time, as a gateway does between two rounds.
const STEP: usize = 128 << 10;
const BUFFERS: usize = 8 << 30;
/// A rate, in bit/s, at which a stream may hold more than 2 GiB.
const RATE: u64 = 100_000_000_000;

const EXPLANATION: &str = "\
Requests of 1 KiB wait, none of which the peer has. Ahead, while the gateway runs: room: shared memory made and mapped by both sides;
copied: packets to that, of which step is the longest part. While it stands still, one after the other: written: the state, which
refers to them; read: a gateway from that, with all its flows. Each thread does so with its part of the flows.";

/// The parts of a hand-over.
#[derive(Default)]
struct Times {
    room: Duration,
    copy: Duration,
    step: Duration,
    write: Duration,
    read: Duration,
    bytes: usize,
}

impl Times {
    /// Returns what two threads took that work at once.
    fn with(&self, other: &Self) -> Self {
        Self {
            room: self.room.max(other.room),
            copy: self.copy.max(other.copy),
            step: self.step.max(other.step),
            write: self.write.max(other.write),
            read: self.read.max(other.read),
            bytes: self.bytes + other.bytes,
        }
    }

    /// The time in which nothing moves.
    fn stall(&self) -> Duration {
        self.write + self.read
    }
}

impl Upgrade {
    /// Measures and writes a line for each case.
    ///
    /// # Errors
    /// See [`BenchError`].
    pub fn run(&self, out: &mut dyn Write, interrupted: &dyn Fn() -> bool) -> Result<(), BenchError> {
        let titles = ["flows", "waiting", "room", "copied", "step", "state", "written", "read", "stall"];
        titles.iter().try_for_each(|title| write!(out, "{title:>10}"))?;
        writeln!(
            out,
            "\n{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
            "", "[MiB]", "[ms]", "[ms]", "[ms]", "[MiB]", "[ms]", "[ms]", "[ms]"
        )?;
        for (flows, bytes) in &self.cases {
            let mut rounds = Vec::new();
            for _ in 0..self.rounds.max(1) {
                if interrupted() {
                    return Err(BenchError::Interrupted);
                }
                rounds.push(hand_over(*flows, *bytes, self.threads)?);
            }
            rounds.sort_by_key(Times::stall);
            let Some(median) = rounds.get(rounds.len() / 2) else { continue };
            let Times { room, copy, step, write, read, bytes: state } = median;
            let millis = |time: &Duration| time.as_secs_f64() * 1e3;
            writeln!(
                out,
                "{flows:>10}{:>10}{:>10.1}{:>10.1}{:>10.2}{:>10.1}{:>10.1}{:>10.1}{:>10.1}",
                bytes >> 20,
                millis(room),
                millis(copy),
                millis(step),
                *state as f64 / f64::from(1 << 20),
                millis(write),
                millis(read),
                millis(&median.stall()),
            )?;
            out.flush()?;
        }
        writeln!(out, "\n{EXPLANATION}")?;
        Ok(())
    }
}

fn settings() -> Result<Settings, BenchError> {
    let remote = "10.1.0.0/16".parse().map_err(|_| BenchError::Transfer("no prefix".to_owned()))?;
    let settings = Settings::new(vec![remote], RATE, 1400);
    Ok(Settings { total_buffer: BUFFERS, flows: 40_000, ..settings })
}

/// A gateway with so many flows, in which so many bytes wait.
fn busy(flows: u32, bytes: u64, now: Instant) -> Result<Gateway, BenchError> {
    let mut gateway = Gateway::new(settings()?, now);
    gateway.session_up(Duration::from_millis(10), 1400, 1, &[], now);
    let each = bytes.div_ceil(PAYLOAD as u64).div_ceil(u64::from(flows.max(1))).max(1);
    let mut request = vec![0; 2 * PAYLOAD];
    let payload = [7; PAYLOAD];
    for number in 0..flows {
        let [.., high, low] = (number / 100).to_be_bytes();
        let [src, dst]: [IpAddr; 2] = [[10, 0, high, low].into(), [10, 1, high, low].into()];
        let src_port = 0xc000 | u16::try_from(number % 100).unwrap_or(0);
        let addressing = Addressing { src, dst, src_port, tclass: 0, ttl: 64 };
        for psn in 0..u32::try_from(each).unwrap_or(u32::MAX) {
            let bth =
                Bth { ack_req: true, ..Bth::new(Opcode::SendOnly, Qpn::new(16 + number), Psn::new(psn)) };
            let repr = Repr { bth, ext: Ext::None, payload: &payload };
            let written = repr.emit(&mut request);
            let transport = request.get(..repr.buffer_len()).filter(|_| written.is_ok());
            let transport = transport.ok_or_else(|| BenchError::Transfer("no request".to_owned()))?;
            gateway.handle_lan(&Datagram { addressing, transport }, now);
        }
    }
    let kept = waiting(&gateway);
    let stats = gateway.stats();
    let drops = stats.lan_drops;
    if stats.near_flows != u64::from(flows) || kept < bytes {
        let what = format!("{} flows with {kept} bytes wait, dropped: {drops:?}", stats.near_flows);
        return Err(BenchError::Transfer(what));
    }
    Ok(gateway)
}

/// Bytes that wait for the peer.
fn waiting(gateway: &Gateway) -> u64 {
    gateway.classes().map(|class| (class.backlog + class.in_flight) as u64).sum()
}

/// Copies ahead. Returns how long the longest step took.
fn copy_ahead(gateway: &mut Gateway, to: &mut Beside) -> Duration {
    let (mut at, mut longest) = (Copying::default(), Duration::ZERO);
    loop {
        let begun = Instant::now();
        let is_all = gateway.copy_ahead(&mut at, to, STEP);
        longest = longest.max(begun.elapsed());
        if is_all {
            return longest;
        }
    }
}

fn failed(error: &dyn std::fmt::Display) -> BenchError {
    BenchError::Transfer(error.to_string())
}

/// A gateway whose packets have been copied ahead.
struct Ready {
    gateway: Gateway,
    ours: Beside,
    theirs: Room,
    times: Times,
}

/// The same, whose state has been written.
struct Whole {
    gateway: Gateway,
    /// It is unmapped once nobody waits for that.
    _ours: Option<Beside>,
    theirs: Room,
    times: Times,
}

/// Each thread hands its part of the flows over. Returns what the slowest took for each step.
fn hand_over(flows: u32, bytes: u64, threads: u8) -> Result<Times, BenchError> {
    let each = u32::from(threads.max(1));
    let (flows, bytes) = (flows.div_ceil(each), bytes.div_ceil(each.into()));
    let together = Barrier::new(each as usize);
    // Who fails still comes to where the others wait.
    let work = || {
        let ready = Ready::make(flows, bytes);
        together.wait();
        let whole = ready.and_then(Ready::write);
        together.wait();
        whole.and_then(Whole::read)
    };
    let panicked = |_| BenchError::Transfer("a thread has panicked".to_owned());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..each).map(|_| scope.spawn(work)).collect();
        let times = threads.into_iter().map(|thread| thread.join().map_err(panicked)?);
        times.reduce(|one, other| Ok(one?.with(&other?))).unwrap_or_else(|| Ok(Times::default()))
    })
}

impl Ready {
    fn make(flows: u32, bytes: u64) -> Result<Self, BenchError> {
        let mut gateway = busy(flows, bytes, Instant::now())?;
        let begun = Instant::now();
        let extent = Extent::of(&Waiting { thread: 0, peer: 0, bytes: gateway.waiting_bytes() });
        let (theirs, file) = Room::new(&extent).map_err(|error| failed(&error))?;
        let mut ours = open_room(&extent, &file).map_err(|error| failed(&error))?;
        let room = begun.elapsed();
        let begun = Instant::now();
        let step = copy_ahead(&mut gateway, &mut ours);
        let times = Times { room, copy: begun.elapsed(), step, ..Times::default() };
        Ok(Self { gateway, ours, theirs, times })
    }

    fn write(self) -> Result<Whole, BenchError> {
        let Self { mut gateway, ours, theirs, times } = self;
        let begun = Instant::now();
        let (written, ours) = gateway.snapshot_beside(begun, ours);
        let write = begun.elapsed();
        let Written::There(bytes) = written.map_err(|error| failed(&error))? else {
            return Err(BenchError::Transfer("the state has no room".to_owned()));
        };
        Ok(Whole { gateway, _ours: ours, theirs, times: Times { write, bytes, ..times } })
    }
}

impl Whole {
    fn read(self) -> Result<Times, BenchError> {
        let begun = Instant::now();
        let state = self.theirs.state(self.times.bytes).unwrap_or_default();
        let heir = Gateway::restore_beside(settings()?, state, self.theirs.segments(), begun);
        let heir = heir.map_err(|error| failed(&error))?;
        let read = begun.elapsed();
        let (ours, theirs) = (waiting(&self.gateway), waiting(&heir));
        if ours != theirs {
            return Err(BenchError::Transfer(format!("{ours} bytes waited, and {theirs} were read")));
        }
        Ok(Times { read, ..self.times })
    }
}
