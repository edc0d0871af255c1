//! A copy of the sources that holds all mutants, and its build.

use super::embed::embed;
use super::listed::{self, Genre, Mutant};
use crate::nested_cargo::nested_cargo;
use anyhow::{Context, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Packages whose tests are run.
pub const PACKAGES: [&str; 4] = ["papilio-engine", "papilio-fs", "papilio", "papilio-simulator"];
/// The library's sources, to which the switch is added.
const LIBRARY: &str = "crates/engine/src/lib.rs";
const SWITCH_FILE: &str = "crates/engine/src/mutant_switch.rs";

/// The bytes of each changed file that belong to one mutant.
type Pieces = BTreeMap<String, Vec<(u32, Range<usize>)>>;

/// A copy of the sources with all mutants.
pub struct Tree {
    pub sources: PathBuf,
    target: PathBuf,
    pub commit: String,
    /// The version of the crates' sources, whatever else a commit changes.
    pub version: String,
    /// Mutant `n` is `mutants[n - 1]`.
    pub mutants: Vec<Mutant>,
    /// Mutants that do not build.
    pub unviable: BTreeSet<u32>,
    /// Mutants that have no form behind a switch.
    pub left_out: BTreeSet<u32>,
}

/// A program of tests.
pub struct Program {
    /// The package, and the test if it is not the library's own.
    pub name: String,
    pub path: PathBuf,
    /// The folder in which its tests run.
    pub folder: PathBuf,
}

impl Tree {
    /// Copies the sources of the last commit to `folder`, and puts in the mutants that build.
    ///
    /// # Errors
    /// Git or cargo-mutants fails; sources that are not committed, or do not build without mutants.
    pub fn new(root: &Path, folder: &Path) -> anyhow::Result<Self> {
        let sources = folder.join("sources");
        if !git(&["status", "--porcelain", "crates/engine/src"], root)?.is_empty() {
            bail!("crates/engine/src has changes that are not committed");
        }
        let commit = git(&["rev-parse", "--short", "HEAD"], root)?;
        if !sources.is_dir() {
            std::fs::create_dir_all(folder).context("target/mutation")?;
            git(&["clone", "--quiet", &root.display().to_string(), "sources"], folder)?;
        }
        // The commit need not be on a branch.
        git(&["fetch", "--quiet", "origin", "HEAD"], &sources)?;
        let version = git(&["rev-parse", "--short", "HEAD:crates"], root)?;
        if git(&["rev-parse", "--short", "HEAD:crates"], &sources)? != version {
            git(&["checkout", "--quiet", "--force", "--detach", &commit], &sources)?;
        }
        let mut tree = Self {
            sources,
            target: folder.join("target"),
            commit,
            version,
            mutants: Vec::new(),
            unviable: BTreeSet::new(),
            left_out: BTreeSet::new(),
        };
        // The list is that of the sources without mutants.
        tree.mutants = listed::list(root)?;
        tree.unviable = tree.known_unviable();
        tree.change()?;
        Ok(tree)
    }

    fn unviable_file(&self) -> PathBuf {
        self.target.with_file_name(format!("unviable-{}", self.version))
    }

    /// The mutants of this version that an earlier run found not to build.
    fn known_unviable(&self) -> BTreeSet<u32> {
        let text = std::fs::read_to_string(self.unviable_file()).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Puts in the mutants, and removes those that do not build.
    fn change(&mut self) -> anyhow::Result<()> {
        let arms = (1..).zip(&self.mutants).filter(|(_, mutant)| mutant.genre == Genre::Arm);
        let arms: BTreeSet<u32> = arms.map(|(number, _)| number).collect();
        loop {
            let pieces = self.write()?;
            let errors = self.check()?;
            if errors.is_empty() {
                return Ok(());
            }
            let mut culprits = BTreeSet::new();
            for error in &errors {
                culprits.extend(error.culprits(&pieces, &arms));
            }
            if culprits.is_empty() {
                bail!("the sources do not build without mutants: {}", errors[0].message);
            }
            println!("mutants: {} do not build", culprits.len());
            self.unviable.extend(culprits);
            let list = self.unviable.iter().fold(String::new(), |mut list, number| {
                let _ = writeln!(list, "{number}");
                list
            });
            std::fs::write(self.unviable_file(), list).context("target/mutation")?;
        }
    }

    /// Writes the changed files. Returns the bytes of each that belong to one mutant.
    fn write(&mut self) -> anyhow::Result<Pieces> {
        let mut files: BTreeMap<&str, Vec<(u32, &Mutant)>> = BTreeMap::new();
        for (number, mutant) in (1..).zip(&self.mutants) {
            let of_file = files.entry(&mutant.file).or_default();
            if !self.unviable.contains(&number) {
                of_file.push((number, mutant));
            }
        }
        let mut pieces = BTreeMap::new();
        let mut embedded = BTreeSet::new();
        for (file, mutants) in files {
            let text = git(&["show", &format!("HEAD:{file}")], &self.sources)? + "\n";
            let changed = embed(&text, &mutants).with_context(|| file.to_owned())?;
            write_if_changed(&self.sources.join(file), &changed.text)?;
            embedded.extend(changed.pieces.iter().map(|(number, _)| *number));
            pieces.insert(file.to_owned(), changed.pieces);
        }
        let all = 1..=u32::try_from(self.mutants.len()).context("too many mutants")?;
        self.left_out =
            all.filter(|number| !embedded.contains(number) && !self.unviable.contains(number)).collect();
        let switch = include_str!("switch.rs.txt").replace("COUNT", &self.mutants.len().to_string());
        write_if_changed(&self.sources.join(SWITCH_FILE), &switch)?;
        let library = git(&["show", &format!("HEAD:{LIBRARY}")], &self.sources)?;
        // Mutants overflow and are unreachable, which is what they are for.
        let allowed = "#![allow(warnings, arithmetic_overflow, unconditional_panic)]";
        let library = format!("{allowed}\n{library}\n\nmod mutant_switch;\n");
        write_if_changed(&self.sources.join(LIBRARY), &library)?;
        Ok(pieces)
    }

    fn cargo(&self, words: &[&str]) -> anyhow::Result<(bool, Vec<serde_json::Value>)> {
        let mut command = nested_cargo();
        command.args(words).args(["--locked", "--quiet", "--message-format=json", "--profile", "mutants"]);
        command.current_dir(&self.sources).env("CARGO_TARGET_DIR", &self.target);
        let output = command.stderr(Stdio::null()).output().context("cannot run cargo")?;
        let messages = String::from_utf8_lossy(&output.stdout)
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        Ok((output.status.success(), messages))
    }

    fn check(&self) -> anyhow::Result<Vec<BuildError>> {
        let (passes, messages) = self.cargo(&["check", "--package", "papilio", "--features", "unstable"])?;
        let errors: Vec<_> = messages.iter().filter_map(BuildError::parse).collect();
        if !passes && errors.is_empty() {
            bail!("cargo check fails in {} without an error in a file", self.sources.display());
        }
        Ok(errors)
    }

    /// Builds the tests of [`PACKAGES`].
    ///
    /// # Errors
    /// They do not build.
    pub fn build(&self) -> anyhow::Result<Vec<Program>> {
        let mut words = vec!["test", "--no-run", "--lib", "--tests"];
        words.extend(PACKAGES.iter().flat_map(|package| ["--package", package]));
        let (passes, messages) = self.cargo(&words)?;
        if !passes {
            bail!("the tests do not build in {}", self.sources.display());
        }
        let program = |message: &serde_json::Value| {
            let path = message["executable"].as_str()?;
            let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
            let package = folder.file_name()?.to_str()?;
            let name = match message["target"]["kind"][0].as_str()? {
                "test" => format!("{package}/{}", message["target"]["name"].as_str()?),
                _ => package.to_owned(),
            };
            Some(Program { name, path: path.into(), folder: folder.to_owned() })
        };
        Ok(messages.iter().filter_map(program).collect())
    }
}

fn git(words: &[&str], folder: &Path) -> anyhow::Result<String> {
    let output = Command::new("git").args(words).current_dir(folder).output().context("git")?;
    if !output.status.success() {
        bail!("git {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// Leaves the file's time alone if it has the text, so that nothing is built again.
fn write_if_changed(path: &Path, text: &str) -> anyhow::Result<()> {
    if std::fs::read_to_string(path).is_ok_and(|before| before == text) {
        return Ok(());
    }
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

/// An error of the compiler in a file.
struct BuildError {
    message: String,
    spans: Vec<Place>,
    /// The places that its notes name: for a match that lacks an arm, the end of its last one.
    hints: Vec<Place>,
}

/// File, bytes, and whether this is the place of the error itself.
type Place = (String, Range<usize>, bool);

impl BuildError {
    fn parse(message: &serde_json::Value) -> Option<Self> {
        let error = &message["message"];
        if message["reason"] != "compiler-message" || error["level"] != "error" {
            return None;
        }
        let span = |span: &serde_json::Value| {
            let bytes = span["byte_start"].as_u64()? as usize..span["byte_end"].as_u64()? as usize;
            Some((span["file_name"].as_str()?.to_owned(), bytes, span["is_primary"].as_bool()?))
        };
        let spans_of =
            |error: &serde_json::Value| Some(error["spans"].as_array()?.iter().filter_map(span).collect());
        let spans: Vec<_> = spans_of(error)?;
        let children =
            error["children"].as_array()?.iter().filter_map(spans_of).flat_map(|spans: Vec<_>| spans);
        let message = error["rendered"].as_str().unwrap_or_default().to_owned();
        // The count of errors at the end has no place.
        (!spans.is_empty()).then(|| Self { message, hints: children.collect(), spans })
    }

    /// The places from an error to the end of the match where its notes add an arm.
    fn matches(&self) -> impl Iterator<Item = Place> {
        let of_hint = |(file, bytes, _): &Place| {
            let (_, start, _) = self.spans.iter().find(|(of, ..)| of == file)?;
            (start.start < bytes.end).then(|| (file.clone(), start.start..bytes.end, true))
        };
        self.hints.iter().filter_map(of_hint)
    }

    /// Returns the mutants to blame: those in whose text the error is, else those
    /// that it names, else the `arms` of a match that lacks one.
    fn culprits(&self, pieces: &Pieces, arms: &BTreeSet<u32>) -> BTreeSet<u32> {
        let of_place = |(file, bytes, _): &Place| -> Vec<u32> {
            let all = pieces.get(file).map_or(&[][..], Vec::as_slice);
            let touches = |range: &Range<usize>| range.start < bytes.end && bytes.start < range.end;
            all.iter().filter(|(_, range)| touches(range)).map(|(number, _)| *number).collect()
        };
        let primary = self.spans.iter().filter(|(.., is_primary)| *is_primary).flat_map(of_place);
        let any = self.spans.iter().flat_map(of_place);
        let hinted = self.matches().flat_map(|place| of_place(&place)).filter(|number| arms.contains(number));
        [primary.collect(), any.collect(), hinted.collect()]
            .into_iter()
            .find(|found: &BTreeSet<u32>| !found.is_empty())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_blame_the_mutant_in_whose_text_they_are() {
        let message = serde_json::json!({
            "reason": "compiler-message",
            "message": {
                "level": "error", "rendered": "no",
                "spans": [
                    { "file_name": "a.rs", "byte_start": 12, "byte_end": 14, "is_primary": true },
                    { "file_name": "a.rs", "byte_start": 25, "byte_end": 26, "is_primary": false },
                ],
                "children": [
                    { "spans": [
                        { "file_name": "a.rs", "byte_start": 50, "byte_end": 50, "is_primary": true },
                    ] },
                ],
            },
        });
        let error = BuildError::parse(&message).unwrap();
        let pieces = |start| BTreeMap::from([("a.rs".to_owned(), vec![(1, start..20), (2, 20..30)])]);
        let none = BTreeSet::new();
        assert_eq!(error.culprits(&pieces(10), &none), BTreeSet::from([1]));
        assert_eq!(error.culprits(&pieces(14), &none), BTreeSet::from([2]));
        let arms = BTreeMap::from([("a.rs".to_owned(), vec![(3, 30..40), (4, 40..45), (5, 60..70)])]);
        assert_eq!(error.culprits(&arms, &BTreeSet::from([3, 5])), BTreeSet::from([3]));
        assert!(BuildError::parse(&serde_json::json!({ "reason": "build-finished" })).is_none());
    }
}
