//! No file has more than 700 lines, no struct more than 20 fields or more than 4 flags, and no
//! function more than 60 lines.
//!
//! Files are those of the whole tree. Of structs and functions, those of tests are left out.
//! Whoever exceeds a bound for a good reason enters it below.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Block, Fields, ImplItemFn, Item, ItemFn, ItemStruct, Signature, TraitItemFn, Type};

const MOST_FILE_LINES: usize = 700;
const MOST_FIELDS: usize = 20;
const MOST_FLAGS: usize = 4;
const MOST_LINES: usize = 60;

/// Structs beyond a bound: file, name, and why.
const STRUCTS: [(&str, &str, &str); 7] = [
    ("gateway/src/simulate/row.rs", "Row", "a line of a table, one column a field"),
    ("netem-tests/src/sim/world.rs", "Report", "a reading of counters, one a field"),
    ("reliability/src/estimator/report.rs", "PathReport", "a record on the wire"),
    ("roce/src/wire/bth.rs", "Bth", "a header on the wire; its flags are five of its bits"),
    ("session/src/message.rs", "Ciphers", "an offer on the wire; its flags are five of its bits"),
    ("splice/src/settings.rs", "Settings", "what an operator sets, one key a field"),
    ("splice/src/stats.rs", "Stats", "a reading of counters, one a field"),
];

/// Folders below the workspace that hold no sources of ours.
const BESIDE: [&str; 3] = [".git", "target", "work"];

/// Folders of a crate whose files are not tests, though they are no part of a library.
const SOURCES: [&str; 2] = ["/src/", "/benches/"];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every Rust source of the tree, tests included: path below the workspace, and text.
fn sources() -> Vec<(String, String)> {
    let (mut folders, mut found) = (vec![workspace()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if !BESIDE.contains(&path.file_name().unwrap().to_str().unwrap()) {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let name = path.strip_prefix(workspace()).unwrap().to_str().unwrap().to_owned();
                found.push((name, text));
            }
        }
    }
    found
}

#[test]
fn files_are_short() {
    let sources = sources();
    assert!(sources.len() > 500, "{} files were looked at", sources.len());
    let long: Vec<_> = sources
        .iter()
        .map(|(name, text)| (name, text.lines().count()))
        .filter(|(_, lines)| *lines > MOST_FILE_LINES)
        .collect();
    assert!(long.is_empty(), "more than {MOST_FILE_LINES} lines: {long:?}");
}

/// Structs and functions of one file that exceed a bound.
#[derive(Default)]
struct Found {
    /// Name, fields, flags.
    structs: Vec<(String, usize, usize)>,
    /// Name, lines.
    functions: Vec<(String, usize)>,
    /// Everything looked at.
    seen: usize,
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_cfg_test = attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|of| of == "test");
        is_cfg_test || attribute.path().is_ident("test")
    })
}

fn is_flag(of: &Type) -> bool {
    matches!(of, Type::Path(path) if path.path.is_ident("bool"))
}

impl Found {
    fn function(&mut self, signature: &Signature, body: &Block) {
        let lines = body.span().end().line + 1 - signature.span().start().line;
        self.seen += 1;
        if lines > MOST_LINES {
            self.functions.push((signature.ident.to_string(), lines));
        }
    }
}

impl<'ast> Visit<'ast> for Found {
    fn visit_item(&mut self, item: &'ast Item) {
        if let Item::Mod(module) = item
            && is_test(&module.attrs)
        {
            return;
        }
        visit::visit_item(self, item);
    }

    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        self.seen += 1;
        let (Fields::Named(_) | Fields::Unnamed(_)) = &item.fields else { return };
        let flags = item.fields.iter().filter(|field| is_flag(&field.ty)).count();
        if item.fields.len() > MOST_FIELDS || flags > MOST_FLAGS {
            self.structs.push((item.ident.to_string(), item.fields.len(), flags));
        }
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        if !is_test(&item.attrs) {
            self.function(&item.sig, &item.block);
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        if let Some(body) = &item.default {
            self.function(&item.sig, body);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

/// Returns what exceeds a bound in each file, but for tests and modules of tests.
fn found() -> Vec<(String, Found)> {
    let is_source = |name: &str| SOURCES.iter().any(|folder| name.contains(folder));
    let is_tests = |name: &str| name.contains("/tests/") || name.ends_with("/tests.rs");
    let sources: Vec<_> =
        sources().into_iter().filter(|(name, _)| is_source(name) && !is_tests(name)).collect();
    assert!(sources.len() > 400, "{} files were looked at", sources.len());
    sources
        .into_iter()
        .map(|(name, text)| {
            let mut found = Found::default();
            found.visit_file(&syn::parse_file(&text).unwrap());
            (name, found)
        })
        .collect()
}

#[test]
fn structs_and_functions_are_small() {
    let found = found();
    let seen: usize = found.iter().map(|(_, found)| found.seen).sum();
    assert!(seen > 2000, "{seen} structs and functions were looked at");
    let excepted: BTreeSet<_> = STRUCTS.iter().map(|(file, name, _)| (*file, *name)).collect();
    let (mut beyond, mut needed) = (Vec::new(), BTreeSet::new());
    for (file, found) in &found {
        for (name, fields, flags) in &found.structs {
            if excepted.contains(&(file.as_str(), name.as_str())) {
                needed.insert((file.as_str(), name.as_str()));
            } else {
                beyond.push(format!("{file}: struct {name} has {fields} fields, {flags} of them flags"));
            }
        }
        for (name, lines) in &found.functions {
            beyond.push(format!("{file}: fn {name} has {lines} lines"));
        }
    }
    assert!(beyond.is_empty(), "{}", beyond.join("\n"));
    let unneeded: Vec<_> = excepted.difference(&needed).collect();
    assert!(unneeded.is_empty(), "no exception is needed for {unneeded:?}");
}

/// The counts are those that a reader would make.
#[test]
fn fields_flags_and_lines_are_counted() {
    let flags = (0..=MOST_FLAGS).map(|at| format!("b{at}: bool,\n")).collect::<String>();
    let fields = (0..=MOST_FIELDS).map(|at| format!("f{at}: u8,\n")).collect::<String>();
    let body = "();\n".repeat(MOST_LINES - 1);
    let text = format!(
        "struct Flags {{ {flags} }} struct Wide {{ {fields} }} struct Small {{ a: bool }}
         fn long() {{\n{body}}}\n impl Small {{ fn long_too() {{\n{body}}}\n fn short() {{}} }}
         trait Far {{ fn declared(); fn given() {{\n{body}}} }}
         #[cfg(test)] mod tests {{ fn unseen() {{\n{body}}} }}"
    );
    let mut found = Found::default();
    found.visit_file(&syn::parse_file(&text).unwrap());
    let structs = [("Flags", MOST_FLAGS + 1, MOST_FLAGS + 1), ("Wide", MOST_FIELDS + 1, 0)];
    let structs = structs.map(|(name, fields, flags)| (name.to_owned(), fields, flags));
    assert_eq!(found.structs, structs);
    let functions = ["long", "long_too", "given"].map(|name| (name.to_owned(), MOST_LINES + 1));
    assert_eq!(found.functions, functions);
}
