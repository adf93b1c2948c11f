//! Flows in a host's own name that nobody answers, and what they cost its true ones.

use std::time::{Duration, Instant};

use roce::pairing::{Config, Event, Match, Pairings};

use crate::pairing::{asks, events, flow, hears, response, start};

fn opened(target_qpn: u32, now: Instant) -> Pairings {
    let mut pairings = Pairings::new(Config::default(), now);
    assert_eq!(pairings.open(flow(target_qpn), now), Ok(None));
    pairings
}

fn paired(target_qpn: u32) -> Match {
    Match::Paired(flow(target_qpn))
}

/// Somebody begins ever more flows in a host's name, to queue pairs of a target that are not there.
/// A connection of that host which is to ask who its partner is has a turn after 17 others, however
/// many wait.
#[test]
fn an_answered_flow_asks_beside_ever_more_that_nobody_answers() {
    let mut now = start();
    let mut pairings = opened(1, now);
    assert!(asks(&mut pairings, &flow(1), 0, now));
    assert_eq!(hears(&mut pairings, &response(0x70, 0), now), paired(1));
    let mut strange = 0x1000;
    let mut turns = 0;
    let mut asked_at = None;
    for millis in 0..4000 {
        now += Duration::from_millis(1);
        for _ in 0..2 {
            pairings.open(flow(strange), now).unwrap();
            turns += u32::from(asks(&mut pairings, &flow(strange), 7, now));
            strange += 1;
        }
        if millis == 2000 {
            pairings.ask_anew(&flow(1));
            turns = 0;
            asked_at = asks(&mut pairings, &flow(1), 9, now).then_some(0);
        }
        pairings.handle_timeout(now);
        for event in events(&mut pairings) {
            let Event::Turn(other) = event else { continue };
            let is_own = other == flow(1);
            if asks(&mut pairings, &other, if is_own { 9 } else { 7 }, now) {
                turns += 1;
                if is_own {
                    asked_at = asked_at.or(Some(turns));
                }
            }
        }
        if asked_at.is_some() {
            break;
        }
    }
    assert!(asked_at.is_some_and(|turns| turns <= 18), "{asked_at:?} of {turns}");
    assert_eq!(hears(&mut pairings, &response(0x70, 9), now), paired(1));
}

/// Somebody begins flows in a host's name, at PSNs like those of its new connection, to queue pairs
/// that are not there. A turn in vain is 6.25 ms at most where the target's host answers fast, so
/// 140 of these a second delay it by two turns at most. Of more than that all wait.
#[test]
fn a_connection_that_begins_waits_for_as_many_turns_as_others_began_before() {
    let begins_after = |every: Duration| {
        let mut now = start();
        let begin = now;
        let mut pairings = opened(1, now);
        // The target's host has answered, and what is assumed before is over.
        for minute in 0..3 {
            now = begin + Duration::from_secs(61 * minute);
            let qpn = minute as u32 + 1;
            pairings.open(flow(qpn), now).unwrap();
            pairings.handle_timeout(now);
            assert!(asks(&mut pairings, &flow(qpn), 0, now));
            assert_eq!(hears(&mut pairings, &response(0x70 + qpn, 0), now), paired(qpn));
            events(&mut pairings);
        }
        let (mut next, mut strange) = (now, 0x1000);
        let (from, end) = (now + Duration::from_secs(1), now + Duration::from_secs(3));
        let mut is_there = false;
        while now < end {
            now += Duration::from_micros(100);
            while next <= now {
                pairings.open(flow(strange), now).unwrap();
                asks(&mut pairings, &flow(strange), 7, now);
                strange += 1;
                next += every;
            }
            if now >= from && !is_there {
                is_there = true;
                pairings.open(flow(0x10), now).unwrap();
                if asks(&mut pairings, &flow(0x10), 0, now) {
                    return Some(now - from);
                }
            }
            pairings.handle_timeout(now);
            for event in events(&mut pairings) {
                let (Event::Turn(other) | Event::Repeat(other)) = event else { continue };
                let is_own = other == flow(0x10);
                if asks(&mut pairings, &other, if is_own { 0 } else { 7 }, now) && is_own {
                    return Some(now - from);
                }
            }
        }
        None
    };
    let millis = |millis| Some(Duration::from_millis(millis));
    let slow = begins_after(Duration::from_millis(7));
    assert!(slow <= millis(13) && slow.is_some(), "{slow:?}");
    // Beyond, it waits for all that began before it: half as many again as there were turns for.
    let fast = begins_after(Duration::from_millis(4));
    assert!(fast >= millis(250) && fast <= millis(700), "{fast:?}");
}
