//! Requests that nobody answers, in invented names and in a host's own, and what may be on its way
//! to their target.

use super::*;

/// Somebody on the LAN sends in ever other names, to queue pairs of the target that are not there.
/// `every`: one packet of 4 KiB in that time.
fn crowd_out(world: &mut World, names: &[u8], every: Duration, time: Duration) {
    let end = world.sites.now + time;
    let mut next = world.sites.now;
    while world.sites.now < end {
        while next <= world.sites.now {
            // At PSNs where the host's own do not lie.
            let request = write(0x1000 + world.sent, 0x80_0000);
            send(&mut world.sites, host(names[world.sent as usize % names.len()]), &request);
            world.sent += 1;
            next += every;
        }
        world.run(STEP);
    }
}

/// Names that nobody has.
fn invented() -> Vec<u8> {
    (10..250).collect()
}

fn narrow(requesters: u8) -> World {
    let mut world = World::new(requesters, None);
    world.sites =
        Sites::new(0xc123, |settings| Settings { total_buffer: 16 << 20, rate: 10_000_000_000, ..settings });
    world
}

/// Requests in invented names fill all that may be on its way to a target, within 12 ms. They give
/// way to flows that the target has answered.
#[test]
fn what_was_never_answered_gives_way_to_what_was() {
    let mut world = narrow(1);
    world.run(Duration::from_millis(50));
    crowd_out(&mut world, &invented(), STEP / 3, Duration::from_millis(300));
    let before = world.requesters[0].latencies.len();
    crowd_out(&mut world, &invented(), STEP / 3, Duration::from_millis(300));
    let no_room = world.sites.gateways[0].stats().lan_drops[LanDrop::NoRoom as usize];
    assert!(no_room > 1000, "{no_room}: there is room");
    let done = world.requesters[0].latencies.len() - before;
    assert!(done > 5000 && !world.requesters[0].ended, "{done}");
    assert_eq!(failed(&mut world), 0);
}

/// Requests in invented names fill it within a tenth of a second, and would for as long as the
/// target is given. They give way to a flow that begins.
#[test]
fn what_was_never_answered_gives_way_to_a_flow_that_begins() {
    let mut world = narrow(0);
    crowd_out(&mut world, &invented(), 2 * STEP, Duration::from_millis(400));
    world.requesters.push(Requester::new(2, world.sites.now));
    crowd_out(&mut world, &invented(), 2 * STEP, Duration::from_millis(100));
    let done = world.requesters[0].latencies.len();
    assert!(done > 1000 && !world.requesters[0].ended, "{done}");
    assert!(world.sites.gateways[0].stats().evicted > 1000);
    assert_eq!(failed(&mut world), 0);
}

/// The same in the name of the host that begins.
#[test]
fn what_is_sent_in_a_hosts_name_keeps_it_from_no_target() {
    let mut world = narrow(1);
    world.run(Duration::from_millis(50));
    crowd_out(&mut world, &[1], 3 * STEP, Duration::from_millis(400));
    let before = world.requesters[0].latencies.len();
    world.requesters.push(Requester::of_many(1, 1, u32::MAX, world.sites.now));
    crowd_out(&mut world, &[1], 3 * STEP, Duration::from_millis(100));
    let [first, second] = &world.requesters[..] else { unreachable!() };
    let done = [first.latencies.len() - before, second.latencies.len()];
    assert!(done[0] > 1000 && done[1] > 1000, "{done:?}");
    assert!(!first.ended && !second.ended);
}

/// Flows that the target has answered, and which leave it no room, displace none that begins.
#[test]
fn a_flow_that_begins_is_not_displaced_at_once() {
    let mut world = narrow(0);
    // Answered flows of two hosts, which heed nothing.
    let flow = |number: u8| 0x5000 + u32::from(number);
    let now = world.sites.now;
    for number in [1, 2] {
        let requester = Requester {
            qpn: flow(number) + 0x1000,
            target: flow(number),
            most: 1,
            ..Requester::new(number, now)
        };
        world.requesters.push(requester);
    }
    world.run(Duration::from_millis(5));
    assert!(world.requesters.iter().all(Requester::is_done));
    world.requesters.clear();
    let mut psn = 1;
    let mut press = |world: &mut World| {
        for number in [1, 2] {
            send(&mut world.sites, host(number), &write(flow(number), psn));
        }
        psn += 1;
    };
    for _ in 0..2000 {
        press(&mut world);
        world.run(STEP);
    }
    let no_room = |world: &mut World| world.sites.gateways[0].stats().lan_drops[LanDrop::NoRoom as usize];
    assert!(no_room(&mut world) > 0);
    let before = no_room(&mut world);
    // Its target takes 100 ms.
    let other = Requester { is_target_silent: true, most: 4, ..Requester::new(3, world.sites.now) };
    world.requesters.push(other);
    for _ in 0..5000 {
        press(&mut world);
        world.run(STEP);
    }
    assert!(no_room(&mut world) > before);
    assert_eq!(world.sites.gateways[0].stats().evicted, 0);
    world.requesters[0].is_target_silent = false;
    world.run(Duration::from_millis(300));
    assert!(world.requesters[0].is_done(), "{:?}", world.requesters[0].first);
}

/// Another request in the name of a flow that nobody has answered does not keep that from giving
/// way.
#[test]
fn flows_that_take_the_place_of_unheard_ones_give_way_as_well() {
    for opcode in [Opcode::SendOnly, Opcode::ReadRequest] {
        let mut world = small(1_000_000_000);
        let ext = match opcode {
            Opcode::ReadRequest => Ext::Reth(Reth { virtual_address: 0, rkey: 7, dma_length: 16 }),
            _ => Ext::None,
        };
        let payload: &[u8] = if opcode == Opcode::ReadRequest { &[] } else { &[1; 16] };
        for number in 0..900_u32 {
            let request = packet(opcode, 0x1000 + number, 0, ext, payload);
            send(&mut world.sites, host(10 + (number % 240) as u8), &request);
            world.run(STEP / 2);
        }
        world.run(Duration::from_millis(100));
        for number in 0..900_u32 {
            let request = packet(Opcode::SendOnly, 0x1000 + number, 0, Ext::None, &[2; 32]);
            send(&mut world.sites, host(10 + (number % 240) as u8), &request);
            world.run(STEP / 2);
        }
        let stats = world.sites.gateways[0].stats();
        assert!(stats.near_flows > 850 && stats.replaced > 700, "{} {}", stats.near_flows, stats.replaced);
        world.requesters.push(Requester::new(1, world.sites.now));
        world.run(Duration::from_millis(400));
        let done = world.requesters[0].latencies.len();
        assert!(done > 100, "{opcode:?}: {done} {:?}", world.sites.gateways[0].stats());
    }
}

/// A peer that knows nothing of a flow that begins again is told that there is no room. It gives
/// the flow up, and drops no record of ours.
#[test]
fn an_older_peer_is_told_that_there_is_no_room() {
    for begins_again in [false, true] {
        let mut world = World::new(0, None);
        world.sites = Sites::new(0xc123, |settings| {
            let is_near = settings.remote.contains(&"10.0.1.0/24".parse().unwrap());
            Settings { flows: if is_near { 100_000 } else { 90 }, rate: RATE, ..settings }
        });
        world.sites.gateways[1].peer_begins_again(begins_again);
        invent(&mut world, Duration::from_millis(100));
        let [near, far] = world.sites.gateways.each_mut().map(|gateway| gateway.stats().clone());
        assert!(far.evicted > 100 && near.bad_records == 0, "{} {}", far.evicted, near.bad_records);
        assert_eq!(near.failed.iter().sum::<u64>() > 100, !begins_again, "{:?}", near.failed);
    }
}
