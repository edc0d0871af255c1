//! Paths inside of macro arguments, which the parser leaves as tokens.
//!
//! The other checks use these functions to look inside macros.

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

/// A path in tokens.
#[derive(Debug, PartialEq, Eq)]
pub struct TokenPath {
    /// The segments, at least one.
    pub segments: Vec<String>,
    /// Line, from 1.
    pub line: usize,
}

/// Returns every path in `tokens` that starts with `crate`, `super` or `self`. A group is expanded:
/// `crate::{a, b::c}` is two paths.
pub fn paths(tokens: TokenStream) -> Vec<TokenPath> {
    let mut found = all_paths(tokens);
    found.retain(|path| ["crate", "super", "self"].contains(&path.segments[0].as_str()));
    found
}

/// Returns every path in `tokens`, single names included, but not the names of fields, methods and
/// lifetimes.
pub fn all_paths(tokens: TokenStream) -> Vec<TokenPath> {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    let mut found = Vec::new();
    let mut position = 0;
    while position < trees.len() {
        match &trees[position] {
            TokenTree::Ident(_) if !is_member(&trees, position) => {
                position = path_at(&trees, position, &[], &mut found);
            }
            TokenTree::Group(group) => {
                found.extend(all_paths(group.stream()));
                position += 1;
            }
            _ => position += 1,
        }
    }
    found
}

/// Whether the name at `position` follows a `.` that is not part of `..`, or a lifetime's `'`.
fn is_member(trees: &[TokenTree], position: usize) -> bool {
    let punct = |back: usize| match position.checked_sub(back).map(|before| &trees[before]) {
        Some(TokenTree::Punct(punct)) => Some(punct.as_char()),
        _ => None,
    };
    punct(1) == Some('\'') || (punct(1) == Some('.') && punct(2) != Some('.'))
}

/// Adds the path that starts at `start`, below `prefix`, to `found`; returns the position after it.
fn path_at(trees: &[TokenTree], start: usize, prefix: &[String], found: &mut Vec<TokenPath>) -> usize {
    let line = trees[start].span().start().line;
    let mut segments = prefix.to_vec();
    let mut position = start;
    loop {
        match trees.get(position) {
            Some(TokenTree::Ident(ident)) => segments.push(ident.to_string()),
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                spread(group.stream(), &segments, found);
                return position + 1;
            }
            _ => break,
        }
        position += 1;
        if !is_separator(trees, position) {
            break;
        }
        position += 2;
    }
    found.push(TokenPath { segments, line });
    position
}

/// Adds the paths of a brace group of a `use` tree, below `prefix`, to `found`.
fn spread(tokens: TokenStream, prefix: &[String], found: &mut Vec<TokenPath>) {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    let mut expects_path = true;
    let mut position = 0;
    while position < trees.len() {
        if expects_path && matches!(trees[position], TokenTree::Ident(_)) {
            position = path_at(&trees, position, prefix, found);
            expects_path = false;
        } else {
            expects_path = matches!(&trees[position], TokenTree::Punct(punct) if punct.as_char() == ',');
            position += 1;
        }
    }
}

fn is_separator(trees: &[TokenTree], position: usize) -> bool {
    let colon = |offset: usize| match trees.get(position + offset) {
        Some(TokenTree::Punct(punct)) if punct.as_char() == ':' => Some(punct.spacing()),
        _ => None,
    };
    colon(0) == Some(Spacing::Joint) && colon(1).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let tokens: TokenStream = text.parse().expect("tokens");
        paths(tokens).into_iter().map(|path| format!("{}@{}", path.segments.join("::"), path.line)).collect()
    }

    #[test]
    fn paths_are_found_in_groups_and_use_trees() {
        assert_eq!(found("x, crate::fs::y(1)"), ["crate::fs::y@1"]);
        assert_eq!(found("{ [ $crate::a ] }\n super::super::b"), ["crate::a@1", "super::super::b@2"]);
        assert_eq!(
            found("use crate::{a::{b, c as d}, e};"),
            ["crate::a::b@1", "crate::a::c@1", "crate::e@1"]
        );
    }

    #[test]
    fn all_paths_skip_members_and_lifetimes() {
        let tokens: TokenStream = "a.b(c::d, &'e f, 0..g)".parse().expect("tokens");
        let names: Vec<String> = all_paths(tokens).iter().map(|path| path.segments.join("::")).collect();
        assert_eq!(names, ["a", "c::d", "f", "g"]);
    }

    #[test]
    fn other_paths_are_skipped() {
        assert_eq!(found("fs::x, std::fs::y, \"crate::fs\", 'a': b"), Vec::<String>::new());
    }
}
