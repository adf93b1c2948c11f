//! The time that a gateway's state takes from one process to the next.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use roce::ip::{Addressing, Datagram};
use roce::wire::{Bth, Ext, Opcode, Psn, Qpn, Repr};
use splice::{Gateway, Settings};

use super::BenchError;

/// `longhaul-lab bench upgrade`: a gateway's snapshot written, carried over a socket and read, by
/// flows and by what waits in them. No traffic runs meanwhile.
#[derive(Debug, Clone)]
pub struct Upgrade {
    /// Flows, and bytes that wait in all of them together.
    pub cases: Vec<(u32, u64)>,
    /// Rounds of each; the median is shown.
    pub rounds: u32,
}

const PAYLOAD: usize = 1024;
/// Bytes that a process writes or reads at a time, as those that hand over do.
const AT_ONCE: usize = 8 << 20;
const BUFFERS: usize = 8 << 30;

const EXPLANATION: &str = "\
Requests of 1 KiB wait, none of which the peer has. written: the state to bytes. carried: these over a Unix socket into memory of the other
process. read: a gateway from these, with all its flows. All three follow one another, and the gateway stands still meanwhile.";

/// The parts of a hand-over.
struct Times {
    write: Duration,
    carry: Duration,
    read: Duration,
    bytes: usize,
}

impl Upgrade {
    /// Measures and writes a line for each case.
    ///
    /// # Errors
    /// See [`BenchError`].
    pub fn run(&self, out: &mut dyn Write, interrupted: &dyn Fn() -> bool) -> Result<(), BenchError> {
        let titles = ["flows", "waiting", "snapshot", "written", "carried", "read", "all"];
        titles.iter().try_for_each(|title| write!(out, "{title:>10}"))?;
        writeln!(
            out,
            "\n{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
            "", "[MiB]", "[MiB]", "[ms]", "[ms]", "[ms]", "[ms]"
        )?;
        for (flows, bytes) in &self.cases {
            let mut rounds = Vec::new();
            for _ in 0..self.rounds.max(1) {
                if interrupted() {
                    return Err(BenchError::Interrupted);
                }
                rounds.push(hand_over(*flows, *bytes)?);
            }
            rounds.sort_by_key(|times| times.write + times.carry + times.read);
            let Some(median) = rounds.get(rounds.len() / 2) else { continue };
            let Times { write, carry, read, bytes: snapshot } = median;
            let millis = |time: &Duration| time.as_secs_f64() * 1e3;
            writeln!(
                out,
                "{flows:>10}{:>10}{:>10}{:>10.1}{:>10.1}{:>10.1}{:>10.1}",
                bytes >> 20,
                snapshot >> 20,
                millis(write),
                millis(carry),
                millis(read),
                millis(&(*write + *carry + *read)),
            )?;
            out.flush()?;
        }
        writeln!(out, "\n{EXPLANATION}")?;
        Ok(())
    }
}

fn settings() -> Result<Settings, BenchError> {
    let remote = "10.1.0.0/16".parse().map_err(|_| BenchError::Transfer("no prefix".to_owned()))?;
    let settings = Settings::new(vec![remote], 10_000_000_000, 1400);
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

fn hand_over(flows: u32, bytes: u64) -> Result<Times, BenchError> {
    let now = Instant::now();
    let mut gateway = busy(flows, bytes, now)?;
    let begun = Instant::now();
    let snapshot = gateway.snapshot(now).map_err(|error| BenchError::Transfer(error.to_string()))?;
    let write = begun.elapsed();
    let begun = Instant::now();
    let arrived = carry(&snapshot)?;
    let carry = begun.elapsed();
    let begun = Instant::now();
    let heir = Gateway::restore(settings()?, &arrived, now)
        .map_err(|error| BenchError::Transfer(error.to_string()))?;
    let read = begun.elapsed();
    let (ours, theirs) = (waiting(&gateway), waiting(&heir));
    if ours != theirs {
        return Err(BenchError::Transfer(format!("{ours} bytes waited, and {theirs} were read")));
    }
    Ok(Times { write, carry, read, bytes: snapshot.len() })
}

fn carry(snapshot: &[u8]) -> io::Result<Vec<u8>> {
    let (mut from, to) = UnixStream::pair()?;
    thread::scope(|scope| {
        let writer = scope.spawn(move || snapshot.chunks(AT_ONCE).try_for_each(|some| from.write_all(some)));
        let mut arrived = Vec::new();
        while arrived.len() < snapshot.len() {
            (&to).take(AT_ONCE as u64).read_to_end(&mut arrived)?;
        }
        writer.join().map_err(|_| io::ErrorKind::Other)??;
        Ok(arrived)
    })
}
