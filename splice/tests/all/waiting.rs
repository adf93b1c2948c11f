//! Reasons that keep requesters waiting must not keep the gateway from its work.

use std::time::Duration;

use crate::crowd::Crowd;
use splice::Settings;

const FEW: u32 = 100;
const MANY: u32 = 2000;
const TIME: Duration = Duration::from_secs(1);

#[test]
fn few_that_wait_hear_of_it_every_twenty_milliseconds() {
    let told = told_while_waiting(FEW);
    let each = told / u64::from(FEW);
    assert!((45..=50).contains(&each), "{told} ACKs that say nothing, for {FEW} requesters");
}

/// Each at its own time, every 20 ms, they were as many as the packets of a fast link.
#[test]
fn many_that_wait_hear_of_it_more_rarely() {
    let told = told_while_waiting(MANY);
    assert!(told >= u64::from(MANY), "{told}: nobody is left without a word");
    assert!(told <= 15_000, "{told} ACKs that say nothing, for {MANY} requesters");
}

/// ACKs told again to so many requesters that have a message outstanding, of which their targets
/// say nothing.
fn told_while_waiting(flows: u32) -> u64 {
    let mut crowd = Crowd::new(|settings| Settings { flows: MANY as usize * 9 / 8 + 8, ..settings });
    for qp in 1..=flows {
        crowd.write(qp, 0);
    }
    for qp in 1..=flows {
        crowd.post(qp, 1);
    }
    let before = crowd.sites.gateways[0].stats().near.repeated_acks;
    crowd.rest(TIME);
    crowd.sites.gateways[0].stats().near.repeated_acks - before
}

/// A requester that READs is kept waiting by its last ACK. Where another connection of its host
/// begins at these PSNs, that may be the same queue pair in its next incarnation: it would take the
/// ACK for its own, and never send again what its target has not.
#[test]
fn no_ack_is_repeated_to_what_may_be_another_incarnation() {
    let told = |first_psn: Option<u32>| {
        let mut crowd = Crowd::new(|settings| settings);
        crowd.post(1, 0);
        crowd.read(1, 1);
        crowd.complete(1, 0);
        if let Some(psn) = first_psn {
            crowd.post(2, psn);
        }
        let before = crowd.sites.gateways[0].stats().near.repeated_acks;
        crowd.rest(TIME / 4);
        crowd.sites.gateways[0].stats().near.repeated_acks - before
    };
    assert!(told(None) >= 8, "{}", told(None));
    assert!(told(Some(0x40_0000)) >= 8, "it begins elsewhere: {}", told(Some(0x40_0000)));
    assert_eq!(told(Some(0)), 0);
}
