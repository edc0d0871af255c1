//! The layers of crates: a package depends only on packages of lower layers.
//!
//! Owns the order of the crates. The check covers the dependencies, build dependencies and
//! dev-dependencies of each `Cargo.toml`, those under `[target]` too. Only dev-dependencies may
//! include the crates made for tests.

use super::finding::Finding;
use super::sources::{Manifest, Sources};

/// The packages, from the highest layer to the lowest; those of one layer do not depend on one
/// another.
const LAYERS: [&[&str]; 17] = [
    &["xtask", "papilio-fuzz", "papilio-cli-store", "papilio-cli-web"],
    &["papilio-cli", "papilio-bench"],
    &["papilio-virtiofs"],
    &[
        "papilio-fuse",
        "papilio-fio",
        "papilio-capi",
        "papilio-python",
        "papilio-nbd",
        "papilio-nfs",
        "papilio-preload",
        "papilio-web",
    ],
    &["papilio-store", "papilio-serving", "papilio-run", "papilio-backup"],
    &["papilio-layers"],
    &["papilio-simulator"],
    &["papilio-oracle"],
    &["papilio"],
    &["papilio-transfer", "papilio-convert"],
    &["papilio-ioctl"],
    &["papilio-fs"],
    &["papilio-progs"],
    &["papilio-engine"],
    &["papilio-device"],
    &["papilio-pagecache", "papilio-sandbox"],
    &["papilio-format", "papilio-locks", "papilio-keys"],
];
/// The package whose names the examples in the documentation of all libraries use.
const FACADE: &str = "papilio";
/// Packages for tests, which the product must not depend on.
const TEST_ONLY: [&str; 2] = ["papilio-oracle", "papilio-simulator"];
/// Packages that may depend on those of [`TEST_ONLY`], because they test or measure themselves.
const MAY_TEST: [&str; 5] = ["papilio-oracle", "papilio-simulator", "papilio-bench", "papilio-fuzz", "xtask"];

/// Returns the index of the layer; 0 is the highest.
fn rank(package: &str) -> Option<usize> {
    LAYERS.iter().position(|row| row.contains(&package))
}

/// Checks every manifest.
pub fn check(sources: &Sources) -> Vec<Finding> {
    sources.manifests().iter().flat_map(check_manifest).collect()
}

fn check_manifest(manifest: &Manifest) -> Vec<Finding> {
    let package = manifest.package();
    let Some(own) = rank(package) else {
        let message = format!("package `{package}` has no layer: give it one in xtask/src/tidy/crates.rs");
        return vec![Finding::new(&manifest.path, 1, message)];
    };
    let mut findings = Vec::new();
    for dependency in dependencies(&manifest.table) {
        let name = dependency.package.as_str();
        let Some(other) = rank(name) else { continue };
        let for_tests = TEST_ONLY.contains(&name);
        let why = if dependency.for_tests && (for_tests || name == FACADE) {
            continue;
        } else if other <= own && name != package {
            "is not in a lower layer"
        } else if for_tests && !MAY_TEST.contains(&package) {
            "is only for tests"
        } else {
            continue;
        };
        let line = line_of(&manifest.text, &dependency.key);
        findings.push(Finding::new(
            &manifest.path,
            line,
            format!("`{package}` depends on `{name}`, which {why}"),
        ));
    }
    findings
}

struct Dependency {
    /// The key in the manifest.
    key: String,
    /// The package: the value of `package`, or else the key.
    package: String,
    for_tests: bool,
}

fn dependencies(manifest: &toml::Table) -> Vec<Dependency> {
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let tables = targets.into_iter().flat_map(toml::Table::values).filter_map(toml::Value::as_table);
    let mut found = Vec::new();
    for table in std::iter::once(manifest).chain(tables) {
        for (section, for_tests) in
            [("dependencies", false), ("build-dependencies", false), ("dev-dependencies", true)]
        {
            for (key, value) in table.get(section).and_then(toml::Value::as_table).into_iter().flatten() {
                let package = value.get("package").and_then(toml::Value::as_str).unwrap_or(key);
                found.push(Dependency { key: key.clone(), package: package.to_owned(), for_tests });
            }
        }
    }
    found
}

/// Returns the line (from 1) that starts with `key` or opens the table of that dependency.
fn line_of(text: &str, key: &str) -> usize {
    let names = |line: &str| {
        let rest = match line.trim_start().strip_prefix(key) {
            Some(rest) => rest,
            None => return line.trim_end().ends_with(&format!("dependencies.{key}]")),
        };
        rest.starts_with(['.', ' ', '='])
    };
    text.lines().position(names).map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::super::sources::tests::sources;
    use super::*;

    fn found(package: &str, rest: &str) -> Vec<String> {
        let text = format!("[package]\nname = \"{package}\"\n{rest}");
        check(&sources(&[("a/Cargo.toml", &text)])).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn downward_dependencies_pass() {
        for (package, rest) in [
            ("papilio", "[dependencies]\npapilio-format.workspace = true\npapilio-device = {}\nserde = '1'"),
            ("papilio-cli", "[dependencies]\npapilio-fuse = {}\npapilio = {}"),
            ("papilio-format", "[dev-dependencies]\npapilio-oracle.workspace = true"),
            ("papilio-bench", "[dependencies]\npapilio-oracle = {}"),
        ] {
            assert_eq!(found(package, rest), Vec::<String>::new(), "{package}");
        }
    }

    #[test]
    fn upward_dependencies_are_found() {
        for (package, rest) in [
            ("papilio-format", "[dependencies]\npapilio-device.workspace = true"),
            ("papilio-pagecache", "[dependencies]\ncache = { package = \"papilio\", path = \"x\" }"),
            ("papilio", "[build-dependencies]\npapilio-cli = {}"),
            ("papilio", "[target.'cfg(unix)'.dependencies]\npapilio-fuse = {}"),
            ("papilio", "[dev-dependencies]\npapilio-cli = {}"),
            ("papilio-fuse", "[dependencies]\npapilio-fio = {}"),
            ("papilio-cli", "[dependencies]\npapilio-oracle = {}"),
        ] {
            assert_eq!(found(package, rest).len(), 1, "{package}");
        }
    }

    #[test]
    fn a_finding_names_the_line() {
        let message = "`papilio-format` depends on `papilio`, which is not in a lower layer";
        let line = |rest| found("papilio-format", rest);
        let plain = line("[dependencies]\npapilio-device-not = '1'\npapilio.workspace = true");
        assert_eq!(plain, [format!("a/Cargo.toml:5: {message}")]);
        assert_eq!(line("[dependencies.papilio]\npath = 'x'"), [format!("a/Cargo.toml:3: {message}")]);
    }

    #[test]
    fn a_package_without_a_layer_is_found() {
        assert_eq!(found("papilio-new", "").len(), 1);
    }
}
