//! Gateways are killed while hosts read from each other: READs, whose data come in many packets.
//!
//! Nothing is retained for a READ. Its requester asks again from what it has got, and the target's
//! NIC answers that as it did before.

use std::sync::atomic::Ordering;

use testbed::Site;
use testbed::hostio::{Endpoint, Limit, Mix};

use super::chaos::{run_in_name_spaces, start_on_interfaces};
use super::resume::kill_amid;
use super::{Pair, failed, is_empty, wait_until};

const SITES: [Site; 2] = [Site::A, Site::B];

/// Begins READs of many packets, without end.
fn reads(pair: &mut Pair, mix: Mix) -> (Endpoint, Endpoint) {
    pair.transfer_otherwise(Limit::Messages(u32::MAX.into()), |workload| {
        (workload.mix, workload.message) = (mix, 60_000);
    })
}

/// Either gateway is killed in turn, and then both at once. No program sees an error, and what was
/// read is right.
fn kill_under(pair: &mut Pair, (client, server): (Endpoint, Endpoint)) {
    for site in [Site::B, Site::A, Site::B, Site::A] {
        kill_amid(pair, &client, site, 10);
    }
    let done = || client.progress().messages.load(Ordering::Relaxed);
    let goes_on = || {
        let before = done();
        wait_until("nothing goes on", &|| done() > before + 30);
    };
    goes_on();
    SITES.into_iter().for_each(|site| pair.testbed.kill(site).unwrap());
    SITES.into_iter().for_each(|site| pair.testbed.restart(site).unwrap());
    pair.testbed.wait_for_session(&|| false).unwrap();
    goes_on();
    let (client, server) = (client.stop().unwrap(), server.stop().unwrap());
    println!("{client}\n{server}");
    assert!(client.corrupt == 0 && server.corrupt == 0, "{client}\n{server}");
    assert_eq!((failed(&client), failed(&server)), (0, 0), "{client}\n{server}");
    pair.complete_transfer(40);
}

#[test]
fn reads_outlive_gateways_that_are_killed() {
    // Without memory that outlives a process, which READs do not need.
    let mut pair = Pair::start_otherwise(2, |plan| {
        (plan.threads, plan.link) = ([2, 2], "delay 5ms loss 0.5%".parse().unwrap());
    });
    let transfer = reads(&mut pair, Mix::READ);
    kill_under(&mut pair, transfer);
    pair.wait_for("something is left", is_empty);
    pair.testbed.stop().unwrap();
}

/// The same on interfaces, where a killed gateway leaves its rules, and packets on their way.
#[test]
fn reads_outlive_gateways_that_are_killed_on_interfaces() {
    run_in_name_spaces("reads::inside", 0);
}

#[test]
#[ignore = "run by the other, in a name space"]
fn inside() {
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    // READs alone, and among long WRITEs and SENDs, parts of which are retained.
    for mix in [Mix::READ, Mix { read: 4, ..Mix::ALL }] {
        let (mut pair, _hosts) = start_on_interfaces(2, |plan| {
            plan.threads = [2, 2];
            plan.retention = Some(memory.path().to_owned());
        });
        let transfer = reads(&mut pair, mix);
        kill_under(&mut pair, transfer);
        for site in SITES {
            assert_eq!(pair.status(site).surroundings.survival.unrestored, 0, "{site:?}");
        }
        pair.testbed.stop().unwrap();
    }
}
