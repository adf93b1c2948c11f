//! Snapshots written and read.

use super::*;

#[serde_with::serde_as]
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct State {
    #[serde_as(as = "Vec<Option<(_, At)>>")]
    times: Vec<Option<(u8, Instant)>>,
    text: String,
}

#[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
fn clock() -> Instant {
    Instant::now()
}

fn state(at: Instant) -> State {
    let second = Duration::from_secs(1);
    State { times: vec![Some((1, at + second)), None, Some((2, at - second))], text: "x".to_owned() }
}

#[test]
fn times_keep_their_distance_from_the_present() {
    let now = clock();
    let snapshot = write(&state(now), now).unwrap();
    for later in [0, 1, 1_000_000] {
        let then = now + Duration::from_millis(later);
        assert_eq!(read(&snapshot, then), Ok(state(then)));
        assert_eq!(write(&state(then), then).unwrap(), snapshot);
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let now = clock();
    let snapshot = write(&state(now), now).unwrap();
    let refused = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut changed = snapshot.clone();
        change(&mut changed);
        read::<State>(&changed, now).unwrap_err()
    };
    assert_eq!(refused(&|bytes| bytes.clear()), Refused::NotASnapshot);
    assert_eq!(refused(&|bytes| bytes.truncate(HEADER - 1)), Refused::NotASnapshot);
    assert_eq!(refused(&|bytes| bytes[0] ^= 1), Refused::NotASnapshot);
    assert_eq!(refused(&|bytes| bytes[8] = 3), Refused::Version(3));
    assert_eq!(refused(&|bytes| bytes[8] = 0), Refused::Version(0));
    let told = (snapshot.len() - HEADER) as u64;
    assert_eq!(refused(&|bytes| bytes.truncate(bytes.len() - 1)), Refused::Length { found: told - 1, told });
    assert_eq!(refused(&|bytes| *bytes.last_mut().unwrap() ^= 1), Refused::Checksum);
    let other = write(&(state(now), 7_u8), now).unwrap();
    assert!(matches!(read::<State>(&other, now), Err(Refused::Content(_))));
    assert!(matches!(read::<(State, u8)>(&snapshot, now), Err(Refused::Content(_))));
}

#[test]
fn a_time_has_no_meaning_outside_a_snapshot() {
    let now = clock();
    assert!(postcard::to_allocvec(&state(now)).is_err());
}

/// Memory of both processes: written by one, and then read by the other.
fn room(bytes: usize) -> Beside {
    Beside::new(Box::new(vec![0; bytes]), Box::new(vec![0; 1 << 16]))
}

#[test]
fn packets_are_found_beside_it_and_what_changed_since_as_it_is_now() {
    let now = clock();
    let mut packets: Vec<Packet> =
        (0..50_u8).map(|byte| vec![byte; 60 + usize::from(byte) * 40].into()).collect();
    let mut beside = room(4 * SEGMENT);
    let copied: usize = packets.iter_mut().map(|packet| packet.copy_ahead(&mut beside)).sum();
    assert!(copied > 40_000 && beside.used() >= copied && !beside.is_full());
    assert_eq!(packets.iter_mut().map(|packet| packet.copy_ahead(&mut beside)).sum::<usize>(), 0);
    packets[30].extend_from_slice(&[1; 100]);
    packets.remove(20);
    packets.push(vec![99; 5000].into());
    let used = beside.used();
    let (written, beside) = write_beside(&packets, now, beside);
    let Written::There(len) = written.unwrap() else { panic!("there is room") };
    let beside = beside.unwrap();
    // What changed, and what came.
    assert!(beside.used() - used < 5000 + 1400 + 100, "{}", beside.used() - used);
    let (mut memory, state) = beside.into_memory();
    let state = (*state.unwrap()).as_mut()[..len].to_vec();
    let memory = (*memory).as_mut();
    let segments: Segments =
        memory.chunks(SEGMENT).map(|part| Arc::new(Segment::new(Box::new(part.to_vec())))).collect();
    let read: Vec<Packet> = read_beside(&state, &segments, now).unwrap();
    assert!(read.iter().zip(&packets).all(|(read, packet)| **read == **packet));
    assert_eq!(read.len(), packets.len());
    // Without that memory, or with less of it, there are none.
    for segments in [&[][..], &[Arc::new(Segment::new(Box::new(vec![0; 1000])))]] {
        assert!(matches!(read_beside::<Vec<Packet>>(&state, segments, now), Err(Refused::Content(_))));
    }
    // Written with everything in it, both are alike.
    assert_eq!(write(&read, now).unwrap(), write(&packets, now).unwrap());
}

#[test]
fn what_was_copied_for_one_snapshot_is_nothing_for_another() {
    let mut packet = Packet::from(vec![7; 1000]);
    let [mut one, mut other] = [room(1 << 20), room(1 << 20)];
    assert_eq!((packet.copy_ahead(&mut one), packet.copy_ahead(&mut other)), (1000, 1000));
    assert_eq!(packet.copy_ahead(&mut one), 1000);
}

#[test]
fn a_packet_that_nothing_is_appended_to_stays_where_it_is() {
    let now = clock();
    let mut packets = vec![Packet::from(vec![7; 1000])];
    let mut beside = room(SEGMENT);
    assert_eq!(packets[0].copy_ahead(&mut beside), 1000);
    packets[0].extend_from_slice(&[]);
    assert_eq!(packets[0].copy_ahead(&mut beside), 0);
    let (written, beside) = write_beside(&packets, now, beside);
    let Written::There(len) = written.unwrap() else { panic!("there is room") };
    let (mut memory, state) = beside.unwrap().into_memory();
    let state = (*state.unwrap()).as_mut()[..len].to_vec();
    let segment = Segment::new(Box::new((*memory).as_mut().to_vec()));
    let mut read: Vec<Packet> = read_beside(&state, &[Arc::new(segment)], now).unwrap();
    read[0].extend_from_slice(&[]);
    assert_eq!((read[0].capacity(), &*read[0]), (None, &*packets[0]));
}

#[test]
fn what_finds_no_room_is_written_itself() {
    let now = clock();
    let mut packets: Vec<Packet> = (0..40).map(|byte| vec![byte; 3000].into()).collect();
    let mut beside = room(10_000);
    for packet in &mut packets {
        packet.copy_ahead(&mut beside);
    }
    assert!(beside.is_full());
    let (written, beside) = write_beside(&packets, now, beside);
    // More than there is room for.
    let Written::Apart(state) = written.unwrap() else { panic!("there is no room") };
    let memory = (*beside.unwrap().into_memory().0).as_mut().to_vec();
    let read: Vec<Packet> = read_beside(&state, &[Arc::new(Segment::new(Box::new(memory)))], now).unwrap();
    assert!(read.iter().zip(&packets).all(|(read, packet)| **read == **packet) && read.len() == 40);
}

#[test]
fn a_piece_lies_in_one_segment() {
    let mut beside = room(2 * SEGMENT);
    let len = SEGMENT / 3 + 1;
    for at in [0, (SEGMENT / 3 + 1).next_multiple_of(16), SEGMENT] {
        assert_eq!(beside.put(&vec![1; len]).unwrap().at as usize * 16, at);
    }
    assert!(beside.put(&vec![1; SEGMENT + 1]).is_none() && beside.is_full());
}
