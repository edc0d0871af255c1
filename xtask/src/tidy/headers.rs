//! Every file opens with a `//!` header, and a very long one gives a reason there.

use super::finding::Finding;
use super::sources::SourceFile;

/// A file with more lines than this needs a reason in its header.
const LONG_FILE_LINES: usize = 1000;
/// The words that introduce the reason.
const REASON: &str = "Over 1,000 lines because";

/// Checks one file.
pub fn check(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let header: Vec<&str> =
        file.text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim).collect();
    if header.is_empty() {
        findings.push(Finding::new(&file.path, 1, "missing `//!` header: say what the file owns"));
    }
    let lines = file.text.lines().count();
    if lines > LONG_FILE_LINES && !header.join(" ").contains(REASON) {
        let message = format!("{lines} lines: split it, or say in the `//!` header \"{REASON} ...\"");
        findings.push(Finding::new(&file.path, LONG_FILE_LINES + 1, message));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str) -> Vec<String> {
        let file = SourceFile::parse("a.rs", text).expect("parses");
        check(&file).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_missing_or_late_header_is_found() {
        assert_eq!(messages("//! Owns nothing.\n\nfn a() {}\n"), Vec::<String>::new());
        assert_eq!(messages("").len(), 1);
        let found = messages("// a comment\n//! Too late.\n");
        assert_eq!(found, ["a.rs:1: missing `//!` header: say what the file owns"]);
    }

    #[test]
    fn a_long_file_needs_a_reason() {
        let body = "// line\n".repeat(999);
        assert_eq!(messages(&format!("//! Short.\n{body}")), Vec::<String>::new());
        let found = messages(&format!("//! Long.\n{body}// line\n"));
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("a.rs:1001: 1001 lines"), "{found:?}");
        let reason = "//! Long. Over 1,000\n//! lines because it is one table.\n";
        assert_eq!(messages(&format!("{reason}{body}")), Vec::<String>::new());
        // The phrase counts only in the header.
        let outside = format!("//! Long.\n{body}// Over 1,000 lines because.\n");
        assert_eq!(messages(&outside).len(), 1);
    }
}
