//! `cargo xtask counterparts`: the table of our files and the kernel's.
//!
//! Owns docs/internals/counterparts.md. Each row comes from the sentence "Kernel counterpart: ..."
//! of a file's `//!` header, so that the table cannot differ from the files. `tidy` fails if it is
//! out of date.

use anyhow::Context;
use std::fmt::Write;
use std::path::Path;

/// The page, from the workspace's root.
pub const PAGE: &str = "docs/internals/counterparts.md";
const MARK: &str = "Kernel counterpart";
const HEAD: &str = "# Our files and the kernel's

`cargo xtask counterparts` makes this page of the headers of the files. A path like
`fs/btrfs/file.c` is one of the kernel's sources. Files that are not here have no counterpart, or
their folder's `mod.rs` names it.

| ours | the kernel's |
|---|---|
";

/// Writes the page.
///
/// # Errors
/// It cannot be written.
pub fn run<'a>(root: &Path, files: impl Iterator<Item = (&'a str, &'a str)>) -> anyhow::Result<()> {
    let path = root.join(PAGE);
    std::fs::write(&path, page(files)).with_context(|| format!("{}: cannot write", path.display()))
}

/// Returns the page for files, each with its path and text.
pub fn page<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut page = HEAD.to_owned();
    for (path, text) in files {
        if let Some(found) = counterpart(text) {
            writeln!(page, "| `{path}` | {found} |").expect("a String takes all");
        }
    }
    page
}

/// Returns the counterpart that a file's header names. `None` also for "none".
fn counterpart(text: &str) -> Option<String> {
    let header = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    let mut words = String::new();
    for line in header.skip_while(|line| !line.contains(MARK)).take_while(|line| !line.is_empty()) {
        words.push_str(line);
        words.push(' ');
    }
    let (_, rest) = words[words.find(MARK)?..].split_once(':')?;
    let rest = first_sentence(rest.trim());
    (!rest.starts_with("none")).then(|| rest.replace('|', "\\|"))
}

/// Returns the text up to the first full stop that ends a sentence: not one in backticks.
fn first_sentence(text: &str) -> &str {
    let mut quoted = false;
    let mut bytes = text.bytes().enumerate().peekable();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'`' => quoted = !quoted,
            b'.' if !quoted && bytes.peek().is_none_or(|(_, next)| *next == b' ') => return &text[..at],
            _ => {}
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counterparts_come_from_headers() {
        let text = "//! A.\n//!\n//! Lock: one. Kernel counterparts: `a b` (`fs/x.c`),\n//! `y.c`. More.\n//!\n//! Z.\n";
        assert_eq!(counterpart(text).as_deref(), Some("`a b` (`fs/x.c`), `y.c`"));
        assert_eq!(counterpart("//! Kernel counterpart: none; ours.\n"), None);
        assert_eq!(counterpart("//! Nothing.\n\n// Kernel counterpart: `a`.\n"), None);
        let page = page([("a.rs", "//! Kernel counterpart: `b.c`.\n"), ("c.rs", "//! C.\n")].into_iter());
        assert!(page.ends_with("|---|---|\n| `a.rs` | `b.c` |\n"), "{page}");
    }
}
