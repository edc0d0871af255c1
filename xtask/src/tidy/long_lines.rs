//! Comments and documents are at most 100 columns wide; code may be as wide as rustfmt makes it.
//!
//! A column is a character. Exempt are lines that cannot be wrapped: rows of tables and single
//! words, such as an address. In Markdown, code blocks, HTML and lines that are one link are exempt
//! too.

use super::comments::comment_lines;
use super::finding::Finding;
use super::sources::{Document, SourceFile};

/// Columns that a line may have, its indentation included.
const MAX_COLUMNS: usize = 100;

/// Returns the comment lines of `file` that are too long.
pub fn check_comments(file: &SourceFile) -> Vec<Finding> {
    let comments = comment_lines(file);
    let long = comments.iter().filter(|comment| !cannot_wrap(comment.words));
    long.filter_map(|comment| finding(&file.path, comment.line, comment.text)).collect()
}

/// Returns the lines of the Markdown `document` that are too long.
pub fn check_document(document: &Document) -> Vec<Finding> {
    let mut fence = None;
    let mut in_list = false;
    let mut findings = Vec::new();
    for (index, line) in document.text.lines().enumerate() {
        let words = line.trim();
        let marker = ["```", "~~~"].into_iter().find(|marker| words.starts_with(marker));
        match (fence, marker) {
            (None, Some(marker)) => fence = Some(marker),
            (Some(open), Some(marker)) if open == marker => fence = None,
            _ => {}
        }
        if fence.is_some() || marker.is_some() {
            continue;
        }
        if !line.starts_with(' ') && !words.is_empty() {
            in_list = without_list_marker(words) != words;
        }
        let is_indented_code = line.starts_with("    ") && !in_list;
        if !is_indented_code && !cannot_wrap(words) && !is_element_or_link(words) {
            findings.extend(finding(&document.path, index + 1, line));
        }
    }
    findings
}

fn finding(path: &str, line: usize, text: &str) -> Option<Finding> {
    let columns = text.chars().count();
    let message = format!("{columns} columns: wrap comments and documents at {MAX_COLUMNS}");
    (columns > MAX_COLUMNS).then(|| Finding::new(path, line, message))
}

/// Whether `words` is a row of a table or has no space to break at.
fn cannot_wrap(words: &str) -> bool {
    words.starts_with('|') || !without_list_marker(words).contains(' ')
}

/// Whether `words` is an HTML element, or one link or image, or the definition of one.
fn is_element_or_link(words: &str) -> bool {
    if words.starts_with('<') {
        return true;
    }
    let words = without_list_marker(words).trim_start_matches('!').trim_end_matches(['.', ',', ';', ':']);
    if words.starts_with('[')
        && let Some((text, target)) = words.split_once("](")
    {
        return !text[1..].contains('[') && target.ends_with(')') && !target.contains(' ');
    }
    matches!(words.split_once("]: "), Some((text, target)) if text.starts_with('[') && !target.contains(' '))
}

fn without_list_marker(words: &str) -> &str {
    if let Some(rest) = words.strip_prefix("- ").or_else(|| words.strip_prefix("* ")) {
        return rest;
    }
    let rest = words.trim_start_matches(|digit: char| digit.is_ascii_digit());
    if rest.len() < words.len() { rest.strip_prefix(". ").unwrap_or(words) } else { words }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of the findings in Rust.
    fn rust(text: &str) -> Vec<usize> {
        let file = SourceFile::parse("a.rs", text).expect("parses");
        check_comments(&file).iter().map(|finding| finding.line).collect()
    }

    /// Lines of the findings in Markdown.
    fn markdown(text: &str) -> Vec<usize> {
        let document = Document { path: "a.md".to_owned(), text: text.to_owned() };
        check_document(&document).iter().map(|finding| finding.line).collect()
    }

    /// Words that make a line of `columns` after `start`.
    fn line(start: &str, columns: usize) -> String {
        let missing = columns - start.chars().count();
        format!("{start}{}\n", "wörd ".repeat(columns).chars().take(missing - 1).collect::<String>() + ".")
    }

    #[test]
    fn a_long_comment_is_found() {
        for start in ["// ", "/// ", "//! ", "    // ", "/// - "] {
            assert_eq!(rust(&format!("{}fn f() {{}}\n", line(start, 100)).replace("//!", "///")), [0; 0]);
            assert_eq!(rust(&format!("{}fn f() {{}}\n", line(start, 101)).replace("//!", "///")), [1]);
        }
        let file = SourceFile::parse("a.rs", &line("//! ", 104)).expect("parses");
        let found = check_comments(&file);
        assert_eq!(found[0].to_string(), "a.rs:1: 104 columns: wrap comments and documents at 100");
    }

    #[test]
    fn code_and_unbreakable_comments_may_be_long() {
        let word = "x".repeat(120);
        assert_eq!(rust(&format!("const A: &str = \"{}\";\n", line("// ", 120).trim())), [0; 0]);
        assert_eq!(rust(&format!("// https://{word}\n")), [0; 0]);
        assert_eq!(rust(&line("// | ", 120)), [0; 0]);
    }

    #[test]
    fn a_long_line_of_markdown_is_found() {
        assert_eq!(markdown(&line("A ", 100)), [0; 0]);
        assert_eq!(markdown(&format!("# A\n\n{}", line("A ", 101))), [3]);
        assert_eq!(markdown(&line("- [a](b) ", 101)), [1]);
        assert_eq!(markdown(&format!("- a\n\n{}", line("    and ", 101))), [3]);
        assert_eq!(markdown(&format!("[a](b) and [c](d {}", line("", 101))), [1]);
    }

    #[test]
    fn tables_links_and_code_in_markdown_are_exempt() {
        let word = "x".repeat(120);
        assert_eq!(markdown(&line("| a | ", 140)), [0; 0]);
        assert_eq!(markdown(&format!("- [the text](https://{word}).\n")), [0; 0]);
        assert_eq!(
            markdown(&format!("![plot]({word})\n[a b]: {word}\n<p align=\"center\">{word}</p>\n")),
            [0; 0]
        );
        assert_eq!(markdown(&format!("```sh\n{}```\nA\n{}", line("", 120), line("A ", 101))), [5]);
        assert_eq!(markdown(&format!("A:\n\n{}", line("    make ", 120))), [0; 0]);
    }
}
