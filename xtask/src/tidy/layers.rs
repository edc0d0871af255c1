//! The layers inside `crates/engine`: a module imports only from modules of lower layers.
//!
//! Owns the layer map. The check covers `use` trees, paths in code and attributes, and the tokens
//! of macros. It resolves `crate::`, `self::` and `super::`; a name that `lib.rs` re-exports counts
//! as the module that it comes from. `lib.rs` is above all layers. Unit tests follow the same rule:
//! tests that need a higher layer belong in `crates/fs` or in `crates/papilio/tests`.

use super::finding::Finding;
use super::imports::{Import, flatten, is_test_only, item_name};
use super::sources::{Module, SourceFile, Sources};
use super::tokens;
use std::collections::{BTreeMap, BTreeSet};
use syn::spanned::Spanned;
use syn::visit::Visit;

/// The crate that has layers.
const ROOT: &str = "crates/engine/src/lib.rs";
/// Its top-level modules, from the highest layer to the lowest.
const LAYERS: [&str; 12] = [
    "jobs",
    "mount",
    "file",
    "subvolume",
    "namespace",
    "fsync_log",
    "data",
    "items",
    "transaction",
    "space",
    "btree",
    "volume",
];
/// The modules of the lowest layer, which every module may import.
const COMMON: [&str; 5] = ["options", "tuning", "errors", "errno", "workers"];

/// Checks the layered crate, if there is one.
pub fn check(sources: &Sources) -> Vec<Finding> {
    let Some(root) = sources.file(ROOT) else { return Vec::new() };
    let exports = Exports::of(root);
    let mut findings = unknown_modules(root);
    for module in sources.modules().filter(|module| module.root == ROOT) {
        if let Some(own) = module.names.first().and_then(|name| rank(name))
            && let Some(file) = sources.file(&module.file)
        {
            findings.extend(check_module(module, own, file, &exports));
        }
    }
    findings
}

/// Returns the index of the layer of `module`; 0 is the highest.
fn rank(module: &str) -> Option<usize> {
    match LAYERS.iter().position(|layer| *layer == module) {
        None if COMMON.contains(&module) => Some(LAYERS.len()),
        found => found,
    }
}

fn unknown_modules(root: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for item in &root.syntax.items {
        if let syn::Item::Mod(module) = item {
            let name = module.ident.to_string();
            let is_test = is_test_only(&module.attrs);
            if rank(&name).is_none() && !is_test {
                let message =
                    format!("module `{name}` has no layer: give it one in xtask/src/tidy/layers.rs");
                findings.push(Finding::new(&root.path, module.span().start().line, message));
            }
        }
    }
    findings
}

/// The names in `lib.rs`.
#[derive(Default)]
struct Exports {
    /// The top-level module of each re-exported name.
    from: BTreeMap<String, String>,
    /// Modules that are re-exported by a glob.
    globs: Vec<String>,
    /// Names that `lib.rs` defines.
    own: BTreeSet<String>,
}

impl Exports {
    fn of(root: &SourceFile) -> Self {
        let mut exports = Self::default();
        for item in &root.syntax.items {
            if let syn::Item::Use(item) = item {
                flatten(&item.tree, &mut Vec::new(), &mut |import| exports.add(import));
            } else if let Some(name) = item_name(item) {
                exports.own.insert(name);
            }
        }
        exports
    }

    fn add(&mut self, import: &Import) {
        let inside = match import.segments.first().map(String::as_str) {
            Some("crate" | "self") => &import.segments[1..],
            _ => &import.segments[..],
        };
        let Some(module) = inside.first().filter(|name| rank(name).is_some()) else { return };
        match &import.name {
            None => self.globs.push(module.clone()),
            Some(name) => drop(self.from.insert(name.clone(), module.clone())),
        }
    }

    /// Returns the top-level module that `crate::name` comes from, if known.
    fn module_of<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        if rank(name).is_some() {
            return Some(name);
        }
        if let Some(module) = self.from.get(name) {
            return Some(module);
        }
        if self.own.contains(name) {
            return None;
        }
        // The name can come from any of the globs: assume the highest.
        self.globs.iter().min_by_key(|module| rank(module)).map(String::as_str)
    }
}

fn check_module(module: &Module, own: usize, file: &SourceFile, exports: &Exports) -> Vec<Finding> {
    let mut visitor = Paths { names: module.names.clone(), found: Vec::new() };
    visitor.visit_file(&file.syntax);
    let own_name = &module.names[0];
    let mut findings = Vec::new();
    for (absolute, line) in visitor.found {
        let Some(first) = absolute.first() else {
            let message =
                format!("`{own_name}` imports the crate's root, which hides the layers: import names");
            findings.push(Finding::new(&file.path, line, message));
            continue;
        };
        let Some(target) = exports.module_of(first) else { continue };
        if rank(target).is_some_and(|target| target < own) {
            let message = format!(
                "`{own_name}` imports `crate::{}`: `{target}` is a higher layer",
                absolute.join("::")
            );
            findings.push(Finding::new(&file.path, line, message));
        }
    }
    findings
}

/// Collects paths within the crate, made absolute; an empty path is the crate's root.
struct Paths {
    /// Names of the module around the current item.
    names: Vec<String>,
    found: Vec<(Vec<String>, usize)>,
}

impl Paths {
    fn add(&mut self, segments: &[String], line: usize) {
        let mut absolute = match segments.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            Some("self" | "super") => self.names.clone(),
            _ => return,
        };
        for segment in segments {
            match segment.as_str() {
                "crate" | "self" => {}
                "super" => drop(absolute.pop()),
                name => absolute.push(name.to_owned()),
            }
        }
        self.found.push((absolute, line));
    }

    fn add_tokens(&mut self, stream: proc_macro2::TokenStream) {
        for path in tokens::paths(stream) {
            // A lone `self` is a value; a lone `crate` or `super` is part of a visibility.
            if path.segments.len() > 1 {
                self.add(&path.segments, path.line);
            }
        }
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.names.push(item.ident.to_string());
        syn::visit::visit_item_mod(self, item);
        self.names.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let mut imports = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut |import| {
            imports.push((import.segments.clone(), import.line))
        });
        for (segments, line) in imports {
            self.add(&segments, line);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            let segments: Vec<String> =
                path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.add(&segments, path.span().start().line);
        }
        syn::visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {
        // `pub(in crate::mount)` names an ancestor and imports nothing.
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        syn::visit::visit_macro(self, call);
        self.add_tokens(call.tokens.clone());
    }

    fn visit_meta_list(&mut self, list: &'ast syn::MetaList) {
        self.add_tokens(list.tokens.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::super::sources::tests::sources;
    use super::*;

    const MANIFEST: (&str, &str) = ("crates/engine/Cargo.toml", "[package]\nname = \"papilio-engine\"\n");
    const LIB: &str = "mod mount; mod space; mod btree; mod volume; mod errors;\n\
                       pub use mount::{File, inner::Dir as Directory}; pub use errors::Error; fn helper() {}";

    /// Returns the findings of a crate with the root `lib` whose `btree/cursor.rs` is `text`.
    fn found_below(lib: &str, text: &str) -> Vec<String> {
        let sources = sources(&[
            MANIFEST,
            (ROOT, lib),
            ("crates/engine/src/mount.rs", "use crate::{btree, space::Group}; use crate::File;"),
            ("crates/engine/src/space.rs", ""),
            ("crates/engine/src/btree/mod.rs", "mod cursor;"),
            ("crates/engine/src/btree/cursor.rs", text),
            ("crates/engine/src/volume.rs", ""),
            ("crates/engine/src/errors.rs", ""),
        ]);
        check(&sources).iter().map(ToString::to_string).collect()
    }

    fn found(text: &str) -> Vec<String> {
        found_below(LIB, text)
    }

    const CURSOR: &str = "crates/engine/src/btree/cursor.rs";

    #[test]
    fn downward_and_sideways_imports_pass() {
        for text in [
            "use crate::volume::ChunkMap; use crate::{errors, volume::{self, Map}};",
            "use super::node; use super::super::volume; use self::inner::x;",
            "use std::fs::File; use papilio_format::space; fn mount() { mount::read(); }",
            "fn f() { crate::helper(); crate::Error::new(); assert!(crate::volume::x()); }",
            "pub(crate) struct A; pub(super) struct B; pub(in crate::btree) struct C;",
            "mod tests { use super::*; use super::super::*; }",
            "impl A { fn f(self) -> u8 { vec![self].len() } } macro_rules! m { () => { pub(crate) fn f() {} } }",
            "// use crate::mount;\nconst A: &str = \"crate::mount::x\";",
        ] {
            assert_eq!(found(text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn upward_imports_are_found() {
        for text in [
            "use crate::mount;",
            "use crate::mount::File;",
            "use crate::{volume, space::{Group, b::c}};",
            "use super::super::mount::File;",
            "mod tests { use super::super::super::mount::File; }",
            "fn f() { crate::mount::open(); }",
            "fn f(x: &crate::space::Group<u8>) {}",
            "fn f() { let x: Vec<crate::mount::File>; }",
            "fn f() { assert_eq!(crate::mount::count(), 1); }",
            "fn f() { vec![super::super::mount::count()]; }",
            "macro_rules! m { () => { $crate::mount::x() } }",
            "fn f() { inner!(use crate::{volume, mount::File};) }",
            "#[error(fmt = crate::mount::print)] struct A;",
            "#[cfg(test)] mod tests { use crate::mount::File; }",
            "use crate::File;",
            "use crate::Directory;",
            "fn f(x: crate::File) {}",
        ] {
            assert!(!found(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn a_finding_names_line_and_layers() {
        let expected = format!("{CURSOR}:3: `btree` imports `crate::mount::File`: `mount` is a higher layer");
        assert_eq!(found("\nuse crate::{\n    mount::File,\n    volume::Map,\n};"), [expected]);
    }

    #[test]
    fn importing_the_root_is_found() {
        for text in ["use crate::*;", "use crate as c;", "use super::super::*;", "use crate::{self as c};"] {
            let whole =
                format!("{CURSOR}:1: `btree` imports the crate's root, which hides the layers: import names");
            assert_eq!(found(text), [whole], "{text}");
        }
    }

    #[test]
    fn a_glob_re_export_counts_as_its_highest_module() {
        let lib =
            "mod mount; mod space; mod btree; mod volume; mod errors; pub use mount::*; pub use volume::*;";
        assert_eq!(found_below(lib, "use crate::Anything;").len(), 1);
        let lib = "mod mount; mod space; mod btree; mod volume; mod errors; pub use volume::*;";
        assert_eq!(found_below(lib, "use crate::Anything;"), Vec::<String>::new());
    }

    #[test]
    fn common_modules_import_no_layer() {
        let lib = "mod mount; mod errors;";
        let sources = sources(&[
            MANIFEST,
            (ROOT, lib),
            ("crates/engine/src/mount.rs", ""),
            ("crates/engine/src/errors.rs", "use crate::mount::File;"),
        ]);
        assert_eq!(check(&sources).len(), 1);
    }

    #[test]
    fn a_module_without_a_layer_is_found() {
        let lib = "mod mount;\nmod util;\n#[cfg(test)]\nmod tests {}";
        let sources = sources(&[MANIFEST, (ROOT, lib), ("crates/engine/src/mount.rs", "")]);
        let found: Vec<String> = check(&sources).iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(&format!("{ROOT}:2: module `util` has no layer")), "{found:?}");
    }

    #[test]
    fn other_crates_have_no_layers() {
        let sources = sources(&[
            ("crates/cli/Cargo.toml", "[package]\nname = \"papilio-cli\"\n"),
            ("crates/cli/src/main.rs", "mod btree; mod util;"),
            ("crates/cli/src/btree.rs", "use crate::mount::x;"),
        ]);
        assert_eq!(check(&sources), []);
    }
}
