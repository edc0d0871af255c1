//! The page of the handbook with all functions of the C library, made of `papilio.h` and of the
//! sources' `//!` texts, as the manual pages of section 3 are.

use crate::man3::{about, functions};
use anyhow::{Context, Result, ensure};
use std::fmt::Write;
use std::fs;
use std::path::Path;

const HEAD: &str = "# The C interface: functions

Made from `papilio.h` and its sources; the same is in the manual pages of section 3, such as
`papilio_open(3)`. Constants and structures are described in `papilio.h`. [Papilio from
C](../../../docs/c.md) has the rules that hold for all functions.
";

/// Returns the page.
pub fn page(root: &Path) -> Result<String> {
    let capi = root.join("crates/capi");
    let header = fs::read_to_string(capi.join("include/papilio.h")).context("papilio.h")?;
    let mut functions = functions(&header);
    let mut page = HEAD.to_owned();
    let mut sources: Vec<_> = fs::read_dir(capi.join("src"))?.collect::<Result<_, _>>()?;
    sources.sort_by_key(fs::DirEntry::file_name);
    for entry in sources {
        let source = fs::read_to_string(entry.path())?;
        let names = source.split("extern \"C\" fn ").skip(1).filter_map(|part| part.split('(').next());
        let found: Vec<_> = names.filter_map(|name| Some((name, functions.remove(name)?))).collect();
        if found.is_empty() {
            continue;
        }
        let text = about(&source);
        let (title, text) = text.split_once('\n').unwrap_or((&text, ""));
        let _ = write!(page, "\n## {}\n\n{}\n", title.trim_end_matches('.'), escaped(text.trim()));
        for (name, function) in found {
            let (prototype, text) = (function.prototype, escaped(function.text.trim()));
            let _ = write!(page, "\n### {name}\n\n```c\n{prototype}\n```\n\n{text}\n");
        }
    }
    let left: Vec<&String> = functions.keys().collect();
    ensure!(left.is_empty(), "functions that no source has: {left:?}");
    Ok(page)
}

/// Returns text in which `<` and `[` are not taken for HTML and links.
pub fn escaped(text: &str) -> String {
    let mut is_code = false;
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        is_code ^= letter == '`';
        if !is_code && "<[]*_".contains(letter) {
            out.push('\\');
        }
        out.push(letter);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_is_on_the_page() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let page = page(root).unwrap();
        assert!(page.contains("\n### papilio_open\n\n```c\nint papilio_open(const char *path,"), "{page}");
        assert!(page.contains("\n### papilio_close\n") && page.contains("\n### papilio_last_error\n"));
        assert_eq!(escaped("a_b <c> `d_e`"), "a\\_b \\<c> `d_e`");
    }
}
