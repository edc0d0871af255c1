//! The parts of Rust's syntax that say what a file imports and defines.
//!
//! Owns [`Import`], one leaf of a `use` tree, and the rule for code that only tests compile.

/// One leaf of a `use` tree.
#[derive(Clone, Debug)]
pub struct Import {
    /// The path, as written; for a glob, the path before `::*`.
    pub segments: Vec<String>,
    /// The name that the import binds; `None` for a glob.
    pub name: Option<String>,
    /// Line, from 1.
    pub line: usize,
}

/// Calls `take` with each leaf of `tree`, below `prefix`.
pub fn flatten(tree: &syn::UseTree, prefix: &mut Vec<String>, take: &mut impl FnMut(&Import)) {
    let mut leaf = |last: Option<&syn::Ident>, name: Option<&syn::Ident>, line| {
        let mut segments = prefix.clone();
        let name = name.map(ToString::to_string);
        // `a::{self}` binds `a`.
        let name = name.map(|name| match segments.last() {
            Some(parent) if name == "self" => parent.clone(),
            _ => name,
        });
        segments.extend(last.map(ToString::to_string).filter(|last| last != "self" || prefix.is_empty()));
        take(&Import { segments, name, line });
    };
    match tree {
        syn::UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            flatten(&path.tree, prefix, take);
            prefix.pop();
        }
        syn::UseTree::Name(name) => {
            leaf(Some(&name.ident), Some(&name.ident), name.ident.span().start().line)
        }
        syn::UseTree::Rename(rename) => {
            leaf(Some(&rename.ident), Some(&rename.rename), rename.ident.span().start().line);
        }
        syn::UseTree::Glob(glob) => leaf(None, None, glob.star_token.spans[0].start().line),
        syn::UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, prefix, take)),
    }
}

/// The name that `item` defines; `None` for imports, implementations and macro calls.
pub fn item_name(item: &syn::Item) -> Option<String> {
    let ident = match item {
        syn::Item::Const(item) => &item.ident,
        syn::Item::Enum(item) => &item.ident,
        syn::Item::Fn(item) => &item.sig.ident,
        syn::Item::Macro(item) => item.ident.as_ref()?,
        syn::Item::Mod(item) => &item.ident,
        syn::Item::Static(item) => &item.ident,
        syn::Item::Struct(item) => &item.ident,
        syn::Item::Trait(item) => &item.ident,
        syn::Item::Type(item) => &item.ident,
        syn::Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

/// The attributes of `item`.
pub fn item_attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Union(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether only tests compile code with these attributes: `#[test]`, `#[cfg(test)]`, or
/// `#[cfg(all(test, ...))]`.
pub fn is_test_only(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        if attribute.path().is_ident("test") {
            return true;
        }
        let condition = attribute.path().is_ident("cfg").then(|| attribute.parse_args::<syn::Meta>());
        matches!(condition, Some(Ok(condition)) if needs_test(&condition))
    })
}

fn needs_test(condition: &syn::Meta) -> bool {
    match condition {
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::List(list) if list.path.is_ident("all") => {
            let parts = list
                .parse_args_with(syn::punctuated::Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated);
            parts.is_ok_and(|parts| parts.iter().any(needs_test))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flattened(text: &str) -> Vec<String> {
        let item: syn::ItemUse = syn::parse_str(text).expect("a use item");
        let mut found = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut |import| {
            let name = import.name.as_deref().unwrap_or("*");
            found.push(format!("{} as {name}", import.segments.join("::")));
        });
        found
    }

    #[test]
    fn use_trees_flatten_to_leaves() {
        assert_eq!(
            flattened("use crate::{a::{self, b, c as d}, e::*};"),
            ["crate::a as a", "crate::a::b as b", "crate::a::c as d", "crate::e as *"]
        );
    }

    #[test]
    fn test_only_attributes_are_recognised() {
        for (attributes, expected) in [
            ("#[cfg(test)]", true),
            ("#[test]", true),
            ("#[cfg(all(test, target_os = \"linux\"))]", true),
            ("#[cfg(any(test, debug_assertions))]", false),
            ("#[cfg(not(test))]", false),
            ("#[inline]", false),
        ] {
            let item: syn::Item = syn::parse_str(&format!("{attributes} fn f() {{}}")).expect("an item");
            assert_eq!(is_test_only(item_attributes(&item)), expected, "{attributes}");
        }
    }
}
