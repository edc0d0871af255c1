//! The lengths of functions, compared with the limit and the ratchet.
//!
//! Owns [`FunctionLength`]: the lines from `fn` to the closing brace, with closures and nested
//! functions but without attributes and documentation. Tests count like all other functions.
//! Functions that a macro generates are not measured.

use super::finding::Finding;
use super::ratchet::{Ratchet, TIGHTEN};
use super::sources::{SourceFile, Sources};
use std::collections::BTreeMap;
use syn::spanned::Spanned;
use syn::visit::Visit;

/// The length of one function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionLength {
    /// Path of its file.
    pub path: String,
    /// Name, with the modules and the type that contain it.
    pub name: String,
    /// Line of its `fn`, from 1.
    pub line: usize,
    /// Lines.
    pub lines: usize,
}

impl FunctionLength {
    /// Returns its key in the ratchet.
    pub fn key(&self) -> String {
        format!("{}: {}", self.path, self.name)
    }
}

/// Measures every function of every file.
pub fn measure(sources: &Sources) -> Vec<FunctionLength> {
    sources.files().flat_map(measure_file).collect()
}

fn measure_file(file: &SourceFile) -> Vec<FunctionLength> {
    let mut visitor = Functions { path: &file.path, scopes: Vec::new(), found: Vec::new() };
    visitor.visit_file(&file.syntax);
    visitor.found
}

/// Returns the lines of each function by its key, of the longest where several share one.
pub fn longest(lengths: &[FunctionLength]) -> BTreeMap<String, usize> {
    let mut longest = BTreeMap::new();
    for length in lengths {
        let lines: &mut usize = longest.entry(length.key()).or_default();
        *lines = length.lines.max(*lines);
    }
    longest
}

/// Compares `lengths` with the limit and exceptions of `ratchet`; reports stale exceptions at
/// `ratchet_path`.
pub fn check(lengths: &[FunctionLength], ratchet: &Ratchet, ratchet_path: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for length in lengths {
        let allowed = ratchet.exceptions.get(&length.key()).copied().unwrap_or(ratchet.limit);
        if length.lines > allowed.max(ratchet.limit) {
            let message = format!("fn {} has {} lines, {allowed} are allowed", length.name, length.lines);
            findings.push(Finding::new(&length.path, length.line, message));
        }
    }
    let longest = longest(lengths);
    for (name, &allowed) in &ratchet.exceptions {
        let present = longest.get(name).copied().unwrap_or(0);
        let why = if present <= ratchet.limit {
            "no longer needs an exception".to_owned()
        } else if present < allowed {
            format!("has shrunk to {present} lines")
        } else {
            continue;
        };
        let message = format!("`{name}` {why}: {TIGHTEN}");
        findings.push(Finding::new(ratchet_path, 1, message));
    }
    findings
}

struct Functions<'a> {
    path: &'a str,
    scopes: Vec<String>,
    found: Vec<FunctionLength>,
}

impl Functions<'_> {
    fn add(&mut self, signature: &syn::Signature, end: usize) {
        let line = signature.span().start().line;
        let names = self.scopes.iter().chain([&signature.ident.to_string()]).cloned().collect::<Vec<_>>();
        self.found.push(FunctionLength {
            path: self.path.to_owned(),
            name: names.join("::"),
            line,
            lines: end - line + 1,
        });
    }

    fn within(&mut self, scope: String, visit: impl FnOnce(&mut Self)) {
        self.scopes.push(scope);
        visit(self);
        self.scopes.pop();
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.within(item.ident.to_string(), |visitor| syn::visit::visit_item_mod(visitor, item));
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let own = type_name(&item.self_ty);
        let scope = match &item.trait_ {
            Some((_, path, _)) => format!("<{own} as {}>", last_name(path)),
            None => own,
        };
        self.within(scope, |visitor| syn::visit::visit_item_impl(visitor, item));
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.within(item.ident.to_string(), |visitor| syn::visit::visit_item_trait(visitor, item));
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add(&item.sig, item.block.span().end().line);
        self.within(item.sig.ident.to_string(), |visitor| syn::visit::visit_item_fn(visitor, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add(&item.sig, item.block.span().end().line);
        self.within(item.sig.ident.to_string(), |visitor| syn::visit::visit_impl_item_fn(visitor, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.add(&item.sig, block.span().end().line);
        }
        self.within(item.sig.ident.to_string(), |visitor| syn::visit::visit_trait_item_fn(visitor, item));
    }
}

fn type_name(of: &syn::Type) -> String {
    match of {
        syn::Type::Path(path) => last_name(&path.path),
        syn::Type::Reference(reference) => format!("&{}", type_name(&reference.elem)),
        syn::Type::Slice(slice) => format!("[{}]", type_name(&slice.elem)),
        syn::Type::Array(array) => format!("[{}]", type_name(&array.elem)),
        _ => "_".to_owned(),
    }
}

fn last_name(path: &syn::Path) -> String {
    path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(text: &str) -> Vec<(String, usize, usize)> {
        let file = SourceFile::parse("a.rs", text).expect("parses");
        measure_file(&file).into_iter().map(|length| (length.name, length.line, length.lines)).collect()
    }

    fn findings(lines: usize, exceptions: &[(&str, usize)]) -> Vec<String> {
        let text = format!("/// Long.\n#[inline]\nfn f() {{\n{}}}\n", "    g();\n".repeat(lines - 2));
        let file = SourceFile::parse("a.rs", &text).expect("parses");
        let exceptions: BTreeMap<String, usize> =
            exceptions.iter().map(|(name, lines)| ((*name).to_owned(), *lines)).collect();
        let ratchet = Ratchet { limit: 80, exceptions, ..Ratchet::default() };
        check(&measure_file(&file), &ratchet, "r.toml").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn names_include_module_and_type() {
        let text = "fn a() {}\nimpl T {\n fn b() {\n  fn c() {}\n }\n}\nimpl From<u8> for [T] { fn d() {} }\n\
                    mod m { trait U { fn e(); fn f() {} } }\n#[test]\nfn g() {}\n";
        let expected = [
            ("a", 1, 1),
            ("T::b", 3, 3),
            ("T::b::c", 4, 1),
            ("<[T] as From>::d", 7, 1),
            ("m::U::f", 8, 1),
            ("g", 10, 1),
        ];
        assert_eq!(measured(text), expected.map(|(name, line, lines)| (name.to_owned(), line, lines)));
    }

    #[test]
    fn a_function_over_the_limit_is_found() {
        assert_eq!(findings(80, &[]), Vec::<String>::new());
        assert_eq!(findings(81, &[]), ["a.rs:3: fn f has 81 lines, 80 are allowed"]);
    }

    #[test]
    fn an_exception_may_only_shrink() {
        assert_eq!(findings(90, &[("a.rs: f", 90)]), Vec::<String>::new());
        assert_eq!(findings(91, &[("a.rs: f", 90)]), ["a.rs:3: fn f has 91 lines, 90 are allowed"]);
        let shrunk = findings(89, &[("a.rs: f", 90)]);
        assert_eq!(shrunk, ["r.toml:1: `a.rs: f` has shrunk to 89 lines: run `cargo xtask tidy --tighten`"]);
        let short = findings(80, &[("a.rs: f", 90)]);
        assert_eq!(
            short,
            ["r.toml:1: `a.rs: f` no longer needs an exception: run `cargo xtask tidy --tighten`"]
        );
        assert_eq!(findings(10, &[("a.rs: gone", 90)]).len(), 1);
    }
}
