//! A path that drops what is ECN-capable.

use std::io::IoSliceMut;

use quinn::udp::{RecvMeta, UdpSocketState};

use super::*;

/// Relays datagrams of a dialer to `to` and back, but for those with ECN bits; the address to dial.
fn path_without_ecn(to: SocketAddr) -> SocketAddr {
    let [front, back] = [(); 2].map(|()| std::net::UdpSocket::bind(ANYWHERE).unwrap());
    let address = front.local_addr().unwrap();
    let states = [&front, &back].map(|socket| {
        let state = UdpSocketState::new(socket.into()).unwrap();
        // The state makes the socket a non-blocking one.
        socket.set_nonblocking(true).unwrap();
        state
    });
    // It ends with the process, as the tests' other threads do.
    std::thread::spawn(move || {
        let (mut dialer, mut bytes) = (None, vec![0; 65_536]);
        loop {
            let mut moved = false;
            for (socket, state) in [&front, &back].into_iter().zip(&states) {
                let mut meta = [RecvMeta::default()];
                let mut room = [IoSliceMut::new(&mut bytes)];
                if state.recv(socket.into(), &mut room, &mut meta).is_err() {
                    continue;
                }
                let [RecvMeta { addr, len, stride, ecn, .. }] = meta;
                let is_there = std::ptr::eq(socket, &front);
                if is_there {
                    dialer = Some(addr);
                }
                moved = true;
                let Some(target) = (if is_there { Some(to) } else { dialer }) else { continue };
                let out = if is_there { &back } else { &front };
                for datagram in bytes[..len].chunks(stride).filter(|_| ecn.is_none()) {
                    let _ = out.send_to(datagram, target);
                }
            }
            if !moved {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    });
    address
}

#[test]
fn a_session_comes_up_where_the_path_drops_what_is_ecn_capable() {
    let mut b = listener();
    let mut a = dialer(path_without_ecn(b.address));
    assert_joined(&mut a.up(), &mut b.up());
}
