//! The JSON schemas for editors know the keys that the program knows, and take the examples.

#![expect(clippy::unwrap_used, reason = "test code, also where no function is a test")]

use std::collections::BTreeSet;

use config::Quantity;
use serde_json::Value;

use crate::documented::{cells, rows};

const GATEWAY: &str = include_str!("../../../packaging/schema/gateway.schema.json");
const POLICY: &str = include_str!("../../../packaging/schema/policy.schema.json");

fn schema(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Says where a value breaks a schema, and by which of its words.
fn wrong(schema: &Value, value: &Value) -> Vec<String> {
    let validator = jsonschema::validator_for(schema).unwrap();
    let errors = validator.iter_errors(value);
    errors.map(|error| format!("{} by {}", error.instance_path(), error.schema_path())).collect()
}

fn keys(value: &Value) -> BTreeSet<String> {
    value.as_object().unwrap().keys().cloned().collect()
}

/// The reference's keys are held to the program's elsewhere.
#[test]
fn keys_are_those_of_the_reference() {
    let gateway = &schema(GATEWAY)["properties"];
    let shown: BTreeSet<String> = keys(gateway)
        .iter()
        .flat_map(|section| {
            let names = keys(&gateway[section]["properties"]);
            names.into_iter().map(move |name| format!("{section}.{name}"))
        })
        .collect();
    assert_eq!(shown, rows("gateway keys").iter().map(|(key, _)| (*key).to_owned()).collect());
    let class = &schema(POLICY)["properties"]["class"]["items"]["properties"];
    let mut shown = keys(class);
    assert!(shown.remove("match"));
    shown.extend(keys(&class["match"]["properties"]).iter().map(|name| format!("match.{name}")));
    assert_eq!(shown, rows("policy keys").iter().map(|(key, _)| (*key).to_owned()).collect());
}

/// Calls `each` with every place of a schema that has a pattern, and the pattern.
fn patterns(schema: &mut Value, place: &str, each: &mut dyn FnMut(&str, &mut Value)) {
    match schema {
        Value::Object(members) => {
            for (name, member) in members {
                let inner = if ["properties", "items"].contains(&name.as_str()) {
                    place.to_owned()
                } else {
                    format!("{place}.{name}")
                };
                match name.as_str() {
                    "pattern" => each(place, member),
                    _ => patterns(member, &inner, each),
                }
            }
        }
        Value::Array(elements) => elements.iter_mut().for_each(|element| patterns(element, place, each)),
        _ => {}
    }
}

/// The quantity of a key, as the reference has it.
fn quantity(key: &str) -> Option<Quantity> {
    let all: Vec<_> = cells("gateway keys").into_iter().chain(cells("policy keys")).collect();
    let (_, values, _) = all.into_iter().find(|(name, ..)| *name == key)?;
    let word =
        values.split([' ', ',']).find(|word| Quantity::ALL.iter().any(|quantity| quantity.name == *word));
    let word = word.or_else(|| (values.contains("sizes") || key == "match.size").then_some("size"));
    Quantity::ALL.into_iter().find(|quantity| Some(quantity.name) == word)
}

/// Values with a unit are checked by the pattern of the program's own table of units.
/// `UPDATE_EXPECTED=1 cargo test -p config` writes the patterns anew.
#[test]
fn units_are_the_program_s() {
    let mut count = 0;
    for (file, text, prefix) in [("gateway", GATEWAY, "."), ("policy", POLICY, ".class.")] {
        let (mut value, mut anew) = (schema(text), text.to_owned());
        patterns(&mut value, "", &mut |place, pattern| {
            let key = place.strip_prefix(prefix).unwrap_or_else(|| panic!("{place}"));
            let key = key.split(".anyOf").next().unwrap();
            let key = key.strip_suffix(".at_least").or_else(|| key.strip_suffix(".at_most")).unwrap_or(key);
            let quantity = quantity(key).unwrap_or_else(|| panic!("{key} has no quantity in the reference"));
            let former = std::mem::replace(pattern, Value::String(quantity.pattern()));
            anew = anew.replace(&former.to_string(), &pattern.to_string());
            count += 1;
        });
        if std::env::var_os("UPDATE_EXPECTED").is_some() {
            std::fs::write(format!("../packaging/schema/{file}.schema.json"), anew).unwrap();
        } else {
            assert_eq!(value, schema(text), "{file}");
        }
    }
    assert!(count >= 15, "{count}");
}

#[test]
fn examples_are_taken_and_mistakes_are_not() {
    let json = |text: &str| toml::from_str::<Value>(text).unwrap();
    let mut count = 0;
    for entry in std::fs::read_dir("../docs/examples").unwrap() {
        let path = entry.unwrap().path();
        let file = if path.ends_with("policy.toml") { POLICY } else { GATEWAY };
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(wrong(&schema(file), &json(&text)), [""; 0], "{}", path.display());
        count += 1;
    }
    assert!(count >= 5, "{count} examples");
    let example = include_str!("../../../docs/examples/gateway-a.toml");
    let several = include_str!("../../../docs/examples/gateway-several.toml");
    for (file, text, place) in [
        (GATEWAY, example.replace("[wan]\n", "[wan]\nlanes = 65\n"), "/wan/lanes by "),
        (GATEWAY, example.replace("[lan]\n", "[lan]\nnotify = \"raw\"\n"), "/lan/notify by "),
        (GATEWAY, example.replace("[site]\n", "[site]\nnmae = 1\n"), "/site by "),
        (GATEWAY, several.replace("remote = [\"10.0.2.0/24\"]\n", ""), "/peer"),
        (POLICY, "[[class]]\nscheme = \"sr\"\n".to_owned(), "/class/0 by "),
    ] {
        let wrong = wrong(&schema(file), &json(&text));
        assert!(wrong.len() == 1 && wrong[0].starts_with(place), "{place}: {wrong:?} in {text}");
    }
}
