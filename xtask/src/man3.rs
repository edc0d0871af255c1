//! The manual pages of the C interface, section 3: `cargo xtask man3 FOLDER`.
//!
//! Owns the translation of documentation to roff. A source file of `crates/capi` is a page, named
//! after its first function; its `//!` text is the description. Prototypes and the text of each
//! function come from `papilio.h`. Every other function has a page that refers to it.

use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// A function of the header.
pub struct Function {
    pub prototype: String,
    pub text: String,
}

/// Writes all pages to `folder/man3`, and prints their number.
pub fn run(root: &Path, folder: &Path) -> Result<()> {
    let capi = root.join("crates/capi");
    let header =
        fs::read_to_string(capi.join("include/papilio.h")).context("crates/capi/include/papilio.h")?;
    let functions = functions(&header);
    ensure!(!functions.is_empty(), "papilio.h has no functions");
    let folder = folder.join("man3");
    fs::create_dir_all(&folder)?;
    let mut pages = BTreeMap::new();
    let mut overview = String::new();
    for entry in fs::read_dir(capi.join("src"))? {
        let path = entry?.path();
        let source = fs::read_to_string(&path)?;
        let names: Vec<&str> = source
            .split("extern \"C\" fn ")
            .skip(1)
            .filter_map(|part| part.split('(').next())
            .filter(|name| functions.contains_key(*name))
            .collect();
        let Some(first) = names.first() else { continue };
        let text = about(&source);
        let title = text.lines().next().unwrap_or_default().trim_end_matches('.').to_owned();
        let _ = writeln!(overview, ".TP\n.BR {first} (3)\n{}", roff(&title));
        pages.insert((*first).to_owned(), page(&names, &title, &text, &functions));
        for name in &names[1..] {
            pages.insert((*name).to_owned(), format!(".so man3/{first}.3\n"));
        }
    }
    let text = about(&fs::read_to_string(capi.join("src/lib.rs"))?);
    pages.insert("papilio".to_owned(), intro(&text, &overview));
    for (name, page) in &pages {
        fs::write(folder.join(format!("{name}.3")), page)?;
    }
    let missing: Vec<_> = functions.keys().filter(|name| !pages.contains_key(*name)).collect();
    ensure!(missing.is_empty(), "functions without a page: {missing:?}");
    println!("{} pages in {}", pages.len(), folder.display());
    Ok(())
}

/// Returns the `//!` text of a source file.
pub fn about(source: &str) -> String {
    let lines = source.lines().map_while(|line| line.strip_prefix("//!"));
    lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect::<Vec<_>>().join("\n")
}

/// Returns the functions of the header by name.
pub fn functions(header: &str) -> BTreeMap<String, Function> {
    let mut found = BTreeMap::new();
    let (mut text, mut prototype) = (String::new(), String::new());
    for line in header.lines() {
        if let Some(comment) = line.strip_prefix("//") {
            let _ = writeln!(text, "{}", comment.strip_prefix(' ').unwrap_or(comment));
            continue;
        }
        let begins = line.starts_with(|first: char| first.is_ascii_lowercase()) && line.contains("papilio_");
        if prototype.is_empty() && !(begins && line.contains('(') && !line.starts_with("typedef")) {
            text.clear();
            continue;
        }
        let separator = if prototype.is_empty() { "" } else { " " };
        let _ = write!(prototype, "{separator}{}", line.trim());
        if line.ends_with(';') {
            let head = prototype.split('(').next().unwrap_or_default();
            let name = head.split([' ', '*']).next_back().unwrap_or_default().to_owned();
            let function =
                Function { prototype: std::mem::take(&mut prototype), text: std::mem::take(&mut text) };
            found.insert(name, function);
        }
    }
    found
}

fn page(names: &[&str], title: &str, text: &str, functions: &BTreeMap<String, Function>) -> String {
    let mut page = head(names[0]);
    let _ = writeln!(page, ".SH NAME\n{} \\- {}", names.join(", "), roff(&title.to_lowercase()));
    page += ".SH SYNOPSIS\n.nf\n#include <papilio.h>\n.PP\n";
    for name in names {
        let _ = writeln!(page, "{}", roff(&functions[*name].prototype));
    }
    let _ = writeln!(page, ".fi\n.PP\nLink with \\-lpapilio.\n.SH DESCRIPTION\n{}", paragraphs(text));
    page += ".PP\nThe constants and structures are described in <papilio.h>.\n.SH FUNCTIONS\n";
    for name in names {
        let _ =
            writeln!(page, ".TP\n.B {name}()\n{}", paragraphs(&functions[*name].text).replace(".PP", ".IP"));
    }
    page + ".SH SEE ALSO\n.BR papilio (3)\n"
}

fn intro(text: &str, overview: &str) -> String {
    let mut page = head("papilio");
    page += ".SH NAME\npapilio \\- Btrfs in user space\n.SH SYNOPSIS\n#include <papilio.h>\n.PP\n";
    let _ = writeln!(page, "Link with \\-lpapilio.\n.SH DESCRIPTION\n{}", paragraphs(text));
    page + ".SH PAGES\n" + overview + ".SH SEE ALSO\n.BR papilio (8), btrfs (5)\n"
}

fn head(name: &str) -> String {
    format!(".TH {} 3 \"\" \"papilio {}\"\n", name.to_uppercase(), env!("CARGO_PKG_VERSION"))
}

/// Returns a text with its paragraphs marked.
fn paragraphs(text: &str) -> String {
    let paragraphs = text.trim().split("\n\n").map(|one| roff(one.trim()));
    paragraphs.collect::<Vec<_>>().join("\n.PP\n")
}

/// Returns a text in which roff sees no requests.
fn roff(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-").replace('`', "");
    let line =
        |line: &str| if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line.to_owned() };
    escaped.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_of_the_header_has_a_page() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let folder = tempfile::tempdir().unwrap();
        run(root, folder.path()).unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join("man3").join(name)).unwrap();
        let open = read("papilio_open.3");
        assert!(open.contains("int papilio_open(const char *path,"), "{open}");
        assert!(open.contains(".TP\n.B papilio_close()\nDrops a reference"), "{open}");
        assert_eq!(read("papilio_close.3"), ".so man3/papilio_open.3\n");
        assert!(read("papilio_last_error.3").contains("const char *papilio_last_error(void);"));
        assert!(read("papilio.3").contains(".BR papilio_queue_new (3)"));
    }
}
