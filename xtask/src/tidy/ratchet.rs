//! The ratchet: exceptions from the rules, which may only shrink.
//!
//! Owns [`Ratchet`] and its file. Invariant: [`Ratchet::tighten`] only lowers or removes an
//! allowance. To add or raise one, a person edits the file, and a reviewer sees it.

use anyhow::Context;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// The remedy for an allowance that is too high.
pub const TIGHTEN: &str = "run `cargo xtask tidy --tighten`";

const HEADER: &str = "\
# Exceptions that `cargo xtask tidy` allows. They may only shrink: `cargo xtask tidy --tighten`
# lowers each to the present number, and removes those that are no longer needed.

# Lines that a function may have; `exceptions` lists the longer ones.
";
const CYCLES: &str = "
# By crate: files in cycles of imports, and the most of them that all reach one another.
# `cargo xtask tidy --cycles` lists them.
";
const LONG_LINES: &str = "
# By crate or folder: comment and document lines of more than 100 columns.
";
const HEADLESS_CLAUSES: &str = "
# By crate: comment lines with a clause that begins with \"who\", \"whoever\" or \"what\".
";

/// Files in cycles that a crate may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CycleAllowance {
    /// Files in any cycle.
    pub files: usize,
    /// Files in the largest group that all reach one another.
    pub largest: usize,
}

/// The present numbers, against which the ratchet is tightened.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The longest function's lines, by `path: function`.
    pub lengths: BTreeMap<String, usize>,
    /// Files in cycles, by area.
    pub cycles: BTreeMap<String, CycleAllowance>,
    /// Lines that are too long, by area.
    pub long_lines: BTreeMap<String, usize>,
    /// Comment lines with a headless clause, by area.
    pub headless_clauses: BTreeMap<String, usize>,
}

/// The exceptions, and the limit on a function's length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ratchet {
    /// Lines that any function may have.
    pub limit: usize,
    /// Lines that one function may have, by `path: function`.
    pub exceptions: BTreeMap<String, usize>,
    /// Files in cycles that a crate may have, by area.
    pub cycles: BTreeMap<String, CycleAllowance>,
    /// Lines of comments and documents that may be too long, by area.
    pub long_lines: BTreeMap<String, usize>,
    /// Comment lines that may have a headless clause, by area.
    pub headless_clauses: BTreeMap<String, usize>,
}

impl Ratchet {
    /// Reads the file at `path`.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    /// Parses the file's text.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let table: toml::Table = toml::from_str(text)?;
        let limit = number("limit", table.get("limit").context("limit is missing")?)?;
        let mut cycles = BTreeMap::new();
        for (name, value) in section(&table, "cycles")? {
            let field = |field: &str| {
                let value = value.get(field).with_context(|| format!("{name}: {field} is missing"))?;
                number(name, value)
            };
            cycles
                .insert(name.clone(), CycleAllowance { files: field("files")?, largest: field("largest")? });
        }
        Ok(Self {
            limit,
            exceptions: numbers(&table, "exceptions")?,
            cycles,
            long_lines: numbers(&table, "long_lines")?,
            headless_clauses: numbers(&table, "headless_clauses")?,
        })
    }

    /// Writes the file.
    pub fn save(&self, path: &Path) -> anyhow::Result<()> {
        std::fs::write(path, self.to_text()).with_context(|| path.display().to_string())
    }

    fn to_text(&self) -> String {
        let mut text = String::from(HEADER);
        writeln!(text, "limit = {}\n\n[exceptions]", self.limit).expect("writing to a String");
        write_numbers(&mut text, &self.exceptions);
        writeln!(text, "{CYCLES}[cycles]").expect("writing to a String");
        for (name, CycleAllowance { files, largest }) in &self.cycles {
            let name = toml::Value::String(name.clone());
            writeln!(text, "{name} = {{ files = {files}, largest = {largest} }}")
                .expect("writing to a String");
        }
        writeln!(text, "{LONG_LINES}[long_lines]").expect("writing to a String");
        write_numbers(&mut text, &self.long_lines);
        writeln!(text, "{HEADLESS_CLAUSES}[headless_clauses]").expect("writing to a String");
        write_numbers(&mut text, &self.headless_clauses);
        text
    }

    /// Lowers each allowance to the present number, and drops those that are not needed.
    pub fn tighten(&mut self, measured: &Measured) {
        lower(&mut self.exceptions, &measured.lengths, self.limit);
        lower(&mut self.long_lines, &measured.long_lines, 0);
        lower(&mut self.headless_clauses, &measured.headless_clauses, 0);
        self.cycles.retain(|name, allowed| {
            let present = measured.cycles.get(name).copied().unwrap_or_default();
            allowed.files = allowed.files.min(present.files);
            allowed.largest = allowed.largest.min(present.largest);
            present.files > 0
        });
    }
}

/// Lowers each number of `allowed` to the one of `present`, and drops those at or below `limit`.
fn lower(allowed: &mut BTreeMap<String, usize>, present: &BTreeMap<String, usize>, limit: usize) {
    allowed.retain(|name, allowed| {
        let present = present.get(name).copied().unwrap_or(0);
        *allowed = present.min(*allowed);
        present > limit
    });
}

fn section<'a>(table: &'a toml::Table, name: &str) -> anyhow::Result<Vec<(&'a String, &'a toml::Value)>> {
    match table.get(name) {
        None => Ok(Vec::new()),
        Some(section) => {
            let section = section.as_table().with_context(|| format!("{name}: expected a table"))?;
            Ok(section.iter().collect())
        }
    }
}

fn numbers(table: &toml::Table, name: &str) -> anyhow::Result<BTreeMap<String, usize>> {
    section(table, name)?.into_iter().map(|(name, value)| Ok((name.clone(), number(name, value)?))).collect()
}

fn number(name: &str, value: &toml::Value) -> anyhow::Result<usize> {
    let number = value.as_integer().and_then(|number| usize::try_from(number).ok());
    number.with_context(|| format!("{name}: expected a number, found {value}"))
}

fn write_numbers(text: &mut String, numbers: &BTreeMap<String, usize>) {
    for (name, number) in numbers {
        let name = toml::Value::String(name.clone());
        writeln!(text, "{name} = {number}").expect("writing to a String");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers_of(numbers: &[(&str, usize)]) -> BTreeMap<String, usize> {
        numbers.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect()
    }

    fn cycles_of(cycles: &[(&str, usize, usize)]) -> BTreeMap<String, CycleAllowance> {
        let allowance = |&(name, files, largest): &(&str, usize, usize)| {
            (name.to_owned(), CycleAllowance { files, largest })
        };
        cycles.iter().map(allowance).collect()
    }

    #[test]
    fn the_file_survives_a_round_trip() {
        let ratchet = Ratchet {
            limit: 80,
            exceptions: numbers_of(&[("a.rs: <T as \"U\">::f", 90), ("b.rs: g", 81)]),
            cycles: cycles_of(&[("crates/a", 5, 3)]),
            long_lines: numbers_of(&[("docs", 7)]),
            headless_clauses: numbers_of(&[("crates/a", 1)]),
        };
        assert_eq!(Ratchet::parse(&ratchet.to_text()).expect("parses"), ratchet);
    }

    #[test]
    fn bad_values_are_refused() {
        for text in [
            "",
            "limit = -1",
            "limit = 'x'",
            "limit = 1\nexceptions = 2",
            "limit = 1\n[exceptions]\na = 'x'",
            "limit = 1\n[cycles]\na = 3",
            "limit = 1\n[cycles]\na = { files = 3 }",
            "limit = 1\n[long_lines]\na = 'x'",
        ] {
            assert!(Ratchet::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn tightening_only_lowers() {
        let mut ratchet = Ratchet {
            limit: 80,
            exceptions: numbers_of(&[("shrunk", 100), ("grown", 100), ("short", 100), ("gone", 100)]),
            cycles: cycles_of(&[("shrunk", 5, 3), ("grown", 5, 5), ("gone", 2, 2)]),
            long_lines: numbers_of(&[("shrunk", 9), ("grown", 9), ("gone", 9)]),
            headless_clauses: numbers_of(&[("shrunk", 9)]),
        };
        ratchet.tighten(&Measured {
            lengths: numbers_of(&[("shrunk", 90), ("grown", 120), ("short", 80), ("new", 99)]),
            cycles: cycles_of(&[("shrunk", 4, 2), ("grown", 6, 3), ("new", 2, 2)]),
            long_lines: numbers_of(&[("shrunk", 8), ("grown", 10), ("new", 1)]),
            headless_clauses: numbers_of(&[("shrunk", 1)]),
        });
        assert_eq!(ratchet.exceptions, numbers_of(&[("shrunk", 90), ("grown", 100)]));
        assert_eq!(ratchet.cycles, cycles_of(&[("shrunk", 4, 2), ("grown", 5, 3)]));
        assert_eq!(ratchet.long_lines, numbers_of(&[("shrunk", 8), ("grown", 9)]));
        assert_eq!(ratchet.headless_clauses, numbers_of(&[("shrunk", 1)]));
    }
}
