//! The schemas of what commands print with `--json`, as a package brings them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use jsonschema::Validator;
use serde_json::Value;

/// Validators by command. Unlike the schemas, they refuse names that a schema does not have.
pub(crate) struct Schemas {
    validators: BTreeMap<String, Validator>,
    /// Commands whose results were validated.
    pub(crate) seen: BTreeSet<String>,
}

#[allow(dead_code, reason = "not every program of tests uses all of it")]
impl Schemas {
    /// Has the program write them.
    pub(crate) fn generate() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
        assert!(command.arg("generate").arg(folder.path()).output().unwrap().status.success());
        let files = fs::read_dir(folder.path().join("schema")).unwrap().map(|entry| entry.unwrap().path());
        let validators = files.map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            let mut schema: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
            refuse_others(&mut schema);
            let validator = jsonschema::validator_for(&schema);
            let validator = validator.unwrap_or_else(|error| panic!("{name}: {error}"));
            (name.strip_suffix(".schema.json").unwrap().to_owned(), validator)
        });
        Self { validators: validators.collect(), seen: BTreeSet::new() }
    }

    /// Commands that have one.
    pub(crate) fn commands(&self) -> BTreeSet<String> {
        self.validators.keys().cloned().collect()
    }

    /// Holds a result to the schema of its command, and returns it.
    pub(crate) fn hold(&mut self, command: &str, text: &str) -> Value {
        let value =
            serde_json::from_str(text).unwrap_or_else(|error| panic!("{command}: {error} in\n{text}"));
        let wrong = self.wrong(command, &value);
        assert!(wrong.is_empty(), "{command}: {wrong:#?}\n{text}");
        self.seen.insert(command.to_owned());
        value
    }

    /// Says where a result breaks the schema of its command.
    pub(crate) fn wrong(&self, command: &str, value: &Value) -> Vec<String> {
        let validator = self.validators.get(command).unwrap_or_else(|| panic!("{command} has no schema"));
        let errors = validator.iter_errors(value);
        errors.map(|error| format!("at `{}`: {error}", error.instance_path())).collect()
    }

    /// Holds each line of a result to the schema.
    pub(crate) fn hold_lines(&mut self, command: &str, text: &str) -> Vec<Value> {
        text.lines().map(|line| self.hold(command, line)).collect()
    }
}

/// Has every object with named members refuse others. Parts of a composed one know its members
/// together only.
fn refuse_others(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            let is_object = members.contains_key("properties");
            for (name, member) in members.iter_mut() {
                let is_part = is_object && ["allOf", "anyOf", "oneOf"].contains(&name.as_str());
                if !is_part {
                    refuse_others(member);
                }
            }
            if is_object && !members.contains_key("additionalProperties") {
                members.insert("unevaluatedProperties".to_owned(), Value::Bool(false));
            }
        }
        Value::Array(elements) => elements.iter_mut().for_each(refuse_others),
        _ => {}
    }
}
