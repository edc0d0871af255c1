//! Keeping the inputs of a fuzz target few.
//!
//! Owns [`Corpora`]. A slice first runs all inputs that earlier slices kept. Without libFuzzer's
//! statistics of features it keeps many: 16,000 inputs took a fifth of a slice, and in a slow
//! slice all of it. libFuzzer finds a part that reaches as much.
//!
//! **Invariant:** only inputs that were there before the merge are removed, so that other slices
//! lose nothing that they find meanwhile.
//!
//! **Lock**: one, held during a merge: two slices of one target do not merge at once.

use anyhow::{Context, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// A corpus of so many inputs is left as it is.
const FEW: usize = 5000;

/// The sizes of corpora.
#[derive(Debug)]
pub struct Corpora {
    few: usize,
    /// The most inputs before the next merge, by folder.
    most: Mutex<BTreeMap<PathBuf, usize>>,
}

impl Default for Corpora {
    fn default() -> Self {
        Self::of(FEW)
    }
}

impl Corpora {
    /// Corpora that are left as they are up to `few` inputs.
    fn of(few: usize) -> Self {
        Self { few, most: Mutex::default() }
    }

    /// Removes inputs that reach nothing of their own, if the corpus has grown large.
    ///
    /// # Errors
    /// A merge that fails, or a file that cannot be removed.
    pub fn keep_small(&self, program: &Path, corpus: &Path) -> anyhow::Result<()> {
        let mut most = self.most.lock().unwrap_or_else(PoisonError::into_inner);
        let before = names(corpus)?;
        if before.len() <= most.get(corpus).copied().unwrap_or(self.few) {
            return Ok(());
        }
        let kept = merge(program, corpus, &before)?;
        println!("campaign: {}: {kept} of {} inputs reach as much", corpus.display(), before.len());
        most.insert(corpus.to_owned(), self.few.max(2 * kept));
        Ok(())
    }
}

/// Keeps a part of the inputs in `before` that reaches as much. Returns the size of that part.
fn merge(program: &Path, corpus: &Path, before: &BTreeSet<OsString>) -> anyhow::Result<usize> {
    let merged = tempfile::tempdir().context("cannot make a folder for the smaller corpus")?;
    let status = Command::new(program)
        .args(["-merge=1", "-rss_limit_mb=2048", "-timeout=10"])
        .args([merged.path(), corpus])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .with_context(|| format!("cannot run {}", program.display()))?;
    // libFuzzer names an input after its content, so that a copy has the same name.
    let kept = names(merged.path())?;
    if !status.success() || kept.is_empty() {
        bail!("{} cannot merge its corpus {}", program.display(), corpus.display());
    }
    for name in before.difference(&kept) {
        let input = corpus.join(name);
        match std::fs::remove_file(&input) {
            // Another campaign merges too.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            removed => removed.with_context(|| format!("cannot remove {}", input.display()))?,
        }
    }
    Ok(kept.len())
}

fn names(folder: &Path) -> anyhow::Result<BTreeSet<OsString>> {
    let context = || format!("cannot list {}", folder.display());
    let entries = std::fs::read_dir(folder).with_context(context)?;
    entries.map(|entry| Ok(entry?.file_name())).collect::<std::io::Result<_>>().with_context(context)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn script(folder: &Path, commands: &str) -> PathBuf {
        let path = folder.join("target");
        std::fs::write(&path, format!("#!/bin/sh\nset -e\n{commands}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn slices_that_merge_at_once_do_not_fail() {
        let folder = tempfile::tempdir().unwrap();
        let corpus = folder.path().join("corpus");
        std::fs::create_dir(&corpus).unwrap();
        for number in 0..=100 {
            std::fs::write(corpus.join(number.to_string()), [7]).unwrap();
        }
        let program = script(
            folder.path(),
            "while [ $# -gt 2 ]; do shift; done; echo run >> \"$2\"/../runs; sleep 0.2; cp \"$2\"/1* \"$1\"",
        );
        let corpora = [Corpora::of(100), Corpora::of(100)];
        std::thread::scope(|scope| {
            // Two slices of one campaign, and one of another.
            for corpora in [&corpora[0], &corpora[0], &corpora[1]] {
                scope.spawn(|| corpora.keep_small(&program, &corpus).unwrap());
            }
        });
        assert_eq!(names(&corpus).unwrap().len(), 12);
        let runs = std::fs::read_to_string(folder.path().join("runs")).unwrap();
        assert!(runs.lines().count() <= 2, "{runs}");
    }

    #[test]
    fn only_large_corpora_shrink_and_only_by_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let corpus = folder.path().join("corpus");
        std::fs::create_dir(&corpus).unwrap();
        // The place of the smaller corpus is the last argument but one.
        let program = script(
            folder.path(),
            "while [ $# -gt 2 ]; do shift; done; cp \"$2\"/1* \"$1\"; echo new > \"$2\"/found-meanwhile",
        );
        let corpora = Corpora::of(100);
        let fill = |count: usize| {
            for number in 0..count {
                std::fs::write(corpus.join(number.to_string()), [7]).unwrap();
            }
        };
        fill(100);
        corpora.keep_small(&program, &corpus).unwrap();
        assert_eq!(names(&corpus).unwrap().len(), 100, "few inputs stay");
        fill(101);
        corpora.keep_small(&program, &corpus).unwrap();
        let left = names(&corpus).unwrap();
        assert!(left.contains(&OsString::from("found-meanwhile")));
        // 1, 10 to 19, 100.
        assert_eq!(left.len(), 12 + 1);
        let failing = script(folder.path(), "exit 3");
        fill(101);
        assert!(corpora.keep_small(&failing, &corpus).is_err());
        assert_eq!(names(&corpus).unwrap().len(), 102, "a merge that failed removes nothing");
    }
}
