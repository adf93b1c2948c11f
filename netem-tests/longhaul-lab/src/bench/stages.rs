//! The cost of the gateways' own work for one small message: the very code of the data plane,
//! without sockets, in one thread.

use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use roce::ip::Received;
use roce::wire::{Psn, Qpn};
use session::seal::pair;
use session::{Cipher, HEADER, OVERHEAD, Opener, Sealer};
use soft_nic::{Access, Host, MAX_PACKET, QpConfig, RegionHandle, Remote, RemoteAddr, Sge, Status};
use splice::{Arrival, Ecn, Gateway, LaneId, Settings};
use testbed::{Site, host_ip};

use super::BenchError;

/// The parts of the work, in the order in which a packet meets them.
#[derive(Clone, Copy)]
pub(super) enum Stage {
    LanIn,
    WanOut,
    Seal,
    Open,
    WanIn,
    LanOut,
}

impl Stage {
    pub(super) const ALL: [(Self, &'static str); 6] = [
        (Self::LanIn, "LAN in: headers, ICRC, flow, record"),
        (Self::WanOut, "WAN out: packet from records"),
        (Self::Seal, "seal"),
        (Self::Open, "open"),
        (Self::WanIn, "WAN in: records from packet, flow"),
        (Self::LanOut, "LAN out: headers, ICRC"),
    ];
}

/// Time spent in each stage.
#[derive(Default)]
pub(super) struct Work {
    spent: [Duration; Stage::ALL.len()],
    calls: u64,
}

impl Work {
    fn time<T>(&mut self, stage: Stage, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = work();
        let elapsed = began.elapsed();
        if let Some(spent) = self.spent.get_mut(stage as usize) {
            *spent += elapsed;
        }
        self.calls += 1;
        result
    }

    /// Returns the time of one message of so many.
    pub(super) fn of_one(&self, stage: Stage, messages: u32) -> Duration {
        self.spent.get(stage as usize).copied().unwrap_or_default() / messages.max(1)
    }

    /// Returns what looking at the clock adds to the sum of all stages, for one message of so many.
    pub(super) fn clock(&self, messages: u32) -> Duration {
        const LOOKS: u32 = 100_000;
        let began = Instant::now();
        for _ in 0..LOOKS {
            std::hint::black_box(Instant::now());
        }
        let look = began.elapsed().as_secs_f64() / f64::from(LOOKS);
        // Between the two looks of a stage lies about one.
        Duration::from_secs_f64(look * self.calls as f64 / f64::from(messages.max(1)))
    }
}

/// A site: its RDMA host and its gateway.
struct Place {
    host: Host,
    core: Gateway,
    sealer: Sealer,
    opener: Opener,
}

/// `messages` WRITEs of `size` bytes from site A to site B, one at a time.
///
/// # Errors
/// The session's keys, or a WRITE that fails.
pub(super) fn measure(messages: u32, size: u32, max_packet: usize) -> Result<Work, BenchError> {
    let mut places = Places::new(size, max_packet)?;
    let mut work = Work::default();
    // Half as many again, first, for the caches and the estimates of the round-trip time.
    for _ in 0..messages / 2 {
        places.write(&mut Work::default())?;
    }
    for _ in 0..messages {
        places.write(&mut work)?;
    }
    Ok(work)
}

struct Places {
    a: Place,
    b: Place,
    qpn: Qpn,
    local: Sge,
    remote: RemoteAddr,
    max_packet: usize,
}

impl Places {
    fn new(size: u32, max_packet: usize) -> Result<Self, BenchError> {
        let now = Instant::now();
        let keys = |seed: u8| pair(1, Cipher::Aegis128L, &[seed; 32], u64::MAX).map_err(io::Error::other);
        let ((to_b, at_b), (to_a, at_a)) = (keys(1)?, keys(2)?);
        let place = |site, other, sealer, opener| {
            let (ip, remote): (IpAddr, IpAddr) = (host_ip(site, 1), host_ip(other, 1));
            let settings = Settings::new(vec![remote.into()], 400_000_000_000, max_packet);
            let mut core = Gateway::new(settings, now);
            core.session_up(Duration::from_micros(100), max_packet, 1, &[], now);
            Place { host: Host::new(ip, 0x11), core, sealer, opener }
        };
        let mut a = place(Site::A, Site::B, to_b, at_a);
        let mut b = place(Site::B, Site::A, to_a, at_b);
        let region = |host: &mut Host| host.register(vec![0; size as usize], Access::ALL);
        let (at_a, at_b): (RegionHandle, RegionHandle) = (region(&mut a.host), region(&mut b.host));
        let (qpn, target) = (queue_pair(&mut a.host)?, queue_pair(&mut b.host)?);
        connect(&mut a.host, qpn, b.host.ip(), target)?;
        connect(&mut b.host, target, a.host.ip(), qpn)?;
        Ok(Self {
            a,
            b,
            qpn,
            local: Sge { key: at_a.key, va: at_a.va, len: size },
            remote: RemoteAddr { va: at_b.va, rkey: at_b.key },
            max_packet,
        })
    }

    /// One WRITE, and everything until it is complete.
    fn write(&mut self, work: &mut Work) -> Result<(), BenchError> {
        let Self { a, b, max_packet, .. } = self;
        a.host.post_write(self.qpn, 0, self.local, self.remote, None).map_err(failed)?;
        let began = Instant::now();
        loop {
            let now = Instant::now();
            a.pass(b, *max_packet, now, work);
            b.pass(a, *max_packet, now, work);
            match a.host.poll_completion().map(|completion| completion.status) {
                Some(Status::Success) => return Ok(()),
                Some(status) => return Err(BenchError::Transfer(format!("{status:?}"))),
                None if now > began + Duration::from_secs(5) => {
                    return Err(BenchError::Transfer("a WRITE did not complete".to_owned()));
                }
                None => {}
            }
        }
    }
}

fn queue_pair(host: &mut Host) -> Result<Qpn, BenchError> {
    host.create_qp(QpConfig::default()).map_err(failed)
}

fn connect(host: &mut Host, qpn: Qpn, ip: IpAddr, remote: Qpn) -> Result<(), BenchError> {
    let psn = Psn::new(0);
    host.connect(qpn, psn, Remote { ip, qpn: remote, psn }).map_err(failed)
}

fn failed(error: soft_nic::HostError) -> BenchError {
    BenchError::Transfer(error.to_string())
}

impl Place {
    /// Everything that this site has to send, to the other one's gateway and to its own host.
    fn pass(&mut self, to: &mut Self, max_packet: usize, now: Instant, work: &mut Work) {
        let Self { host, core, sealer, .. } = self;
        for timer in [core.next_timeout(now), host.next_timeout()].into_iter().flatten() {
            if timer <= now {
                core.handle_timeout(now);
                host.handle_timeout(now);
            }
        }
        let mut packet = [0; MAX_PACKET];
        while let Some(len) = host.poll_transmit(now, &mut packet) {
            work.time(Stage::LanIn, || {
                if let Some(Ok(received)) = packet.get(..len).map(Received::parse) {
                    core.handle_received(&received, now);
                }
            });
        }
        let mut datagram = vec![0; max_packet + OVERHEAD];
        while let Some(plaintext) = datagram.get_mut(HEADER..HEADER + max_packet) {
            let Some(len) = work.time(Stage::WanOut, || core.poll_wan(now, plaintext)) else { break };
            let Ok(len) = work.time(Stage::Seal, || sealer.seal(0, &mut datagram, len)) else { break };
            let Some(sealed) = datagram.get_mut(..len) else { break };
            let Place { core, opener, .. } = to;
            let Ok((header, packet)) = work.time(Stage::Open, || opener.open_numbered(sealed)) else { break };
            let (lane, number) = (LaneId(header.lane.into()), header.packet_number);
            let arrival = Arrival { lane, number, bytes: core.wire_bytes(packet.len()), ecn: Ecn::NotEct };
            work.time(Stage::WanIn, || core.handle_wan(packet, arrival, now));
        }
        for place in [self, to] {
            let Place { host, core, .. } = place;
            while let Some(len) = work.time(Stage::LanOut, || core.poll_lan(now, &mut packet)) {
                if let Some(packet) = packet.get(..len) {
                    host.handle_packet(packet, now);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_has_its_part_of_a_write() {
        let work = measure(20, 64, 1400).unwrap();
        for (stage, name) in Stage::ALL {
            assert!(work.of_one(stage, 20) > Duration::ZERO, "{name}");
        }
        assert!(work.calls >= 20 * 2 * 6, "there and back: {}", work.calls);
    }
}
