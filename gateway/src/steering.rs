//! Which data-plane thread a packet is for, as the kernel and the gateway both reckon it.
//!
//! A flow's packets of both directions, those of its partner's, and all that concerns their
//! connection have the same two addresses. So all that two hosts say to each other belongs to one
//! thread, here and at the peer, and no thread needs to know of another's flows. The kernel sorts
//! packets before they are received: by filters on the LAN's sockets, each of which lets one
//! thread's packets through, or by a program that chooses among sockets of one port.

mod peers;
mod program;

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use session::{MOST_THREADS, ThreadCounts, ThreadPair, seal};
use socket2::{Domain, Protocol, SockFilter, SockRef, Socket, Type};

pub use peers::{bind_for_peers, bind_lane};
pub(crate) use program::Assembler;
use program::attach_to_group;

/// Spreads what differs in its low bits only, as neighbouring addresses do: 2^32 divided by the
/// golden ratio, an odd number (Knuth, The Art of Computer Programming 3, 6.4).
const SPREAD: u32 = 0x9e37_79b1;
/// Folds an address's upper bits into the lower ones, or hosts of the same sum would be of the same
/// thread: the first with the third, the second with the second.
const FOLD: u32 = 13;
/// Shift to the upper half of the last product, which depends on all bits.
const UPPER: u32 = 16;

/// One thread's part of what comes to all, or that of a pair of a thread here and one of a peer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The number of the thread or the pair, below `threads`.
    pub thread: u8,
    /// How many there are, 1 at least.
    pub threads: u8,
}

impl Part {
    /// The part of a single thread.
    pub const WHOLE: Part = Part { thread: 0, threads: 1 };

    /// The parts of so many threads.
    pub fn all(threads: u8) -> impl Iterator<Item = Part> {
        (0..threads.max(1)).map(move |thread| Part { thread, threads })
    }

    /// Returns true if what these two hosts say to each other belongs to the thread.
    #[must_use]
    pub fn has(self, one: IpAddr, other: IpAddr) -> bool {
        thread_of(one, other, self.threads) == self.thread
    }

    /// Returns the thread's part of so much.
    #[must_use]
    pub fn of(self, whole: usize) -> usize {
        whole / usize::from(self.threads.max(1))
    }
}

/// The thread of two hosts, whichever of them sends.
///
/// Rule: `docs/protocol.md#rule-thread`.
#[must_use]
pub fn thread_of(one: IpAddr, other: IpAddr, threads: u8) -> u8 {
    let spread = mix(one).wrapping_add(mix(other)).wrapping_mul(SPREAD) >> UPPER;
    // Below `threads`.
    (spread % u32::from(threads.max(1))) as u8
}

fn mix(address: IpAddr) -> u32 {
    let spread = words(address).wrapping_mul(SPREAD);
    spread ^ (spread >> FOLD)
}

/// The sum of an address's 32-bit words.
fn words(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            [96, 64, 32, 0].into_iter().fold(0, |sum, shift| sum.wrapping_add((bits >> shift) as u32))
        }
    }
}

/// Where the addresses stand in an IP header: the source, and right behind it the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    /// Where the source begins, and how many words an address has.
    const fn addresses(self) -> (u32, u32) {
        match self {
            Family::V4 => (12, 1),
            Family::V6 => (8, 4),
        }
    }

    /// Where the destination begins.
    pub(crate) const fn destination(self) -> u32 {
        let (source, words) = self.addresses();
        source + 4 * words
    }

    /// How many words an address has.
    pub(crate) const fn words(self) -> u32 {
        self.addresses().1
    }
}

/// Leaves in the accumulator what [`thread_of`] says of a packet that begins with its IP header.
pub(crate) fn append_thread_hash<T: Copy + PartialEq>(
    program: &mut Assembler<T>,
    family: Family,
    threads: u8,
) {
    const SOURCE: u32 = 0;
    let (source, words) = family.addresses();
    reckon_one(program, source, words);
    program.store(SOURCE);
    reckon_one(program, family.destination(), words);
    program.keep_stored(SOURCE);
    program.add_kept();
    program.multiply(SPREAD);
    program.shift_right(UPPER);
    program.modulo(threads.max(1).into());
}

/// Emits what [`mix`] does with one address.
fn reckon_one<T: Copy + PartialEq>(program: &mut Assembler<T>, first: u32, words: u32) {
    program.load_word(first);
    for word in 1..words {
        program.keep();
        program.load_word(first + 4 * word);
        program.add_kept();
    }
    program.multiply(SPREAD);
    program.keep();
    program.shift_right(FOLD);
    program.xor_kept();
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Ipv6,
    Other,
}

/// A peer, and behind it a pair of threads; `None`: what follows all of them.
type Choice = (usize, Option<u8>);

/// For sockets whose datagrams hold a whole IP packet each. What is none goes to the first thread,
/// which refuses it.
fn by_packet(threads: u8) -> Vec<SockFilter> {
    let mut program = Assembler::default();
    program.load_byte(0);
    program.shift_right(4);
    program.unless_equal(4, Target::Ipv6);
    append_thread_hash(&mut program, Family::V4, threads);
    program.accept_kept();
    program.label(Target::Ipv6);
    program.unless_equal(6, Target::Other);
    append_thread_hash(&mut program, Family::V6, threads);
    program.accept_kept();
    program.label(Target::Other);
    program.accept(0);
    program.finish()
}

/// For bulk datagrams: both threads stand in their header (`session::seal`).
fn by_threads(threads: ThreadCounts) -> Vec<SockFilter> {
    let mut program = Assembler::default();
    choose_pair(&mut program, (0, 0), threads);
    program.finish()
}

/// Ends with the number of a bulk datagram's pair of threads, above `first`. One of no pair is the
/// first pair's, which refuses it. Where both sides have as many, a thread's number is its pair's.
fn choose_pair(program: &mut Assembler<Choice>, (peer, first): (usize, u32), threads: ThreadCounts) {
    program.load_byte(seal::PATH_BYTE);
    program.shift_right(seal::LANE_BITS);
    if threads.here == threads.there {
        program.modulo(threads.here.max(1).into());
        program.add(first);
        return program.accept_kept();
    }
    program.keep();
    program.load_byte(seal::SESSION_BYTE);
    program.and(seal::DIFFERENCE.into());
    program.xor_kept();
    program.multiply(MOST_THREADS.into());
    program.add_kept();
    for nth in 0..threads.pairs() {
        let ThreadPair { here, there } = threads.pair(nth);
        let next = (peer, Some(nth));
        program.unless_equal(u32::from(here) * u32::from(MOST_THREADS) + u32::from(there), next);
        program.accept(first + u32::from(nth));
        program.label(next);
    }
    program.accept(first);
}

/// The key that tells the threads' datagrams apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// The addresses of the IP packet that each holds.
    Packet,
    /// The header of a bulk datagram from a peer with so many threads.
    Threads(u8),
}

/// UDP sockets bound to one address, one for each of so many threads, or for each pair of a thread
/// here and one of the peer's. Each gets its own datagrams. A single one is as [`bind_alone`]'s.
///
/// # Errors
/// The address is taken, or the kernel refuses the program.
pub fn bind(address: SocketAddr, threads: u8, key: Key) -> io::Result<Vec<UdpSocket>> {
    match key {
        Key::Packet => bind_group(address, usize::from(threads), &by_packet(threads)),
        Key::Threads(there) => {
            let threads = ThreadCounts { here: threads, there };
            bind_group(address, usize::from(threads.pairs()), &by_threads(threads))
        }
    }
}

/// So many sockets bound to one address, one at least. The program chooses among several.
fn bind_group(address: SocketAddr, count: usize, program: &[SockFilter]) -> io::Result<Vec<UdpSocket>> {
    // As any other would: nobody else has the port, or this fails. Only then others are let in.
    let first = bind_alone(address)?;
    // A port of the kernel's choice is the others' as well.
    let address = first.local_addr()?;
    if count > 1 {
        SockRef::from(&first).set_reuse_port(true)?;
    }
    let mut sockets = vec![first];
    // Their number in the group is that of their binding.
    for _ in 1..count {
        sockets.push(bind_one(address, true)?);
    }
    if let [first, _, ..] = sockets.as_slice() {
        attach_to_group(first.as_fd(), program)?;
    }
    Ok(sockets)
}

/// An ordinary UDP socket. An IPv6 one is for IPv6 only.
///
/// # Errors
/// The address is taken.
pub fn bind_alone(address: SocketAddr) -> io::Result<UdpSocket> {
    bind_one(address, false)
}

fn bind_one(address: SocketAddr, shares: bool) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if shares {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::time::Duration;

    use session::seal::Header;

    use super::*;

    fn v4(site: u8, host: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, site, host).into()
    }

    fn v6(site: u16, host: u16) -> IpAddr {
        Ipv6Addr::new(0xfd00, site, 0, 0, 0, 0, 0, host).into()
    }

    /// As on the wire, as far as is looked at.
    fn packet(source: IpAddr, destination: IpAddr) -> Vec<u8> {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                [&[0x45; 12][..], &source.octets(), &destination.octets()].concat()
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                [&[0x60; 8][..], &source.octets(), &destination.octets()].concat()
            }
            _ => panic!("of one family"),
        }
    }

    #[test]
    fn both_directions_are_one_threads_and_neighbours_are_spread() {
        for threads in 1..=8 {
            for host in [v4, |site: u8, host: u8| v6(site.into(), host.into())] {
                let mut counts = vec![0; usize::from(threads)];
                for (here, there) in (1..=40).flat_map(|here| (1..=40).map(move |there| (here, there))) {
                    let (here, there) = (host(0, here), host(1, there));
                    let thread = thread_of(here, there, threads);
                    assert_eq!(thread_of(there, here, threads), thread);
                    assert!(Part { thread, threads }.has(there, here));
                    counts[usize::from(thread)] += 1;
                }
                let even = 1600 / i32::from(threads);
                assert!(
                    counts.iter().all(|count: &i32| (*count - even).abs() < even / 3),
                    "{threads}: {counts:?}"
                );
                // As hosts mostly are: the first with the first, the second with the second.
                let pairs = (1..=64).map(|index| thread_of(host(0, index), host(1, index), threads));
                let mut used: Vec<u8> = pairs.collect();
                used.sort_unstable();
                used.dedup();
                assert_eq!(used.len(), usize::from(threads), "of {threads}");
            }
        }
    }

    /// Sends what `datagrams` says from one socket, and checks that each thread's socket gets its
    /// own.
    fn sorted(threads: u8, key: Key, datagrams: &[(u8, Vec<u8>)]) {
        let sockets = bind((Ipv4Addr::LOCALHOST, 0).into(), threads, key).unwrap();
        let to = sockets[0].local_addr().unwrap();
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for (_, datagram) in datagrams {
            sender.send_to(datagram, to).unwrap();
        }
        let mut came = 0;
        for (thread, socket) in (0..).zip(&sockets) {
            assert_eq!(socket.local_addr().unwrap(), to);
            socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            for (_, expected) in datagrams.iter().filter(|(of, _)| *of == thread) {
                let mut buffer = [0; 100];
                let len = socket.recv(&mut buffer).unwrap();
                assert_eq!(buffer[..len], expected[..], "thread {thread} of {threads}");
                came += 1;
            }
        }
        assert_eq!(came, datagrams.len());
    }

    #[test]
    fn the_kernel_sorts_packets_as_the_gateway_does() {
        for threads in [1, 2, 3, 8] {
            let mut datagrams = Vec::new();
            for index in 1..=30 {
                let (here, there) = (v4(0, index), v4(1, 200 - index));
                datagrams.push((thread_of(here, there, threads), packet(there, here)));
                let (here, there) = (v6(7, index.into()), v6(1, 2));
                datagrams.push((thread_of(here, there, threads), packet(here, there)));
            }
            datagrams.push((0, b"neither".to_vec()));
            datagrams.push((0, vec![0x45; 19]));
            datagrams.push((0, Vec::new()));
            sorted(threads, Key::Packet, &datagrams);
        }
    }

    #[test]
    fn nobody_joins_by_mistake() {
        for threads in [1, 2] {
            let sockets = bind((Ipv4Addr::LOCALHOST, 0).into(), threads, Key::Threads(threads)).unwrap();
            let address = sockets[0].local_addr().unwrap();
            for others in [1, 2] {
                let refused = bind(address, others, Key::Threads(others)).unwrap_err();
                assert_eq!(refused.kind(), io::ErrorKind::AddrInUse, "{threads}, {others}");
            }
        }
    }

    #[test]
    fn between_as_many_threads_the_kernel_sorts_bulk_datagrams_by_their_senders() {
        let datagram = |thread: u8| {
            Header { epoch: 15, thread, lane: 31, session: 0xffff, packet_number: 0xff }.encode().to_vec()
        };
        let datagrams: Vec<_> = (0..40).map(|index| (index % 5, datagram(index % 5))).collect();
        sorted(5, Key::Threads(5), &datagrams);
        // Of more threads than there are, and of none: they are refused by whoever gets them.
        sorted(2, Key::Threads(2), &[(1, datagram(7)), (0, vec![1])]);
    }

    /// Rule: `docs/protocol.md#rule-thread-pairs`.
    #[test]
    fn the_kernel_sorts_bulk_datagrams_by_both_threads() {
        let datagram = |from: u8, to: u8| {
            let session = seal::session_number(u32::MAX) as u16 ^ u16::from(from ^ to);
            Header { epoch: 15, thread: from, lane: 31, session, packet_number: 0xff }.encode().to_vec()
        };
        for (here, there) in [(1, 2), (2, 1), (2, 3), (4, 2), (3, 8), (8, 7)] {
            let threads = ThreadCounts { here, there };
            let of_pair = |nth| {
                let ThreadPair { here, there } = threads.pair(nth);
                (nth, datagram(there, here))
            };
            let mut datagrams: Vec<_> = (0..threads.pairs()).chain(0..threads.pairs()).map(of_pair).collect();
            // Of no pair, and of none at all.
            datagrams.extend([(0, datagram(7, 7)), (0, vec![1])]);
            sorted(here, Key::Threads(there), &datagrams);
        }
    }
}
