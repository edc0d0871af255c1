//! Reasons why tests miss mutants: `results/survivors.tsv`, which people write.
//!
//! A line has a file, below `crates/engine/src`; a part of the mutants' names, which may be empty;
//! and the reason. The first line that fits a mutant counts.

use anyhow::Context;
use std::path::Path;

const FILE: &str = "results/survivors.tsv";
const SOURCES: &str = "crates/engine/src/";

struct Reason {
    file: String,
    part: String,
    text: String,
}

/// All reasons.
pub struct Reasons(Vec<Reason>);

impl Reasons {
    /// Reads the file.
    ///
    /// # Errors
    /// It cannot be read, or a line has not three fields.
    pub fn read(root: &Path) -> anyhow::Result<Self> {
        Self::parse(&std::fs::read_to_string(root.join(FILE)).context(FILE)?)
    }

    /// Parses the file's text.
    ///
    /// # Errors
    /// A line has not three fields.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let reason = |line: &str| {
            let mut fields = line.splitn(3, '\t').map(str::to_owned);
            Some(Reason { file: fields.next()?, part: fields.next()?, text: fields.next()? })
        };
        let reasons = text.lines().map(|line| reason(line).with_context(|| format!("{FILE}: {line:?}")));
        Ok(Self(reasons.collect::<anyhow::Result<_>>()?))
    }

    /// Returns the reason for a mutant.
    pub fn of(&self, name: &str) -> Option<&str> {
        let (file, rest) = name.strip_prefix(SOURCES)?.split_once(':')?;
        // Line and column.
        let change = rest.split_once(": ")?.1;
        let fits = |reason: &&Reason| reason.file == file && change.contains(&reason.part);
        self.0.iter().find(fits).map(|reason| &*reason.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_that_fits_counts() {
        let text = "a/b.rs\twith - in f\tslower\na/b.rs\t\tequal\n";
        let reasons = Reasons::parse(text).unwrap();
        let of = |name: &str| reasons.of(&format!("crates/engine/src/{name}"));
        assert_eq!(of("a/b.rs:1:2: replace + with - in f"), Some("slower"));
        assert_eq!(of("a/b.rs:1:2: replace + with * in f"), Some("equal"));
        assert_eq!(of("a/c.rs:1:2: replace + with - in f"), None);
        assert!(Reasons::parse("a\tb").is_err());
    }

    #[test]
    fn the_file_can_be_read() {
        Reasons::read(&crate::workspace_root()).unwrap();
    }
}
