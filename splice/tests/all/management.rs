//! Connection management on its way between two sites.
//!
//! Rule: `docs/protocol.md#rule-management`.

use std::path::Path;
use std::time::Duration;

use crate::sites::{STEP, Sites, rping};
use config::Policy;
use roce::cm::{self, Mad, Message, Timeout};
use roce::ip::{Addressing, Datagram};
use roce::wire::{Aeth, Bth, Ext, Nak, Opcode, Packet, Psn, Qpn, Repr, Reth, RnrTimer, Syndrome};
use splice::Settings;

/// A REQ, from 10.0.0.1, a REP, an RTU, a DREQ and a DREP, among what rping sends.
const REQ: usize = 0;
const REP: usize = 1;
const RTU: usize = 2;
const DREQ: usize = 39;
const DREP: usize = 40;
/// The queue pairs that they name, at 10.0.0.1 and at 10.0.1.1, and the first PSN of each.
const QPNS: [Qpn; 2] = [Qpn::new(0x28), Qpn::new(0x34)];
const PSNS: [Psn; 2] = [Psn::new(0xad_6cfc), Psn::new(0xff_415a)];

/// Returns the ACK timeout that a REQ or REP announces.
fn announced(frame: &[u8]) -> Timeout {
    let datagram = Datagram::parse(frame).unwrap();
    match Mad::parse(&Packet::parse(datagram.transport).unwrap()).unwrap().message {
        Message::Req(req) => req.local_ack_timeout(),
        Message::Rep(rep) => rep.target_ack_delay(),
        other => panic!("{other:?}"),
    }
}

/// The frame that leaves at the other site.
fn cross(sites: &mut Sites, from: usize, frame: &[u8]) -> Vec<u8> {
    sites.gateways[from].handle_lan(&Datagram::parse(frame).unwrap(), sites.now);
    sites.cross();
    let mut out = vec![0; 10_000];
    let len = sites.gateways[1 - from].poll_lan(sites.now, &mut out).unwrap();
    out[..len].to_vec()
}

#[test]
fn ack_timeouts_are_raised_to_what_the_link_takes() {
    let frames = rping();
    for (rtt, [request, reply]) in [(1, [17, 15]), (100, [17, 17]), (300, [19, 19])] {
        let mut sites = Sites::new(55410, |settings| settings);
        for gateway in &mut sites.gateways {
            gateway.session_up(Duration::from_millis(rtt), 1400, 1, &[], sites.now);
        }
        for (from, number, code) in [(0, REQ, request), (1, REP, reply)] {
            let passed = cross(&mut sites, from, &frames[number]);
            assert_eq!(announced(&passed), Timeout::new(code), "{rtt} ms");
            let [before, after] = [&frames[number], &passed].map(|frame| Datagram::parse(frame).unwrap());
            let differ = before.transport.iter().zip(after.transport).filter(|(one, other)| one != other);
            assert!(differ.count() <= 1 && before.transport.len() == after.transport.len());
        }
    }
}

/// Where vendor options stand (ECE): the MAD's attribute modifier, and three bytes of vendor ID in
/// each message (`CM_REQ_VENDOR_ID` and its like in `include/rdma/ibta_vol1_c12.h` of Linux).
const ATTRIBUTE_MODIFIER: [usize; 4] = [CM - 4, CM - 3, CM - 2, CM - 1];
const REQ_VENDOR_ID: [usize; 3] = [CM + 5, CM + 6, CM + 7];
const REP_VENDOR_ID: [usize; 3] = [CM + 15, CM + 19, CM + 23];
const SIDR_REP_VENDOR_ID: [usize; 3] = [CM + 6, CM + 7, CM + 11];

/// The gateways take no part in what NICs agree on by these: neither side hears of the other's.
#[test]
fn vendor_options_do_not_pass() {
    let frames = rping();
    let messages = [(0x10, REQ, REQ_VENDOR_ID), (0x13, REP, REP_VENDOR_ID), (0x18, REP, SIDR_REP_VENDOR_ID)];
    for (attribute, number, vendor_id) in messages {
        let mut programs = Programs::new();
        let mut plain = transport_of(&frames[number]);
        plain[CM - MAD_HEADER + 17] = attribute;
        let places = || ATTRIBUTE_MODIFIER.into_iter().chain(vendor_id);
        places().for_each(|place| plain[place] = 0);
        let mut asks = plain.clone();
        // Vendor 0x0015b3, version 2, selective repeat (`uct_ib_mlx5_ece` of UCX).
        places().zip([0x20, 0, 0, 1, 0, 0x15, 0xb3]).for_each(|(place, value)| asks[place] = value);
        let addressing = Datagram::parse(&frames[number]).unwrap().addressing;
        let from = site_of(&addressing);
        let mut passed = [&plain, &asks].map(|transport| {
            programs.send(from, &addressing, transport);
            programs.heard(1 - from).pop().unwrap()
        });
        assert_eq!(passed[1], passed[0], "attribute {attribute:#x}");
        assert_eq!(programs.sites.gateways[from].stats().vendor_options, 1);
        if attribute != 0x18 {
            cm::set_ack_timeout(&mut passed[0], Timeout::new(0)).unwrap();
            cm::set_ack_timeout(&mut plain, Timeout::new(0)).unwrap();
        }
        assert_eq!(passed[0], plain, "attribute {attribute:#x}");
    }
}

/// The same bytes in other messages mean something else.
#[test]
fn nothing_else_is_cleared() {
    let frames = rping();
    for number in [RTU, DREQ, DREP] {
        let mut programs = Programs::new();
        let mut transport = transport_of(&frames[number]);
        (CM - 4..CM + 24).for_each(|place| transport[place] = 0xa5);
        let addressing = Datagram::parse(&frames[number]).unwrap().addressing;
        let from = site_of(&addressing);
        programs.send(from, &addressing, &transport);
        assert_eq!(programs.heard(1 - from), [transport]);
    }
}

/// UD does without repairs where it is told to, but nobody connects without its REQ.
#[test]
fn connection_management_is_repaired_in_any_class() {
    let text = "[[class]]\nname = \"default\"\nscheme = \"none\"\n";
    let policy = std::sync::Arc::<Policy>::from(Policy::parse(Path::new("policy.toml"), text).unwrap());
    let mut sites = Sites::new(55410, |settings| Settings { policy: policy.clone(), ..settings });
    let frames = rping();
    sites.gateways[0].handle_lan(&Datagram::parse(&frames[REQ]).unwrap(), sites.now);
    sites.cross_but(|site, _| site == 0);
    let mut out = vec![0; 10_000];
    for _ in 0..50_000 {
        sites.now += STEP;
        sites.cross();
        if let Some(len) = sites.gateways[1].poll_lan(sites.now, &mut out) {
            assert_eq!(announced(&out[..len]), announced(&frames[REQ]));
            return;
        }
    }
    panic!("it never came");
}

/// Two gateways between rping's two programs.
struct Programs {
    sites: Sites,
    frames: Vec<Vec<u8>>,
}

impl Programs {
    fn new() -> Self {
        Self { sites: Sites::new(55_410, |settings| settings), frames: rping() }
    }

    /// One of rping's frames sets out from its site, with a byte of its CM message set to another
    /// value. What leaves at the other.
    fn pass_but(&mut self, number: usize, but: &[(usize, u8)]) -> Vec<Vec<u8>> {
        let frame = self.frames[number].clone();
        let datagram = Datagram::parse(&frame).unwrap();
        let mut transport = datagram.transport.to_vec();
        for (place, value) in but {
            transport[CM + place] = *value;
        }
        let from = site_of(&datagram.addressing);
        self.send(from, &datagram.addressing, &transport);
        self.heard(1 - from)
    }

    fn pass(&mut self, number: usize) -> Vec<Vec<u8>> {
        self.pass_but(number, &[])
    }

    fn send(&mut self, from: usize, addressing: &Addressing, transport: &[u8]) {
        let datagram = Datagram { addressing: *addressing, transport };
        self.sites.gateways[from].handle_lan(&datagram, self.sites.now);
        self.sites.cross();
    }

    /// All that has left at a site, from the base transport header on.
    fn heard(&mut self, site: usize) -> Vec<Vec<u8>> {
        let mut out = vec![0; 10_000];
        let poll = || {
            let len = self.sites.gateways[site].poll_lan(self.sites.now, &mut out)?;
            Some(Datagram::parse(&out[..len]).unwrap().transport.to_vec())
        };
        std::iter::from_fn(poll).collect()
    }

    /// REQ, REP and RTU, where the REQ and the REP say something else at these bytes.
    fn connect_but(&mut self, request: &[(usize, u8)], reply: &[(usize, u8)]) {
        for (number, but) in [(REQ, request), (REP, reply), (RTU, &[])] {
            assert_eq!(self.pass_but(number, but).len(), 1);
        }
    }

    /// A request of a site's program, from `psn` after its first on.
    fn request(&mut self, from: usize, opcode: Opcode, psn: u32, ext: Ext, len: usize) {
        let bth = Bth { ack_req: true, ..Bth::new(opcode, QPNS[1 - from], PSNS[from] + psn) };
        self.speak(from, bth, ext, len);
    }

    /// Sends the answer of a queue pair of a site's program.
    fn answer(&mut self, from: usize, opcode: Opcode, psn: u32, syndrome: Syndrome) {
        let bth = Bth::new(opcode, QPNS[1 - from], PSNS[1 - from] + psn);
        self.speak(from, bth, Ext::Aeth(Aeth { syndrome, msn: 1 }), 0);
    }

    fn speak(&mut self, from: usize, bth: Bth, ext: Ext, len: usize) {
        let repr = Repr { bth, ext, payload: &vec![5; len] };
        let mut bytes = vec![0; repr.buffer_len()];
        repr.emit(&mut bytes).unwrap();
        let addressing = self.sites.addressing[from];
        self.send(from, &addressing, &bytes);
    }

    /// Opcode of each packet that has left at a site, and its PSN after the first of those whose
    /// requests come from `requester`.
    fn opcodes(&mut self, site: usize, requester: usize) -> Vec<(Opcode, i32)> {
        let heard = self.heard(site);
        let of = |bytes: &Vec<u8>| {
            let bth = Packet::parse(bytes).unwrap().bth;
            (bth.opcode, bth.psn.distance(PSNS[requester]))
        };
        heard.iter().map(of).collect()
    }

    fn wait(&mut self, time: Duration) {
        let end = self.sites.now + time;
        while self.sites.now < end {
            self.sites.now += time / 100;
            self.sites.cross();
        }
    }

    /// Flows of both gateways: near halves, far halves.
    fn flows(&mut self) -> [(u64, u64); 2] {
        self.sites.gateways.each_mut().map(|gateway| (gateway.stats().near_flows, gateway.stats().far_flows))
    }
}

/// Where a CM message begins, behind BTH, DETH and the MAD's header.
const CM: usize = 12 + 8 + MAD_HEADER;
const MAD_HEADER: usize = 24;

fn site_of(addressing: &Addressing) -> usize {
    usize::from(addressing.src != std::net::IpAddr::from([10, 0, 0, 1]))
}

/// Every packet of a connection with SENDs, WRITEs and READs comes out as it went in, one for one,
/// but for the ACK timeouts; and when it is taken down its flows are forgotten at once.
#[test]
fn a_whole_connection_passes_and_leaves_nothing() {
    let mut programs = Programs::new();
    for gateway in &mut programs.sites.gateways {
        gateway.session_up(Duration::from_millis(300), 1400, 1, &[], programs.sites.now);
    }
    for number in 0..programs.frames.len() {
        let frame = programs.frames[number].clone();
        let mut expected = Datagram::parse(&frame).unwrap().transport.to_vec();
        let heard = programs.pass(number);
        if number <= REP {
            assert!(cm::raise_ack_timeout(&mut expected, Timeout::new(19)).is_some());
        }
        assert_eq!(heard, [expected], "packet {}", number + 1);
        assert!(programs.heard(0).is_empty() && programs.heard(1).is_empty(), "packet {}", number + 1);
        if number == DREQ - 1 {
            assert_eq!(programs.flows(), [(1, 1); 2]);
        }
    }
    programs.wait(Duration::from_secs(1));
    assert_eq!(programs.flows(), [(0, 0); 2]);
    for gateway in &mut programs.sites.gateways {
        assert!(gateway.has_parted());
        let stats = gateway.stats();
        assert_eq!((stats.near_opened, stats.far_opened, stats.idle_closed), (1, 1, 1));
        assert_eq!((stats.failed, stats.lan_drops.iter().sum::<u64>()), ([0; 9], 0));
        assert_eq!((stats.unpaired_flows, stats.buffers, stats.lan_queue), (0, 0, 0));
    }
}

/// Both queue pairs are known before the first request, so its requester's ACK needs no word of the
/// target's, and where the first message begins.
#[test]
fn a_flow_opens_with_what_both_sides_were_told() {
    for told in [true, false] {
        let mut programs = Programs::new();
        if told {
            programs.connect_but(&[], &[]);
        }
        for psn in 0..2 {
            let opcode = if psn == 0 { Opcode::SendFirst } else { Opcode::SendMiddle };
            programs.request(0, opcode, psn, Ext::None, 1024);
        }
        programs.wait(Duration::from_millis(50));
        let acknowledged = programs.opcodes(0, 0).last().copied();
        assert_eq!(acknowledged, told.then_some((Opcode::Acknowledge, 1)), "told: {told}");
    }
}

/// The target is asked for as many READs at a time as it holds, and its peer has under way,
/// whichever is less.
#[test]
fn no_more_reads_go_out_than_were_agreed_on() {
    for (asks, holds, most) in [(4, 2, 2), (1, 3, 1), (4, 4, 4)] {
        let mut programs = Programs::new();
        programs.connect_but(&[(39, asks)], &[(24, holds)]);
        for psn in 0..5 {
            let reth = Reth { virtual_address: 0, rkey: 7, dma_length: 8 };
            programs.request(0, Opcode::ReadRequest, psn, Ext::Reth(reth), 0);
        }
        let reads = |from, to| (from..to).map(|psn| (Opcode::ReadRequest, psn)).collect::<Vec<_>>();
        assert_eq!(programs.opcodes(1, 0), reads(0, most), "{asks} asked for, {holds} held");
        let aeth = Ext::Aeth(Aeth { syndrome: Syndrome::ACK, msn: 1 });
        programs.speak(1, Bth::new(Opcode::ReadResponseOnly, QPNS[0], PSNS[0]), aeth, 8);
        assert_eq!(programs.opcodes(1, 0), reads(most, most + 1));
        assert_eq!(programs.opcodes(0, 0), [(Opcode::ReadResponseOnly, 0)]);
    }
}

/// How long a READ is in PSNs hangs on the path MTU, which a flow without a long message does not
/// show. The next request is asked for where it says.
#[test]
fn the_path_mtu_that_was_agreed_on_tells_the_span_of_a_read() {
    for (code, span) in [(1_u8, 12), (3, 3), (5, 1)] {
        let mut programs = Programs::new();
        let request = transport_of(&programs.frames[REQ]);
        let low = request[CM + 50] & 0x0f;
        programs.connect_but(&[(50, code << 4 | low)], &[]);
        let reth = Reth { virtual_address: 0, rkey: 7, dma_length: 3000 };
        programs.request(0, Opcode::ReadRequest, 0, Ext::Reth(reth), 0);
        assert_eq!(programs.opcodes(1, 0), [(Opcode::ReadRequest, 0)]);
        // Beyond what it takes, and where it ends.
        programs.request(0, Opcode::SendOnly, span + 1, Ext::None, 8);
        assert_eq!(programs.opcodes(1, 0), []);
        programs.request(0, Opcode::SendOnly, span, Ext::None, 8);
        assert_eq!(programs.opcodes(1, 0), [(Opcode::SendOnly, span as i32)], "code {code}");
    }
}

fn transport_of(frame: &[u8]) -> Vec<u8> {
    Datagram::parse(frame).unwrap().transport.to_vec()
}

/// A target that is not ready is tried again without a word of its requester's only if that bears
/// RNR without end.
#[test]
fn a_target_is_tried_again_as_its_requester_bears_rnr() {
    for retries in [3_u8, 7] {
        let mut programs = Programs::new();
        programs.connect_but(&[], &[(27, retries << 5)]);
        programs.request(0, Opcode::SendOnly, 0, Ext::None, 64);
        let mut tries = 0;
        let (mut told, mut since_told) = (0, 0);
        // As long as it takes until the requester is told, and a while longer, in which it says
        // nothing.
        for _ in 0..20_000 {
            for _ in programs.opcodes(1, 0) {
                tries += 1;
                since_told += u32::from(told > 0);
                programs.answer(1, Opcode::Acknowledge, 0, Syndrome::Rnr { timer: RnrTimer::new(1) });
            }
            told += programs.opcodes(0, 0).len();
            programs.sites.now += Duration::from_micros(500);
            programs.sites.cross();
        }
        assert!(tries > 10 && told > 0, "{tries} {told}");
        assert_eq!(since_told > 10, retries == 7, "{retries} retries: {since_told} tries");
    }
}

/// Connection management also tells the end of what it made. A flow of the target's that takes
/// another one's place tells nothing of that.
///
/// Rule: `docs/protocol.md#rule-rnr-anew`.
#[test]
fn a_target_that_asks_again_itself_is_tried_again_as_before() {
    let mut programs = Programs::new();
    programs.connect_but(&[], &[(27, 3 << 5)]);
    programs.request(1, Opcode::SendOnly, 0, Ext::None, 64);
    assert_eq!(programs.opcodes(0, 1), [(Opcode::SendOnly, 0)]);
    programs.answer(0, Opcode::Acknowledge, 0, Syndrome::ACK);
    assert_eq!(programs.opcodes(1, 1), [(Opcode::Acknowledge, 0)]);
    programs.request(0, Opcode::SendOnly, 0, Ext::None, 64);
    programs.wait(Duration::from_millis(20));
    programs.heard(1);
    // The ACK was lost.
    programs.request(1, Opcode::SendOnly, 0, Ext::None, 64);
    assert_eq!(programs.sites.gateways[1].stats().replaced, 1);
    let is_not_ready = Syndrome::Rnr { timer: RnrTimer::new(1) };
    programs.answer(1, Opcode::Acknowledge, 0, is_not_ready);
    let (mut tries, mut told) = (0, 0);
    for _ in 0..100 {
        let comes = programs.opcodes(1, 0);
        for _ in comes.iter().filter(|(opcode, _)| *opcode == Opcode::SendOnly) {
            tries += 1;
            programs.answer(1, Opcode::Acknowledge, 0, is_not_ready);
        }
        told += programs.opcodes(0, 0).iter().filter(|(opcode, _)| *opcode == Opcode::Acknowledge).count();
        programs.sites.now += Duration::from_micros(500);
        programs.sites.cross();
    }
    assert!(tries > 10 && told == 0, "{tries} {told}");
}

/// The caller may refuse a REP; then the connection is none, and what was learnt of it is not used
/// for the next that has its queue pairs.
#[test]
fn a_reply_that_is_refused_makes_no_connection() {
    for refused in [false, true] {
        let mut programs = Programs::new();
        for number in [REQ, REP] {
            programs.pass(number);
        }
        if refused {
            // An RTU begins with both communication IDs, as a REJ does.
            let mut reject = transport_of(&programs.frames[RTU]);
            reject[12 + 8 + 17] = 0x12;
            let addressing = Datagram::parse(&programs.frames[RTU]).unwrap().addressing;
            programs.send(0, &addressing, &reject);
            assert_eq!(programs.heard(1), [reject]);
        }
        for psn in 0..2 {
            let opcode = if psn == 0 { Opcode::SendFirst } else { Opcode::SendMiddle };
            programs.request(0, opcode, psn, Ext::None, 1024);
        }
        programs.wait(Duration::from_millis(50));
        let acknowledged = !programs.opcodes(0, 0).is_empty();
        assert_eq!(acknowledged, !refused, "refused: {refused}");
    }
}

/// Requests under way when a connection is taken down are still seen to their end, and only then
/// forgotten.
#[test]
fn what_is_under_way_at_the_disconnect_is_seen_to_its_end() {
    let mut programs = Programs::new();
    programs.connect_but(&[], &[]);
    programs.request(0, Opcode::SendOnly, 0, Ext::None, 64);
    assert_eq!(programs.opcodes(1, 0), [(Opcode::SendOnly, 0)]);
    for number in [DREQ, DREP] {
        programs.pass(number);
    }
    programs.wait(Duration::from_millis(20));
    assert_eq!(programs.flows(), [(1, 0), (0, 1)]);
    programs.heard(1);
    programs.answer(1, Opcode::Acknowledge, 0, Syndrome::Nak(Nak::RemoteOperation));
    let [refusal] = &programs.heard(0)[..] else { panic!("nothing is told") };
    let refusal = Packet::parse(refusal).unwrap();
    assert_eq!(refusal.ext.aeth().map(|aeth| aeth.syndrome), Some(Syndrome::Nak(Nak::RemoteOperation)));
}
