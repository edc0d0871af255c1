//! `cargo xtask dependencies`: the page of direct dependencies, and the checks of all.
//!
//! Owns docs/internals/dependencies.md. Names, versions and users come from the manifests, reasons
//! from docs/internals/dependencies.toml, build scripts and `unsafe` code from the packages
//! themselves. `tidy` fails if the page is out of date, a reason is missing, or [`licences`]
//! refuses a package.

mod licences;

use crate::metadata::{Metadata, Package};
use anyhow::{Context, Result};
use licences::Policy;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use toml::{Table, Value};

/// The page, from the workspace's root.
pub const PAGE: &str = "docs/internals/dependencies.md";
/// The reasons, from the workspace's root.
pub const REASONS: &str = "docs/internals/dependencies.toml";
const HEAD: &str = "# Dependencies

`cargo xtask dependencies` makes this page of the manifests and of
[dependencies.toml](dependencies.toml), which has the reasons. `cargo xtask tidy` fails if the page
is out of date, if a dependency has no reason, or if a package of Cargo.lock has a licence or a
source that `deny.toml` does not allow.

## Policy

- A dependency does work that is not ours: compression, cryptography, protocols, terminals. Its
  reason is written down before it comes in.
- Licences are those in `deny.toml`. Papilio is MIT or Apache-2.0, so nothing that it is built of
  may ask for more than a notice.
- Packages come from crates.io only. Cargo.lock pins each version and its checksum.
- Two versions of one package are refused unless `deny.toml` says which package needs the older one.
  Only later releases of others can end the exceptions that are left.
- Packages that nobody maintains, and those with an advisory, are refused: `cargo deny check`.
- `unsafe` code and build scripts have a note here. `papilio` reads images in a sandbox
  ([sandbox.md](../sandbox.md)), so a fault in a decoder cannot reach other files.

The column \"code\" tells of a build script, which runs while the package is built, and of `unsafe`
code, both of the package itself.
";

/// A dependency of some crates of the workspace.
#[derive(Debug, Default)]
struct Direct {
    requirement: String,
    /// Crates that are built with it.
    users: BTreeSet<String>,
    /// Crates that only test with it.
    testers: BTreeSet<String>,
}

/// A reason and a note.
#[derive(Debug)]
struct Justification {
    why: String,
    note: String,
}

/// Writes the page.
///
/// # Errors
/// A file cannot be read or written, or cargo fails.
pub fn run(root: &Path) -> Result<()> {
    let (page, _) = page_and_findings(root)?;
    fs::write(root.join(PAGE), page).context(PAGE)
}

/// Returns the page, and what is wrong with dependencies: file and message.
///
/// # Errors
/// A file cannot be read, or cargo fails.
pub fn page_and_findings(root: &Path) -> Result<(String, Vec<(&'static str, String)>)> {
    let metadata = Metadata::load(root)?;
    let direct = direct(root)?;
    let reasons = parse_reasons(&fs::read_to_string(root.join(REASONS)).context(REASONS)?)?;
    let code = |name: &str| {
        let package = newest(&metadata, name, &direct[name].requirement);
        package.map_or_else(Code::default, Code::of)
    };
    let codes = direct.keys().map(|name| (name.as_str(), code(name))).collect();
    let mut findings = check(&direct, &reasons, &codes);
    let policy = Policy::parse(&fs::read_to_string(root.join("deny.toml")).context("deny.toml")?)?;
    let refused = metadata.packages.values().filter_map(|package| policy.refusal(package));
    findings.extend(refused.map(|message| ("Cargo.lock", message)));
    Ok((page(&direct, &reasons, &codes), findings))
}

/// Code that the compiler does not check.
#[derive(Debug, Default)]
struct Code {
    build_script: bool,
    is_unsafe: bool,
}

impl Code {
    fn of(package: &Package) -> Self {
        Self { build_script: package.has_build_script, is_unsafe: has_unsafe(&package.folder.join("src")) }
    }

    fn words(&self) -> &'static str {
        match (self.build_script, self.is_unsafe) {
            (false, false) => "",
            (false, true) => "`unsafe`",
            (true, false) => "build script",
            (true, true) => "build script, `unsafe`",
        }
    }
}

/// Whether a Rust file below a folder has an `unsafe` block, function, implementation or trait.
fn has_unsafe(folder: &Path) -> bool {
    let Ok(entries) = fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return has_unsafe(&path);
        }
        let is_rust = path.extension().is_some_and(|extension| extension == "rs");
        is_rust && fs::read_to_string(&path).is_ok_and(|text| text.lines().any(is_unsafe_line))
    })
}

fn is_unsafe_line(line: &str) -> bool {
    let line = line.trim_start();
    let forms = ["unsafe {", "unsafe fn ", "unsafe impl", "unsafe trait ", "unsafe extern "];
    !line.starts_with("//") && forms.iter().any(|form| line.contains(form))
}

/// Returns the newest package of a name that a requirement such as `0.4` allows.
fn newest<'a>(metadata: &'a Metadata, name: &str, requirement: &str) -> Option<&'a Package> {
    let allows = |version: &str| {
        version.strip_prefix(requirement).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let of_name = metadata.packages.values().filter(|package| package.name == name);
    of_name.filter(|package| allows(&package.version)).max_by_key(|package| package.version.clone())
}

/// Reads the dependencies of all crates of the workspace, without those on one another.
fn direct(root: &Path) -> Result<BTreeMap<String, Direct>> {
    let shared = manifest(&root.join("Cargo.toml"))?;
    let shared = shared.get("workspace").and_then(|table| table.get("dependencies"));
    let shared = shared.and_then(Value::as_table).context("Cargo.toml: no workspace.dependencies")?;
    let mut found = BTreeMap::new();
    let crates = fs::read_dir(root.join("crates"))?.map(|entry| Ok(entry?.path()));
    for folder in crates.chain([Ok(root.join("xtask"))]) {
        let folder = folder.map_err(|error: std::io::Error| error)?;
        let table = manifest(&folder.join("Cargo.toml"))?;
        let user = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        add_manifest(&table, &user, shared, &mut found);
    }
    Ok(found)
}

fn add_manifest(table: &Table, user: &str, shared: &Table, found: &mut BTreeMap<String, Direct>) {
    let targets = table.get("target").and_then(Value::as_table).into_iter().flat_map(Table::values);
    for part in targets.filter_map(Value::as_table).chain([table]) {
        for (section, is_test) in
            [("dependencies", false), ("build-dependencies", false), ("dev-dependencies", true)]
        {
            let list = part.get(section).and_then(Value::as_table).into_iter().flatten();
            for (name, value) in list.filter(|(name, _)| !name.starts_with("papilio")) {
                let entry: &mut Direct = found.entry(name.clone()).or_default();
                let version = version_of(value).or_else(|| version_of(shared.get(name)?));
                entry.requirement = version.unwrap_or_default().to_owned();
                let users = if is_test { &mut entry.testers } else { &mut entry.users };
                users.insert(user.to_owned());
            }
        }
    }
}

fn version_of(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("version")?.as_str())
}

fn manifest(path: &Path) -> Result<Table> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    text.parse().with_context(|| path.display().to_string())
}

fn parse_reasons(text: &str) -> Result<BTreeMap<String, Justification>> {
    let table: Table = text.parse().context(REASONS)?;
    let reason = |(name, value): (String, Value)| {
        let field = |key| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        (name, Justification { why: field("why"), note: field("note") })
    };
    Ok(table.into_iter().map(reason).collect())
}

fn check(
    direct: &BTreeMap<String, Direct>,
    reasons: &BTreeMap<String, Justification>,
    codes: &BTreeMap<&str, Code>,
) -> Vec<(&'static str, String)> {
    let mut findings = Vec::new();
    for (name, entry) in direct {
        let reason = reasons.get(name);
        if reason.is_none_or(|reason| reason.why.is_empty()) {
            findings.push((REASONS, format!("{name} has no reason")));
        }
        let is_released = entry.users.iter().any(|user| !is_of_tests(user));
        let words = codes[name.as_str()].words();
        if is_released && !words.is_empty() && reason.is_none_or(|reason| reason.note.is_empty()) {
            findings.push((REASONS, format!("{name} has no note, but it has code to note: {words}")));
        }
    }
    for name in reasons.keys().filter(|name| !direct.contains_key(*name)) {
        findings.push((REASONS, format!("{name} has a reason, but no crate depends on it")));
    }
    findings
}

/// Whether no release contains a crate of the workspace.
fn is_of_tests(user: &str) -> bool {
    ["oracle", "simulator", "xtask"].contains(&user)
}

fn page(
    direct: &BTreeMap<String, Direct>,
    reasons: &BTreeMap<String, Justification>,
    codes: &BTreeMap<&str, Code>,
) -> String {
    let mut page = HEAD.to_owned();
    for (title, of_tests) in [("In releases", false), ("For tests and chores only", true)] {
        let _ = write!(
            page,
            "\n## {title}\n\n| package | used by | why | code | note |\n|---|---|---|---|---|\n"
        );
        for (name, entry) in direct {
            if entry.users.iter().all(|user| is_of_tests(user)) != of_tests {
                continue;
            }
            let users = if of_tests {
                entry.users.union(&entry.testers).cloned().collect()
            } else {
                entry.users.clone()
            };
            let users = users.into_iter().collect::<Vec<_>>().join(", ");
            let (why, note) = reasons.get(name).map_or(("", ""), |reason| (&reason.why, &reason.note));
            let (version, code) = (&entry.requirement, codes[name.as_str()].words());
            let _ = writeln!(page, "| `{name}` {version} | {users} | {why} | {code} | {note} |");
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(manifest: &str) -> BTreeMap<String, Direct> {
        let shared: Table = "a = '1.2'\nb = { version = '3', features = ['x'] }".parse().unwrap();
        let mut found = BTreeMap::new();
        add_manifest(&manifest.parse().unwrap(), "user", &shared, &mut found);
        found
    }

    #[test]
    fn dependencies_of_all_sections_are_found() {
        let direct = found(
            "[dependencies]\na.workspace = true\npapilio.workspace = true\n[dev-dependencies]\nc = '5'\n\
             [target.'cfg(unix)'.dependencies]\nb = { workspace = true, optional = true }",
        );
        let names: Vec<_> =
            direct.iter().map(|(name, entry)| (name.as_str(), entry.requirement.as_str())).collect();
        assert_eq!(names, [("a", "1.2"), ("b", "3"), ("c", "5")]);
        assert!(direct["c"].users.is_empty() && direct["c"].testers.contains("user"));
    }

    #[test]
    fn a_reason_that_is_missing_or_left_over_is_found() {
        let direct = found("[dependencies]\na.workspace = true\nb.workspace = true");
        let reasons = parse_reasons("[a]\nwhy = 'needed'\n[z]\nwhy = 'gone'").unwrap();
        let codes = [("a", Code { is_unsafe: true, build_script: false }), ("b", Code::default())].into();
        let findings: Vec<String> =
            check(&direct, &reasons, &codes).into_iter().map(|(_, text)| text).collect();
        assert_eq!(findings.len(), 3, "{findings:?}");
        assert!(findings[0].starts_with("a has no note"));
        assert_eq!(findings[1], "b has no reason");
        assert!(findings[2].starts_with("z has a reason"));
    }

    #[test]
    fn unsafe_code_is_found() {
        assert!(is_unsafe_line("    let a = unsafe { b() };") && is_unsafe_line("unsafe impl Send for A {}"));
        assert!(!is_unsafe_line("// unsafe { }") && !is_unsafe_line("#![forbid(unsafe_code)]"));
    }

    #[test]
    fn the_page_is_current_and_nothing_is_refused() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let (page, findings) = page_and_findings(root).unwrap();
        assert_eq!(findings, []);
        assert_eq!(fs::read_to_string(root.join(PAGE)).unwrap(), page, "run `cargo xtask dependencies`");
    }
}
