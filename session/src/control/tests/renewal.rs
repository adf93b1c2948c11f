//! Certificates that change while control runs.

use quinn::crypto::rustls::QuicServerConfig;

use super::resume::patient;
use super::*;

fn renewed(folder: &str, site: &str) -> Identity {
    identity(&certificates().join(folder), site)
}

fn serial(identity: &Identity) -> Option<SerialNumber> {
    identity.certificate().and_then(SerialNumber::of)
}

fn patient_pair() -> [Site; 2] {
    let b = Site::start(patient("b", "a", ANYWHERE, ANYWHERE));
    [Site::start(patient("a", "b", ANYWHERE, b.address)), b]
}

/// The side that dials makes a session at once, which has the new certificates of both.
#[test]
fn a_new_identity_counts_from_the_next_session_on() {
    let [mut a, mut b] = patient_pair();
    let (mut here, _) = (a.up(), b.up());
    let before = here.peer.certificate.clone();
    b.renewal.adopt(&renewed("renewed", "b"), &[]).unwrap();
    use_up(&mut here, &mut a);
    assert_eq!((a.lost(), b.lost()), (DownReason::Spent, DownReason::Spent));
    let (here, there) = (a.up(), b.up());
    assert_ne!(here.peer.certificate, before);
    assert_eq!(there.peer.certificate, serial(&identity(certificates(), "a")));
    a.renewal.adopt(&renewed("renewed", "a"), &[]).unwrap();
    assert_eq!((a.lost(), b.lost()), (DownReason::Replaced, DownReason::Replaced));
    // The side that opened the new one gives the same reason as the other.
    assert!(!DownReason::Replaced.to_string().contains("peer"));
    let (here, there) = (a.up(), b.up());
    assert!(here.resumes && there.resumes, "flows go on under another identity");
    assert_eq!(here.peer.certificate, serial(&renewed("renewed", "b")));
    assert_eq!(there.peer.certificate, serial(&renewed("renewed", "a")));
    assert!(here.peer.valid_until.is_some_and(|until| until > UnixTime::now()));
}

/// The peer does not take the new certificate: that shows at once, and the session stays.
#[test]
fn a_certificate_that_the_peer_refuses_ends_no_session() {
    let [mut a, mut b] = patient_pair();
    let _sessions = (a.up(), b.up());
    let revoked: Vec<_> = serial(&renewed("renewed", "a")).into_iter().collect();
    b.renewal.adopt(&identity(certificates(), "b"), &revoked).unwrap();
    a.renewal.adopt(&renewed("renewed", "a"), &[]).unwrap();
    b.refused(Refusal::Revoked);
    a.refused(Refusal::ByPeer);
    a.no_session();
    b.no_session();
    // With one that it takes it goes on.
    a.renewal.adopt(&identity(certificates(), "a"), &[]).unwrap();
    assert_eq!((a.lost(), b.lost()), (DownReason::Replaced, DownReason::Replaced));
    assert!(a.up().resumes && b.up().resumes);
}

/// Flows that do not wait for a session would end: it is left alone.
#[test]
fn a_session_whose_flows_cannot_go_on_is_not_replaced() {
    let mut b = listener();
    let mut a = dialer(b.address);
    both_up(&mut a, &mut b);
    a.renewal.adopt(&renewed("renewed", "a"), &[]).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    a.no_session();
    b.no_session();
}

#[test]
fn what_cannot_be_shown_changes_nothing() {
    let [mut a, mut b] = patient_pair();
    let (mut here, _) = (a.up(), b.up());
    let refused = |folder| b.renewal.adopt(&renewed(folder, "b"), &[]).unwrap_err();
    let error = refused("expired");
    assert!(matches!(error, StartError::Identity(IdentityError::Expired { .. })), "{error}");
    let error = refused("early");
    assert!(matches!(error, StartError::Identity(IdentityError::NotYetValid { .. })), "{error}");
    let error = b.renewal.adopt(&renewed("renewed", "a"), &[]).unwrap_err();
    assert!(matches!(error, StartError::Identity(IdentityError::Own { .. })), "{error}");
    let before = here.peer.certificate.clone();
    use_up(&mut here, &mut a);
    assert_eq!((a.lost(), b.lost()), (DownReason::Spent, DownReason::Spent));
    assert_eq!(a.up().peer.certificate, before);
    b.up();
}

/// Either side may be the one that is revoked. Its session is lost at once, and the same process
/// goes on with its flows under another certificate.
#[test]
fn a_certificate_revoked_while_its_session_is_up_loses_it() {
    for (at, of) in [(0, "b"), (1, "a")] {
        let mut sites = patient_pair();
        sites.iter_mut().for_each(|site| drop(site.up()));
        let names = ["a", "b"];
        let revoked: Vec<_> = serial(&identity(certificates(), of)).into_iter().collect();
        sites[at].renewal.adopt(&identity(certificates(), names[at]), &revoked).unwrap();
        assert_eq!(sites[at].lost(), DownReason::Revoked);
        let why = sites[1 - at].lost().to_string();
        assert!(why.contains("revoked"), "{why}");
        sites[at].refused(Refusal::Revoked);
        sites[1 - at].renewal.adopt(&renewed("renewed", of), &[]).unwrap();
        for site in &mut sites {
            assert!(site.up().resumes);
        }
    }
}

/// Each side's message names the side whose certificate it is, and a clock that may be wrong.
#[test]
fn a_certificate_out_of_its_time_is_said_to_be_so_at_both_sides() {
    for (folder, words) in [("expired", "renew it at `b`"), ("early", "one of the two clocks is wrong")] {
        let mut b = listener();
        // By a clock that is wrong: b itself takes it for good.
        let tls = renewed(folder, "b").server_config("a", &[]).unwrap();
        let server = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()));
        b.renewal.endpoint.set_server_config(Some(server));
        let mut a = dialer(b.address);
        a.refused(Refusal::Authentication);
        let why = a.refusals.take_last().unwrap();
        assert!(why.contains("the certificate of `b`") && why.contains(words), "{why}");
        b.refused(Refusal::ByPeer);
        let why = b.refusals.take_last().unwrap();
        assert!(why.contains("this site's certificate") && why.contains("`timedatectl`"), "{why}");
        a.no_session();
        b.no_session();
    }
}
