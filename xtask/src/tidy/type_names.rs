//! No two types of a crate have one name, private ones included.
//!
//! - Arguments of commands (`clap`) are named by their module: `balance::Cancel`, `scrub::Cancel`.
//! - Files that take one another's place, chosen by `cfg`, have the same types: [`ALTERNATIVES`].

use super::finding::Finding;
use super::sources::SourceFile;
use std::collections::BTreeMap;

/// Pairs of files of which `cfg` chooses one.
const ALTERNATIVES: &[[&str; 2]] = &[
    ["crates/device/src/driver/no_ring.rs", "crates/device/src/driver/ring.rs"],
    ["crates/device/src/no_uring.rs", "crates/device/src/uring.rs"],
    ["crates/locks/src/order.rs", "crates/locks/src/plain.rs"],
];

/// Checks all files.
pub fn check<'a>(files: impl Iterator<Item = &'a SourceFile>) -> Vec<Finding> {
    let mut seen: BTreeMap<(&str, String), (&str, usize)> = BTreeMap::new();
    let mut findings = Vec::new();
    for file in files {
        let Some((package, _)) = file.path.split_once("/src/") else { continue };
        if file.path.contains("/tests/") || file.path.ends_with("/tests.rs") {
            continue;
        }
        for (name, line) in types(&file.syntax.items) {
            let first = *seen.entry((package, name.clone())).or_insert((&file.path, line));
            let is_alternative =
                ALTERNATIVES.iter().any(|pair| pair.contains(&first.0) && pair.contains(&&*file.path));
            if first.0 != file.path && !is_alternative {
                let message = format!("the crate has another type `{name}`: {}:{}", first.0, first.1);
                findings.push(Finding::new(&file.path, line, message));
            }
        }
    }
    findings
}

/// Returns name and line of the types of a module, without arguments of commands.
fn types(items: &[syn::Item]) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    for item in items {
        let (attributes, name) = match item {
            syn::Item::Struct(item) => (&item.attrs, &item.ident),
            syn::Item::Enum(item) => (&item.attrs, &item.ident),
            syn::Item::Trait(item) => (&item.attrs, &item.ident),
            syn::Item::Union(item) => (&item.attrs, &item.ident),
            _ => continue,
        };
        if !attributes.iter().any(is_of_clap) {
            found.push((name.to_string(), name.span().start().line));
        }
    }
    found
}

/// Returns whether an attribute derives a trait of clap's arguments.
fn is_of_clap(attribute: &syn::Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return false };
    list.path.is_ident("derive") && list.tokens.to_string().contains("clap")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_texts(texts: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> =
            texts.iter().map(|(path, text)| SourceFile::parse(path, text).expect("parses")).collect();
        check(files.iter()).iter().map(|finding| finding.path.clone()).collect()
    }

    #[test]
    fn a_second_type_of_a_name_is_found() {
        let found = check_texts(&[
            ("crates/a/src/x.rs", "pub struct State;\n"),
            ("crates/a/src/y.rs", "enum State { On }\n"),
            ("crates/b/src/z.rs", "pub struct State;\n"),
        ]);
        assert_eq!(found, ["crates/a/src/y.rs"]);
    }

    #[test]
    fn arguments_and_alternatives_pass() {
        let found = check_texts(&[
            ("crates/a/src/x.rs", "pub struct State;\n#[derive(Debug, clap::Args)]\npub struct Cancel;\n"),
            ("crates/a/src/y.rs", "#[derive(clap::Args)]\nstruct Cancel;\n"),
            ("crates/locks/src/order.rs", "pub struct Held;\n"),
            ("crates/locks/src/plain.rs", "pub struct Held;\n"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }
}
