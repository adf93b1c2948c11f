//! Modules of one crate use each other in one direction only.
//!
//! Looked at are modules beside each other: a module and those below it are one. Tests are left
//! out, and names that the crate's root passes on count as those of their module.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, File, Item, ItemMod, ItemUse, UseTree, Visibility};

/// A path through modules, from the crate's root.
type Place = Vec<String>;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg") && attribute.parse_args::<syn::Ident>().is_ok_and(|of| of == "test")
    })
}

/// The folders `src` of all crates.
fn crates() -> Vec<PathBuf> {
    let folders = |folder: &Path| {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.join("Cargo.toml").exists()).collect::<Vec<_>>()
    };
    let mut found = folders(&workspace());
    found.extend(folders(&workspace().join("netem-tests")));
    found.into_iter().map(|path| path.join("src")).filter(|path| path.join("lib.rs").exists()).collect()
}

/// Each module of a crate that has a file of its own, but for tests.
fn modules(source: &Path) -> BTreeMap<Place, File> {
    let (mut folders, mut found) = (vec![source.to_owned()], BTreeMap::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.file_stem().is_some_and(|stem| stem == "tests" || stem == "bin") {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(source).unwrap().with_extension("");
            let mut place: Place = name.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
            if place == ["main"] || path.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            if place == ["lib"] || place.last().is_some_and(|last| last == "mod") {
                place.pop();
            }
            let text = std::fs::read_to_string(&path).unwrap();
            found.insert(place, syn::parse_file(&text).unwrap());
        }
    }
    found
}

/// Paths that a module names: in `use`, and where it uses something by its whole path.
#[derive(Default)]
struct Named(Vec<Place>);

impl Named {
    fn tree(&mut self, before: &[String], tree: &UseTree) {
        match tree {
            UseTree::Path(path) => {
                let before = [before, &[path.ident.to_string()]].concat();
                self.tree(&before, &path.tree);
            }
            UseTree::Name(name) => self.0.push([before, &[name.ident.to_string()]].concat()),
            UseTree::Rename(name) => self.0.push([before, &[name.ident.to_string()]].concat()),
            UseTree::Glob(_) => self.0.push(before.to_vec()),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(before, tree)),
        }
    }
}

impl<'ast> Visit<'ast> for Named {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Mod(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_test(attributes) {
            visit::visit_item(self, item);
        }
    }

    // What a module within a file names as `super` is the file's own.
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if item.content.is_none() {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.tree(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.0.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }
}

/// Names that the root passes on from its modules, each with its module's place.
fn passed_on(root: &File, modules: &BTreeMap<Place, File>) -> BTreeMap<String, Place> {
    let mut found = BTreeMap::new();
    for item in &root.items {
        let Item::Use(item) = item else { continue };
        if matches!(item.vis, Visibility::Inherited) {
            continue;
        }
        let mut named = Named::default();
        named.tree(&[], &item.tree);
        for mut place in named.0 {
            place.retain(|part| part != "self" && part != "crate");
            let name = place.pop().unwrap_or_default();
            if place.first().is_some_and(|first| modules.contains_key(std::slice::from_ref(first))) {
                found.insert(name, place);
            }
        }
    }
    found
}

/// The module that a path named in `from` leads to; `None` for what is outside of the crate.
fn target(
    from: &Place,
    path: &[String],
    modules: &BTreeMap<Place, File>,
    root: &BTreeMap<String, Place>,
) -> Option<Place> {
    let mut rest = path;
    let mut place = from.clone();
    match rest.first()?.as_str() {
        "crate" => {
            place.clear();
            rest = rest.get(1..)?;
            if let Some(passed) = rest.first().and_then(|name| root.get(name)) {
                return Some(passed.clone());
            }
        }
        "super" => {
            while rest.first().is_some_and(|part| part == "super") {
                place.pop()?;
                rest = rest.get(1..)?;
            }
        }
        "self" => rest = rest.get(1..)?,
        first if !modules.contains_key(&[from.as_slice(), &[first.to_owned()]].concat()) => return None,
        _ => {}
    }
    for part in rest {
        place.push(part.clone());
        if !modules.contains_key(&place) {
            place.pop();
            break;
        }
    }
    Some(place)
}

/// Who uses whom among the modules beside each other, by the module that they are in.
fn uses(modules: &BTreeMap<Place, File>) -> BTreeMap<Place, BTreeMap<String, BTreeSet<String>>> {
    let root = modules.get(&Place::new()).map(|root| passed_on(root, modules)).unwrap_or_default();
    let mut found: BTreeMap<Place, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for (from, file) in modules {
        let mut named = Named::default();
        named.visit_file(file);
        for path in named.0 {
            let Some(to) = target(from, &path, modules, &root) else { continue };
            let common = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
            if let (Some(one), Some(other)) = (from.get(common), to.get(common)) {
                let level = found.entry(from[..common].to_vec()).or_default();
                level.entry(one.clone()).or_default().insert(other.clone());
            }
        }
    }
    found
}

/// Modules that lead back to themselves.
fn circles(uses: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<&String> {
    let comes_back = |begin: &&String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![*begin]);
        while let Some(name) = next.pop() {
            for other in uses.get(name).into_iter().flatten() {
                if seen.insert(other) {
                    next.push(other);
                }
            }
        }
        seen.contains(begin)
    };
    uses.keys().filter(comes_back).collect()
}

#[test]
fn modules_use_each_other_in_one_direction() {
    let crates = crates();
    assert!(crates.len() >= 15, "{crates:?}");
    let (mut closed, mut edges) = (Vec::new(), 0);
    for source in crates {
        let name = source.parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
        for (place, uses) in uses(&modules(&source)) {
            edges += uses.values().map(BTreeSet::len).sum::<usize>();
            let circle = circles(&uses);
            if !circle.is_empty() {
                closed.push(format!("{name}::{}: {circle:?}", place.join("::")));
            }
        }
    }
    assert!(edges > 500, "{edges} uses were looked at");
    assert!(closed.is_empty(), "circles:\n{}", closed.join("\n"));
}

/// A circle is found in each of the ways in which a module can name another.
#[test]
fn circles_are_found() {
    let crate_of = |a: &str, b: &str| {
        let root = "mod a; mod b; mod c; pub use a::A; pub use b::inner::B;";
        let files = [("", root), ("a", a), ("b", b), ("b/inner", "pub struct B;"), ("c", "use crate::a;")];
        let place = |name: &str| name.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        files.map(|(name, text)| (place(name), syn::parse_file(text).unwrap())).into()
    };
    let found = |a, b| {
        let uses = uses(&crate_of(a, b));
        uses.get(&Place::new()).map_or(0, |uses| circles(uses).len())
    };
    assert_eq!(found("use crate::b::inner;", ""), 0);
    assert_eq!(found("use crate::b::inner;", "use super::a::A;"), 2);
    assert_eq!(found("use crate::{c, B};", "fn f() { crate::a::go() }"), 3);
    assert_eq!(found("fn f(_: crate::B) {}", "use crate::A;"), 2);
    assert_eq!(found("use crate::B;", "#[cfg(test)] mod tests { use crate::A; }"), 0);
}
