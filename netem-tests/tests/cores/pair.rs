//! Two gateway cores on a link without faults, a host at each site, and packets made by hand.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use netem_tests::host::{Host, MAX_PACKET, QpConfig, Remote};
use roce::ip::{Addressing, Datagram, emit};
use roce::pairing::source_port;
use roce::wire::{Bth, Ext, Opcode, Packet, Psn, Qpn, Repr};
use splice::{Arrival, Ecn, Gateway, LaneId, Settings};

/// One way over the long link.
pub(crate) const DELAY: Duration = Duration::from_millis(5);
/// Each host's only queue pair.
pub(crate) const QPNS: [Qpn; 2] = [Qpn::new(0x11), Qpn::new(0x22)];
/// Both ways of the connection begin at this PSN.
pub(crate) const FIRST: u32 = 100;

/// The hosts' queue pairs are connected to each other; what a host sends or hears takes no time.
/// Packets made by hand speak for the host of site 0.
pub(crate) struct Pair {
    pub(crate) now: Instant,
    pub(crate) gateways: [Gateway; 2],
    pub(crate) hosts: [Host; 2],
    /// The packets that each gateway emitted on its LAN, from the BTH on.
    heard: [Vec<Vec<u8>>; 2],
    /// The longest WAN packet of each gateway, plaintext, and the longest IP packet it emitted on
    /// its LAN.
    pub(crate) longest: [usize; 2],
    pub(crate) longest_lan: [usize; 2],
    /// Packet numbers used by each gateway.
    pub(crate) numbers: [u64; 2],
    air: [VecDeque<(Instant, u64, Vec<u8>)>; 2],
}

pub(crate) fn ip(site: usize) -> IpAddr {
    [10, 0, site as u8, 1].into()
}

/// Settings of a gateway on a gigabit link; the prefix behind its peer is filled in.
pub(crate) fn settings(max_packet: usize) -> Settings {
    Settings::new(Vec::new(), 1_000_000_000, max_packet)
}

/// A WAN packet of so many bytes under a number, as the gateway that hears it is told.
pub(crate) fn arrival(gateway: &Gateway, number: u64, len: usize) -> Arrival {
    Arrival { lane: LaneId(0), number, bytes: gateway.wire_bytes(len), ecn: Ecn::NotEct }
}

impl Pair {
    /// With a session.
    pub(crate) fn new(settings: [Settings; 2], qp: QpConfig) -> Self {
        let now = Instant::now();
        let agreed = settings[0].max_packet.min(settings[1].max_packet);
        let mut site = 0;
        let gateways = settings.map(|settings| {
            site += 1;
            let remote = vec![IpNet::new_assert(ip(2 - site), 24).trunc()];
            Gateway::new(Settings { remote, ..settings }, now)
        });
        let hosts = [0, 1].map(|site| {
            let mut host = Host::new(ip(site), QPNS[site].get());
            host.create_qp(qp).unwrap();
            host
        });
        let mut pair = Self {
            now,
            gateways,
            hosts,
            heard: Default::default(),
            longest: [0; 2],
            longest_lan: [0; 2],
            numbers: [0; 2],
            air: Default::default(),
        };
        for gateway in &mut pair.gateways {
            gateway.session_up(2 * DELAY, agreed, 1, &[], now);
        }
        pair.connect(FIRST);
        pair
    }

    /// Connects the queue pairs, anew if they are.
    pub(crate) fn connect(&mut self, first: u32) {
        let psn = Psn::new(first);
        for (site, host) in self.hosts.iter_mut().enumerate() {
            let peer = 1 - site;
            let remote = Remote { ip: ip(peer), qpn: QPNS[peer], psn };
            host.connect(QPNS[site], psn, remote).unwrap();
        }
    }

    /// A request of host 0's queue pair with `len` bytes of payload.
    pub(crate) fn request(&mut self, opcode: Opcode, psn: u32, len: usize) {
        let payload = vec![psn as u8; len];
        let bth = Bth::new(opcode, QPNS[1], Psn::new(psn));
        let repr = Repr { bth, ext: Ext::None, payload: &payload };
        let mut transport = vec![0; repr.buffer_len()];
        repr.emit(&mut transport).unwrap();
        let src_port = source_port(QPNS[0], QPNS[1]);
        let addressing = Addressing { src: ip(0), dst: ip(1), src_port, tclass: 0, ttl: 64 };
        let mut packet = vec![0; MAX_PACKET];
        let len = emit(&addressing, 1, &transport, &mut packet).unwrap();
        self.gateways[0].handle_lan(&Datagram::parse(&packet[..len]).unwrap(), self.now);
    }

    /// Opcode, PSN and, if it has an AETH, the syndrome of each packet heard on a LAN since this
    /// was last asked.
    pub(crate) fn heard(&mut self, site: usize) -> Vec<(Opcode, u32, Option<u8>)> {
        let packets = std::mem::take(&mut self.heard[site]);
        let told = |packet: Packet<'_>| {
            let syndrome = packet.ext.aeth().map(|aeth| aeth.syndrome.to_u8());
            (packet.bth.opcode, packet.bth.psn.get(), syndrome)
        };
        packets.iter().map(|bytes| told(Packet::parse(bytes).unwrap())).collect()
    }

    /// Lets everything take its course for so long.
    pub(crate) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            while self.settle() {}
            match self.next_event().filter(|at| *at <= end) {
                Some(at) => self.now = self.now.max(at),
                None => break,
            }
        }
        self.now = end;
    }

    fn next_event(&self) -> Option<Instant> {
        let gateways = self.gateways.iter().map(|gateway| gateway.next_timeout(self.now));
        let hosts = self.hosts.iter().map(Host::next_timeout);
        let air = self.air.iter().map(|air| air.front().map(|(at, ..)| *at));
        gateways.chain(hosts).chain(air).flatten().min()
    }

    /// Moves what can move now; whether anything did.
    fn settle(&mut self) -> bool {
        let Self { now, gateways, hosts, heard, longest, longest_lan, numbers, air } = self;
        let now = *now;
        let mut buffer = vec![0; MAX_PACKET.max(16_384)];
        let mut moved = false;
        for site in 0..2 {
            let (gateway, host) = (&mut gateways[site], &mut hosts[site]);
            host.handle_timeout(now);
            while let Some(len) = host.poll_transmit(now, &mut buffer) {
                moved = true;
                gateway.handle_lan(&Datagram::parse(&buffer[..len]).unwrap(), now);
            }
            while let Some((_, number, packet)) = air[1 - site].pop_front_if(|(at, ..)| *at <= now) {
                moved = true;
                let arrival = arrival(gateway, number, packet.len());
                gateway.handle_wan(&packet, arrival, now);
            }
            if gateway.next_timeout(now).is_some_and(|at| at <= now) {
                moved = true;
                gateway.handle_timeout(now);
            }
            while let Some(len) = gateway.poll_lan(now, &mut buffer) {
                moved = true;
                let datagram = Datagram::parse(&buffer[..len]).unwrap();
                heard[site].push(datagram.transport.to_vec());
                longest_lan[site] = longest_lan[site].max(len);
                host.handle_datagram(&datagram, now);
            }
            while let Some(len) = gateway.poll_wan(now, &mut buffer) {
                moved = true;
                longest[site] = longest[site].max(len);
                air[site].push_back((now + DELAY, numbers[site], buffer[..len].to_vec()));
                numbers[site] += 1;
            }
        }
        moved
    }
}
