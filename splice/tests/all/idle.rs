//! The cost of many queue pairs that have nothing to say: memory, and nothing else.

use std::time::Duration;

use crate::crowd::Crowd;
use splice::{SessionEnd, Settings};

const FLOWS: u32 = 100_000;
/// A flow at its requester's gateway and at its target's, 1 KiB each, with its share of tables that
/// grow by doubling.
const MOST_BYTES: i64 = 2048;

#[test]
fn idle_flows_take_a_bounded_amount_of_memory_each_and_are_all_there() {
    let mut crowd = Crowd::new(|settings| Settings { flows: FLOWS as usize * 9 / 8 + 8, ..settings });
    crowd.write(FLOWS, 0);
    let grown = allocation_counter::measure(|| {
        for qp in 1..FLOWS {
            crowd.write(qp, 0);
        }
        crowd.rest(Duration::from_secs(1));
    });
    assert_eq!(crowd.flows(), [u64::from(FLOWS); 2]);
    let each = grown.bytes_current / i64::from(FLOWS - 1);
    println!("{each} bytes");
    assert!(each <= MOST_BYTES, "{each} bytes");
    for qp in [1, FLOWS / 2, FLOWS] {
        crowd.write(qp, 1);
    }
    assert_eq!(crowd.flows(), [u64::from(FLOWS); 2]);
    // Nobody has anything to say for longer than a flow is remembered.
    crowd.rest(Settings::new(Vec::new(), 1, 1400).idle_flow * 3);
    assert_eq!(crowd.flows(), [0; 2]);
}

/// The flows are 100,000, the default of `limits.flows`. The peer may have restarted, and then it
/// knows none of them.
#[test]
fn all_flows_of_an_ended_session_are_told_of_and_each_once() {
    let mut crowd = Crowd::new(|settings| Settings { flows: FLOWS as usize * 9 / 8 + 8, ..settings });
    for qp in 1..=FLOWS {
        crowd.write(qp, 0);
    }
    let now = crowd.sites.now;
    for gateway in &mut crowd.sites.gateways {
        let grown = allocation_counter::measure(|| gateway.session_down(SessionEnd::Closed, now));
        assert_eq!(gateway.remembered().count(), FLOWS as usize);
        let stats = gateway.stats();
        assert_eq!((stats.remembered, stats.forgotten), (u64::from(FLOWS), 0));
        println!("{} bytes to remember a flow", grown.bytes_current / i64::from(FLOWS));
    }
}

#[test]
fn flows_that_were_forgotten_leave_nothing_behind() {
    const ROUND: u32 = 2000;
    let mut crowd = Crowd::new(|settings| settings);
    // Other queue pairs each time, as programs that come and go have.
    let mut round = |number: u32| {
        for qp in 1..=ROUND {
            crowd.write(number * ROUND + qp, number);
        }
        crowd.rest(Settings::new(Vec::new(), 1, 1400).idle_flow * 3);
        assert_eq!(crowd.flows(), [0; 2]);
    };
    // Tables, pools and what is known of the path have their size then.
    (0..4).for_each(&mut round);
    let grown = allocation_counter::measure(|| (4..24).for_each(&mut round)).bytes_current;
    println!("{grown} bytes");
    // Not a byte for each of 40,000 flows.
    assert!(grown < 20_000, "{grown} bytes");
}

#[test]
fn the_last_flow_takes_its_timers_along() {
    let idle_flow = Duration::from_secs(2);
    let mut crowd = Crowd::new(|settings| Settings { idle_flow, ..settings });
    crowd.write(1, 0);
    // A flow with a request under way was armed with when it would be given up, which is later than
    // it is forgotten at rest.
    crowd.rest(idle_flow * 3);
    assert_eq!(crowd.flows(), [0; 2]);
    assert_eq!(crowd.timers(), [0; 2]);
}
