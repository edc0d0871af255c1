//! The ratchet: the functions that are allowed to be longer than the limit, and how long.
//!
//! Owns [`Ratchet`] and its file. Invariant: [`Ratchet::tighten`] only lowers or removes an
//! allowance; to add or raise one, somebody edits the file and a reviewer sees it.

use super::functions::FunctionLength;
use anyhow::Context;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// The limit and its exceptions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ratchet {
    /// Lines that any function may have.
    pub limit: usize,
    /// Lines that one may have, by `path: function`.
    pub exceptions: BTreeMap<String, usize>,
}

impl Ratchet {
    /// Reads the file at `path`.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    /// Decodes the file's text.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let table: toml::Table = toml::from_str(text)?;
        let lines = |name: &str, value: &toml::Value| {
            let number = value.as_integer().and_then(|number| usize::try_from(number).ok());
            number.with_context(|| format!("{name}: a number of lines is wanted"))
        };
        let limit = lines("limit", table.get("limit").context("limit is missing")?)?;
        let mut exceptions = BTreeMap::new();
        if let Some(listed) = table.get("exceptions") {
            for (name, value) in listed.as_table().context("exceptions: a table is wanted")? {
                exceptions.insert(name.clone(), lines(name, value)?);
            }
        }
        Ok(Self { limit, exceptions })
    }

    /// Writes the file.
    pub fn save(&self, path: &Path) -> anyhow::Result<()> {
        std::fs::write(path, self.to_text()).with_context(|| path.display().to_string())
    }

    fn to_text(&self) -> String {
        let mut text = String::from(
            "# The longest functions allowed, in lines; `cargo xtask tidy` reads this.\n\
             # An exception may only shrink: `cargo xtask tidy --tighten` lowers it to what is true.\n",
        );
        write!(text, "limit = {}\n\n[exceptions]\n", self.limit).expect("writing to a String");
        for (name, lines) in &self.exceptions {
            let name = toml::Value::String(name.clone());
            writeln!(text, "{name} = {lines}").expect("writing to a String");
        }
        text
    }

    /// Lowers each exception to the function's present length, and drops those that are not needed.
    pub fn tighten(&mut self, lengths: &[FunctionLength]) {
        let limit = self.limit;
        self.exceptions.retain(|name, allowed| {
            let present = lengths.iter().filter(|length| length.key() == *name).map(|length| length.lines);
            let longest = present.max().unwrap_or(0);
            *allowed = longest.min(*allowed);
            longest > limit
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length(name: &str, lines: usize) -> FunctionLength {
        FunctionLength { path: "a.rs".into(), name: name.into(), line: 1, lines }
    }

    #[test]
    fn the_file_survives_a_round_trip() {
        let exceptions =
            BTreeMap::from([("a.rs: <T as \"U\">::f".to_owned(), 90), ("b.rs: g".to_owned(), 81)]);
        let ratchet = Ratchet { limit: 80, exceptions };
        assert_eq!(Ratchet::parse(&ratchet.to_text()).expect("parses"), ratchet);
    }

    #[test]
    fn nonsense_is_refused() {
        for text in
            ["", "limit = -1", "limit = 'x'", "limit = 1\nexceptions = 2", "limit = 1\n[exceptions]\na = 'x'"]
        {
            assert!(Ratchet::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn tightening_only_lowers() {
        let allow = |name: &str, lines| (format!("a.rs: {name}"), lines);
        let exceptions = BTreeMap::from([
            allow("shrunk", 100),
            allow("grown", 100),
            allow("short", 100),
            allow("gone", 100),
        ]);
        let mut ratchet = Ratchet { limit: 80, exceptions };
        ratchet.tighten(&[
            length("shrunk", 90),
            length("grown", 120),
            length("short", 80),
            length("new", 99),
        ]);
        assert_eq!(ratchet.exceptions, BTreeMap::from([allow("shrunk", 90), allow("grown", 100)]));
    }
}
