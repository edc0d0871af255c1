//! A software bill of materials in the format CycloneDX 1.5.
//!
//! A component is a package of Cargo.lock that a release is built of, with its licence, the SHA-256
//! of the file that crates.io serves, and the packages that it needs. The document has no serial
//! number and no time but that of the release, so that the same tree gives the same bytes.

use crate::metadata::{Metadata, Package};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Returns the document for what `names` of the workspace are built of. `epoch` is the time of the
/// release, in seconds since 1970.
pub fn text(metadata: &Metadata, names: &[&str], lock: &str, epoch: Option<&str>) -> Result<String> {
    let checksums = checksums(lock)?;
    let shipped = metadata.shipped(names)?;
    let (mut components, mut dependencies) = (Vec::new(), Vec::new());
    for &id in &shipped {
        let package = &metadata.packages[id];
        components.push(component(package, checksums.get(&(package.name.clone(), package.version.clone()))));
        let needs = metadata.needs[id].iter().filter(|id| shipped.contains(&id.as_str()));
        let mut needs: Vec<String> = needs.map(|id| reference(&metadata.packages[id])).collect();
        needs.sort();
        dependencies.push(json!({"ref": reference(package), "dependsOn": needs}));
    }
    let version = env!("CARGO_PKG_VERSION");
    let mut about = json!({"component": {
        "type": "application", "name": "papilio", "version": version,
        "bom-ref": format!("papilio@{version}"), "licenses": [{"expression": "MIT OR Apache-2.0"}],
    }});
    if let Some(epoch) = epoch {
        let seconds = epoch.parse().context("SOURCE_DATE_EPOCH is no number")?;
        about["timestamp"] = json!(jiff::Timestamp::from_second(seconds)?.to_string());
    }
    let roots: Vec<String> = shipped
        .iter()
        .map(|id| &metadata.packages[*id])
        .filter(|package| package.source.is_none() && names.contains(&package.name.as_str()))
        .map(reference)
        .collect();
    dependencies.insert(0, json!({"ref": format!("papilio@{version}"), "dependsOn": roots}));
    let document = json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": about, "components": components, "dependencies": dependencies,
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn component(package: &Package, checksum: Option<&String>) -> Value {
    let mut component = json!({
        "type": "library", "bom-ref": reference(package), "name": package.name,
        "version": package.version, "purl": reference(package),
        "licenses": [{"expression": package.licence}],
    });
    if let Some(checksum) = checksum {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    if let Some(repository) = &package.repository {
        component["externalReferences"] = json!([{"type": "vcs", "url": repository}]);
    }
    component
}

/// Returns the package URL, in which a `+` of a version is escaped.
fn reference(package: &Package) -> String {
    format!("pkg:cargo/{}@{}", package.name, package.version.replace('+', "%2B"))
}

/// Returns the checksums of Cargo.lock by name and version.
fn checksums(lock: &str) -> Result<BTreeMap<(String, String), String>> {
    let lock: toml::Table = lock.parse().context("Cargo.lock")?;
    let packages = lock.get("package").and_then(toml::Value::as_array).context("Cargo.lock: no packages")?;
    let field =
        |package: &toml::Value, key| package.get(key).and_then(toml::Value::as_str).map(str::to_owned);
    let entry =
        |package| Some(((field(package, "name")?, field(package, "version")?), field(package, "checksum")?));
    Ok(packages.iter().filter_map(entry).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shipped_package_is_a_component() {
        let package = |name: &str, source: Option<&str>| Package {
            name: name.to_owned(),
            version: "1.0.0+x".to_owned(),
            licence: "MIT".to_owned(),
            source: source.map(str::to_owned),
            repository: Some("https://example.org".to_owned()),
            ..Package::default()
        };
        let metadata = Metadata {
            packages: [
                ("a".to_owned(), package("a", None)),
                ("b".to_owned(), package("b", Some("registry"))),
                ("of-tests".to_owned(), package("of-tests", Some("registry"))),
            ]
            .into(),
            needs: [
                ("a".to_owned(), ["b".to_owned()].into()),
                ("b".to_owned(), [].into()),
                ("of-tests".to_owned(), [].into()),
            ]
            .into(),
        };
        let lock = "[[package]]\nname = 'b'\nversion = '1.0.0+x'\nchecksum = 'abcd'\n";
        let text = text(&metadata, &["a"], lock, Some("1000000000")).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        let components = value["components"].as_array().unwrap();
        assert_eq!(components.len(), 2);
        assert_eq!(components[1]["purl"], "pkg:cargo/b@1.0.0%2Bx");
        assert_eq!(components[1]["hashes"][0]["content"], "abcd");
        assert_eq!(value["dependencies"][1]["dependsOn"][0], "pkg:cargo/b@1.0.0%2Bx");
        assert_eq!(value["metadata"]["timestamp"], "2001-09-09T01:46:40Z");
        assert!(super::text(&metadata, &["a"], lock, Some("today")).is_err());
    }
}
