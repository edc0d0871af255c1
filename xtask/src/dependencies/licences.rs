//! Whether licences and sources of packages are those that `deny.toml` allows.
//!
//! Owns the reading of SPDX expressions. cargo-deny checks the same and more; this check needs no
//! program that has to be installed, so that it is part of `cargo xtask tidy`.

use crate::metadata::Package;
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use toml::{Table, Value};

/// The part of `deny.toml` that is about licences and sources.
#[derive(Debug, Default)]
pub struct Policy {
    allowed: BTreeSet<String>,
    /// Further licences of single packages.
    exceptions: BTreeMap<String, BTreeSet<String>>,
    registries: BTreeSet<String>,
}

impl Policy {
    /// Reads `deny.toml`.
    ///
    /// # Errors
    /// The text is not TOML, or lacks a list.
    pub fn parse(text: &str) -> Result<Self> {
        let file: Table = text.parse().context("deny.toml")?;
        let licences = file.get("licenses").context("deny.toml: no [licenses]")?;
        let sources = file.get("sources").context("deny.toml: no [sources]")?;
        let mut policy = Self {
            allowed: strings(licences.get("allow")),
            registries: strings(sources.get("allow-registry")),
            ..Self::default()
        };
        for exception in licences.get("exceptions").and_then(Value::as_array).into_iter().flatten() {
            let name = exception.get("crate").and_then(Value::as_str).context("an exception has no crate")?;
            policy.exceptions.insert(name.to_owned(), strings(exception.get("allow")));
        }
        Ok(policy)
    }

    /// Returns why a package is refused, if it is.
    pub fn refusal(&self, package: &Package) -> Option<String> {
        let source = package.source.as_ref()?;
        let registry = source.strip_prefix("registry+").unwrap_or(source);
        let (name, version, licence) = (&package.name, &package.version, &package.licence);
        if !self.registries.contains(registry) {
            return Some(format!("{name} {version} comes from {source}, which deny.toml does not allow"));
        }
        let further = self.exceptions.get(name);
        let allows = |licence: &str| {
            self.allowed.contains(licence) || further.is_some_and(|list| list.contains(licence))
        };
        match satisfies(licence, &allows) {
            Ok(true) => None,
            Ok(false) => {
                Some(format!("{name} {version} has the licence {licence:?}, which deny.toml does not allow"))
            }
            Err(error) => Some(format!("{name} {version}: licence {licence:?}: {error}")),
        }
    }
}

fn strings(value: Option<&Value>) -> BTreeSet<String> {
    let list = value.and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Returns whether licences that are allowed are enough for an SPDX expression.
fn satisfies(expression: &str, allows: &impl Fn(&str) -> bool) -> Result<bool> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    let result = either(&mut words, allows)?;
    if let Some(word) = words.next() {
        bail!("unexpected {word}");
    }
    Ok(result)
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn either(words: &mut Words<'_>, allows: &impl Fn(&str) -> bool) -> Result<bool> {
    let mut result = both(words, allows)?;
    while words.next_if_eq(&"OR").is_some() {
        result |= both(words, allows)?;
    }
    Ok(result)
}

fn both(words: &mut Words<'_>, allows: &impl Fn(&str) -> bool) -> Result<bool> {
    let mut result = one(words, allows)?;
    while words.next_if_eq(&"AND").is_some() {
        result &= one(words, allows)?;
    }
    Ok(result)
}

fn one(words: &mut Words<'_>, allows: &impl Fn(&str) -> bool) -> Result<bool> {
    match words.next().context("it ends too early")? {
        "(" => {
            let result = either(words, allows)?;
            words.next_if_eq(&")").context("a parenthesis is not closed")?;
            Ok(result)
        }
        ")" | "OR" | "AND" | "WITH" => bail!("a licence is missing"),
        licence if words.next_if_eq(&"WITH").is_some() => {
            let exception = words.next().context("it ends too early")?;
            Ok(allows(&format!("{licence} WITH {exception}")))
        }
        licence => Ok(allows(licence)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = "
        [licenses]
        allow = ['MIT', 'ISC']
        exceptions = [{ crate = 'generator', allow = ['MPL-2.0'] }]
        [sources]
        allow-registry = ['https://registry']";

    fn package(name: &str, licence: &str, source: Option<&str>) -> Package {
        let source = source.map(str::to_owned);
        Package { name: name.to_owned(), licence: licence.to_owned(), source, ..Package::default() }
    }

    #[test]
    fn a_forbidden_licence_is_refused() {
        let policy = Policy::parse(POLICY).unwrap();
        let refused =
            |name, licence| policy.refusal(&package(name, licence, Some("registry+https://registry")));
        for allowed in ["MIT", "GPL-3.0-only OR MIT", "MIT AND ISC", "(MIT OR X) AND ISC", "X AND Y OR ISC"] {
            assert_eq!(refused("a", allowed), None, "{allowed}");
        }
        for forbidden in ["GPL-3.0-only", "MIT AND GPL-3.0-only", "MIT WITH Some-exception", "MPL-2.0", ""] {
            assert!(refused("a", forbidden).is_some(), "{forbidden}");
        }
        assert_eq!(refused("generator", "MPL-2.0"), None);
        assert!(refused("a", "MIT OR").unwrap().contains("ends too early"));
        assert!(refused("a", "(MIT").unwrap().contains("not closed"));
        assert!(refused("a", "MIT ISC").unwrap().contains("unexpected ISC"));
    }

    #[test]
    fn another_source_is_refused() {
        let policy = Policy::parse(POLICY).unwrap();
        let refusal = policy.refusal(&package("a", "MIT", Some("git+https://example.org/a"))).unwrap();
        assert!(refusal.contains("git+https://example.org/a"), "{refusal}");
        assert_eq!(policy.refusal(&package("own", "GPL-3.0-only", None)), None, "of the workspace");
    }
}
