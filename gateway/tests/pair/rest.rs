//! Connections at rest, and packets that somebody else sends in their hosts' names.

use std::net::{IpAddr, UdpSocket};

use roce::ip::{Addressing, emit};
use roce::wire::{Aeth, Bth, Ext, Nak, Opcode, Psn, Qpn, Repr, Syndrome};
use soft_nic::{Access, Host, Remote, Status};

use super::*;

/// A host on a socket of its own, with one queue pair.
struct Station {
    host: Host,
    qpn: Qpn,
    socket: UdpSocket,
    gateway: std::net::SocketAddr,
    completed: usize,
}

impl Station {
    fn ip(&self) -> IpAddr {
        self.host.ip()
    }

    fn drive(&mut self, now: Instant) {
        let mut buffer = [0; 9000];
        while let Ok(len) = self.socket.recv(&mut buffer) {
            self.host.handle_packet(&buffer[..len], now);
        }
        self.host.handle_timeout(now);
        while let Some(len) = self.host.poll_transmit(now, &mut buffer) {
            self.socket.send_to(&buffer[..len], self.gateway).unwrap();
        }
        while let Some(completion) = self.host.poll_completion() {
            assert_eq!(completion.status, Status::Success, "{completion:?}");
            self.completed += 1;
        }
    }

    /// One packet in this host's name to the queue pair of another.
    fn spoof(&self, to: &Station, opcode: Opcode, ext: Ext, psn: u32) {
        self.spoof_as(self.ip(), to, opcode, ext, psn);
    }

    /// The same in the name of `src`.
    fn spoof_as(&self, src: IpAddr, to: &Station, opcode: Opcode, ext: Ext, psn: u32) {
        let payload: &[u8] = if opcode.has_payload() { &[0xee; 64] } else { &[] };
        let bth = Bth { ack_req: true, ..Bth::new(opcode, to.qpn, Psn::new(psn)) };
        let repr = Repr { bth, ext, payload };
        let mut transport = vec![0; repr.buffer_len()];
        repr.emit(&mut transport).unwrap();
        let src_port = 0xc000 | (psn & 0x3fff) as u16;
        let addressing = Addressing { src, dst: to.ip(), src_port, tclass: 0, ttl: 64 };
        let mut out = vec![0; 1000];
        let len = emit(&addressing, 1, &transport, &mut out).unwrap();
        self.socket.send_to(&out[..len], self.gateway).unwrap();
    }
}

/// A host on a socket of its own at each site.
fn stations(limits: &str) -> (Pair, [Station; 2]) {
    let sockets = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    sockets.iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
    let known = [(0, Site::A), (1, Site::B)]
        .map(|(at, site): (usize, Site)| vec![(host_ip(site, 1), sockets[at].local_addr().unwrap())]);
    let mut pair = Pair::start_otherwise(0, |plan| {
        plan.hosts = known;
        plan.limits = limits.to_owned();
        plan.link = "delay 2ms".parse().unwrap();
    });
    pair.index = 1;
    let stations = connected(&pair, sockets);
    (pair, stations)
}

fn connected(pair: &Pair, sockets: [UdpSocket; 2]) -> [Station; 2] {
    let mut sockets = sockets.into_iter();
    let mut station = |site, first_qpn| {
        let mut host = Host::new(host_ip(site, 1), first_qpn);
        let config = QpConfig { timeout: Some(Duration::from_millis(500)), ..QpConfig::default() };
        let qpn = host.create_qp(config).unwrap();
        let socket = sockets.next().unwrap();
        Station { host, qpn, socket, gateway: pair.testbed.lan(site), completed: 0 }
    };
    let mut stations = [station(Site::A, 0x11), station(Site::B, 0x23)];
    let ends = stations.each_ref().map(|station| (station.ip(), station.qpn));
    let psn = [Psn::new(0), Psn::new(5_000_000)];
    for end in 0..2 {
        let (ip, qpn) = ends[1 - end];
        let own = stations[end].qpn;
        stations[end].host.connect(own, psn[end], Remote { ip, qpn, psn: psn[1 - end] }).unwrap();
    }
    stations
}

fn drive(stations: &mut [Station; 2], until: impl Fn(&[Station; 2]) -> bool) {
    let end = Instant::now() + PATIENCE;
    while !until(stations) {
        assert!(Instant::now() < end, "it does not end");
        stations.iter_mut().for_each(|station| station.drive(Instant::now()));
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// All is confirmed and nothing outstanding. Then one packet comes from somewhere: a request or an
/// answer, in the name of either end. The connection goes on in both directions, with what was
/// sent.
#[test]
fn a_connection_at_rest_outlives_what_others_send_in_its_name() {
    let (pair, mut stations) = stations("idle_flow = \"60 s\"");
    let ack = |syndrome| Ext::Aeth(Aeth { syndrome, msn: 77 });
    let kinds = [
        (Opcode::SendOnly, Ext::None),
        (Opcode::SendMiddle, Ext::None),
        (Opcode::Acknowledge, ack(Syndrome::ACK)),
        (Opcode::Acknowledge, ack(Syndrome::Nak(Nak::PsnSequence))),
        (Opcode::Acknowledge, ack(Syndrome::Nak(Nak::RemoteOperation))),
    ];
    for (round, (opcode, ext)) in kinds.into_iter().cycle().take(3 * kinds.len()).enumerate() {
        let mut received = Vec::new();
        for end in 0..2 {
            let [one, other] = &mut stations;
            let (from, to) = if end == 0 { (one, other) } else { (other, one) };
            let byte = (2 * round + end) as u8;
            let (bytes, room) = (vec![byte; 3000], vec![0xff; 3000]);
            let region = to.host.register(room, Access::ALL);
            let local = from.host.register(bytes, Access::LOCAL);
            to.host.post_recv(to.qpn, 1, region.slice(0, 3000)).unwrap();
            from.host.post_send(from.qpn, 2, local.slice(0, 3000), None).unwrap();
            received.push((1 - end, region.key, byte));
        }
        let wanted = stations.each_ref().map(|station| station.completed + 2);
        drive(&mut stations, |stations| {
            stations.iter().zip(wanted).all(|(station, wanted)| station.completed >= wanted)
        });
        for (end, key, byte) in received {
            assert_eq!(stations[end].host.memory(key).unwrap(), vec![byte; 3000], "round {round}");
        }
        let rested = Instant::now() + Duration::from_millis(50);
        drive(&mut stations, |_| Instant::now() >= rested);
        // Any PSN but those of the connection.
        let psn = 1_000_000 + 1_000_003 * round as u32 % 3_000_000;
        let [one, other] = &stations;
        one.spoof(other, opcode, ext, psn);
        other.spoof(one, opcode, ext, psn);
        let judged = Instant::now() + Duration::from_millis(50);
        drive(&mut stations, |_| Instant::now() >= judged);
    }
    for site in [Site::A, Site::B] {
        let status = pair.status(site);
        assert_eq!(status.flows.failed, 0, "{status:?}");
    }
    pair.testbed.stop().unwrap();
}

/// Each gateway knows what its peer takes for its hosts, without `lan.local`.
#[test]
fn what_the_peer_would_drop_is_counted_where_it_comes_from() {
    let (pair, [one, other]) = stations("");
    for psn in 0..20 {
        one.spoof_as("192.0.2.9".parse().unwrap(), &other, Opcode::SendOnly, Ext::None, psn);
    }
    let is_not_local = |labels: &str| labels.contains("source_not_local");
    let end = Instant::now() + PATIENCE;
    while pair.counted(Site::A, "longhaul_lan_dropped_packets_total", is_not_local) < 20 {
        assert!(Instant::now() < end, "they are not dropped");
        std::thread::sleep(TICK);
    }
    assert_eq!(pair.counted(Site::B, "longhaul_records_malformed_total", |_| true), 0);
}
