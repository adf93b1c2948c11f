//! The `udp` back end over loopback: two queue pairs in threads of their own.

#![cfg(feature = "udp")]
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on fails")]

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use sdr::layers::{Receiving, Scheme, Sending, Timing};
use sdr::udp::{QueuePair, UdpError, Unconnected, now};
use sdr::{Buffer, Mtu, PostError, QpAttr, RecvHandle, RecvQp, SendError, SendHandle, SendQp, Slice};

const SECRET: [u8; 32] = [0x5d; 32];
/// Nothing here is timed; this only ends a test that hangs.
const HANGS: Duration = Duration::from_secs(60);

fn attr() -> QpAttr {
    QpAttr { channels: 2, rtt: Duration::from_millis(5), rate: 2_000_000_000, ..QpAttr::default() }
}

fn pair(attr: QpAttr) -> [QueuePair; 2] {
    let ends = [(); 2].map(|()| Unconnected::bind(attr, "127.0.0.1".parse().unwrap()).unwrap());
    let blobs = [ends[1].blob(), ends[0].blob()];
    let mut blobs = blobs.iter();
    ends.map(|end| end.connect(blobs.next().unwrap(), &SECRET).unwrap())
}

/// Calls `attempt` until it gives something.
fn until<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let start = now();
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(now().duration_since(start) < HANGS, "hangs");
        std::thread::yield_now();
    }
}

fn post(receive: &mut RecvQp, bytes: usize) -> RecvHandle {
    let mut buffer = Some(Buffer::zeroed(bytes));
    until(|| match receive.post(buffer.take()?) {
        Ok(handle) => Some(handle),
        Err(unposted) => {
            assert_eq!(unposted.error, PostError::Retry);
            buffer = Some(unposted.buffer);
            None
        }
    })
}

fn send(send: &mut SendQp, data: &Slice, imm: Option<u32>) -> SendHandle {
    until(|| match send.post(data.clone(), 0, imm, now()) {
        Ok(handle) => Some(handle),
        Err(error) => {
            assert_eq!(error, SendError::Retry);
            None
        }
    })
}

/// A few hundred messages with immediates. A chunk that the kernel dropped is written again.
#[test]
fn messages_arrive_in_order_with_their_immediates() {
    const MESSAGES: u32 = 300;
    const BYTES: usize = 300_000;
    let [near, far] = pair(attr());
    let receiver = std::thread::spawn(move || {
        let QueuePair { receive, control, link: _link, .. } = far;
        let mut receive = receive.unwrap();
        for number in 0..MESSAGES {
            let handle = post(&mut receive, BYTES);
            until(|| (handle.bitmap().all() || handle.has_ended()).then_some(()));
            let mut closing = Some(handle.complete());
            let completed = until(|| match closing.take()?.poll() {
                Ok(completed) => Some(completed),
                Err(again) => {
                    closing = Some(again);
                    None
                }
            });
            assert!(completed.is_whole() && completed.number == number);
            assert_eq!(completed.imm, Some(number ^ 0xa5a5_0000));
            assert!(completed.buffer.as_slice().iter().all(|byte| *byte == number as u8 | 1));
            until(|| control.send(&number.to_be_bytes()).ok());
        }
        // The sender closes; until then its acknowledgements may have to be repeated.
        until(|| {
            let _ = control.send(&(MESSAGES - 1).to_be_bytes());
            control.has_ended().then_some(())
        });
    });
    let QueuePair { send: sender, control, link, .. } = near;
    let mut sender = sender.unwrap();
    let mut acknowledged: u32 = 0;
    for number in 0..MESSAGES {
        let data = Slice::from(vec![number as u8 | 1; BYTES]);
        let mut stream = until(|| sender.stream(Some(number ^ 0xa5a5_0000), now()).ok());
        let mut sent: Option<Instant> = None;
        until(|| {
            while let Some(bytes) = control.receive() {
                acknowledged = acknowledged.max(u32::from_be_bytes(*bytes.first_chunk()?) + 1);
            }
            if sent.is_none_or(|sent| now().duration_since(sent) > Duration::from_millis(200)) {
                stream.write(0, data.clone()).ok()?;
                sent = Some(now());
            }
            (acknowledged > number).then_some(())
        });
        stream.end().unwrap();
    }
    assert!(link.stats().sent.load(Relaxed) >= u64::from(MESSAGES) * 293);
    drop(link);
    receiver.join().unwrap();
}

/// Datagrams of strangers change nothing and are counted; the message comes all the same.
#[test]
fn foreign_datagrams_are_counted_and_change_nothing() {
    let attr = QpAttr { channels: 1, mtu: Mtu::B512, chunk_log: 9, ..attr() };
    let ends = [(); 2].map(|()| Unconnected::bind(attr, "127.0.0.1".parse().unwrap()).unwrap());
    let [near, far] = ends;
    let (near_blob, far_blob) = (near.blob(), far.blob());
    // The last two bytes of the details: nonce, session, family, address, count, port.
    let port = u16::from_be_bytes([far_blob[34 + 26], far_blob[34 + 27]]);
    let near = near.connect(&far_blob, &SECRET).unwrap();
    let far = far.connect(&near_blob, &SECRET).unwrap();
    let mut receive = far.receive.unwrap();
    let handle = post(&mut receive, 4096);
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    for len in [0, 1, 31, 32, 200, 1400] {
        stranger.send_to(&vec![1; len], ("127.0.0.1", port)).unwrap();
    }
    until(|| (far.link.stats().unopened.load(Relaxed) >= 5).then_some(()));
    assert_eq!(handle.arrived(), 0);
    let sent = send(&mut near.send.unwrap(), &vec![9; 4096].into(), Some(7));
    until(|| handle.bitmap().all().then_some(()));
    assert!(until(|| sent.poll().unwrap().then_some(true)));
    assert_eq!(handle.imm(), Some(7));
}

/// Passes on what comes, and all along old datagrams again and damaged copies. Loses some.
fn meddle(socket: &UdpSocket, to: u16, stop: &AtomicBool) {
    socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let (mut kept, mut count, mut room) = (Vec::<Vec<u8>>::new(), 0, vec![0; 65_536]);
    let send = |datagram: &[u8]| drop(socket.send_to(datagram, ("127.0.0.1", to)));
    while !stop.load(Relaxed) {
        let Ok((len, _)) = socket.recv_from(&mut room) else { continue };
        let datagram = room[..len].to_vec();
        count += 1;
        if count % 50 != 0 {
            send(&datagram);
        }
        if count % 3 == 0 {
            send(kept.get(count * 7 % kept.len().max(1)).unwrap_or(&datagram));
        }
        if count % 4 == 0 {
            let mut damaged = datagram.clone();
            damaged[count * 13 % len] ^= 1 << (count % 8);
            send(&damaged);
            send(&datagram[..count * 5 % len]);
        }
        if kept.len() < 512 {
            kept.push(datagram);
        } else {
            kept[count % 512] = datagram;
        }
    }
}

/// Somebody on the way repeats, damages, cuts and loses: messages are right, and all of it is
/// counted.
#[test]
fn a_meddler_on_the_way_changes_no_message() {
    let attr = QpAttr { channels: 1, rate: 200_000_000, in_flight_log: 22, messages_log: 4, ..attr() };
    let ends = [(); 2].map(|()| Unconnected::bind(attr, "127.0.0.1".parse().unwrap()).unwrap());
    let ports = [ends[0].ports()[0], ends[1].ports()[0]];
    let ways = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let here = "127.0.0.1".parse().unwrap();
    let by_way_of = |end: &Unconnected, way: &UdpSocket| {
        end.blob_by_way_of(here, &[way.local_addr().unwrap().port()]).unwrap()
    };
    assert!(matches!(ends[0].blob_by_way_of(here, &[]), Err(UdpError::Ports { wanted: 1, given: 0 })));
    let blobs = [by_way_of(&ends[0], &ways[0]), by_way_of(&ends[1], &ways[1])];
    let [near, far] = ends;
    let near = near.connect(&blobs[1], &SECRET).unwrap();
    let far = far.connect(&blobs[0], &SECRET).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (way, port) in ways.iter().zip(ports) {
            let stop = &stop;
            scope.spawn(move || meddle(way, port, stop));
        }
        let timing = Timing::new(attr.rtt, attr.rate);
        let mut sending = Sending::new(near.send.unwrap(), Scheme::SrNack, timing, now()).unwrap();
        let mut receiving = Receiving::new(far.receive.unwrap(), Scheme::SrNack, timing, now()).unwrap();
        let message = |number: usize| -> Vec<u8> { (0..50_000).map(|at| (at * 7 + number) as u8).collect() };
        for number in 0..20 {
            receiving.expect(50_000).unwrap();
            sending.send(&Arc::new(Buffer::from(message(number)))).unwrap();
        }
        for number in 0..20 {
            let bytes = until(|| {
                sending.poll(&near.control, now()).unwrap();
                receiving.poll(&far.control, now()).unwrap();
                receiving.take()
            });
            assert!(bytes == message(number), "message {number}");
        }
        stop.store(true, Relaxed);
    });
    let stats = far.link.stats();
    assert!(stats.unopened.load(Relaxed) > 100, "{stats:?}");
}

#[test]
fn another_secret_connects_to_nobody() {
    let attr = QpAttr { patience: Duration::from_millis(300), ..attr() };
    let [near, far] = [(); 2].map(|()| Unconnected::bind(attr, "127.0.0.1".parse().unwrap()).unwrap());
    let (near_blob, far_blob) = (near.blob(), far.blob());
    let near = near.connect(&far_blob, &SECRET).unwrap();
    let far = far.connect(&near_blob, &[1; 32]).unwrap();
    until(|| near.control.has_ended().then_some(()));
    until(|| far.control.has_ended().then_some(()));
    assert!(near.link.stats().unopened.load(Relaxed) > 0 && near.link.stats().refused.load(Relaxed) == 0);
}

#[test]
fn blobs_that_do_not_fit_are_refused_by_name() {
    let bind = || Unconnected::bind(attr(), "127.0.0.1".parse().unwrap()).unwrap();
    let ours = bind();
    let blob = ours.blob();
    assert!(matches!(ours.connect(&blob, &SECRET), Err(UdpError::Reflected)));
    let other = Unconnected::bind(QpAttr { chunk_log: 12, ..attr() }, "127.0.0.1".parse().unwrap()).unwrap();
    let result = bind().connect(&other.blob(), &SECRET);
    assert!(matches!(result, Err(UdpError::Mismatch(sdr::blob::Mismatch::Chunk))));
    let result = Unconnected::bind(attr(), "0.0.0.0".parse().unwrap());
    assert!(matches!(result, Err(UdpError::Address(_))));
    // Nobody receives there, or all do.
    let ways =
        [("0.0.0.0", [1, 2]), ("239.1.1.1", [1, 2]), ("255.255.255.255", [1, 2]), ("127.0.0.1", [1, 0])];
    for (address, ports) in ways {
        let blob = bind().blob_by_way_of(address.parse().unwrap(), &ports).unwrap();
        let result = bind().connect(&blob, &SECRET);
        assert!(
            matches!(result, Err(UdpError::Mismatch(sdr::blob::Mismatch::BackEnd))),
            "{address} {ports:?}"
        );
    }
    let data = Slice::new(&Arc::new(Buffer::zeroed(8)), 4..9);
    assert!(data.is_none());
}

/// Channels take different ways. What left before the goodbye counts, though it comes after it.
#[test]
fn a_goodbye_that_overtakes_packets_costs_none() {
    // The receiver waits half a round trip for them.
    let attr = QpAttr { rtt: Duration::from_secs(8), in_flight_log: 30, messages_log: 6, ..attr() };
    let [near, far] = [(); 2].map(|()| Unconnected::bind(attr, "127.0.0.1".parse().unwrap()).unwrap());
    let ports = [far.ports()[0], far.ports()[1]];
    let slow = UdpSocket::bind("127.0.0.1:0").unwrap();
    let ways = [ports[0], slow.local_addr().unwrap().port()];
    let far_blob = far.blob_by_way_of("127.0.0.1".parse().unwrap(), &ways).unwrap();
    let near_blob = near.blob();
    let near = near.connect(&far_blob, &SECRET).unwrap();
    let mut far = far.connect(&near_blob, &SECRET).unwrap();
    let handle = post(far.receive.as_mut().unwrap(), 100 << 10);
    let sent = send(&mut near.send.unwrap(), &vec![3; 100 << 10].into(), None);
    until(|| sent.poll().unwrap().then_some(()));
    // Joins the thread, which has said goodbye by channel 0.
    drop(near.link);
    until(|| (handle.arrived() == 50).then_some(()));
    // The goodbye is read while nothing more comes here.
    slow.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let mut room = [0; 2048];
    let held = std::iter::from_fn(|| slow.recv(&mut room).ok().map(|len| room[..len].to_vec()));
    for datagram in held.collect::<Vec<_>>() {
        slow.send_to(&datagram, ("127.0.0.1", ports[1])).unwrap();
    }
    until(|| (handle.bitmap().all() || handle.has_ended()).then_some(()));
    assert!(handle.bitmap().all(), "{} of 100 packets", handle.arrived());
    until(|| handle.has_ended().then_some(()));
}

/// Runs this program's test `name` in a name space whose loopback carries 1500 bytes.
/// Returns its exit code; `None` where name spaces cannot be made.
fn on_a_small_loopback(name: &str) -> Option<i32> {
    let command = "ip link set lo mtu 1500 up || exit 99; exec \"$0\" --exact \"$1\" --include-ignored";
    let mut unshare = std::process::Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--net", "sh", "-c", command]);
    let output = unshare.arg(std::env::current_exe().unwrap()).arg(name).output().ok()?;
    let code = output.status.code().filter(|code| [0, 101].contains(code));
    println!("{}", String::from_utf8_lossy(&output.stdout));
    code
}

/// Packets that the way does not carry would all be lost in silence.
#[test]
fn an_mtu_beyond_the_ways_is_an_error_by_name() {
    match on_a_small_loopback("inside_a_small_loopback") {
        Some(code) => assert_eq!(code, 0),
        None => println!("no name spaces here: nothing was tested"),
    }
}

#[test]
#[ignore = "another test runs it in a name space"]
fn inside_a_small_loopback() {
    for (mtu, needed) in [(Mtu::B1024, None), (Mtu::B2048, Some(2108)), (Mtu::B4096, Some(4156))] {
        let attr = QpAttr { mtu, ..attr() };
        let [near, far] = [(); 2].map(|()| Unconnected::bind(attr, "127.0.0.1".parse().unwrap()).unwrap());
        let told = match near.connect(&far.blob(), &SECRET) {
            Ok(_) => None,
            Err(UdpError::PathMtu { needed, mtu: 1500 }) => Some(needed),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(told, needed, "{mtu:?}");
    }
}

#[test]
fn a_side_that_leaves_says_goodbye() {
    let [near, far] = pair(attr());
    let mut receive = far.receive.unwrap();
    let handle = post(&mut receive, 100);
    drop(near.link);
    until(|| handle.has_ended().then_some(()));
    match handle.complete().poll() {
        Ok(completed) => assert!(!completed.is_whole()),
        Err(_) => panic!("no worker is inside"),
    }
}
