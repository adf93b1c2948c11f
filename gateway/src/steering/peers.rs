//! Sockets for several peers on one port. The kernel tells their datagrams apart by the address
//! that these come from, so that what one peer sends fills no other's buffers.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use session::seal;
use socket2::{SockFilter, SockRef};

use super::{Assembler, Family, bind_alone, bind_group, bind_one};

/// UDP sockets bound to one address: for each peer one for each thread, which get the datagrams of
/// that peer's thread. Without `threads` there is one for each peer.
///
/// What comes from no peer's address goes to the first one's sockets, which refuse it. The peers'
/// addresses are of one family, and differ.
///
/// # Errors
/// The address is taken, or the kernel refuses the program.
pub fn bind_for_peers(
    address: SocketAddr,
    peers: &[IpAddr],
    threads: Option<u8>,
) -> io::Result<Vec<Vec<UdpSocket>>> {
    let each = usize::from(threads.unwrap_or(1).max(1));
    let sockets = bind_group(address, each * peers.len().max(1), &by_peer(peers, threads))?;
    let mut sockets = sockets.into_iter();
    Ok(peers.iter().map(|_| sockets.by_ref().take(each).collect()).collect())
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

/// The number of the peer that a datagram comes from, times the threads, plus the sender's thread.
fn by_peer(peers: &[IpAddr], threads: Option<u8>) -> Vec<SockFilter> {
    let mut program = Assembler::<usize>::default();
    let threads = threads.map(|threads| threads.max(1));
    for (nth, peer) in peers.iter().enumerate() {
        let (first, _) = match peer {
            IpAddr::V4(_) => Family::V4.addresses(),
            IpAddr::V6(_) => Family::V6.addresses(),
        };
        for (word, value) in (0..).zip(words(*peer)) {
            program.load_word_of_ip(first + 4 * word);
            program.unless_equal(value, nth);
        }
        choose(&mut program, nth, threads);
        program.label(nth);
    }
    choose(&mut program, 0, threads);
    program.finish()
}

/// Ends with the number of a peer's socket for the thread that sent a datagram.
fn choose(program: &mut Assembler<usize>, peer: usize, threads: Option<u8>) {
    // There are few.
    let peer = u32::try_from(peer).unwrap_or(0);
    match threads {
        None => program.accept(peer),
        Some(threads) => {
            program.load_byte(seal::PATH_BYTE);
            program.shift_right(seal::LANE_BITS);
            program.modulo(threads.into());
            program.add(peer * u32::from(threads));
            program.accept_kept();
        }
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

    use super::*;

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
        let peers = ["127.0.0.2", "127.0.0.3", "127.0.0.4"].map(|text| text.parse::<IpAddr>().unwrap());
        let sockets = bind_for_peers("127.0.0.1:0".parse().unwrap(), &peers, Some(2)).unwrap();
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
        let peers = ["127.0.0.2", "127.0.0.3"].map(|text| text.parse::<IpAddr>().unwrap());
        let sockets = bind_for_peers("127.0.0.1:0".parse().unwrap(), &peers, None).unwrap();
        let to = sockets[0][0].local_addr().unwrap();
        for (mark, host) in [(3, "127.0.0.3"), (2, "127.0.0.2")] {
            UdpSocket::bind((host, 0)).unwrap().send_to(&[mark], to).unwrap();
        }
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(received(&sockets), [[vec![2]], [vec![3]]]);
    }

    #[test]
    fn programs_are_short_enough_for_as_many_peers_as_there_may_be() {
        let peers: Vec<IpAddr> = (0..16).map(|nth| format!("fd00::{nth:x}").parse().unwrap()).collect();
        let sockets = bind_for_peers("[::1]:0".parse().unwrap(), &peers, Some(8)).unwrap();
        assert!(sockets.len() == 16 && sockets.iter().all(|sockets| sockets.len() == 8));
    }

    #[test]
    fn lanes_of_peers_share_a_port_and_strangers_do_not() {
        let first = bind_lane("127.0.0.1:0".parse().unwrap(), true, true).unwrap();
        let address = first.local_addr().unwrap();
        assert!(bind_lane(address, true, true).is_err());
        assert!(bind_lane(address, false, true).is_ok());
    }
}
