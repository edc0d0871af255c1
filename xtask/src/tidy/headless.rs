//! Clauses without a subject in comments: "Who waits yields" for "A waiter yields".
//!
//! The check is rough, since it knows no grammar: it looks for "who", "whoever" and "what" where a
//! comment or a clause begins. That finds sound English too: say it in another way.

use super::comments::{CommentLine, comment_lines};
use super::finding::Finding;
use super::sources::SourceFile;

const WORDS: [&str; 3] = ["who", "whoever", "what"];

/// Returns the comment lines of `file` with such a clause.
pub fn check(file: &SourceFile) -> Vec<Finding> {
    let comments = comment_lines(file);
    let found = comments.iter().filter(|comment| !comment.in_code).filter_map(|comment| {
        let word = headless_clause(comment)?;
        let message = format!("a clause begins with \"{word}\": name the caller, reader or thing meant");
        Some(Finding::new(&file.path, comment.line, message))
    });
    found.collect()
}

/// Returns the word that begins a clause of `comment` without a subject.
fn headless_clause<'a>(comment: &CommentLine<'a>) -> Option<&'a str> {
    let mut begins_clause = true;
    let mut words = comment.words.split(' ').peekable();
    while let Some(word) = words.next() {
        let is_one = WORDS
            .iter()
            .any(|one| word.strip_prefix(one).or_else(|| capitalised(word, one)).is_some_and(str::is_empty));
        let continues =
            words.peek().is_some_and(|next| next.starts_with(|first: char| first.is_ascii_lowercase()));
        if begins_clause && is_one && continues {
            return Some(word);
        }
        begins_clause = word.ends_with(['.', ';', ':', ',']);
    }
    None
}

/// Strips `one` with a capital first letter from `word`.
fn capitalised<'a>(word: &'a str, one: &str) -> Option<&'a str> {
    let rest = word.strip_prefix(one[..1].to_ascii_uppercase().as_str())?;
    rest.strip_prefix(&one[1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        let file = SourceFile::parse("a.rs", text).expect("parses");
        check(&file).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn headless_clauses_are_found() {
        for text in [
            "// Who waits yields.",
            "    /// what is left over\nfn f() {}",
            "//! Taken first; whoever waits holds no lock.",
            "// It ends there: what follows is new.",
        ] {
            assert_eq!(lines(text), [1], "{text}");
        }
        let file = SourceFile::parse("a.rs", "//! Who waits yields.\n").expect("parses");
        let expected = "a.rs:1: a clause begins with \"Who\": name the caller, reader or thing meant";
        assert_eq!(check(&file)[0].to_string(), expected);
    }

    #[test]
    fn other_uses_and_code_pass() {
        for text in [
            "// The thread who waits.",
            "// It says what is left.",
            "// Who?",
            "// Whole blocks only.",
            "//! ```\n//! // what is this\n//! ```",
            "const A: &str = \"// Who waits\";",
        ] {
            assert_eq!(lines(text), [0; 0], "{text}");
        }
    }
}
