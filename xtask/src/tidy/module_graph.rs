//! Which file of a crate imports from which other file.
//!
//! Owns [`FileGraph`]. An edge leads from the file that uses a name to the file that defines it:
//!
//! - A re-exported name leads to its definition. The re-export itself makes no edge, so `lib.rs`
//!   and `mod.rs` can collect names; a use of the name in the same file does.
//! - `mod x;` makes no edge, and neither does `use super::x;` for a module `x`. The names used
//!   through `x` do.
//! - A name without a visible definition, such as one that a macro defines, counts as defined in
//!   the file of the module that the path names.
//! - Code that only tests compile makes no edges.
//! - Method calls make none either. An `impl` outside of its type's file makes an edge to that
//!   file, and none back.

use super::imports::{Import, flatten, is_test_only, item_attributes, item_name};
use super::sources::{Module, Sources};
use super::tokens;
use std::collections::{BTreeMap, BTreeSet};
use syn::spanned::Spanned;
use syn::visit::Visit;

/// Imports between files: by importing file, the imported files and the line of the first import.
pub type FileGraph = BTreeMap<String, BTreeMap<String, usize>>;

/// Names of a module, from the crate's root down.
type Names = Vec<String>;

/// How many re-exports and globs a name is followed through.
const MAX_HOPS: usize = 16;

/// Returns the graph of every crate's product files: `tests`, `benches` and `examples` are left
/// out.
pub fn build(sources: &Sources) -> FileGraph {
    let mut graph = FileGraph::new();
    let roots: BTreeSet<&str> = sources.modules().map(|module| module.root.as_str()).collect();
    for root in roots.into_iter().filter(|root| !is_test_root(root)) {
        let names = CrateNames::collect(sources, root);
        for module in sources.modules().filter(|module| module.root == root) {
            let Some(file) = sources.file(&module.file) else { continue };
            if names.is_test_module(&module.names) {
                continue;
            }
            let mut uses = Uses { scope: module.names.clone(), names: &names, found: Vec::new() };
            uses.visit_file(&file.syntax);
            let edges = graph.entry(module.file.clone()).or_default();
            for (target, line) in uses.found.into_iter().filter(|(target, _)| *target != module.file) {
                let first = edges.entry(target).or_insert(line);
                *first = line.min(*first);
            }
        }
    }
    graph
}

fn is_test_root(root: &str) -> bool {
    let mut folders = root.split('/').rev().skip(1);
    folders.any(|folder| ["tests", "benches", "examples"].contains(&folder))
}

/// A meaning of a name in a module.
#[derive(Clone, Debug)]
enum Binding {
    /// An item that this file defines.
    Item(String),
    /// A module within the crate.
    Module(Names),
    /// Another name: the path of a `use`.
    Import(Vec<String>),
}

/// The item or module at the end of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    /// An item that this file defines.
    Item(String),
    /// A module within the crate.
    Module(Names),
}

/// The names that one module binds.
#[derive(Default)]
struct Scope {
    bindings: BTreeMap<String, Vec<Binding>>,
    /// Paths of glob imports, without the `*`.
    globs: Vec<Vec<String>>,
}

/// The names that a crate's modules bind, inline modules included.
#[derive(Default)]
struct CrateNames {
    scopes: BTreeMap<Names, Scope>,
    /// The file of each module; an inline module's is the file that it is written in.
    files: BTreeMap<Names, String>,
    test_modules: BTreeSet<Names>,
}

impl CrateNames {
    fn collect(sources: &Sources, root: &str) -> Self {
        let mut names = Self::default();
        for module in sources.modules().filter(|module| module.root == root) {
            if let Some(file) = sources.file(&module.file) {
                if is_test_only(&file.syntax.attrs) {
                    names.test_modules.insert(module.names.clone());
                }
                let mut visitor = Bindings { scope: module.names.clone(), module, names: &mut names };
                visitor.enter();
                visitor.visit_file(&file.syntax);
            }
        }
        names
    }

    fn is_test_module(&self, names: &[String]) -> bool {
        (0..=names.len()).any(|length| self.test_modules.contains(&names[..length]))
    }

    /// Returns the files that define the item at the path `segments` in the module `scope`.
    fn definitions(&self, scope: &[String], segments: &[String]) -> BTreeSet<String> {
        let targets = self.resolve(scope, segments, MAX_HOPS).into_iter();
        targets.filter_map(|target| if let Target::Item(file) = target { Some(file) } else { None }).collect()
    }

    fn resolve(&self, scope: &[String], segments: &[String], hops: usize) -> BTreeSet<Target> {
        let mut start = scope.to_vec();
        let mut rest = segments;
        let mut explicit = false;
        while let Some((first, after)) = rest.split_first() {
            match first.as_str() {
                "crate" => start.clear(),
                "super" => drop(start.pop()),
                "self" => {}
                _ => break,
            }
            explicit = true;
            rest = after;
        }
        self.descend(start, rest, explicit, hops)
    }

    /// Resolves `segments` below the module `start`. A name that is not found belongs to the
    /// module's file when the path is `explicit`, and to another crate otherwise.
    fn descend(&self, start: Names, segments: &[String], explicit: bool, hops: usize) -> BTreeSet<Target> {
        let Some((first, rest)) = segments.split_first() else {
            return BTreeSet::from([Target::Module(start)]);
        };
        let found = self.look_up(&start, first, hops);
        if found.is_empty() {
            let file = self.files.get(&start).filter(|_| explicit);
            return file.map(|file| Target::Item(file.clone())).into_iter().collect();
        }
        if rest.is_empty() {
            return found;
        }
        // `check::x` means the module `check` even where a function of that name is in scope.
        let modules = found.iter().any(|target| matches!(target, Target::Module(_)));
        let below = found.into_iter().flat_map(|target| match target {
            Target::Module(names) => self.descend(names, rest, true, hops),
            // The rest names a variant or an associated item.
            item if !modules => BTreeSet::from([item]),
            Target::Item(_) => BTreeSet::new(),
        });
        below.collect()
    }

    /// Returns the meanings of `name` in the module `scope`.
    fn look_up(&self, scope: &[String], name: &str, hops: usize) -> BTreeSet<Target> {
        let mut found = BTreeSet::new();
        let (Some(names), Some(hops)) = (self.scopes.get(scope), hops.checked_sub(1)) else { return found };
        for binding in names.bindings.get(name).into_iter().flatten() {
            match binding {
                Binding::Item(file) => drop(found.insert(Target::Item(file.clone()))),
                Binding::Module(module) => drop(found.insert(Target::Module(module.clone()))),
                Binding::Import(path) => found.extend(self.resolve(scope, path, hops)),
            }
        }
        if found.is_empty() {
            for glob in &names.globs {
                for target in self.resolve(scope, glob, hops) {
                    if let Target::Module(module) = target {
                        found.extend(self.look_up(&module, name, hops));
                    }
                }
            }
        }
        found
    }
}

/// Collects the names that the modules of one file bind.
struct Bindings<'a> {
    scope: Names,
    module: &'a Module,
    names: &'a mut CrateNames,
}

impl Bindings<'_> {
    fn enter(&mut self) {
        self.names.files.entry(self.scope.clone()).or_insert_with(|| self.module.file.clone());
        self.names.scopes.entry(self.scope.clone()).or_default();
    }

    fn bind(&mut self, name: String, binding: Binding) {
        let scope = self.names.scopes.entry(self.scope.clone()).or_default();
        scope.bindings.entry(name).or_default().push(binding);
    }
}

impl<'ast> Visit<'ast> for Bindings<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if is_test_only(item_attributes(item)) {
            if let syn::Item::Mod(item) = item {
                let names = self.scope.iter().cloned().chain([item.ident.to_string()]).collect();
                self.names.test_modules.insert(names);
            }
            return;
        }
        match item {
            syn::Item::Mod(item) => {
                let name = item.ident.to_string();
                let names: Names = self.scope.iter().cloned().chain([name.clone()]).collect();
                self.bind(name.clone(), Binding::Module(names));
                if item.content.is_some() {
                    self.scope.push(name);
                    self.enter();
                    syn::visit::visit_item_mod(self, item);
                    self.scope.pop();
                }
            }
            syn::Item::Use(item) => {
                flatten(&item.tree, &mut Vec::new(), &mut |import| {
                    let path = import.segments.clone();
                    match &import.name {
                        // `use name;` of an outer crate binds no name of this one.
                        Some(name) if path == [name.clone()] => {}
                        Some(name) => self.bind(name.clone(), Binding::Import(path)),
                        None => {
                            let scope = self.names.scopes.entry(self.scope.clone()).or_default();
                            scope.globs.push(path);
                        }
                    }
                });
            }
            _ => {
                if let Some(name) = item_name(item) {
                    self.bind(name, Binding::Item(self.module.file.clone()));
                }
                // Imports inside of functions bind their names for the whole module here.
                syn::visit::visit_item(self, item);
            }
        }
    }

    fn visit_stmt(&mut self, statement: &'ast syn::Stmt) {
        // Other files cannot reach items inside of functions. Imports are kept: they name modules.
        if let syn::Stmt::Item(item) = statement
            && !matches!(item, syn::Item::Use(_))
        {
            return;
        }
        syn::visit::visit_stmt(self, statement);
    }
}

/// Collects the files that define the names used in one file, with the lines.
struct Uses<'a> {
    scope: Names,
    names: &'a CrateNames,
    found: Vec<(String, usize)>,
}

impl Uses<'_> {
    fn add(&mut self, segments: &[String], line: usize) {
        let files = self.names.definitions(&self.scope, segments);
        self.found.extend(files.into_iter().map(|file| (file, line)));
    }

    fn add_import(&mut self, import: &Import, re_exported: bool) {
        if !re_exported {
            self.add(&import.segments, import.line);
        }
    }

    fn add_tokens(&mut self, stream: proc_macro2::TokenStream) {
        for path in tokens::all_paths(stream) {
            self.add(&path.segments, path.line);
        }
    }
}

impl<'ast> Visit<'ast> for Uses<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_test_only(item_attributes(item)) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test_only(&item.attrs) {
            syn::visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if !is_test_only(&field.attrs) {
            syn::visit::visit_field(self, field);
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if !is_test_only(&local.attrs) {
            syn::visit::visit_local(self, local);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.scope.push(item.ident.to_string());
        syn::visit::visit_item_mod(self, item);
        self.scope.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let re_exported = !matches!(item.vis, syn::Visibility::Inherited);
        flatten(&item.tree, &mut Vec::new(), &mut |import| self.add_import(import, re_exported));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if path.leading_colon.is_none() {
            self.add(&segments, path.span().start().line);
        }
        syn::visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {
        // `pub(in crate::fs)` names an ancestor and imports nothing.
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

    const MANIFEST: (&str, &str) = ("a/Cargo.toml", "[package]\nname = \"a\"\n");

    /// Edges as `from:line to`, without the folder and the ending.
    fn edges(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<(String, &str)> =
            files.iter().map(|(name, text)| (format!("a/src/{name}.rs"), *text)).collect();
        let mut texts = vec![MANIFEST];
        texts.extend(files.iter().map(|(path, text)| (path.as_str(), *text)));
        let short = |path: &str| path["a/src/".len()..path.len() - ".rs".len()].to_owned();
        let graph = build(&sources(&texts));
        let edges = graph.iter().flat_map(|(from, targets)| targets.iter().map(move |target| (from, target)));
        edges.map(|(from, (to, line))| format!("{}:{line} {}", short(from), short(to))).collect()
    }

    /// Edges of a crate with modules `b`, which defines `B`, and `c`, which is made of `text`.
    fn edges_of(text: &str) -> Vec<String> {
        edges(&[
            ("lib", "mod b; mod c; pub use b::B as Renamed; pub use b::inner::*; const ROOT: u8 = 0;"),
            ("b", "pub struct B; pub mod inner { pub struct Inner; } made! { struct Made; }"),
            ("c", text),
        ])
    }

    #[test]
    fn names_lead_to_the_file_that_defines_them() {
        for text in [
            "use crate::b::B;",
            "use super::b::{B as Other};",
            "use super::b; fn f() { b::B; }",
            "fn f() -> crate::b::B { crate::b::B }",
            "fn f() { g!(1, crate::b::B); }",
            "fn f() { use super::b; assert!(b::B::new()); }",
            "use crate::Renamed;",
            "use crate::Inner;",
            "use crate::*; fn f(_: Inner) {}",
            "use crate::b::inner::Inner;",
            "use crate::b::Made;",
            "#[error(fmt = crate::b::B::print)] struct A;",
            "mod nested { use super::super::b::B; }",
        ] {
            assert_eq!(edges_of(text), ["c:1 b"], "{text}");
        }
        assert_eq!(edges_of("\nuse crate::ROOT;"), ["c:2 lib"]);
    }

    #[test]
    fn declarations_re_exports_and_tests_make_no_edge() {
        for text in [
            "use super::b;",
            "pub use crate::b::B;",
            "pub(crate) use crate::b::*;",
            "#[cfg(test)] mod tests { use super::*; use crate::b::B; }",
            "#[cfg(all(test, unix))] use crate::b::B;",
            "#[test] fn f() { crate::b::B; }",
            "use std::b::B; use other::B as C; fn f(b: u8) { a.b(); }",
            "pub(in crate::b) struct C;",
            "struct B; fn f() -> B { B }",
            "// use crate::b::B;",
        ] {
            assert_eq!(edges_of(text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn a_re_export_that_its_file_uses_makes_an_edge() {
        assert_eq!(edges_of("pub use crate::b::B;\nfn f(_: B) {}"), ["c:2 b"]);
        assert_eq!(edges_of("pub use crate::b::inner::*;\nfn f(_: Inner) {}"), ["c:2 b"]);
    }

    #[test]
    fn methods_lead_only_to_the_type() {
        let found = edges(&[
            ("lib", "mod owner; mod names;"),
            ("owner", "pub struct Owner; impl Owner { fn f(&self) { self.rename(); } }"),
            ("names", "use crate::owner::Owner; impl Owner { pub fn rename(&self) {} }"),
        ]);
        assert_eq!(found, ["names:1 owner"]);
    }

    #[test]
    fn a_function_may_share_its_modules_name() {
        let found = edges(&[
            ("lib", "mod read; mod user; pub use read::read;"),
            ("read", "pub fn read() {} pub struct Reader;"),
            ("user", "use crate::read;\n\nfn f(_: read::Reader) { read() }"),
        ]);
        assert_eq!(found, ["user:1 read"]);
    }

    #[test]
    fn test_files_and_test_targets_have_no_edges() {
        let found = edges(&[
            ("lib", "mod b; #[cfg(test)] mod testing; mod c;"),
            ("b", "pub struct B;"),
            ("testing", "mod deep; use crate::b::B;"),
            ("testing/deep", "use crate::b::B;"),
            ("c", "#![cfg(test)]\nuse crate::b::B;"),
        ]);
        assert_eq!(found, Vec::<String>::new());
        let texts = [MANIFEST, ("a/tests/t.rs", "mod b; use b::B;"), ("a/tests/b.rs", "pub struct B;")];
        assert_eq!(build(&sources(&texts)).values().map(BTreeMap::len).sum::<usize>(), 0);
    }
}
