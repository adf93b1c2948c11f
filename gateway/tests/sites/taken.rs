//! A peer that is taken over: its certificate and key in the hands of a program of our own, which
//! makes a real session with a gateway process, and sends it sealed datagrams by hand.

use std::net::UdpSocket;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use netem_tests::sim::{Liar, Lie, Reach};
use roce::ip::Addressing;
use roce::wire::{Bth, Ext, Opcode, Psn, Qpn, Repr};
use session::control::{Config, Control, Event};
use session::identity::Identity;
use session::message::Ciphers;
use session::seal::max_datagram;
use session::{Cipher, HEADER, OVERHEAD, Sealer};
use splice::record::{FlowId, Head, Opening};
use tokio::sync::mpsc;

use super::*;

/// The one taken over, whom it lies to, and a site that has nothing to do with it.
const TAKEN: usize = 0;
const LIED_TO: usize = 1;
const OTHER: usize = 2;
/// Datagrams a second.
const RATE: f64 = 5000.0;
/// Each way to lie has so many datagrams.
const OF_EACH: u64 = 5000;
/// Bytes of memory that come and go with what the process does besides.
const BESIDE: u64 = 48 << 20;

/// A program in the place of a gateway.
struct Taken {
    socket: UdpSocket,
    to: SocketAddr,
    sealer: Sealer,
    /// Keeps the session up for as long as it runs.
    _runtime: tokio::runtime::Runtime,
    _commands: mpsc::Sender<session::control::Command>,
}

impl Taken {
    /// Takes the place of the gateway of [`TAKEN`], which has ended.
    fn new(sites: &Sites) -> Self {
        let own = SocketAddr::new(gateway_address(TAKEN), sites.port);
        let peer = SocketAddr::new(link_end(TAKEN, LIED_TO), sites.port);
        let file = |name: &str| sites.folder.path().join(name);
        let identity =
            Identity::load(&file("a.crt"), &file("a.key"), &file("ca.crt")).expect("a's certificate and key");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let (events, mut news) = mpsc::channel(8);
        let (commands, orders) = mpsc::channel(1);
        let session = runtime.block_on(async {
            let control = Control::bind(config(own, peer, identity)).expect("the port of a is free");
            tokio::spawn(control.run(events, orders));
            tokio::time::timeout(PATIENCE, news.recv()).await.expect("a session").unwrap()
        });
        let Event::Up(session) = session else { panic!("{session:?}") };
        // News that nobody takes would hold it up.
        runtime.spawn(async move { while news.recv().await.is_some() {} });
        let sealer = session.keys.into_iter().next().unwrap().0;
        let [own, to] = [own, peer].map(|address| SocketAddr::new(address.ip(), address.port() + 1));
        let socket = UdpSocket::bind(own).unwrap();
        Self { socket, to, sealer, _runtime: runtime, _commands: commands }
    }

    fn send(&mut self, plaintext: &[u8]) {
        let mut datagram = vec![0; plaintext.len() + OVERHEAD];
        datagram[HEADER..HEADER + plaintext.len()].copy_from_slice(plaintext);
        let len = self.sealer.seal(0, &mut datagram, plaintext.len()).unwrap();
        let _ = self.socket.send_to(&datagram[..len], self.to);
    }

    /// Sends so many of a liar's packets at [`RATE`].
    fn lie(&mut self, liar: &mut Liar, packets: u64) {
        let begun = Instant::now();
        for number in 0..packets {
            self.send(&liar.packet());
            let due = Duration::from_secs_f64(number as f64 / RATE);
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
        }
    }
}

fn config(listen: SocketAddr, peer_address: SocketAddr, identity: Identity) -> Config {
    Config {
        site: NAMES[TAKEN].to_owned(),
        peer: NAMES[LIED_TO].to_owned(),
        listen,
        peer_address,
        peer_scope: Arc::default(),
        identity,
        revoked: Vec::new(),
        dead_after: Duration::from_secs(1),
        resume_for: Duration::ZERO,
        outlives: Arc::new(AtomicBool::new(true)),
        max_datagram: max_datagram(1500, false),
        lanes: 1,
        threads: session::ThreadCounts::alike(1),
        ciphers: Ciphers::detect(&[Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305]),
        remote: vec!["10.0.1.0/24".parse().unwrap()],
        pairings: Vec::new(),
        build: String::new(),
        pulse: Arc::default(),
        refusals: Arc::default(),
        key_log: None,
    }
}

/// A packet of the prompt stream with one record: a request in the name of a host of `from` to a
/// queue pair of 10.0.1.1, which is at the site that is lied to.
fn in_the_name_of(from: usize, sequence: u32, to: u32) -> Vec<u8> {
    let addressing =
        Addressing { src: host_ip(from, 1), dst: host_ip(LIED_TO, 1), src_port: 0xc123, tclass: 0, ttl: 64 };
    let bth = Bth { ack_req: true, ..Bth::new(Opcode::SendOnly, Qpn::new(to), Psn::new(sequence)) };
    let repr = Repr { bth, ext: Ext::None, payload: &[7; 8] };
    let mut request = vec![0; repr.buffer_len()];
    repr.emit(&mut request).unwrap();
    let opens = Opening::Full(addressing);
    let head = Head::Request { flow: FlowId(sequence), seq: 0, replay: false, rested: false, opens };
    let record = [head.emit().as_ref(), &request].concat();
    let mut packet = vec![0x80 | 1 << 2, 0, 0, 0xff, 0, 0, 0];
    packet.extend(sequence.to_be_bytes());
    packet.extend((record.len() as u16 + 1).to_be_bytes());
    packet.extend(record);
    packet
}

impl Sites {
    fn memory(&self, site: usize) -> u64 {
        let pages = std::fs::read_to_string(format!("/proc/{}/statm", self.gateways[site].id())).unwrap();
        4096 * pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap()
    }

    fn counted(&self, site: usize, peer: usize, metric: &str) -> u64 {
        let metrics = fetch(&self.admin(site), "/metrics");
        let of_peer = format!("peer=\"{}\"", NAMES[peer]);
        let lines = metrics.lines().filter(|line| line.starts_with(metric) && line.contains(&of_peer));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64).sum()
    }

    /// Bytes that the site's gateway may allocate for its two peers, as `check` says.
    fn most_memory(&self, site: usize) -> u64 {
        let file = config::Gateway::load(Path::new(&self.path(site))).unwrap();
        let settings = |view: &config::Gateway| splice::Settings {
            total_buffer: usize::try_from(view.limits.total_buffer.bytes()).unwrap(),
            flows: usize::try_from(view.limits.flows).unwrap(),
            ..splice::Settings::new(Vec::new(), view.peer.rate.bits_per_second(), 1400)
        };
        file.views().iter().map(|view| settings(view).most_memory() as u64).sum()
    }
}

/// Whatever it sends, the site that it lies to keeps to its bound of memory. Its flows with a third
/// site go on, with contents checked, and no record in the name of others' hosts is believed.
#[test]
fn a_peer_taken_over_has_its_own_flows_and_no_more() {
    let mut sites = Sites::start_with(2, [1; 3], 1, "total_buffer = \"64 MiB\"\nflows = 2000\n");
    // Only the two others are left of the three.
    sites.gateways[TAKEN].kill().unwrap();
    sites.gateways[TAKEN].wait().unwrap();
    sites.wait_for("it is not seen to be gone", LIED_TO, TAKEN, |status| !status.is_up());
    let most = sites.most_memory(LIED_TO) * 105 / 100;
    let mut taken = Taken::new(&sites);
    sites.wait_for("no session with who is taken over", LIED_TO, TAKEN, Status::is_up);
    let before = sites.memory(LIED_TO);

    const MESSAGES: u64 = 8000;
    let [client, server] = sites.transfer([OTHER, LIED_TO], 1, MESSAGES);
    // The site that is lied to has requesters as well.
    let asking = sites.transfer([LIED_TO, OTHER], 2, MESSAGES);
    // In the name of the hosts that are busy, to each of their queue pairs.
    let malformed = || sites.counted(LIED_TO, TAKEN, "longhaul_records_malformed_total");
    let honest = malformed();
    for sequence in 0..300 {
        taken.send(&in_the_name_of(OTHER, sequence + 1, 0x10_0000 + sequence % 3));
    }
    wait_until(
        || malformed() >= honest + 100,
        || format!("what is said in others' names is not counted: {}", malformed()),
    );
    let is_over = AtomicBool::new(false);
    let (is_over, sites) = (&is_over, &sites);
    let highest = std::thread::scope(|scope| {
        let watching = scope.spawn(move || {
            let mut highest = 0;
            while !is_over.load(Ordering::Relaxed) {
                highest = highest.max(sites.memory(LIED_TO));
                std::thread::sleep(TICK);
            }
            highest
        });
        let mut before = 0;
        for lie in Lie::ALL {
            let carried = std::mem::replace(&mut before, done(&client));
            assert!(!client.is_running() || before > carried, "{lie:?}: the others stand still at {before}");
            taken.lie(&mut Liar::of(lie, 1), OF_EACH);
            let state = sites.status(LIED_TO, OTHER).unwrap();
            println!("{lie:?}: {} KiB, {} flows failed", sites.memory(LIED_TO) >> 10, state.flows.failed);
            assert!(Status::is_up(&state), "{lie:?}: the other session");
            assert_eq!(state.flows.failed, 0, "{lie:?}: flows of the other peer");
        }
        taken.lie(&mut Liar::new(1, Reach::Anything), OF_EACH);
        is_over.store(true, Ordering::Relaxed);
        watching.join().unwrap()
    });
    println!("{before} bytes before, {highest} at most, bound {most}");
    assert!(highest <= most + before.max(BESIDE), "{highest} of {most}");
    complete([client, server], 3 * MESSAGES);
    complete(asking, 3 * MESSAGES);
    let opened = sites.counted(LIED_TO, TAKEN, "longhaul_wan_opened_packets_total");
    assert!(opened > OF_EACH * Lie::ALL.len() as u64 / 2, "{opened}: the lies were not heard");
}
