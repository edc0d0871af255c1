//! Rules of the project that neither the compiler nor Clippy checks.
//!
//! Owns the order in which the checks run; each check is a file of its own:
//!
//! - [`layers`]: no module of `crates/papilio` imports from a layer above it;
//! - [`crates`]: no crate depends on one above it;
//! - [`cycles`]: the files of a crate do not import one another in a circle;
//! - [`sources`]: every `.rs` file is reached by `mod` from a crate's root;
//! - [`headers`]: every file opens with `//!`, and one over 1,000 lines says there why;
//! - [`long_lines`]: comments and documents are at most 100 columns wide;
//! - [`headless`]: no clause in a comment begins with "who", "whoever" or "what";
//! - the table of kernel counterparts is that of the headers ([`counterparts`]);
//! - the table of dependencies is current and complete, and licences and sources are allowed
//!   ([`dependencies`]);
//! - [`type_names`]: two types of a crate differ in their names;
//! - [`requirements`]: `scripts/setup.sh` installs the commands that tests need.
//!
//! Each takes parsed sources and returns findings, so its tests need no workspace on disk.

mod comments;
mod crates;
mod cycles;
mod finding;
mod headers;
mod headless;
mod imports;
mod layers;
mod long_lines;
mod module_graph;
mod requirements;
mod sources;
mod tokens;
mod type_names;

use crate::counterparts;
use crate::dependencies;
use finding::Finding;
use sources::Sources;
use std::path::Path;

/// Writes the table of kernel counterparts.
///
/// # Errors
/// A file that cannot be read, parsed or written.
pub fn write_counterparts(root: &Path) -> anyhow::Result<()> {
    let sources = Sources::load(root)?;
    counterparts::run(root, shipped(&sources))
}

fn counterpart_page(sources: &Sources) -> String {
    counterparts::page(shipped(sources))
}

/// Returns path and text of the files that are in a shipped crate.
fn shipped(sources: &Sources) -> impl Iterator<Item = (&str, &str)> {
    let is_shipped = |path: &str| path.starts_with("crates/") && path.contains("/src/");
    sources
        .files()
        .filter(move |file| is_shipped(&file.path))
        .map(|file| (file.path.as_str(), file.text.as_str()))
}

/// Checks the workspace at `root` and prints the findings; `Ok(true)` when there are none.
///
/// # Errors
/// A file that cannot be read or parsed.
pub fn run(root: &Path) -> anyhow::Result<bool> {
    let sources = Sources::load(root)?;
    let mut findings = sources.dead_files();
    findings.extend(crates::check(&sources));
    findings.extend(layers::check(&sources));
    findings.extend(cycles::check(&cycles::components(&module_graph::build(&sources))));
    findings.extend(sources.documents().iter().flat_map(long_lines::check_document));
    if std::fs::read_to_string(root.join(counterparts::PAGE)).unwrap_or_default()
        != counterpart_page(&sources)
    {
        let message = "differs from the headers of the files: run `cargo xtask counterparts`";
        findings.push(Finding::new(counterparts::PAGE, 1, message));
    }
    let (page, refused) = dependencies::page_and_findings(root)?;
    if std::fs::read_to_string(root.join(dependencies::PAGE)).unwrap_or_default() != page {
        let message = "differs from the manifests: run `cargo xtask dependencies`";
        findings.push(Finding::new(dependencies::PAGE, 1, message));
    }
    findings.extend(refused.into_iter().map(|(file, message)| Finding::new(file, 1, message)));
    findings.extend(type_names::check(sources.files()));
    let setup = std::fs::read_to_string(root.join(requirements::SETUP))?;
    for file in sources.files().filter(|file| file.path.starts_with("crates/")) {
        findings.extend(requirements::check(file, &setup));
    }
    for file in sources.files() {
        findings.extend(headers::check(file));
        findings.extend(headless::check(file));
        findings.extend(long_lines::check_comments(file));
    }
    findings.sort();
    findings.dedup();
    for finding in &findings {
        println!("{finding}");
    }
    if findings.is_empty() {
        println!("tidy: {} files, nothing found", sources.files().len());
    } else {
        println!("tidy: {} findings", findings.len());
    }
    Ok(findings.is_empty())
}

/// Prints every cycle of the workspace at `root`, and how each could be ended.
///
/// # Errors
/// A file that cannot be read or parsed.
pub fn print_cycles(root: &Path) -> anyhow::Result<()> {
    let graph = module_graph::build(&Sources::load(root)?);
    for component in cycles::components(&graph) {
        print!("{}", cycles::describe(&graph, &component));
    }
    Ok(())
}
