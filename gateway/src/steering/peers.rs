//! Sockets for several peers on one port. The kernel tells their datagrams apart by the address
//! that these come from, so that what one peer sends fills no other's buffers.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use session::ThreadCounts;
use socket2::{SockFilter, SockRef};

use super::{Assembler, Choice, Family, bind_alone, bind_group, bind_one, choose_pair};

/// UDP sockets bound to one address: for each peer one for each pair of a thread here and one of
/// the peer's, which get these threads' datagrams. A peer without `threads` has one.
///
/// What comes from no peer's address goes to the first one's sockets, which refuse it. The peers'
/// addresses are of one family, and differ.
///
/// # Errors
/// The address is taken, or the kernel refuses the program.
pub fn bind_for_peers(
    address: SocketAddr,
    peers: &[(IpAddr, Option<ThreadCounts>)],
) -> io::Result<Vec<Vec<UdpSocket>>> {
    let count = peers.iter().map(|(_, threads)| sockets_of(*threads)).sum::<usize>();
    let mut sockets = bind_group(address, count, &by_peer(peers))?.into_iter();
    let take =
        |(_, threads): &(IpAddr, Option<ThreadCounts>)| sockets.by_ref().take(sockets_of(*threads)).collect();
    Ok(peers.iter().map(take).collect())
}

fn sockets_of(threads: Option<ThreadCounts>) -> usize {
    threads.map_or(1, |threads| threads.pairs().into())
}

/// A socket that only sends, from a port that it shares with those of other peers if `shares`.
///
/// # Errors
/// The address is taken.
pub fn bind_lane(address: SocketAddr, is_first: bool, shares: bool) -> io::Result<UdpSocket> {
    if !is_first {
        return bind_one(address, true);
    }
    // Nobody else has the port, or this fails.
    let socket = bind_alone(address)?;
    if shares {
        SockRef::from(&socket).set_reuse_port(true)?;
    }
    Ok(socket)
}

/// The number of a socket: those of the peers before the one that a datagram comes from, plus its
/// pair of threads.
fn by_peer(peers: &[(IpAddr, Option<ThreadCounts>)]) -> Vec<SockFilter> {
    let mut program = Assembler::<Choice>::default();
    let mut first_socket = 0;
    for (nth, (peer, threads)) in peers.iter().enumerate() {
        let (first, _) = match peer {
            IpAddr::V4(_) => Family::V4.addresses(),
            IpAddr::V6(_) => Family::V6.addresses(),
        };
        for (word, value) in (0..).zip(words(*peer)) {
            program.load_word_of_ip(first + 4 * word);
            program.unless_equal(value, (nth, None));
        }
        choose(&mut program, (nth, first_socket), *threads);
        program.label((nth, None));
        // There are few.
        first_socket += u32::try_from(sockets_of(*threads)).unwrap_or(0);
    }
    choose(&mut program, (peers.len(), 0), peers.first().and_then(|(_, threads)| *threads));
    program.finish()
}

/// Ends with the number of a peer's socket for a datagram, above the first one.
fn choose(program: &mut Assembler<Choice>, peer: (usize, u32), threads: Option<ThreadCounts>) {
    match threads {
        None => program.accept(peer.1),
        Some(threads) => choose_pair(program, peer, threads),
    }
}

fn words(address: IpAddr) -> Vec<u32> {
    match address {
        IpAddr::V4(address) => vec![address.to_bits()],
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            [96, 64, 32, 0].map(|shift| (bits >> shift) as u32).to_vec()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use session::seal;

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Returns what each socket has received: the first byte of each datagram.
    fn received(sockets: &[Vec<UdpSocket>]) -> Vec<Vec<Vec<u8>>> {
        let all = |socket: &UdpSocket| {
            socket.set_nonblocking(true).unwrap();
            let mut bytes = [0; 64];
            let mut seen = Vec::new();
            while socket.recv(&mut bytes).is_ok() {
                seen.push(bytes[0]);
            }
            seen
        };
        sockets.iter().map(|sockets| sockets.iter().map(all).collect()).collect()
    }

    /// A bulk datagram of this thread, as far as is looked at, that begins with `mark`.
    fn datagram(mark: u8, thread: u8) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[0] = mark;
        bytes[seal::PATH_BYTE as usize] = thread << seal::LANE_BITS;
        bytes
    }

    #[test]
    fn each_peers_datagrams_come_to_its_own_sockets() {
        let threads = Some(ThreadCounts::alike(2));
        let peers = ["127.0.0.2", "127.0.0.3", "127.0.0.4"].map(|text| (address(text), threads));
        let sockets = bind_for_peers("127.0.0.1:0".parse().unwrap(), &peers).unwrap();
        let to = sockets[0][0].local_addr().unwrap();
        for (mark, host) in [(2, "127.0.0.2"), (3, "127.0.0.3"), (4, "127.0.0.4"), (9, "127.0.0.9")] {
            for thread in 0..2 {
                let from = UdpSocket::bind((host, 0)).unwrap();
                from.send_to(&datagram(mark, thread), to).unwrap();
            }
        }
        // Loopback delivers at once.
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(received(&sockets), [[vec![2, 9], vec![2, 9]], [vec![3], vec![3]], [vec![4], vec![4]]]);
    }

    #[test]
    fn control_has_one_socket_for_each_peer() {
        let peers = ["127.0.0.2", "127.0.0.3"].map(|text| (address(text), None));
        let sockets = bind_for_peers("127.0.0.1:0".parse().unwrap(), &peers).unwrap();
        let to = sockets[0][0].local_addr().unwrap();
        for (mark, host) in [(3, "127.0.0.3"), (2, "127.0.0.2")] {
            UdpSocket::bind((host, 0)).unwrap().send_to(&[mark], to).unwrap();
        }
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(received(&sockets), [[vec![2]], [vec![3]]]);
    }

    #[test]
    fn peers_may_have_different_numbers_of_threads() {
        let counts = [("127.0.0.2", 3), ("127.0.0.3", 2), ("127.0.0.4", 1)];
        let peers = counts.map(|(text, there)| (address(text), Some(ThreadCounts { here: 2, there })));
        let sockets = bind_for_peers("127.0.0.1:0".parse().unwrap(), &peers).unwrap();
        assert_eq!(sockets.iter().map(Vec::len).collect::<Vec<_>>(), [6, 2, 2]);
        let to = sockets[0][0].local_addr().unwrap();
        let mut expected = vec![vec![Vec::new(); 6], vec![Vec::new(); 2], vec![Vec::new(); 2]];
        let mut mark = 0;
        for (peer, (from, threads)) in peers.into_iter().enumerate() {
            let from = UdpSocket::bind((from, 0)).unwrap();
            let threads = threads.unwrap();
            for nth in 0..threads.pairs() {
                let pair = threads.pair(nth);
                let mut bytes = datagram(mark, pair.there);
                bytes[seal::SESSION_BYTE as usize] = 0x80 | pair.here ^ pair.there;
                from.send_to(&bytes, to).unwrap();
                expected[peer][usize::from(nth)].push(mark);
                mark += 1;
            }
        }
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(received(&sockets), expected);
    }

    #[test]
    fn programs_are_short_enough_for_as_many_peers_as_there_may_be() {
        for (there, each) in [(8, 8), (7, 56)] {
            let threads = Some(ThreadCounts { here: 8, there });
            let peers: Vec<_> = (0..16).map(|nth| (address(&format!("fd00::{nth:x}")), threads)).collect();
            let sockets = bind_for_peers("[::1]:0".parse().unwrap(), &peers).unwrap();
            assert!(sockets.len() == 16 && sockets.iter().all(|sockets| sockets.len() == each));
        }
    }

    #[test]
    fn lanes_of_peers_share_a_port_and_strangers_do_not() {
        let first = bind_lane("127.0.0.1:0".parse().unwrap(), true, true).unwrap();
        let address = first.local_addr().unwrap();
        assert!(bind_lane(address, true, true).is_err());
        assert!(bind_lane(address, false, true).is_ok());
    }
}
