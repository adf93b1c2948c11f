use super::*;

/// Has so much of a place come in a second, of which there is room for so much a window. Returns
/// how much of it was read and taken in each window.
fn play(surplus: &mut Surplus, start: &mut Instant, place: Place, came: u32, room: u32) -> Vec<[u32; 2]> {
    let mut dropped = surplus.before;
    let mut windows = Vec::new();
    for _ in 0..100 {
        let [mut read, mut taken] = [0; 2];
        for _ in 0..came {
            if surplus.watches(|| dropped, *start) && surplus.drops(place) {
                continue;
            }
            read += 1;
            let is_dropped = taken >= room;
            taken += u32::from(!is_dropped);
            dropped += u64::from(is_dropped);
            if let Some(place) = surplus.take_judged() {
                surplus.note(place, is_dropped);
            }
        }
        windows.push([read, taken]);
        *start += WINDOW;
    }
    windows
}

#[expect(clippy::disallowed_methods, reason = "a start for virtual time")]
fn surplus() -> (Surplus, Instant) {
    let start = Instant::now();
    (Surplus::new(7, start), start)
}

const PLACE: Place = Place(300);

#[test]
fn of_a_flood_a_few_times_what_there_is_room_for_is_read_and_all_room_is_used() {
    for (came, room) in [(20_000, 1000), (20_000, 100), (3000, 500), (20_000, 4000)] {
        let (mut surplus, mut now) = surplus();
        let windows = play(&mut surplus, &mut now, PLACE, came, room);
        for [read, taken] in &windows[5..] {
            assert!(*taken == room && *read <= 5 * room, "{came}, {room}: {windows:?}");
        }
        let first = windows.iter().take_while(|[read, _]| *read > 5 * room).count();
        assert!(first <= 3, "{came}, {room}: after {first} windows");
    }
}

#[test]
fn what_finds_no_room_at_all_is_hardly_read() {
    let (mut surplus, mut now) = surplus();
    let windows = play(&mut surplus, &mut now, PLACE, 20_000, 0);
    assert!(windows[10..].iter().all(|[read, _]| (1..100).contains(read)), "{windows:?}");
    // And all of it again when there is room.
    let windows = play(&mut surplus, &mut now, PLACE, 20_000, 20_000);
    assert_eq!(windows[20..], [[20_000; 2]; 80]);
}

#[test]
fn up_to_three_times_its_room_all_of_it_is_read() {
    for room in [700, 1000, 2000] {
        let (mut surplus, mut now) = surplus();
        let windows = play(&mut surplus, &mut now, PLACE, 2000, room);
        assert!(windows.iter().all(|window| *window == [2000, room]), "{room}: {windows:?}");
    }
}

#[test]
fn a_flood_leaves_other_groups_and_kinds_alone_and_is_forgotten() {
    let (mut surplus, mut now) = surplus();
    play(&mut surplus, &mut now, PLACE, 20_000, 100);
    for other in [Place(301), Place(300 - GROUPS as u16)] {
        assert!((0..1000).all(|_| !surplus.drops(other)));
    }
    play(&mut surplus, &mut now, PLACE, 10, 10);
    assert_eq!(surplus.watched, 0);
    assert!(surplus.cells.iter().all(|cell| cell.halvings == 0));
}

#[test]
fn what_is_always_read_is_told_by_its_opcode() {
    let of = |opcode: Opcode, to: u32| Kind::of(opcode.to_u8(), Qpn::new(to), || Some(Kind::Proven));
    for (opcode, to, kind) in [
        (Opcode::SendOnly, 9, Some(Kind::Proven)),
        (Opcode::WriteFirst, 9, Some(Kind::Proven)),
        (Opcode::ReadRequest, 9, Some(Kind::Proven)),
        (Opcode::SendMiddle, 9, None),
        (Opcode::Acknowledge, 9, None),
        (Opcode::UcWriteFirst, 9, Some(Kind::UcMessage)),
        (Opcode::UcWriteMiddle, 9, None),
        (Opcode::UdSendOnly, 9, Some(Kind::Other)),
        (Opcode::UdSendOnly, 1, Some(Kind::Management)),
        (Opcode::Cnp, 9, None),
    ] {
        assert_eq!(of(opcode, to), kind, "{opcode:?}");
    }
    assert_eq!(Kind::of(0xa4, Qpn::new(9), || None), Some(Kind::Other), "XRC");
}
