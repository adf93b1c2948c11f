//! UC is not terminated, and yet its packets come out whole and in order on a link that loses some.
//!
//! Rules: `docs/protocol.md#rule-ordered`, `rule-ordered-wait`.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::sites::{STEP, Sites};
use config::Policy;
use roce::ip::{Addressing, Datagram};
use roce::wire::{Bth, Ext, ImmDt, Opcode, Packet, Psn, Qpn, Repr, Reth};
use splice::record::{FlowId, Head};
use splice::{Arrival, Ecn, Gateway, LanDrop, LaneId, Settings};

const MS: Duration = Duration::from_millis(1);
const DELAY: Duration = Duration::from_millis(10);
const LONGEST: usize = 1400;

fn settings(remote: &str, scheme: &str) -> Settings {
    let policy = format!("[[class]]\nname = \"all\"\nscheme = \"{scheme}\"");
    Settings {
        policy: Policy::parse(Path::new("policy.toml"), &policy).unwrap().into(),
        rtt: DELAY * 2,
        idle_flow: Duration::from_secs(2),
        ..Settings::new(vec![remote.parse().unwrap()], 1_000_000_000, LONGEST)
    }
}

fn uc(opcode: Opcode, target: Qpn, psn: u32) -> Vec<u8> {
    uc_with(opcode, Ext::None, target, psn)
}

fn uc_with(opcode: Opcode, ext: Ext, target: Qpn, psn: u32) -> Vec<u8> {
    let repr = Repr { bth: Bth::new(opcode, target, Psn::new(psn)), ext, payload: &[7; 1024] };
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut bytes).unwrap();
    bytes
}

fn between(src: &str, dst: &str) -> Addressing {
    let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
    Addressing { src, dst, src_port: 0xc123, tclass: 0, ttl: 64 }
}

/// Drains what a gateway emits on its LAN: queue pair and PSN.
fn drain_lan(gateway: &mut Gateway, now: Instant, into: &mut Vec<(u32, u32)>) {
    let mut out = vec![0; 10_000];
    while let Some(len) = gateway.poll_lan(now, &mut out) {
        let datagram = Datagram::parse(&out[..len]).unwrap();
        let packet = Packet::parse(datagram.transport).unwrap();
        into.push((packet.bth.dest_qp.get(), packet.bth.psn.get()));
    }
}

/// A part of a long SEND: the first one if `place` is 0.
fn send_part(target: Qpn, psn: u32, place: u32) -> Vec<u8> {
    uc(if place == 0 { Opcode::UcSendFirst } else { Opcode::UcSendMiddle }, target, psn)
}

/// A packet of an SDR program: a WRITE with immediate of its own.
fn sdr_packet(target: Qpn, psn: u32, place: u32) -> Vec<u8> {
    let reth = Reth { virtual_address: u64::from(place) * 1024, rkey: 7, dma_length: 1024 };
    uc_with(Opcode::UcWriteOnlyImmediate, Ext::RethImm(reth, ImmDt((place << 4).to_be_bytes())), target, psn)
}

/// Loses every seventh WAN packet.
fn lossy(number: u64) -> Option<Duration> {
    (number % 7 != 3).then_some(Duration::ZERO)
}

/// Loses every seventh WAN packet, and holds every fifth up for 7 ms.
fn lossy_and_out_of_order(number: u64) -> Option<Duration> {
    lossy(number).map(|_| if number.is_multiple_of(5) { MS * 7 } else { Duration::ZERO })
}

/// Sends UC packets to two queue pairs in turn, over a link whose WAN packets are lost or held up
/// as `fate` says. Returns what comes out, and the far gateway.
fn carry(
    scheme: &str,
    count: u32,
    packet: fn(Qpn, u32, u32) -> Vec<u8>,
    fate: fn(u64) -> Option<Duration>,
) -> (Vec<(u32, u32)>, Gateway) {
    let start = Instant::now();
    let mut gateways = [settings("10.0.1.0/24", scheme), settings("10.0.0.0/24", scheme)]
        .map(|settings| Gateway::new(settings, start));
    for gateway in &mut gateways {
        gateway.session_up(DELAY * 2, LONGEST, 1, &[], start);
    }
    let mut wan: [VecDeque<(Instant, Arrival, Vec<u8>)>; 2] = Default::default();
    let mut numbers = [0_u64; 2];
    let (mut emitted, mut out) = ([Vec::new(), Vec::new()], vec![0; 10_000]);
    for tick in 0..8000 {
        let now = start + MS * tick;
        if tick < count {
            for target in [0x22, 0x33] {
                let transport = packet(Qpn::new(target), (0xff_fff0 + tick) & 0xff_ffff, tick);
                let addressing = between("10.0.0.1", "10.0.1.1");
                gateways[0].handle_lan(&Datagram { addressing, transport: &transport }, now);
            }
        }
        for site in 0..2 {
            while let Some(due) = wan[site].iter().position(|(at, ..)| *at <= now) {
                let Some((_, arrival, packet)) = wan[site].remove(due) else { break };
                gateways[site].handle_wan(&packet, arrival, now);
            }
            gateways[site].handle_timeout(now);
            drain_lan(&mut gateways[site], now, &mut emitted[site]);
            while let Some(len) = gateways[site].poll_wan(now, &mut out) {
                let bytes = gateways[site].wire_bytes(len);
                let arrival = Arrival { lane: LaneId(0), number: numbers[site], bytes, ecn: Ecn::NotEct };
                numbers[site] += 1;
                let held = if site == 1 { Some(Duration::ZERO) } else { fate(numbers[site]) };
                if let Some(held) = held {
                    wan[1 - site].push_back((now + DELAY + held, arrival, out[..len].to_vec()));
                }
            }
        }
    }
    let [_, emitted] = emitted;
    let [mut near, far] = gateways;
    assert_eq!((near.stats().timers, near.stats().datagrams), (0, u64::from(2 * count)));
    (emitted, far)
}

#[test]
fn uc_packets_are_neither_lost_nor_overtaken_by_others_to_their_queue_pair() {
    let (emitted, mut far) = carry("sr", 400, send_part, lossy);
    for target in [0x22, 0x33] {
        let psns: Vec<_> = emitted.iter().filter(|(qpn, _)| *qpn == target).map(|(_, psn)| *psn).collect();
        let expected: Vec<_> = (0..400).map(|n| (0xff_fff0 + n) & 0xff_ffff).collect();
        assert_eq!(psns, expected, "to {target:#x}");
    }
    let stats = far.stats();
    assert_eq!((stats.timers, stats.buffers, stats.reorder_bytes_used), (0, 0, 0));
}

/// Nothing that is lost comes again, so nothing waits for it.
#[test]
fn without_repair_uc_packets_come_out_as_they_come() {
    let (emitted, mut far) = carry("none", 100, send_part, lossy);
    assert!(emitted.len() > 120 && emitted.len() < 200, "{} of 200", emitted.len());
    assert_eq!((far.stats().timers, far.stats().reorder_bytes), (0, 0));
}

/// Packets of SDR programs, whose own layers repair: a class without repair carries them as they
/// come, and none waits for another. With repair they would be put in order, a round trip late.
#[test]
fn sdr_packets_of_a_class_without_repair_are_neither_ordered_nor_repaired() {
    let (emitted, mut far) = carry("none", 100, sdr_packet, lossy_and_out_of_order);
    assert!(emitted.len() > 120 && emitted.len() < 200, "{} of 200", emitted.len());
    let place = |psn: u32| psn.wrapping_sub(0xff_fff0) & 0xff_ffff;
    for target in [0x22, 0x33] {
        let places: Vec<u32> =
            emitted.iter().filter(|(qpn, _)| *qpn == target).map(|(_, psn)| place(*psn)).collect();
        let overtaken = places.windows(2).filter(|pair| pair[0] > pair[1]).count();
        assert!(overtaken > 5, "{overtaken} to {target:#x}: {places:?}");
        let mut once = places.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), places.len(), "each comes once");
    }
    assert_eq!((far.stats().timers, far.stats().reorder_bytes), (0, 0));
    let (repaired, _) = carry("sr", 100, sdr_packet, lossy_and_out_of_order);
    let ordered: Vec<u32> =
        repaired.iter().filter(|(qpn, _)| *qpn == 0x22).map(|(_, psn)| place(*psn)).collect();
    assert_eq!(ordered, Vec::from_iter(0..100));
}

/// The messages that came out for one queue pair.
#[derive(Default)]
struct Messages {
    whole: u32,
    cut: u32,
    /// Packets of the one under way, and its next PSN.
    under_way: Option<(u32, u32)>,
}

impl Messages {
    fn take(&mut self, opcode: Opcode, psn: u32) {
        let before = self.under_way.take();
        if opcode.starts_message() {
            self.cut += u32::from(before.is_some());
            self.under_way = Some((1, psn + 1));
            return;
        }
        match before.filter(|(_, next)| *next == psn) {
            Some((PACKETS_MINUS_ONE, _)) if opcode.ends_message() => self.whole += 1,
            Some((count, next)) => self.under_way = Some((count + 1, next + 1)),
            None => self.cut += 1,
        }
    }
}

/// Packets of a message.
const PACKETS: u32 = 16;
const PACKETS_MINUS_ONE: u32 = PACKETS - 1;

fn rc_write(target: Qpn, psn: u32) -> Vec<u8> {
    let ext = Ext::Reth(Reth { virtual_address: 0, rkey: 7, dma_length: 256 });
    let repr = Repr { bth: Bth::new(Opcode::WriteOnly, target, Psn::new(psn)), ext, payload: &[5; 256] };
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut bytes).unwrap();
    bytes
}

/// Four UC queue pairs send five times what the link carries, all at once, and RC shares their
/// class. UC messages are dropped, but no part of one; and RC, which heeds ACKs, finds room.
#[test]
fn where_uc_exceeds_the_link_whole_messages_are_dropped_and_rc_is_not() {
    let start = Instant::now();
    let slow = |remote| Settings { rate: 100_000_000, ..settings(remote, "sr") };
    let mut gateways =
        [slow("10.0.1.0/24"), slow("10.0.0.0/24")].map(|settings| Gateway::new(settings, start));
    for gateway in &mut gateways {
        gateway.session_up(DELAY * 2, LONGEST, 1, &[], start);
    }
    let mut wan: [VecDeque<(Instant, Arrival, Vec<u8>)>; 2] = Default::default();
    let (mut numbers, mut out) = ([0_u64; 2], vec![0; 10_000]);
    let mut messages: [Messages; 4] = Default::default();
    let (mut psn, mut offered, mut requests) = (0, 0, 0);
    let ticks = 2000;
    for tick in 0..ticks {
        let now = start + MS * tick;
        let addressing = between("10.0.0.1", "10.0.1.1");
        for part in 0..PACKETS {
            for target in 0..4 {
                let opcode = match part {
                    0 => Opcode::UcSendFirst,
                    PACKETS_MINUS_ONE => Opcode::UcSendLast,
                    _ => Opcode::UcSendMiddle,
                };
                let transport = uc(opcode, Qpn::new(0x100 + target), psn + part);
                gateways[0].handle_lan(&Datagram { addressing, transport: &transport }, now);
            }
            // In the midst of them.
            if part == 7 && tick % 2 == 0 {
                let transport = rc_write(Qpn::new(0x200), requests);
                requests += 1;
                gateways[0].handle_lan(&Datagram { addressing, transport: &transport }, now);
            }
        }
        (psn, offered) = (psn + PACKETS, offered + 4);
        for site in 0..2 {
            while wan[site].front().is_some_and(|(at, ..)| *at <= now) {
                let Some((_, arrival, packet)) = wan[site].pop_front() else { break };
                gateways[site].handle_wan(&packet, arrival, now);
            }
            gateways[site].handle_timeout(now);
            while let Some(len) = gateways[site].poll_lan(now, &mut out) {
                let datagram = Datagram::parse(&out[..len]).unwrap();
                let bth = Packet::parse(datagram.transport).unwrap().bth;
                if let Some(messages) = messages.get_mut(bth.dest_qp.get().wrapping_sub(0x100) as usize) {
                    messages.take(bth.opcode, bth.psn.get());
                }
            }
            while let Some(len) = gateways[site].poll_wan(now, &mut out) {
                let bytes = gateways[site].wire_bytes(len);
                let arrival = Arrival { lane: LaneId(0), number: numbers[site], bytes, ecn: Ecn::NotEct };
                numbers[site] += 1;
                wan[1 - site].push_back((now + DELAY, arrival, out[..len].to_vec()));
            }
        }
    }
    let whole: u32 = messages.iter().map(|messages| messages.whole).sum();
    let cut: u32 = messages.iter().map(|messages| messages.cut).sum();
    // 100 Mbit/s for two seconds, in messages of 16 kB and their headers.
    let most = 100_000_000 / 8 / 1000 * ticks / (PACKETS * 1100);
    let each: Vec<_> = messages.iter().map(|messages| messages.whole).collect();
    assert!(cut == 0 && whole * 10 > most * 8 && offered > 3 * most, "{cut} cut, {whole} whole of {most}");
    assert!(each.iter().all(|whole| whole * 8 > most), "each its part: {each:?}");
    let stats = gateways[0].stats();
    assert_eq!(stats.requests, u64::from(requests), "of RC none finds no room");
    assert!(stats.lan_drops[LanDrop::NoRoom as usize] > 0);
}

/// The end of a message that began before this gateway did is of no use to any receiver.
#[test]
fn a_message_whose_begin_was_not_carried_is_not_carried_at_all() {
    let mut peer = Peer::new(settings("10.0.1.0/24", "sr"));
    let addressing = between("10.0.0.1", "10.0.1.1");
    for (opcode, psn) in [(Opcode::UcSendMiddle, 1), (Opcode::UcSendLast, 2), (Opcode::UcSendOnly, 3)] {
        let transport = uc(opcode, Qpn::new(7), psn);
        peer.gateway.handle_lan(&Datagram { addressing, transport: &transport }, peer.now);
    }
    let stats = peer.gateway.stats();
    assert_eq!((stats.datagrams, stats.lan_drops[LanDrop::Orphan as usize]), (1, 2));
}

/// Hands this to the senders' gateway; the PSNs that come out at the receivers'.
fn cross(sites: &mut Sites, transport: &[u8]) -> Vec<u32> {
    let datagram = Datagram { addressing: sites.addressing[0], transport };
    sites.gateways[0].handle_lan(&datagram, sites.now);
    for _ in 0..10 {
        sites.cross();
        sites.now += STEP;
    }
    std::iter::from_fn(|| sites.deliver(1)).map(|bth| bth.psn.get()).collect()
}

/// Numbers are used up only by packets that bear them.
#[test]
fn what_a_class_sent_without_repair_is_not_waited_for_when_it_repairs() {
    let policy = |scheme: &str| settings("10.0.0.0/8", scheme).policy;
    let mut sites = Sites::new(0xc123, |settings| Settings { policy: policy("none"), ..settings });
    for (from, scheme) in [(0, "sr"), (3, "none"), (6, "sr")] {
        for psn in from..from + 3 {
            let transport = uc(Opcode::UcSendOnly, Qpn::new(7), psn);
            assert_eq!(cross(&mut sites, &transport), [psn]);
        }
        let now = sites.now;
        sites.gateways[0].set_policy(policy(scheme), now).unwrap();
    }
}

/// A WRITE says how long it is, and nothing of what a SEND will be.
#[test]
fn a_send_after_a_long_write_keeps_no_room_for_as_much() {
    let mut sites = Sites::new(0xc123, |settings| Settings { total_buffer: 32 << 20, ..settings });
    let [long, other] = [Qpn::new(7), Qpn::new(8)];
    let packets = 10_000;
    for psn in 0..packets {
        let reth = Reth { virtual_address: 0, rkey: 7, dma_length: packets * 1024 };
        let (opcode, ext) = match psn {
            0 => (Opcode::UcWriteFirst, Ext::Reth(reth)),
            _ if psn + 1 == packets => (Opcode::UcWriteLast, Ext::None),
            _ => (Opcode::UcWriteMiddle, Ext::None),
        };
        assert_eq!(cross(&mut sites, &uc_with(opcode, ext, long, psn)), [psn]);
    }
    for (opcode, target) in [(Opcode::UcSendFirst, long), (Opcode::UcSendOnly, other)] {
        assert_eq!(cross(&mut sites, &uc(opcode, target, packets)), [packets], "{target:?}");
    }
}

/// The peer by hand: packets numbered by it, in any order.
struct Peer {
    gateway: Gateway,
    sender: reliability::stream::Sender,
    number: u64,
    now: Instant,
}

impl Peer {
    fn new(settings: Settings) -> Self {
        use reliability::stream::{Sender, SenderConfig, StreamId};
        let now = Instant::now();
        let mut gateway = Gateway::new(settings, now);
        gateway.session_up(DELAY * 2, LONGEST, 1, &[], now);
        let sender = Sender::new(SenderConfig::new(StreamId(1), LONGEST), now);
        Self { gateway, sender, number: 0, now }
    }

    /// Packet `seq` to a queue pair, its PSN the same number; what comes out of the gateway.
    fn tell(&mut self, flow: u32, seq: u32) -> Vec<u32> {
        let addressing = between("10.0.1.1", "10.0.0.1");
        let head = Head::Ordered { flow: FlowId(flow), seq, addressing };
        let body = uc(Opcode::UcSendOnly, Qpn::new(flow), seq);
        self.sender.push(&[head.emit().as_ref(), &body], self.now).unwrap();
        let mut packet = [0; LONGEST];
        let len = self.sender.poll_transmit(self.now, &mut packet).unwrap().len;
        let arrival = Arrival { lane: LaneId(0), number: self.number, bytes: len, ecn: Ecn::NotEct };
        self.number += 1;
        self.gateway.handle_wan(&packet[..len], arrival, self.now);
        self.drain()
    }

    fn wait(&mut self, time: Duration) -> Vec<u32> {
        self.now += time;
        self.gateway.handle_timeout(self.now);
        self.drain()
    }

    fn drain(&mut self) -> Vec<u32> {
        let mut emitted = Vec::new();
        drain_lan(&mut self.gateway, self.now, &mut emitted);
        emitted.into_iter().map(|(_, psn)| psn).collect()
    }
}

#[test]
fn what_never_comes_holds_up_what_follows_for_a_second_or_so() {
    let mut peer = Peer::new(settings("10.0.1.0/24", "sr"));
    assert_eq!(peer.tell(5, 0), [0]);
    for seq in [2, 3, 6] {
        assert!(peer.tell(5, seq).is_empty());
    }
    // Another queue pair does not wait for it.
    assert_eq!(peer.tell(6, 0), [0]);
    assert!(peer.wait(MS * 900).is_empty());
    assert_eq!(peer.wait(MS * 300), [2, 3, 6]);
    // What comes after all is over.
    assert!(peer.tell(5, 1).is_empty());
    assert_eq!(peer.tell(5, 7), [7]);
    assert_eq!(peer.gateway.stats().late_records, 1);
    peer.wait(Duration::from_secs(5));
    assert_eq!((peer.gateway.stats().timers, peer.gateway.stats().buffers), (0, 0));
}

#[test]
fn what_waits_is_bounded() {
    let mut peer = Peer::new(Settings { total_buffer: 1 << 20, ..settings("10.0.1.0/24", "sr") });
    assert!(peer.tell(5, 1).is_empty());
    // An eighth of a mebibyte, in packets of a kilobyte and their headers.
    let released: Vec<_> = (2..200).map(|seq| peer.tell(5, seq)).collect();
    let first = released.iter().position(|psns| !psns.is_empty()).unwrap();
    assert!((110..128).contains(&first), "after {first} packets");
    let all: Vec<u32> = released.into_iter().flatten().collect();
    assert_eq!(all, (1..200).collect::<Vec<_>>());
    assert_eq!(peer.gateway.stats().lan_queue_dropped, 0);
}

#[test]
fn beyond_the_bound_of_flows_packets_come_out_as_they_come() {
    let mut peer = Peer::new(Settings { flows: 1, ..settings("10.0.1.0/24", "sr") });
    assert!(peer.tell(5, 1).is_empty());
    assert_eq!(peer.tell(6, 1), [1]);
    assert_eq!(peer.tell(5, 0), [0, 1]);
}
