//! The packages that Cargo.lock selects, as `cargo metadata` tells them.
//!
//! Owns the translation of cargo's JSON. Packages are those of one platform, Linux on x86-64, so
//! that the answer is the same on every machine and cargo needs no package that no build has.

use crate::nested_cargo::nested_cargo;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// A package of the workspace or of a registry.
#[derive(Clone, Debug, Default)]
pub struct Package {
    pub name: String,
    pub version: String,
    /// The SPDX expression, with `OR` in the place of an old-fashioned `/`.
    pub licence: String,
    /// `None` for packages of the workspace.
    pub source: Option<String>,
    pub repository: Option<String>,
    pub folder: PathBuf,
    pub has_build_script: bool,
}

/// All packages, and who needs whom.
#[derive(Debug, Default)]
pub struct Metadata {
    /// By cargo's identifier.
    pub packages: BTreeMap<String, Package>,
    /// The packages that one is built with or from; those of its tests are left out.
    pub needs: BTreeMap<String, BTreeSet<String>>,
}

impl Metadata {
    /// Asks cargo, which uses Cargo.lock as it is.
    ///
    /// # Errors
    /// Cargo fails, for example since Cargo.lock is out of date.
    pub fn load(root: &Path) -> Result<Self> {
        let mut command = nested_cargo();
        command.args(["metadata", "--locked", "--format-version", "1", "--filter-platform", PLATFORM]);
        let output = command.current_dir(root).output().context("cannot run cargo metadata")?;
        ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
        Self::parse(&serde_json::from_slice(&output.stdout)?)
    }

    fn parse(value: &Value) -> Result<Self> {
        let mut found = Self::default();
        let nodes = value["resolve"]["nodes"].as_array().context("cargo metadata has no graph")?;
        for node in nodes {
            let needs = list(&node["deps"])
                .filter(|dep| list(&dep["dep_kinds"]).any(|kind| kind["kind"].as_str() != Some("dev")));
            found.needs.insert(text(&node["id"]), needs.map(|dep| text(&dep["pkg"])).collect());
        }
        for package in list(&value["packages"]) {
            let id = text(&package["id"]);
            // Packages of other platforms are not in the graph.
            if found.needs.contains_key(&id) {
                found.packages.insert(id, parse_package(package));
            }
        }
        Ok(found)
    }

    /// Returns the packages that `names` of the workspace are built of, sorted by name.
    ///
    /// # Errors
    /// The workspace has no package of a name.
    pub fn shipped(&self, names: &[&str]) -> Result<Vec<&str>> {
        let mut found = BTreeSet::new();
        let mut waiting = Vec::new();
        for name in names {
            let of_name = |(_, package): &(_, &Package)| package.name == *name && package.source.is_none();
            let (id, _) = self.packages.iter().find(of_name).with_context(|| format!("no package {name}"))?;
            waiting.push(id.as_str());
        }
        while let Some(id) = waiting.pop() {
            if found.insert(id) {
                waiting.extend(self.needs[id].iter().map(String::as_str));
            }
        }
        let mut found: Vec<&str> = found.into_iter().collect();
        found.sort_by_key(|id| (&self.packages[*id].name, &self.packages[*id].version));
        Ok(found)
    }
}

fn parse_package(package: &Value) -> Package {
    let manifest = PathBuf::from(text(&package["manifest_path"]));
    let is_build_script =
        |target: &Value| list(&target["kind"]).any(|kind| kind.as_str() == Some("custom-build"));
    Package {
        name: text(&package["name"]),
        version: text(&package["version"]),
        licence: text(&package["license"]).replace(" / ", " OR ").replace('/', " OR "),
        source: package["source"].as_str().map(str::to_owned),
        repository: package["repository"].as_str().map(str::to_owned),
        folder: manifest.parent().unwrap_or(Path::new("")).to_path_buf(),
        has_build_script: list(&package["targets"]).any(is_build_script),
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_ships_has_no_packages_of_tests() {
        let package = |name: &str, source: Value| {
            json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0",
                   "source": source, "manifest_path": format!("/p/{name}/Cargo.toml"),
                   "targets": [{"kind": ["custom-build"]}]})
        };
        let dep = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let value = json!({
            "packages": [package("a", Value::Null), package("b", json!("registry")),
                         package("c", json!("registry")), package("windows", json!("registry"))],
            "resolve": {"nodes": [
                {"id": "a", "deps": [dep("b", Value::Null), dep("c", json!("dev"))]},
                {"id": "b", "deps": []}, {"id": "c", "deps": [dep("b", json!("build"))]}]}});
        let metadata = Metadata::parse(&value).unwrap();
        assert_eq!(metadata.shipped(&["a"]).unwrap(), ["a", "b"]);
        assert!(metadata.shipped(&["b"]).is_err(), "b is not of the workspace");
        assert_eq!(metadata.packages.len(), 3, "windows is of another platform");
        let b = &metadata.packages["b"];
        assert!(b.licence == "MIT OR Apache-2.0" && b.has_build_script && b.folder == Path::new("/p/b"));
    }
}
