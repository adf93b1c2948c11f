//! Answers to checks of routers and of VRRP.

use super::*;
use crate::lan::usable::Fault;

/// Asks over a socket, as `longhaul healthy` does.
async fn asked(admin: &Arc<Admin>, peer: Option<&str>) -> Health {
    let address = listening(admin).await;
    health(&Endpoint::new(Address::Tcp(address), None, None).unwrap().about(peer)).await.unwrap()
}

#[tokio::test]
async fn one_cause_is_named_the_gravest_first() {
    let start = Instant::now();
    let (admin, telemetry) = admin(start);
    telemetry.name_lan("eth1");
    let causes = [
        (Some(Unhealthy::NoSession), "session with b: connecting (timed out)"),
        (None, "session with b: up"),
        (Some(Unhealthy::Blocked), "session with b: blocked (down for "),
        (Some(Unhealthy::Lan), "hosts cannot use the LAN: down for "),
        (Some(Unhealthy::Stopping), "told to stop "),
    ];
    for (step, (cause, why)) in causes.into_iter().enumerate() {
        match step {
            0 => telemetry.session(SessionState::Connecting, Some("timed out".to_owned()), start),
            1 => telemetry.session(SessionState::Up, None, start),
            2 => drop(telemetry.judge_wan(Some("no route".to_owned()), start)),
            3 => {
                telemetry.set_lan_fault(Some(Fault::Down));
                telemetry.judge_lan(start);
            }
            _ => telemetry.leave(start),
        }
        let health = asked(&admin, None).await;
        assert_eq!((health.cause, health.is_healthy), (cause, cause.is_none()), "{health:?}");
        assert!(health.why.starts_with(why), "{health:?}");
        assert!(!health.why.contains('\n'), "{health:?}");
    }
    let shown = admin.status(start + Duration::from_secs(3)).to_string();
    assert!(shown.contains("\nstopping told so 3.0 s ago; not healthy\n"), "{shown}");
}

/// A gateway with another peer, changed like that; and the telemetry of both.
fn with_another(start: Instant, change: impl FnOnce(&mut config::Peer)) -> (Arc<Admin>, [Arc<Telemetry>; 2]) {
    let (first, telemetry) = admin(start);
    let (other, far) = admin(start);
    let mut other = Arc::into_inner(other).unwrap();
    change(&mut other.config.peer);
    let first = Arc::into_inner(first).unwrap();
    (Arc::new(first.with_others(vec![Arc::new(other)])), [telemetry, far])
}

/// One peer's outage leads no other peer's hosts away.
#[tokio::test]
async fn of_several_peers_one_is_enough_unless_one_is_named() {
    let start = Instant::now();
    let (admin, [telemetry, far]) = with_another(start, |peer| peer.name = "c".to_owned());
    let causes = async |peer| {
        let health = asked(&admin, peer).await;
        assert_eq!(health.is_healthy, health.cause.is_none());
        (health.cause, health.peers.len())
    };
    let none = Some(Unhealthy::NoSession);
    assert_eq!(causes(None).await, (none, 2));
    far.session(SessionState::Up, None, start);
    assert_eq!(causes(None).await, (None, 2));
    assert_eq!((causes(Some("b")).await, causes(Some("c")).await), ((none, 1), (None, 1)));
    assert_eq!(asked(&admin, None).await.why, "session with b: connecting; session with c: up");
    telemetry.leave(start);
    assert_eq!(causes(Some("b")).await, (Some(Unhealthy::Stopping), 1));
}

/// Who asks about a gateway of the same site hears of the session with it, and nobody else does.
#[tokio::test]
async fn another_gateway_of_the_site_is_healthy_by_its_own_session() {
    let start = Instant::now();
    let (admin, [telemetry, sibling]) = with_another(start, |peer| {
        (peer.name, peer.relation) = ("a2".to_owned(), Relation::Sibling);
    });
    telemetry.session(SessionState::Up, None, start);
    assert_eq!(asked(&admin, Some("a2")).await.why, "session with a2: connecting");
    sibling.session(SessionState::Up, None, start);
    assert_eq!(asked(&admin, Some("a2")).await.why, "session with a2: up");
    assert_eq!(asked(&admin, None).await.why, "session with b: up");
}

#[tokio::test]
async fn a_peer_that_there_is_not_is_an_error_with_those_there_are() {
    let (admin, _) = admin(Instant::now());
    let address = listening(&admin).await;
    let endpoint = Endpoint::new(Address::Tcp(address), None, None).unwrap().about(Some("berlin"));
    let error = health(&endpoint).await.unwrap_err().to_string();
    assert!(error.ends_with(": no peer berlin; there is b"), "{error}");
    let error = fetch(&endpoint, "/status").await.unwrap_err().to_string();
    assert!(error.ends_with(": no peer berlin; there is b"), "{error}");
}
