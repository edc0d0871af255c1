//! `cargo xtask handbook`: assembles the handbook in target/handbook, where mdbook builds it.
//!
//! Owns the order of the steps. The chapters are the pages below handbook/src, documents of the
//! repository, which are included and not copied by hand, and references that are made from the
//! programs: the command's from `papilio man --markdown`, those of C and Python from their sources.
//! [`book`] rewrites the links and refuses those that lead nowhere.

mod book;
mod c_reference;
mod links;
mod python_reference;

use anyhow::{Context, Result, bail, ensure};
use book::Book;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The place in SUMMARY.md at which the pages of the commands are listed.
const COMMANDS: &str = "<!-- commands -->\n";

/// Assembles the book. `papilio` is the command whose reference it gets.
///
/// # Errors
/// A link leads nowhere, a source is missing, or a file cannot be written.
pub fn run(root: &Path, papilio: Option<&str>) -> Result<()> {
    let papilio = match papilio {
        Some(path) => PathBuf::from(path),
        None => built_command(root)?,
    };
    let out = root.join("target/handbook");
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| out.display().to_string())?;
    }
    let reference = out.join("commands");
    let status = Command::new(&papilio).args(["man", "--markdown"]).arg(&reference).status();
    let status = status.with_context(|| format!("cannot run {}", papilio.display()))?;
    ensure!(status.success(), "{} man --markdown: {status}", papilio.display());
    let book = assemble(root, &reference)?;
    fs::remove_dir_all(&reference)?;
    for file in ["book.toml", "style.css"] {
        fs::copy(root.join("handbook").join(file), out.join(file)).context(file)?;
    }
    let pages = book.write(&out.join("src"))?;
    println!("{pages} pages in {}; build them with: mdbook build {}", out.display(), out.display());
    Ok(())
}

/// Returns the newest command that cargo has built.
fn built_command(root: &Path) -> Result<PathBuf> {
    let built = ["target/release/papilio", "target/debug/papilio"].map(|path| root.join(path));
    let modified = |path: &PathBuf| path.metadata().and_then(|data| data.modified()).ok();
    let newest = built.into_iter().filter(|path| path.exists()).max_by_key(modified);
    let Some(newest) = newest else { bail!("no command is built: `make build`, or name one with --papilio") };
    Ok(newest)
}

/// Puts the book together, with the pages of the commands from the folder `reference`.
fn assemble(root: &Path, reference: &Path) -> Result<Book> {
    let mut made = Vec::new();
    for entry in fs::read_dir(reference).with_context(|| reference.display().to_string())? {
        let entry = entry?;
        let name = format!("reference/{}", entry.file_name().to_string_lossy());
        made.push((name, fs::read_to_string(entry.path())?));
    }
    made.push(("reference/c.md".to_owned(), c_reference::page(root)?));
    made.push(("reference/python.md".to_owned(), python_reference::page(root)?));
    let summary = fs::read_to_string(root.join("handbook/src/SUMMARY.md")).context("SUMMARY.md")?;
    let index = made.iter().find(|(name, _)| name == "reference/index.md").context("no index.md")?;
    let summary = with_commands(&summary, &index.1)?;
    Book::load(root, &summary, made)
}

/// Lists the commands of the index in the summary.
fn with_commands(summary: &str, index: &str) -> Result<String> {
    ensure!(summary.contains(COMMANDS), "SUMMARY.md has no {}", COMMANDS.trim());
    let mut list = String::new();
    for line in index.lines() {
        let Some((title, rest)) = line.strip_prefix("- [").and_then(|line| line.split_once("](")) else {
            continue;
        };
        let file = rest.split(')').next().unwrap_or_default();
        list += &format!("  - [{title}](reference/{file})\n");
    }
    ensure!(!list.is_empty(), "the index of the commands is empty");
    Ok(summary.replace(COMMANDS, &list))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_listed_in_the_summary() {
        let index = "# Commands\n\n## Files\n\n- [papilio ls](papilio-ls.md): List files (all)\n";
        let listed = with_commands("- [a](a.md)\n<!-- commands -->\n- [b](b.md)\n", index).unwrap();
        assert_eq!(listed, "- [a](a.md)\n  - [papilio ls](reference/papilio-ls.md)\n- [b](b.md)\n");
        assert!(with_commands("- [a](a.md)\n", index).is_err());
        assert!(with_commands(COMMANDS, "# Commands\n").is_err());
    }

    /// Every link of the real book leads somewhere. The pages of the commands are made up, as the
    /// command need not be built; those that the book links to must be commands.
    #[test]
    fn every_link_of_the_book_leads_somewhere() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let table = fs::read_to_string(root.join("crates/cli/src/command_table.rs")).unwrap();
        let mut index = "# Commands\n\n".to_owned();
        let entries = table.lines().filter_map(|line| line.trim().strip_prefix("(\""));
        for name in entries.filter_map(|line| line.split('"').next()) {
            index += &format!("- [papilio {name}](papilio-{name}.md)\n");
            fs::write(folder.path().join(format!("papilio-{name}.md")), format!("# papilio {name}\n"))
                .unwrap();
        }
        fs::write(folder.path().join("papilio.md"), "# papilio\n").unwrap();
        fs::write(folder.path().join("index.md"), index).unwrap();
        let book = assemble(root, folder.path()).unwrap();
        let out = tempfile::tempdir().unwrap();
        assert!(book.write(out.path()).unwrap() > 100);
        let recipe = fs::read_to_string(out.path().join("recipes/superblock-gone.md")).unwrap();
        assert!(
            recipe.contains("(../docs/rescue.md)") && recipe.contains("(../reference/papilio-rescue.md)")
        );
        let compatibility = fs::read_to_string(out.path().join("compatibility.md")).unwrap();
        assert!(compatibility.contains("| kernel | tests | passed | failed |"), "{compatibility}");
    }
}
