//! How many bytes beside the data a WAN packet has, field by field.
//!
//! `cargo test --release -p splice --test all wire -- --nocapture` prints the tables.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use config::Policy;
use reliability::stream::{Kind, Receiver, ReceiverConfig, StreamId, classify};
use roce::ip::{Addressing, Datagram};
use roce::wire::{Aeth, Bth, Ext, Opcode, Packet, Psn, Qpn, Repr, Reth, Syndrome};
use splice::record::{Head, Opening};
use splice::{Arrival, Ecn, Gateway, LaneId, Settings};

/// Seal without its tag.
const SEAL: usize = 8;
const TAG: usize = 16;
const IP_UDP: usize = 28;
const ETHERNET: usize = 18;
const BULK: StreamId = StreamId(1);
const FLOWS: u32 = 64;
/// Payload of a RoCE packet at the LAN's MTU.
const PAYLOAD: usize = 4096;

/// Bytes of what went from the requesters' gateway to the targets', by field; and packets.
#[derive(Default)]
struct Account {
    fields: BTreeMap<&'static str, usize>,
    packets: usize,
    /// Datagrams in all, either way, and their bytes with all headers.
    wire: [(usize, usize); 2],
    lengths: Vec<usize>,
}

impl Account {
    fn add(&mut self, field: &'static str, bytes: usize) {
        *self.fields.entry(field).or_default() += bytes;
    }

    /// A DATA packet, read by hand.
    fn packet(&mut self, packet: &[u8]) {
        self.packets += 1;
        self.lengths.push(packet.len());
        self.add("1 seal: form, epoch", 1);
        self.add("1 seal: thread, lane", 1);
        self.add("1 seal: session", 2);
        self.add("1 seal: packet number", 4);
        let is_coded = packet[0] & 0x08 != 0;
        self.add("2 data: kind, coding, stream", 2);
        self.add("2 data: RTT, floor", 2);
        self.add("2 data: sending time", 3);
        self.add("2 data: sequence number", 4);
        self.add("2 data: k, m, depth, position", if is_coded { 8 } else { 0 });
        let mut rest = &packet[if is_coded { 19 } else { 11 }..];
        while let [first, second, ..] = *rest {
            let head = if first & 0x80 == 0 {
                let length = usize::from(u16::from_be_bytes([first, second]));
                if length == 0 {
                    break;
                }
                self.add("3 frames: whole", 2);
                rest = &rest[2 + length - 1..];
                continue;
            } else {
                if first & 0x7f == 0 { 3 } else { 5 }
            };
            self.add("3 frames: pieces", head);
            let total = usize::from(u16::from_be_bytes([rest[1], rest[2]]));
            let offset = if head == 3 { 0 } else { usize::from(u16::from_be_bytes([rest[3], rest[4]])) };
            let piece = (total - offset).min(rest.len() - head);
            rest = &rest[head + piece..];
        }
        self.add("3 frames: padding", rest.len());
    }

    fn record(&mut self, record: &[u8]) {
        let (head, body) = Head::parse(record).unwrap();
        let Head::Request { opens, .. } = head else { panic!("{head:?}") };
        self.add("4 record: head", record.len() - body.len());
        let transport = match opens {
            Opening::Short if body[2] & 1 == 0 => 3,
            Opening::Short => 6,
            Opening::Known | Opening::Full(_) => 12,
        };
        self.add("4 record: BTH", transport);
        let reth = if Opcode::of(body).unwrap().starts_message() { 16 } else { 0 };
        self.add("5 RETH", reth);
        self.add("6 payload", body.len() - transport - reth);
    }

    /// Mean bytes of a packet that are neither tag, RETH nor payload.
    fn overhead(&self) -> f64 {
        let own = self.fields.iter().filter(|(field, _)| !field.starts_with(['5', '6']));
        own.map(|(_, bytes)| bytes).sum::<usize>() as f64 / self.packets as f64
    }

    fn print(&self, what: &str) {
        println!("{what}: {} packets", self.packets);
        for (field, bytes) in &self.fields {
            println!("  {field:<32} {:>9.2}", *bytes as f64 / self.packets as f64);
        }
        println!("  {:<32} {:>9.2}", "overhead: 1 to 4", self.overhead());
        let payload = self.fields["6 payload"] as f64;
        for (way, (datagrams, bytes)) in ["there", "back"].iter().zip(self.wire) {
            println!(
                "  {way}: {datagrams} datagrams, {:.4} bytes per byte of payload",
                bytes as f64 / payload
            );
        }
    }
}

/// Two gateways over a link of 1 Gbit/s and 25 ms there and back.
struct Duo {
    gateways: [Gateway; 2],
    addressing: [Addressing; 2],
    now: Instant,
    numbers: [u64; 2],
    /// Packets on their way to each of them.
    under_way: [std::collections::VecDeque<(Instant, Vec<u8>, Arrival)>; 2],
    ear: Receiver,
    account: Account,
    is_counting: bool,
    delivered: BTreeMap<u32, u32>,
}

const DELAY: Duration = Duration::from_micros(12_500);
const TICK: Duration = Duration::from_micros(100);

impl Duo {
    fn new(mtu: usize, scheme: &str) -> Self {
        let now = Instant::now();
        let max_packet = mtu - IP_UDP - SEAL - TAG;
        let policy = format!("[[class]]\nname = \"all\"\n{scheme}\n");
        let policy = Policy::parse(std::path::Path::new("policy.toml"), &policy).unwrap();
        let gateway = |remote: &str| {
            let settings = Settings {
                policy: policy.clone().into(),
                packet_overhead: IP_UDP + SEAL + TAG + ETHERNET,
                ..Settings::new(vec![remote.parse().unwrap()], 1_000_000_000, max_packet)
            };
            let mut gateway = Gateway::new(settings, now);
            gateway.session_up(2 * DELAY, max_packet, 1, &[], now);
            gateway
        };
        let [a, b] = ["10.0.0.1", "10.0.1.1"].map(|host| host.parse().unwrap());
        let addressing = |src, dst| Addressing { src, dst, src_port: 0xc123, tclass: 0, ttl: 64 };
        let ear = Receiver::new(ReceiverConfig { window: 1 << 20, ..ReceiverConfig::new(BULK, 9000) }, now);
        Self {
            gateways: [gateway("10.0.1.0/24"), gateway("10.0.0.0/24")],
            addressing: [addressing(a, b), addressing(b, a)],
            now,
            numbers: [0; 2],
            under_way: Default::default(),
            ear,
            account: Account::default(),
            is_counting: false,
            delivered: BTreeMap::new(),
        }
    }

    /// The flow's packet of this PSN comes from the LAN: one of so many that make a message.
    fn write(&mut self, flow: u32, psn: u32, packets: u32) {
        let (at, last) = (psn % packets, packets - 1);
        let opcode = match at {
            0 if last == 0 => Opcode::WriteOnly,
            0 => Opcode::WriteFirst,
            at if at == last => Opcode::WriteLast,
            _ => Opcode::WriteMiddle,
        };
        let reth = Reth { virtual_address: 0, rkey: 7, dma_length: packets * PAYLOAD as u32 };
        let ext = if at == 0 { Ext::Reth(reth) } else { Ext::None };
        let bth = Bth { ack_req: at == last, ..Bth::new(opcode, Qpn::new(100 + flow), Psn::new(psn)) };
        let repr = Repr { bth, ext, payload: &[5; PAYLOAD] };
        let mut request = vec![0; repr.buffer_len()];
        repr.emit(&mut request).unwrap();
        let datagram = Datagram { addressing: self.addressing[0], transport: &request };
        self.gateways[0].handle_lan(&datagram, self.now);
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        let mut out = vec![0; 10_000];
        while self.now < end {
            self.now += TICK;
            for site in 0..2 {
                while self.under_way[site].front().is_some_and(|(at, ..)| *at <= self.now) {
                    let (_, packet, arrival) = self.under_way[site].pop_front().unwrap();
                    self.gateways[site].handle_wan(&packet, arrival, self.now);
                }
                self.gateways[site].handle_timeout(self.now);
                while let Some(len) = self.gateways[site].poll_lan(self.now, &mut out) {
                    self.host(site, &out[IP_UDP..len - 4]);
                }
                while let Some(len) = self.gateways[site].poll_wan(self.now, &mut out) {
                    self.leave(site, &out[..len]);
                }
            }
        }
    }

    fn leave(&mut self, site: usize, packet: &[u8]) {
        let bytes = self.gateways[site].wire_bytes(packet.len());
        let arrival = Arrival { lane: LaneId(0), number: self.numbers[site], bytes, ecn: Ecn::NotEct };
        self.numbers[site] += 1;
        self.under_way[1 - site].push_back((self.now + DELAY, packet.to_vec(), arrival));
        let Self { ear, account, is_counting, now, .. } = self;
        if *is_counting {
            let (datagrams, sum) = &mut account.wire[site];
            (*datagrams, *sum) = (*datagrams + 1, *sum + packet.len() + SEAL + TAG + IP_UDP + ETHERNET);
        }
        if site == 0 && classify(packet) == Ok((Kind::Data, BULK)) {
            if *is_counting {
                account.packet(packet);
            }
            let mut note = |record: &[u8]| {
                if *is_counting {
                    account.record(record);
                }
            };
            ear.handle_packet(packet, *now, &mut note).unwrap();
        }
    }

    /// A target acknowledges what asks for it.
    fn host(&mut self, site: usize, transport: &[u8]) {
        let packet = Packet::parse(transport).unwrap();
        if site == 0 {
            return;
        }
        let flow = packet.bth.dest_qp.get() - 100;
        *self.delivered.entry(flow).or_default() += 1;
        if !packet.bth.ack_req {
            return;
        }
        let mut bytes = [0; 16];
        let ext = Ext::Aeth(Aeth { syndrome: Syndrome::ACK, msn: packet.bth.psn.get() + 1 });
        let bth = Bth::new(Opcode::Acknowledge, Qpn::new(500 + flow), packet.bth.psn);
        Repr { bth, ext, payload: &[] }.emit(&mut bytes).unwrap();
        let datagram = Datagram { addressing: self.addressing[1], transport: &bytes };
        self.gateways[1].handle_lan(&datagram, self.now);
    }

    /// WRITEs on all flows, each of so many packets; all of them are known to the peer.
    fn writes(mtu: usize, scheme: &str, packets: u32, messages: u32) -> Account {
        let mut duo = Self::new(mtu, scheme);
        for flow in 0..FLOWS {
            // One after the other, so that it is plain whose answers come.
            (0..packets).for_each(|psn| duo.write(flow, psn, packets));
            duo.run(3 * DELAY);
        }
        duo.run(Duration::from_millis(500));
        duo.is_counting = true;
        for message in 1..=messages {
            for flow in 0..FLOWS {
                (0..packets).for_each(|at| duo.write(flow, message * packets + at, packets));
            }
            // As fast as the link.
            let bits = u64::from(FLOWS * packets) * 8 * 4700;
            duo.run(Duration::from_nanos(bits));
        }
        duo.run(Duration::from_millis(500));
        let all = (1 + messages) * packets;
        assert_eq!(duo.delivered, (0..FLOWS).map(|flow| (flow, all)).collect(), "all came, and once");
        duo.account
    }
}

const SR: &str = "scheme = \"sr\"";
const MDS: &str = "scheme = \"mds\"\nk = 32\nm = 8";

/// The sum of what is not data, in packets of 4096-byte WRITEs at an MTU of 1500.
#[test]
fn a_packet_has_no_more_than_forty_bytes_beside_tag_and_data() {
    for (scheme, packets, messages) in [(SR, 1, 60), (SR, 16, 4), (MDS, 1, 60)] {
        let account = Duo::writes(1500, scheme, packets, messages);
        account.print(&format!("MTU 1500, {scheme}, WRITEs of {packets} x {PAYLOAD}"));
        assert!(account.overhead() <= 40.0, "{}", account.overhead());
        let sum: usize = account.fields.values().sum();
        let sent: usize = account.lengths.iter().map(|len| len + SEAL).sum();
        assert_eq!(sum, sent, "every byte has its name");
        assert_eq!(account.fields["6 payload"], (FLOWS * messages * packets) as usize * PAYLOAD);
    }
    Duo::writes(9000, SR, 16, 4).print("MTU 9000");
}
