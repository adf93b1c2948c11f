//! Gateways that are told to stop.

use super::*;

/// The stopping gateway has the far halves, or the near halves, alone, of the flows of this
/// transfer. They are busy to the end.
fn a_stopped_gateway_is_heard_of(site: Site) {
    let mut pair = Pair::start_otherwise(1, |plan| plan.limits += "\ndrain = \"300 ms\"");
    let (client, server) = pair.transfer(Limit::Messages(1_000_000));
    wait_until("the transfer does not start", &|| client.progress().messages.load(Ordering::Relaxed) > 30);
    pair.testbed.stop_one(site).unwrap();
    both_end_with_errors(client, server);
    pair.testbed.stop().unwrap();
}

#[test]
fn programs_learn_of_a_requesters_gateway_stopped() {
    a_stopped_gateway_is_heard_of(Site::A);
}

#[test]
fn programs_learn_of_a_targets_gateway_stopped() {
    a_stopped_gateway_is_heard_of(Site::B);
}

/// Returns the exit status of `longhaul healthy`, and what it prints.
fn healthy(admin: SocketAddr) -> (Option<i32>, String) {
    let program = env!("CARGO_BIN_EXE_longhaul");
    let arguments = ["healthy", "--admin", &admin.to_string()];
    let output = std::process::Command::new(program).args(arguments).output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

/// Routes need some time to lead hosts elsewhere. Until then everything is carried, and the drain
/// has not begun.
#[test]
fn a_gateway_is_not_healthy_before_it_touches_a_flow() {
    let mut pair = Pair::start_otherwise(1, |plan| plan.limits += "\nwithdraw = \"6 s\"\ndrain = \"300 ms\"");
    let admin = pair.testbed.admin(Site::A);
    let (client, server) = pair.transfer(Limit::Messages(1_000_000));
    let messages = || client.progress().messages.load(Ordering::Relaxed);
    wait_until("the transfer does not start", &|| messages() > 30);
    assert_eq!(healthy(admin), (Some(0), "healthy: session with b: up\n".to_owned()));

    let pid = Pid::from_raw(pair.testbed.pid(Site::A).try_into().unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    wait_until("it is still healthy", &|| healthy(admin).0 == Some(6));
    let before = messages();
    wait_until("nothing is carried any more", &|| messages() > before + 30);
    let (code, said) = healthy(admin);
    let status = pair.status(Site::A);
    assert_eq!(code, Some(6), "{said}");
    assert!(said.starts_with("not healthy: told to stop "), "{said}");
    assert_eq!((status.session.state.as_str(), status.flows.failed), ("up", 0), "{status}");
    assert!(status.surroundings.stopping_for.is_some() && client.is_running(), "{status}");
    assert_eq!(healthy(pair.testbed.admin(Site::B)).0, Some(0), "the peer carries everything");

    both_end_with_errors(client, server);
    wait_until("the gateway does not end", &|| healthy(admin).0 == Some(1));
}

/// Checks hear what this gateway sees.
#[test]
fn a_gateway_whose_peer_is_gone_is_not_healthy_until_it_is_back() {
    let mut pair = Pair::start_otherwise(1, |plan| plan.dead_after = "500 ms".to_owned());
    let admin = pair.testbed.admin(Site::A);
    wait_until("it is not healthy", &|| healthy(admin).0 == Some(0));
    pair.testbed.kill(Site::B).unwrap();
    wait_until("it is still healthy", &|| healthy(admin).0 == Some(3));
    let (_, said) = healthy(admin);
    assert!(said.starts_with("not healthy: session with b: "), "{said}");
    pair.testbed.restart(Site::B).unwrap();
    pair.testbed.wait_for_session(&|| false).unwrap();
    wait_until("it is not healthy again", &|| healthy(admin).0 == Some(0));
    pair.complete_transfer(20);
    pair.testbed.stop().unwrap();
}
