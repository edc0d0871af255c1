//! The comment lines of a Rust file.

use super::sources::SourceFile;
use proc_macro2::{TokenStream, TokenTree};
use std::collections::BTreeSet;

/// A line that holds a `//`, `///` or `//!` comment and nothing else.
#[derive(Debug, PartialEq, Eq)]
pub struct CommentLine<'a> {
    /// Line, from 1.
    pub line: usize,
    /// The whole line, with its indentation.
    pub text: &'a str,
    /// The comment's words, without the slashes and the space around them.
    pub words: &'a str,
    /// Whether it lies in a fenced code block, or is one of its fences.
    pub in_code: bool,
}

/// Returns the comment lines of `file`. Lines inside of string literals are none.
pub fn comment_lines(file: &SourceFile) -> Vec<CommentLine<'_>> {
    let mut inside_strings = BTreeSet::new();
    if let Ok(tokens) = file.text.parse() {
        add_string_lines(tokens, &mut inside_strings);
    }
    let mut in_code = false;
    let mut found = Vec::new();
    for (index, text) in file.text.lines().enumerate() {
        let line = index + 1;
        let comment = text.trim_start().strip_prefix("//").filter(|_| !inside_strings.contains(&line));
        let Some(comment) = comment else {
            in_code = false;
            continue;
        };
        let words = comment.strip_prefix(['/', '!']).unwrap_or(comment).trim();
        let is_fence = words.starts_with("```");
        found.push(CommentLine { line, text, words, in_code: in_code || is_fence });
        in_code ^= is_fence;
    }
    found
}

/// Adds the lines that begin inside of a literal.
fn add_string_lines(tokens: TokenStream, lines: &mut BTreeSet<usize>) {
    for tree in tokens {
        match tree {
            TokenTree::Group(group) => add_string_lines(group.stream(), lines),
            TokenTree::Literal(literal) => {
                let span = literal.span();
                lines.extend(span.start().line + 1..=span.end().line);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_told_from_strings_and_code() {
        let text = "//! A.\n\nfn f() {\n    // b\n    g(\"\n    // no comment\n\"); // trailing\n}\n";
        let file = SourceFile::parse("a.rs", text).expect("parses");
        let words: Vec<(usize, &str)> =
            comment_lines(&file).iter().map(|comment| (comment.line, comment.words)).collect();
        assert_eq!(words, [(1, "A."), (4, "b")]);
    }

    #[test]
    fn fenced_blocks_are_code() {
        let text = "//! ```\n//! let a = 1;\n//! ```\n//! b\n";
        let file = SourceFile::parse("a.rs", text).expect("parses");
        let code: Vec<bool> = comment_lines(&file).iter().map(|comment| comment.in_code).collect();
        assert_eq!(code, [true, true, true, false]);
    }
}
