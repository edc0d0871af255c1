//! The mutants that cargo-mutants lists.

use anyhow::{Context, bail};
use std::path::Path;
use std::process::{Command, Stdio};

/// The parts of the library that are changed.
pub const MODULES: [&str; 4] = ["transaction", "fsync_log", "space", "volume"];

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Genre {
    /// Another operator of two operands.
    Binary,
    /// An operator of one operand is removed.
    Unary,
    /// A function returns a value at once.
    Value,
    /// A guard of a match arm is a constant.
    Guard,
    /// A match arm is removed.
    Arm,
    /// A field of a struct has the value of the base expression.
    Field,
}

/// A change of the sources.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// Place and change in words.
    pub name: String,
    /// Path, relative to the workspace.
    pub file: String,
    pub genre: Genre,
    /// Lines and columns of the first character and of the one after the last, from 1.
    pub span: [(usize, usize); 2],
    pub replacement: String,
    /// Whether it returns from a function whose return type is `impl Trait`.
    pub is_opaque: bool,
}

impl Mutant {
    fn parse(value: &serde_json::Value) -> Option<Self> {
        let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
        let place = |value: &serde_json::Value| {
            Some((value["line"].as_u64()? as usize, value["column"].as_u64()? as usize))
        };
        let genre = match value["genre"].as_str()? {
            "BinaryOperator" => Genre::Binary,
            "UnaryOperator" => Genre::Unary,
            "FnValue" => Genre::Value,
            "MatchArmGuard" => Genre::Guard,
            "MatchArm" => Genre::Arm,
            "StructField" => Genre::Field,
            _ => return None,
        };
        let returns = value["function"]["return_type"].as_str().unwrap_or_default();
        Some(Self {
            name: text(&value["name"])?,
            file: text(&value["file"])?,
            genre,
            span: [place(&value["span"]["start"])?, place(&value["span"]["end"])?],
            replacement: text(&value["replacement"])?,
            is_opaque: returns.contains("impl "),
        })
    }
}

/// Lists the mutants of [`MODULES`], in an order that stays the same.
///
/// # Errors
/// No cargo-mutants, or one whose list differs.
pub fn list(sources: &Path) -> anyhow::Result<Vec<Mutant>> {
    let mut command = Command::new("cargo");
    command.args(["mutants", "--list", "--json", "--package", "papilio-engine"]).current_dir(sources);
    for module in MODULES {
        command.arg("--file").arg(format!("crates/engine/src/{module}/**"));
    }
    let output = command.stderr(Stdio::inherit()).output().context("cannot run cargo mutants")?;
    if !output.status.success() {
        bail!("cargo mutants cannot list the mutants; install it with: cargo install cargo-mutants");
    }
    parse(&output.stdout)
}

fn parse(list: &[u8]) -> anyhow::Result<Vec<Mutant>> {
    let listed: Vec<serde_json::Value> = serde_json::from_slice(list).context("cargo mutants")?;
    let mutant = |value| {
        Mutant::parse(value).with_context(|| format!("cargo mutants lists an unknown mutant: {value}"))
    };
    listed.iter().map(mutant).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_mutants_is_read() {
        let list = serde_json::json!([{
            "name": "replace f", "file": "a.rs", "replacement": "5", "genre": "FnValue",
            "function": { "return_type": "-> impl Iterator" },
            "span": { "start": { "line": 2, "column": 7 }, "end": { "line": 3, "column": 3 } },
        }]);
        let [mutant] = &*parse(list.to_string().as_bytes()).unwrap() else { panic!("one mutant") };
        assert_eq!(mutant.span, [(2, 7), (3, 3)]);
        assert_eq!(mutant.genre, Genre::Value);
        assert!(mutant.is_opaque);
        assert!(parse(b"[{}]").unwrap_err().to_string().contains("unknown mutant: {}"));
    }
}
