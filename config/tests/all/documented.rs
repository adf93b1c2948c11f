//! `docs/reference.md` names every key there is, and the defaults it gives are the defaults.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test code, also where no function is a test"
)]

use std::collections::BTreeSet;
use std::path::Path;

use config::{Gateway, Policy, Quantity, Style};

const DOCUMENT: &str = include_str!("../../../docs/reference.md");
const GATEWAY: &str = include_str!("../../../docs/examples/gateway-a.toml");

/// Key and default of each row of a marked table.
pub(crate) fn rows(table: &str) -> Vec<(&'static str, &'static str)> {
    cells(table).into_iter().map(|(key, _, default)| (key, default)).collect()
}

/// Key, values and default of each row of a marked table.
pub(crate) fn cells(table: &str) -> Vec<(&'static str, &'static str, &'static str)> {
    let (_, rest) = DOCUMENT.split_once(&format!("<!-- {table}: checked")).unwrap();
    let (rows, _) = rest.split_once(&format!("<!-- end of {table} -->")).unwrap();
    rows.lines()
        .filter(|row| row.starts_with("| `"))
        .map(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            (cells[1].trim_matches('`'), cells[2], cells[3])
        })
        .filter(|(key, ..)| !key.contains("[["))
        .collect()
}

/// Returns the keys that the reader itself says it knows, in answer to a key that resembles none.
fn known(rendered: &str, key: &str) -> BTreeSet<String> {
    let (_, after) =
        rendered.split_once(&format!("`{key}`")).unwrap_or_else(|| panic!("no {key} in {rendered}"));
    let (_, list) = after.split_once("known here: ").unwrap();
    list.lines().next().unwrap().split(", ").map(str::to_owned).collect()
}

#[test]
fn every_gateway_key_is_there() {
    for packet in [true, false] {
        let mut text = String::new();
        let sections = [
            "site",
            "lan",
            "wan",
            "peer",
            "identity",
            "admin",
            "policy",
            "limits",
            "retention",
            "data_plane",
            "security",
        ];
        for section in sections {
            text += &format!("[{section}]\nzzzzzzzzzzzz = 1\n");
            if section == "lan" && !packet {
                text += "mode = \"socket\"\n";
            }
        }
        let rendered = Gateway::parse(Path::new("x"), &text).unwrap_err().render(Style::Plain);
        for section in sections {
            let documented: BTreeSet<String> = rows("gateway keys")
                .iter()
                .filter_map(|(key, _)| key.strip_prefix(section)?.strip_prefix('.').map(str::to_owned))
                .collect();
            assert_eq!(documented, known(&rendered, &format!("{section}.zzzzzzzzzzzz")), "{section}");
        }
    }
}

/// The table of units has those of the program, in their order.
#[test]
fn every_unit_is_there() {
    for quantity in Quantity::ALL {
        let head = format!("| {} | `", quantity.name);
        let row = DOCUMENT.lines().find(|line| line.starts_with(&head)).unwrap();
        let known: BTreeSet<&str> = quantity.units().collect();
        let documented: BTreeSet<&str> = row.split('`').skip(1).step_by(2).collect();
        // What else stands there is no unit of a file.
        let beside = BTreeSet::from(["1gbit", "b"]);
        assert_eq!(documented.difference(&beside).copied().collect::<BTreeSet<_>>(), known, "{quantity:?}");
    }
}

#[test]
fn every_policy_key_is_there() {
    let mut documented: BTreeSet<String> =
        rows("policy keys").iter().map(|(key, _)| key.split('.').next().unwrap().to_owned()).collect();
    // Known, and refused.
    documented.insert("beta".to_owned());
    for scheme in ["none", "sr", "xor", "mds", "hybrid", "auto"] {
        let text = format!(
            "[[class]]\nname = \"default\"\nscheme = \"{scheme}\"\nzzzzzzzzzzzz = 1\n[class.match]\nzzzzzzzzzzzz = 2\n"
        );
        let rendered = Policy::parse(Path::new("x"), &text).unwrap_err().render(Style::Plain);
        assert_eq!(known(&rendered, "class default.zzzzzzzzzzzz"), documented, "{scheme}");
        let conditions = rows("policy keys")
            .iter()
            .filter_map(|(key, _)| key.strip_prefix("match.").map(str::to_owned))
            .collect();
        assert_eq!(known(&rendered, "class default.match.zzzzzzzzzzzz"), conditions);
    }
}

#[test]
fn gateway_defaults_are_the_documented_ones() {
    let table: toml::Table = GATEWAY.parse().unwrap();
    let mut bare = table.clone();
    let mut explicit = table;
    let mut count = 0;
    for (key, default) in rows("gateway keys") {
        let (section, name) = key.split_once('.').unwrap();
        let Some(default) = default.strip_prefix('`').and_then(|default| default.strip_suffix('`')) else {
            continue;
        };
        let value: toml::Table = format!("{name} = {default}").parse().unwrap();
        let section_of = |table: &mut toml::Table| {
            let entry =
                table.entry(section.to_owned()).or_insert_with(|| toml::Value::Table(toml::Table::new()));
            entry.as_table_mut().unwrap().clone()
        };
        let mut with = section_of(&mut explicit);
        with.extend(value);
        explicit.insert(section.to_owned(), toml::Value::Table(with));
        let mut without = section_of(&mut bare);
        without.remove(name);
        bare.insert(section.to_owned(), toml::Value::Table(without));
        count += 1;
    }
    assert!(count >= 11, "{count}");
    let read = |table: &toml::Table| {
        Gateway::parse(Path::new("x"), &table.to_string()).unwrap_or_else(|invalid| panic!("{invalid}"))
    };
    assert_eq!(read(&bare), read(&explicit));
}

#[test]
fn policy_defaults_are_the_documented_ones() {
    // The default of `max_overhead` is another for `auto`.
    for (scheme, required) in
        [("sr", ""), ("mds", "k = 8\nm = 2\n"), ("hybrid", "k = 8\nm = 2\n"), ("auto", "max_overhead = 1\n")]
    {
        let bare = format!("[[class]]\nname = \"default\"\nscheme = \"{scheme}\"\n{required}");
        let mut explicit = bare.clone();
        for (key, default) in rows("policy keys") {
            let Some(default) = default.strip_prefix('`').and_then(|default| default.strip_suffix('`'))
            else {
                continue;
            };
            let coded = ["flush", "interleave"].contains(&key);
            let meaningless = (coded && ["sr", "auto"].contains(&scheme))
                || (key == "alpha" && scheme != "sr")
                || (key == "divide" && scheme != "auto")
                || required.contains(key);
            if meaningless {
                continue;
            }
            explicit += &format!("{key} = {default}\n");
        }
        assert!(explicit.lines().count() >= bare.lines().count() + 4, "{explicit}");
        let read =
            |text: &str| Policy::parse(Path::new("x"), text).unwrap_or_else(|invalid| panic!("{invalid}"));
        assert_eq!(read(&bare), read(&explicit));
    }
}
