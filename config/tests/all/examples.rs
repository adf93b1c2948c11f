//! The example files parse to what they say.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use config::{Allowed, Content, Gateway, LanMode, Policy, Relation, Scheme, Traffic, check};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples").join(name)
}

#[test]
fn gateways() {
    let a = Gateway::load(&example("gateway-a.toml")).unwrap();
    let b = Gateway::load(&example("gateway-b.toml")).unwrap();
    assert_eq!(a.site.name, b.peer.name);
    assert_eq!(b.site.name, a.peer.name);
    assert_eq!(a.wan.listen, b.peer.address);
    assert_eq!(b.wan.bulk_listen(), a.peer.bulk_address());
    assert_eq!(a.lan.mode, LanMode::Packet { interface: "g0".to_owned() });
    assert_eq!(a.lan.remote, ["10.0.1.0/24".parse().unwrap()]);
    assert_eq!(a.peer.rate.bits_per_second(), 1_000_000_000);
    assert_eq!(a.peer.dead_after.get(), Duration::from_secs(5));
    assert_eq!((a.wan.mtu, a.wan.probe_mtu), (Some(9000), true));
    assert!(a.wan.gso);
    assert_eq!(a.wan.ciphers, config::Cipher::ALL.map(|(_, cipher)| cipher));
    assert_eq!(a.wan.probes, 4);
    assert_eq!(a.identity.key, example("a.key"));
    assert_eq!(a.limits, config::Limits::default());
    assert_eq!(a.load_policy().unwrap(), Policy::load(&example("policy.toml")).unwrap());
}

#[test]
fn each_of_several_peers_has_its_prefixes_policy_and_share() {
    let path = example("gateway-several.toml");
    let gateway = Gateway::load(&path).unwrap();
    assert_eq!(gateway.lan.remote, ["10.0.1.0/24", "10.0.2.0/24"].map(|text| text.parse().unwrap()));
    let views = gateway.views();
    let [b, c] = views.as_slice() else { panic!("{} views", views.len()) };
    assert_eq!([&b.peer.name, &c.peer.name], ["b", "c"]);
    assert_eq!([&b.lan.remote, &c.lan.remote], [&gateway.lan.remote[..1], &gateway.lan.remote[1..]]);
    // 10 and 2 Gbit/s.
    let whole = gateway.limits.total_buffer.bytes();
    assert_eq!([b, c].map(|view| view.limits.total_buffer.bytes()), [whole * 10 / 12, whole * 2 / 12]);
    assert_eq!([b, c].map(|view| view.limits.flows), [gateway.limits.flows / 2; 2]);
    assert!(views.iter().all(|view| view.others.is_empty() && view.policy == gateway.policy));
    assert!(check(&path).is_valid());
    let text = std::fs::read_to_string(&path).unwrap();
    let own = Gateway::parse(&path, &text.replace("# policy = ", "policy = ")).unwrap();
    let files: Vec<_> = own.views().into_iter().map(|view| view.policy.file).collect();
    assert_eq!(files, [None, Some(example("policy-c.toml"))]);
    // As with one peer, a gateway is its only view.
    let one = Gateway::load(&example("gateway-a.toml")).unwrap();
    assert_eq!(one.views(), std::slice::from_ref(&one));
}

#[test]
fn gateways_of_one_site_are_peers_of_each_other_without_prefixes() {
    let path = example("gateway-members.toml");
    let gateway = Gateway::load(&path).unwrap();
    assert!(check(&path).is_valid());
    assert_eq!(gateway.lan.remote, ["10.0.1.0/24".parse().unwrap()]);
    let relations: Vec<_> = gateway.peers().map(|peer| (peer.name.as_str(), peer.relation.clone())).collect();
    let of_b = || Relation::MemberOf("b".to_owned());
    assert_eq!(relations, [("b1", of_b()), ("b2", of_b()), ("a2", Relation::Sibling)]);
    let views = gateway.views();
    assert!(views.iter().all(Gateway::is_member));
    assert_eq!([0, 1, 2].map(|nth| views[nth].lan.remote.len()), [1, 1, 0]);
    // As fast as both peers together, and an eighth of that in the shares of memory.
    assert_eq!(views[2].peer.rate.bits_per_second(), 10_000_000_000);
    let whole = gateway.limits.total_buffer.bytes();
    assert_eq!(views[2].limits.total_buffer.bytes(), whole / 9);
    // A file without any of it is none of a member's.
    assert!(!Gateway::load(&example("gateway-several.toml")).unwrap().is_member());
    assert!(!Gateway::load(&example("gateway-a.toml")).unwrap().is_member());
}

#[test]
fn with_several_gateways_no_class_completes_locally() {
    let folder = tempfile::tempdir().unwrap();
    let policy = "[[class]]\nname = \"default\"\nscheme = \"sr\"\ncompletion = \"local\"\n";
    std::fs::write(folder.path().join("policy.toml"), policy).unwrap();
    let text = std::fs::read_to_string(example("gateway-members.toml")).unwrap();
    let path = folder.path().join("gateway.toml");
    std::fs::write(&path, format!("{text}\n[policy]\nfile = \"policy.toml\"\n")).unwrap();
    let report = check(&path);
    let told =
        report.problems().iter().any(|problem| problem.message().contains("several gateways at a site"));
    assert!(!report.is_valid() && told, "{:?}", report.problems());
}

#[test]
fn files_of_members_are_checked_beside_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(example("gateway-members.toml")).unwrap();
    let put = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let told = |first: &str, second: &str| {
        let first = check(&put("first.toml", first));
        let mut second = check(&put("second.toml", second));
        config::check_pair(&first, &mut second);
        second.problems().iter().map(|problem| problem.message().to_owned()).collect::<Vec<_>>().join("; ")
    };
    let sibling = text
        .replace("[site]\nname = \"a1\"", "[site]\nname = \"a2\"")
        .replace("listen = \"10.9.0.1:", "listen = \"10.9.0.2:");
    assert_eq!(told(&text, &sibling), "");
    let other = sibling.replace(
        "{ name = \"a1\", address = \"10.9.0.1:14791\" }",
        "{ name = \"a1\", address = \"10.9.0.1:14791\" }, { name = \"a3\", address = \"10.9.0.3:14791\" }",
    );
    assert!(told(&text, &other).contains("`site.gateways` differs"), "{}", told(&text, &other));
    // The peer's file takes this site's gateway for its only one.
    let peer = "[site]\nname = \"b1\"\n[lan]\ninterface = \"eth1\"\nremote = [\"10.0.0.0/24\"]\n\
                [wan]\nlisten = \"10.9.1.1:14791\"\n[peer]\nname = \"a1\"\naddress = \"10.9.0.1:14791\"\n\
                rate = \"5 Gbit/s\"\n[identity]\ncertificate = \"b.crt\"\nkey = \"b.key\"\nauthority = \"ca.crt\"\n";
    assert!(told(&text, peer).contains("`peer.site` does not fit `site.gateways`"), "{}", told(&text, peer));
}

#[test]
fn groups_are_none_unless_listed() {
    let example = std::fs::read_to_string(example("gateway-a.toml")).unwrap();
    let groups = |key: &str| {
        let text = example.replace("[lan]\n", &format!("[lan]\n{key}\n"));
        Gateway::parse(Path::new("a.toml"), &text).unwrap_or_else(|invalid| panic!("{invalid}")).lan.multicast
    };
    assert!(groups("").is_empty());
    let listed = ["239.1.1.1", "224.0.1.0", "ff05::1:3", "ff3e:20:fd00::7"];
    assert_eq!(
        groups(&format!("multicast = {listed:?}")),
        listed.map(|group| group.parse::<IpAddr>().unwrap())
    );
    // As the comment in the example itself says.
    let text = example.replace("# multicast = ", "multicast = ");
    assert_ne!(text, example);
    let parsed = Gateway::parse(Path::new("a.toml"), &text).unwrap();
    assert_eq!(parsed.lan.multicast, ["239.1.1.1".parse::<IpAddr>().unwrap()]);
    // As many as there may be.
    let many: Vec<String> = (0..64).map(|number| format!("239.1.1.{number}")).collect();
    assert_eq!(groups(&format!("multicast = {many:?}")).len(), 64);
}

/// `[plane]` is what `[data_plane]` was called before. Both at once contradict each other.
#[test]
fn the_data_planes_former_name_goes_on_working() {
    let example = std::fs::read_to_string(example("gateway-a.toml")).unwrap();
    let threads = |sections: &str| {
        let parsed = Gateway::parse(Path::new("a.toml"), &format!("{example}\n{sections}"));
        parsed.map(|gateway| gateway.data_plane.threads).map_err(|invalid| invalid.to_string())
    };
    assert_eq!(threads("[data_plane]\nthreads = 3"), Ok(3));
    assert_eq!(threads("[plane]\nthreads = 3"), Ok(3));
    let both = threads("[data_plane]\nthreads = 3\n[plane]\nthreads = 2").unwrap_err();
    assert!(both.contains("`plane` is a former name of [data_plane], which is here too"), "{both}");
}

#[test]
fn congestion_is_fixed_unless_configured() {
    let example = std::fs::read_to_string(example("gateway-a.toml")).unwrap();
    let congestion = |key: &str| {
        let text = example.replace("[peer]\n", &format!("[peer]\n{key}\n"));
        Gateway::parse(Path::new("a.toml"), &text)
            .unwrap_or_else(|invalid| panic!("{invalid}"))
            .peer
            .congestion
    };
    assert_eq!(congestion(""), config::Congestion::Fixed);
    for (name, kind) in config::Congestion::ALL {
        assert_eq!(congestion(&format!("congestion = \"{name}\"")), kind);
    }
}

/// Whoever takes the last number out has an empty list.
#[test]
fn nothing_is_revoked_unless_listed() {
    let example = std::fs::read_to_string(example("gateway-a.toml")).unwrap();
    let revoked = |key: &str| {
        let text = example.replace("[peer]\n", &format!("[peer]\n{key}\n"));
        let gateway = Gateway::parse(Path::new("a.toml"), &text);
        gateway.unwrap_or_else(|invalid| panic!("{invalid}")).peer.revoked
    };
    assert_eq!(revoked(""), revoked("revoked = []"));
    assert_eq!(revoked("revoked = [\"serial=5F3A\"]"), revoked("revoked = [\"5f3a\"]"));
}

#[test]
fn a_reload_is_taken_from_loopback_unless_configured() {
    let example = std::fs::read_to_string(example("gateway-a.toml")).unwrap();
    let admin = |key: &str| {
        let text = example.replace("[admin]\n", &format!("[admin]\n{key}\n"));
        Gateway::parse(Path::new("a.toml"), &text)
            .unwrap_or_else(|invalid| panic!("{invalid}"))
            .admin
            .unwrap()
    };
    let clients =
        ["127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1", "10.1.2.3", "::ffff:10.1.2.3", "fd00::1"];
    let may = |key: &str| clients.map(|client| admin(key).may_reload(client.parse().unwrap()));
    assert_eq!(may(""), [true, true, true, true, false, false, false]);
    assert_eq!(may("reload_from = [\"10.0.0.0/8\"]"), [false, false, false, false, true, true, false]);
}

#[test]
fn policy_classifies_by_the_first_match() {
    let policy = Policy::load(&example("policy.toml")).unwrap();
    let class = |dst: &str, dscp| {
        let traffic = Traffic { src: "10.0.0.1".parse().unwrap(), dst: dst.parse().unwrap(), dscp, qp: 17 };
        policy.classes()[policy.classify(&traffic, Some(0))].name.as_str()
    };
    assert_eq!(class("10.0.1.1", 0), "default");
    assert_eq!(class("10.0.1.1", 46), "control");
    assert_eq!(class("10.0.1.129", 0), "storage");
    assert_eq!(class("10.0.1.129", 48), "control");
    let block = policy.classes()[2].scheme.block().unwrap();
    assert_eq!((block.k, block.m, block.interleave), (32, 8, 1));
    assert_eq!(policy.classes()[2].scheme, Scheme::Mds(*block));
    assert_eq!(policy.classes()[0].scheme.block().unwrap().flush.get(), Duration::from_micros(200));
}

#[test]
fn hybrid_takes_the_keys_of_a_code() {
    let text = "[[class]]\nname = \"default\"\nscheme = \"hybrid\"\nk = 20\nm = 5\ninterleave = 4\nmax_overhead = 0.25\n";
    let policy = Policy::parse(Path::new("x"), text).unwrap();
    let scheme = policy.classes()[0].scheme;
    let Scheme::Hybrid(block) = scheme else { panic!("{scheme:?}") };
    assert_eq!((block.k, block.m, block.interleave, block.flush.get()), (20, 5, 4, Duration::from_millis(5)));
    assert_eq!((scheme.name(), scheme.block()), ("hybrid", Some(&block)));
    let refused = Policy::parse(Path::new("x"), &text.replace("m = 5", "m = 6")).unwrap_err();
    assert!(refused.to_string().contains("the overhead is more than max_overhead"), "{refused}");
}

#[test]
fn auto_states_what_it_may_choose() {
    let read = |rest: &str| {
        let text = format!("[[class]]\nname = \"default\"\nscheme = \"auto\"\n{rest}");
        let policy = Policy::parse(Path::new("x"), &text).unwrap_or_else(|invalid| panic!("{invalid}"));
        policy.written().next().unwrap().clone()
    };
    let bare = read("");
    assert_eq!((bare.scheme, bare.percentile, bare.max_overhead), (Scheme::Auto(Allowed::ALL), 99.9, 0.5));
    assert_eq!((bare.scheme.name(), bare.scheme.block()), ("auto", None));
    let class = read("allowed = [\"mds\", \"sr\"]\npercentile = 99\nmax_overhead = 0.0\n");
    let Scheme::Auto(allowed) = class.scheme else { panic!("{class:?}") };
    assert_eq!(allowed.names().collect::<Vec<_>>(), ["sr", "mds"]);
    assert_eq!((class.percentile, class.max_overhead), (99.0, 0.0));
}

#[test]
fn all_pass_the_check() {
    for name in ["gateway-a.toml", "gateway-b.toml", "policy.toml"] {
        let report = check(&example(name));
        assert!(report.problems().is_empty(), "{}", config::render(report.problems(), config::Style::Plain));
        assert_eq!(matches!(report.content(), Some(Content::Policy(_))), name == "policy.toml");
    }
}

#[test]
fn no_policy_file_is_one_selective_repeat_class() {
    let policy = Policy::default();
    let (src, dst) = ("10.0.0.1".parse().unwrap(), "10.0.1.1".parse().unwrap());
    assert_eq!(policy.classify(&Traffic { src, dst, dscp: 0, qp: 17 }, None), 0);
    assert_eq!(policy.classes().len(), 1);
    assert_eq!(policy.classes()[0].scheme, Scheme::Sr { alpha: 1.0 });
}

#[test]
fn socket_mode() {
    let text = r#"
        [site]
        name = "a"
        [lan]
        mode = "socket"
        listen = "127.0.0.1:4791"
        remote = ["10.0.1.0/24", "fd00:1::/64"]
        mtu = 4200
        [lan.hosts]
        "10.0.0.1" = "127.0.0.1:5001"
        [wan]
        listen = "127.0.0.1:4800"
        gso = false
        ciphers = ["chacha20-poly1305", "aes-128-gcm"]
        probes = 0
        [peer]
        name = "b"
        address = "127.0.0.1:4810"
        rate = "100mbit"
        dead_after = "500 ms"
        [identity]
        certificate = "/keys/a.crt"
        key = "a.key"
        authority = "../ca.crt"
        [limits]
        flow_buffer = "1 MiB"
        total_buffer = "8 MiB"
        flows = 10
        idle_flow = "2 s"
        withdraw = "3 s"
        drain = "0 s"
        rnr = "1 s"
        target_dead = "250 ms"
    "#;
    let gateway = Gateway::parse(Path::new("etc/a.toml"), text).unwrap_or_else(|invalid| panic!("{invalid}"));
    let LanMode::Socket { listen, hosts } = &gateway.lan.mode else { panic!("not socket mode") };
    assert_eq!(listen.port(), 4791);
    assert_eq!(hosts[&"10.0.0.1".parse().unwrap()], "127.0.0.1:5001".parse().unwrap());
    assert_eq!(gateway.lan.mtu, Some(4200));
    assert!(!gateway.wan.gso);
    assert_eq!(gateway.wan.ciphers, [config::Cipher::ChaCha20Poly1305, config::Cipher::Aes128Gcm]);
    assert_eq!(gateway.wan.probes, 0);
    assert_eq!((gateway.wan.mtu, gateway.wan.probe_mtu), (None, true));
    assert_eq!((gateway.wan.longest_packet(), gateway.wan.usual_packet()), (9000, 1500));
    assert_eq!(gateway.admin, None);
    assert_eq!(gateway.identity.certificate, Path::new("/keys/a.crt"));
    assert_eq!(gateway.identity.key, Path::new("etc/a.key"));
    assert_eq!(gateway.limits.flow_buffer.map(|size| size.bytes()), Some(1 << 20));
    assert_eq!(gateway.limits.withdraw.get(), Duration::from_secs(3));
    assert_eq!(gateway.limits.drain.get(), Duration::ZERO);
    assert_eq!(gateway.load_policy().unwrap(), Policy::default());
}
