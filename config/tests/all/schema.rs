//! The JSON schemas for editors know the keys that the program knows, and take the examples.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test code, also where no function is a test")]

use std::collections::BTreeSet;

use config::Quantity;
use serde_json::Value;

use crate::documented::{cells, rows};

const GATEWAY: &str = include_str!("../../../packaging/schema/gateway.schema.json");
const POLICY: &str = include_str!("../../../packaging/schema/policy.schema.json");

fn schema(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Says where a value breaks a schema. It knows the words that our schemas use, and no others.
fn wrong(schema: &Value, value: &Value, place: &str) -> Option<String> {
    for (word, rule) in schema.as_object().unwrap() {
        let is_about = match word.as_str() {
            "required" | "properties" | "additionalProperties" | "minProperties" => value.is_object(),
            "items" | "minItems" | "maxItems" => value.is_array(),
            _ => true,
        };
        let broken = match word.as_str() {
            _ if !is_about => None,
            "title" | "description" | "default" | "$schema" => None,
            "type" => (!is_of(rule.as_str().unwrap(), value)).then(|| place.to_owned()),
            "enum" => (!rule.as_array().unwrap().contains(value)).then(|| place.to_owned()),
            "anyOf" => {
                let mut choices = rule.as_array().unwrap().iter();
                choices.all(|choice| wrong(choice, value, place).is_some()).then(|| place.to_owned())
            }
            "minimum" => (value.as_f64() < rule.as_f64()).then(|| place.to_owned()),
            "maximum" => (value.as_f64() > rule.as_f64()).then(|| place.to_owned()),
            "minLength" => (value.as_str() == Some("")).then(|| place.to_owned()),
            "minItems" => (value.as_array().unwrap().is_empty()).then(|| place.to_owned()),
            "maxItems" => {
                (value.as_array().unwrap().len() as u64 > rule.as_u64().unwrap()).then(|| place.to_owned())
            }
            "minProperties" => value.as_object().unwrap().is_empty().then(|| place.to_owned()),
            "pattern" => {
                let is_its = |quantity: &Quantity| Some(quantity.pattern().as_str()) == rule.as_str();
                let quantity = Quantity::ALL.into_iter().find(is_its).unwrap();
                (!quantity.takes(value.as_str().unwrap())).then(|| place.to_owned())
            }
            "items" => value.as_array().unwrap().iter().find_map(|item| wrong(rule, item, place)),
            "required" => {
                let names = rule.as_array().unwrap().iter().map(|name| name.as_str().unwrap());
                names.into_iter().find(|name| value.get(name).is_none()).map(|name| format!("{place}.{name}"))
            }
            "properties" => value.as_object().unwrap().iter().find_map(|(name, member)| {
                rule.get(name).and_then(|rule| wrong(rule, member, &format!("{place}.{name}")))
            }),
            "additionalProperties" => value.as_object().unwrap().iter().find_map(|(name, member)| {
                let place = format!("{place}.{name}");
                match rule {
                    Value::Bool(false) => schema["properties"].get(name).is_none().then_some(place),
                    rule => wrong(rule, member, &place),
                }
            }),
            other => panic!("{place}: the schema says {other}"),
        };
        if broken.is_some() {
            return broken;
        }
    }
    None
}

fn is_of(kind: &str, value: &Value) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        other => panic!("type {other}"),
    }
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
    let example = include_str!("../../../docs/examples/gateway-a.toml");
    for (file, text) in [
        (GATEWAY, example),
        (GATEWAY, include_str!("../../../docs/examples/gateway-b.toml")),
        (POLICY, include_str!("../../../docs/examples/policy.toml")),
    ] {
        assert_eq!(wrong(&schema(file), &json(text), ""), None, "{text}");
    }
    for (key, place) in [
        ("wan.lanes = 65", ".wan.lanes"),
        ("lan.notify = \"raw\"", ".lan.notify"),
        ("site.nmae = 1", ".site.nmae"),
    ] {
        let (section, rest) = key.split_once('.').unwrap();
        let text = example.replace(&format!("[{section}]\n"), &format!("[{section}]\n{rest}\n"));
        assert_eq!(wrong(&schema(GATEWAY), &json(&text), "").as_deref(), Some(place), "{key}");
    }
    let several = include_str!("../../../docs/examples/gateway-several.toml");
    assert_eq!(wrong(&schema(GATEWAY), &json(several), ""), None);
    let nowhere = several.replace("remote = [\"10.0.2.0/24\"]\n", "");
    assert!(wrong(&schema(GATEWAY), &json(&nowhere), "").is_some_and(|place| place.ends_with(".remote")));
    let nameless = json("[[class]]\nscheme = \"sr\"\n");
    assert_eq!(wrong(&schema(POLICY), &nameless, "").as_deref(), Some(".class.name"));
}
