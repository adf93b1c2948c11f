//! No archive holds a key, wherever it may have come from.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;

use flate2::read::GzDecoder;

use super::*;

fn entries(archive: &[u8]) -> BTreeMap<String, String> {
    let mut archive = tar::Archive::new(GzDecoder::new(archive));
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().to_str().unwrap().to_owned();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (name, text)
    });
    entries.collect()
}

fn written(bundle: &Bundle) -> BTreeMap<String, String> {
    let mut archive = Vec::new();
    bundle.write(&mut archive).unwrap();
    entries(&archive)
}

#[tokio::test]
async fn an_archive_of_a_running_gateway_has_all_and_no_key() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let site = |name: &str, number: u8| crate::init::Site {
        name: name.to_owned(),
        address: [10, 9, 0, number].into(),
        hosts: format!("10.0.{number}.0/24").parse().unwrap(),
        interface: "lo".to_owned(),
    };
    let rate = config::Rate::from_bits_per_second(1_000_000_000);
    crate::init::init(folder.path(), &[site("a", 1), site("b", 2)], rate).unwrap();
    let key = fs::read_to_string(at("a.key")).unwrap();
    let token = "0123456789-the-token";
    fs::write(at("token"), token).unwrap();
    let mut text = fs::read_to_string(at("a.toml")).unwrap();
    // A careless operator's notes.
    text += &format!("token = \"token\"\n# {token}\n[policy]\nfile = \"policy.toml\"\n");
    text += &key.lines().map(|line| format!("# {line}\n")).collect::<String>();
    fs::write(at("a.toml"), text).unwrap();
    fs::write(at("policy.toml"), "[[class]]\nname = \"default\"\nscheme = \"sr\"\n").unwrap();

    let (admin, telemetry) = crate::admin::tests::admin(std::time::Instant::now());
    telemetry.events().push(crate::events::EventKind::Started, "version 1");
    // Nor if it came by the gateway itself.
    telemetry.events().push(crate::events::EventKind::Identity, key.lines().nth(1).unwrap());
    let endpoint = Endpoint::from(crate::admin::tests::listening(&admin).await);
    let bundle = Bundle::collect(Some(&at("a.toml")), &endpoint).await;
    let entries = written(&bundle);
    for (name, piece) in [
        ("version.txt", "longhaul 0"),
        ("gateway.json", "\"a.key\""),
        ("policy.json", "\"sr\""),
        ("check.txt", ""),
        ("status.json", "\"site\": \"a\""),
        ("metrics.txt", "longhaul_uptime_seconds"),
        ("flows.json", "total"),
        ("machine/kernel.txt", "Linux version"),
        ("machine/net.txt", "/sys/class/net/lo/mtu: 65536"),
        ("machine/commands.txt", "# ip rule"),
    ] {
        let text = entries.get(&format!("longhaul/{name}")).unwrap_or_else(|| panic!("no {name}"));
        assert!(text.contains(piece), "no {piece} in {name}:\n{text}");
    }
    assert_eq!(entries["longhaul/events.json"], LEFT_OUT);
    for (name, text) in &entries {
        let secrets = key.lines().filter(|line| !line.starts_with("-----")).chain([token, "PRIVATE KEY"]);
        for secret in secrets {
            assert!(!text.contains(secret), "{name} holds {secret}");
        }
    }
}

#[tokio::test]
async fn an_archive_is_made_without_a_gateway_and_without_its_file() {
    // A port that nobody else gets, and at which nobody listens.
    let silent = tokio::net::TcpSocket::new_v4().unwrap();
    silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let endpoint = Endpoint::from(silent.local_addr().unwrap());
    let bundle = Bundle::collect(Some(Path::new("nowhere.toml")), &endpoint).await;
    let entries = written(&bundle);
    assert_eq!(bundle.lacks_file(), Some("nowhere.toml: No such file or directory (os error 2)"));
    let empty: Vec<_> = bundle.names().filter_map(|(name, why)| why.map(|_| name)).collect();
    let asked = ["status.json", "metrics.txt", "flows.json", "doctor.json", "events.json"];
    assert_eq!(empty, [&["gateway.json"][..], &asked].concat());
    assert!(entries["longhaul/status.json"].contains("nothing answers"), "{entries:?}");
    assert!(entries["longhaul/gateway.json"].contains("nowhere.toml"), "{entries:?}");
    assert!(entries["longhaul/check.txt"].contains("nowhere.toml"), "{entries:?}");
}

#[test]
fn values_of_secret_keys_are_left_out_at_any_depth() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.toml");
    fs::write(&file, "a = 1\n[[x]]\nAPI_Token = \"t\"\n[x.y]\npassword = [\"p\"]\n").unwrap();
    let value: Value = serde_json::from_str(&without_secrets(&file).unwrap()).unwrap();
    let expected = serde_json::json!({"a": 1, "x": [{"API_Token": LEFT_OUT, "y": {"password": LEFT_OUT}}]});
    assert_eq!(value, expected);
    fs::write(&file, "password = hunter2hunter2").unwrap();
    assert!(!without_secrets(&file).unwrap_err().contains("hunter2"));
}
