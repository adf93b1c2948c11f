//! Habits of other NICs.

use roce::wire::PathMtu;

use super::*;

/// Both ends have this personality; the link takes a millisecond each way.
fn pair(nic: Personality) -> Pair {
    Pair::perfect(QpConfig { mtu: PathMtu::B256, timeout: Some(Duration::from_millis(100)), ..nic.qp() })
}

/// Posts a WRITE of so many packets.
fn write(pair: &mut Pair, packets: usize) -> RegionHandle {
    let len = packets * 256;
    let local = pair.hosts[0].register(pattern(len, 1), Access::LOCAL);
    let target = pair.hosts[1].register(vec![0; len], Access::ALL);
    let qpn = pair.qpns[0];
    pair.hosts[0].post_write(qpn, 1, local.slice(0, len as u32), remote(&target, 0), None).unwrap();
    target
}

/// Requests (`true`) or responses seen by direction, each with its time and PSN, counted from the
/// first.
type Seen = std::sync::Arc<std::sync::Mutex<Vec<(bool, u32)>>>;

fn watch(pair: &mut Pair, mut lose: impl FnMut(bool, u32) -> bool + 'static) -> Seen {
    let seen = Seen::default();
    let into = std::sync::Arc::clone(&seen);
    pair.filter = Box::new(move |side, packet| {
        let from = Psn::new(0xff_ffe0);
        let place = u32::try_from(packet.bth.psn.distance(from)).unwrap_or(u32::MAX);
        if side == 0 || packet.bth.opcode.is_response() {
            into.lock().unwrap().push((side == 0, place));
        }
        !lose(side == 0, place)
    });
    seen
}

#[test]
fn the_adaptive_requester_repeats_after_2_4_8_and_16_ms_and_then_as_configured() {
    let mut pair = pair(Personality { acks: AckPolicy::Asked, ..Personality::MLX5 });
    let times = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    watch(&mut pair, |_, _| true);
    write(&mut pair, 1);
    let start = pair.now;
    let mut sent = 0;
    while pair.elapsed() < Duration::from_millis(2 + 4 + 8 + 16 + 100) {
        assert!(pair.step());
        if pair.hosts[0].stats().packets_out > sent {
            sent = pair.hosts[0].stats().packets_out;
            times.lock().unwrap().push((pair.now - start).as_millis());
        }
    }
    // The step that goes back is seen one event later: what counts are the pauses.
    let times = times.lock().unwrap();
    let pauses: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses.starts_with(&[4, 8, 16]) || pauses.starts_with(&[2, 4, 8, 16]), "{pauses:?}");
    assert_eq!(pair.hosts[0].stats().timeouts, 5, "four quick ones, and the one configured");
}

#[test]
fn quick_tries_cost_no_retry() {
    let mut pair = Pair::perfect(QpConfig {
        retry_cnt: 0,
        timeout: Some(Duration::from_millis(50)),
        ..Personality::MLX5.qp()
    });
    pair.filter = Box::new(|_, _| false);
    write(&mut pair, 1);
    pair.run();
    assert_eq!(statuses(&pair.completions(0)), [(1, Status::RetryExceeded)]);
    assert_eq!(pair.elapsed(), Duration::from_millis(2 + 4 + 8 + 16 + 50));
}

#[test]
fn the_selective_requester_repeats_what_a_nak_names_and_nothing_else() {
    let mut pair = pair(Personality { acks: AckPolicy::Asked, ..Personality::MLX5_SELECTIVE });
    let mut lost = false;
    let seen =
        watch(&mut pair, move |request, place| request && place == 3 && !std::mem::replace(&mut lost, true));
    let target = write(&mut pair, 10);
    pair.run();
    assert_eq!(statuses(&pair.completions(0)), [(1, Status::Success)]);
    assert_eq!(pair.hosts[1].memory(target.key).unwrap(), pattern(2560, 1));
    let requests: Vec<_> =
        seen.lock().unwrap().iter().filter(|(request, _)| *request).map(|(_, place)| *place).collect();
    assert_eq!(requests, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 3]);
    assert_eq!((pair.hosts[0].stats().retransmitted, pair.hosts[1].stats().duplicates), (1, 0));
}

#[test]
fn a_selective_requester_gets_through_to_a_target_that_keeps_nothing() {
    let selective = Personality::MLX5_SELECTIVE.qp();
    let plain = QpConfig { mtu: selective.mtu, ..QpConfig::default() };
    let mut pair = Pair::new([selective, plain], "delay 1ms loss 5%", 3);
    let target = {
        let local = pair.hosts[0].register(pattern(100_000, 1), Access::LOCAL);
        let target = pair.hosts[1].register(vec![0; 100_000], Access::ALL);
        let qpn = pair.qpns[0];
        pair.hosts[0].post_write(qpn, 1, local.slice(0, 100_000), remote(&target, 0), None).unwrap();
        target
    };
    pair.run();
    assert_eq!(statuses(&pair.completions(0)), [(1, Status::Success)]);
    assert_eq!(pair.hosts[1].memory(target.key).unwrap(), pattern(100_000, 1));
}

#[test]
fn acks_come_when_the_policy_says() {
    let ms = Duration::from_millis;
    let acks = |policy| {
        let mut pair = pair(Personality { acks: policy, ..Personality::SOFT_ROCE });
        let seen = watch(&mut pair, |_, _| false);
        write(&mut pair, 5);
        pair.run();
        let count = seen.lock().unwrap().iter().filter(|(request, _)| !request).count();
        assert_eq!(statuses(&pair.completions(0)), [(1, Status::Success)]);
        (count, pair.elapsed())
    };
    assert_eq!(acks(AckPolicy::Asked), (1, ms(2)));
    // They arrive together and leave together: what nothing separates becomes one.
    assert_eq!(acks(AckPolicy::Each), (1, ms(2)));
    assert_eq!(acks(AckPolicy::Late(ms(3))), (1, ms(5)));
    assert_eq!(acks(AckPolicy::Coalesced(ms(1))), (1, ms(3)));
}

#[test]
fn notifications_slow_those_who_heed_them_for_a_while() {
    for (nic, heeds) in [(Personality::MLX5, true), (Personality::SOFT_ROCE, false)] {
        let mut pair = Pair::perfect(QpConfig { mtu: PathMtu::B256, window: 1000, ..nic.qp() });
        let mut cnp = vec![0; MAX_PACKET];
        let mut transport = [0; 28];
        transport[0] = 0x81;
        transport[4] = 0x40;
        transport[5..8].copy_from_slice(&pair.qpns[0].get().to_be_bytes()[1..]);
        let addressing = Addressing { src: ip(2), dst: ip(1), src_port: 0xc000, tclass: 0, ttl: 64 };
        let len = roce::ip::emit(&addressing, 1, &transport, &mut cnp).unwrap();
        write(&mut pair, 200);
        (0..6).for_each(|_| pair.hosts[0].handle_packet(&cnp[..len], pair.now));
        pair.run();
        assert_eq!(statuses(&pair.completions(0)), [(1, Status::Success)]);
        // 64 us apart at first, as fast as ever some milliseconds later.
        let slowed = pair.elapsed() > Duration::from_millis(4);
        assert_eq!(
            (slowed, pair.hosts[0].stats().slowed),
            (heeds, if heeds { 6 } else { 0 }),
            "{}",
            nic.name
        );
        assert!(pair.elapsed() < Duration::from_millis(20), "{:?}", pair.elapsed());
    }
}

/// A switch marks all that may be marked; the sender hears of it every 50 us, with DSCP 48.
#[test]
fn marked_packets_are_told_to_their_sender() {
    for (nic, tells) in [(Personality::MLX5, true), (Personality::SOFT_ROCE, false)] {
        let mut pair = Pair::perfect(QpConfig { mtu: PathMtu::B256, window: 1000, ..nic.qp() });
        write(&mut pair, 200);
        let mut packet = vec![0; MAX_PACKET];
        let mut told = 0;
        for _ in 0..200 {
            let len = pair.hosts[0].poll_transmit(pair.now, &mut packet).unwrap();
            let mut datagram = Datagram::parse(&packet[..len]).unwrap();
            assert_eq!(datagram.addressing.tclass & 3, if tells { 2 } else { 0 });
            datagram.addressing.tclass |= if tells { 3 } else { 0 };
            pair.hosts[1].handle_datagram(&datagram, pair.now);
            while let Some(len) = pair.hosts[1].poll_transmit(pair.now, &mut packet) {
                let Datagram { addressing, transport } = Datagram::parse(&packet[..len]).unwrap();
                let bth = Packet::parse(transport).unwrap().bth;
                if bth.opcode == Opcode::Cnp {
                    told += 1;
                    assert!(bth.becn && bth.dest_qp == pair.qpns[0] && addressing.tclass == 48 << 2);
                }
            }
            pair.now += Duration::from_micros(1);
        }
        let expected = if tells { 4 } else { 0 };
        assert_eq!((told, pair.hosts[1].stats().cnps_out), (expected, expected), "{}", nic.name);
    }
}

#[test]
fn responders_tell_how_many_receives_there_are() {
    let mut pair = pair(Personality { credits: true, ..Personality::SOFT_ROCE });
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let into = std::sync::Arc::clone(&seen);
    pair.filter = Box::new(move |_, packet| {
        into.lock().unwrap().extend(packet.ext.aeth().map(|aeth| aeth.syndrome.to_u8()));
        true
    });
    let [local, room] = [0, 1].map(|side: usize| pair.hosts[side].register(vec![7; 64], Access::LOCAL));
    for wr_id in 0..7 {
        pair.hosts[1].post_recv(pair.qpns[1], wr_id, room.slice(0, 64)).unwrap();
    }
    pair.hosts[0].post_send(pair.qpns[0], 1, local.slice(0, 64), None).unwrap();
    pair.run();
    // Six are left: code 5.
    assert_eq!(*seen.lock().unwrap(), [5]);
}

/// Sends a SEND that the queue pair had before to host 1, and returns the place that is named in
/// answer.
fn duplicate(pair: &mut Pair, seen: &Seen) -> u32 {
    let mut transport = [0; 12];
    transport[0] = Opcode::SendMiddle.to_u8();
    transport[5..8].copy_from_slice(&pair.qpns[1].get().to_be_bytes()[1..]);
    transport[8..12].copy_from_slice(&0x00ff_ffd0_u32.to_be_bytes());
    let addressing = Addressing { src: ip(1), dst: ip(2), src_port: 0xc000, tclass: 0, ttl: 64 };
    let mut packet = vec![0; MAX_PACKET];
    let len = roce::ip::emit(&addressing, 1, &transport, &mut packet).unwrap();
    pair.hosts[1].handle_packet(&packet[..len], pair.now);
    pair.run();
    seen.lock().unwrap().last().unwrap().1
}

#[test]
fn duplicates_are_acknowledged_by_the_newest_psn_or_one_that_leaves_reads_out() {
    let before = u32::MAX;
    let expected = [(Personality::IRDMA, [before, 2, 6, before]), (Personality::SOFT_ROCE, [0x1f, 2, 2, 2])];
    for (nic, places) in expected {
        let mut pair = pair(nic);
        let seen = watch(&mut pair, |_, _| false);
        let mut found = vec![duplicate(&mut pair, &seen)];
        let target = write(&mut pair, 3);
        pair.run();
        found.push(duplicate(&mut pair, &seen));
        let local = pair.hosts[0].register(vec![0; 1024], Access::LOCAL);
        let source = pair.hosts[1].register(pattern(1024, 1), Access::ALL);
        let (qpns, first) = (pair.qpns, Psn::new(0xff_ffe0));
        pair.hosts[0].post_read(qpns[0], 2, local.slice(0, 1024), remote(&source, 0)).unwrap();
        pair.run();
        assert_eq!(statuses(&pair.completions(0)), [(1, Status::Success), (2, Status::Success)]);
        assert_eq!(pair.hosts[1].memory(target.key).unwrap(), pattern(768, 1));
        found.push(duplicate(&mut pair, &seen));
        pair.hosts[1].connect(qpns[1], first, Remote { ip: ip(1), qpn: qpns[0], psn: first }).unwrap();
        found.push(duplicate(&mut pair, &seen));
        assert_eq!(found, places, "{}", nic.name);
    }
}
