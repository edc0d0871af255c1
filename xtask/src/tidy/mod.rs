//! The rules of the house that neither the compiler nor Clippy knows.
//!
//! Owns [`Finding`] and the order in which the checks run; each check is a file of its own:
//!
//! - [`layers`]: no module of `crates/papilio` imports from a layer above it;
//! - [`crates`]: nor does a crate depend on one above it;
//! - [`sources`]: every `.rs` file is reached by `mod` from a crate's root;
//! - [`functions`]: no function is longer than the limit, or than its entry in the ratchet allows;
//! - [`headers`]: every file opens with `//!`, and one over 1,000 lines says there why;
//! - [`leftovers`]: no `todo!`, `unimplemented!` or `dbg!`.
//!
//! Each takes parsed sources and gives findings, so that its tests need no workspace on disk.

mod crates;
mod functions;
mod headers;
mod layers;
mod leftovers;
mod ratchet;
mod sources;
mod tokens;

use ratchet::Ratchet;
use sources::Sources;
use std::fmt;
use std::path::Path;

/// Where the longest functions are listed.
const RATCHET: &str = "xtask/tidy-ratchet.toml";

/// A broken rule, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Path from the workspace's root.
    pub path: String,
    /// Line, from 1.
    pub line: usize,
    /// What is wrong, and what to do.
    pub message: String,
}

impl Finding {
    /// A finding at `line` (from 1) of `path`.
    pub fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// Checks the workspace at `root` and prints what is found; `Ok(true)` when nothing is.
///
/// # Errors
/// A file that cannot be read or parsed.
pub fn run(root: &Path, tighten: bool) -> anyhow::Result<bool> {
    let sources = Sources::load(root)?;
    let lengths = functions::measure(&sources);
    let ratchet_path = root.join(RATCHET);
    let mut ratchet = Ratchet::load(&ratchet_path)?;
    if tighten {
        ratchet.tighten(&lengths);
        ratchet.save(&ratchet_path)?;
    }

    let mut findings = sources.dead_files();
    findings.extend(crates::check(&sources));
    findings.extend(layers::check(&sources));
    findings.extend(functions::check(&lengths, &ratchet, RATCHET));
    for file in sources.files() {
        findings.extend(headers::check(file));
        findings.extend(leftovers::check(file));
    }
    findings.sort();
    findings.dedup();
    for finding in &findings {
        println!("{finding}");
    }
    if findings.is_empty() {
        println!("tidy: {} files, {} functions, nothing found", sources.files().len(), lengths.len());
    } else {
        println!("tidy: {} findings", findings.len());
    }
    Ok(findings.is_empty())
}
