//! The licence texts of the packages that a release is built of.
//!
//! Owns the collection of files such as LICENSE-MIT and NOTICE from cargo's cache. Equal texts are
//! printed once, below the names of all packages that have them. A package without such a file is
//! listed with the expression that its manifest declares.

use crate::metadata::{Metadata, Package};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;

const HEAD: &str = "Papilio contains the packages below, which other people wrote. Papilio itself is
under the MIT licence or the Apache licence 2.0, see LICENSE-MIT and LICENSE-APACHE.
";

/// Beginnings of the names of files that a distribution has to hand on.
const NAMES: &[&str] = &["licen", "copying", "notice", "unlicense", "copyright"];

/// Returns the text for what `names` of the workspace are built of.
pub fn text(metadata: &Metadata, names: &[&str]) -> Result<String> {
    let packages: Vec<&Package> = metadata
        .shipped(names)?
        .into_iter()
        .map(|id| &metadata.packages[id])
        .filter(|package| package.source.is_some())
        .collect();
    let mut out = HEAD.to_owned();
    // By text: the packages that have it.
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut without = Vec::new();
    out += "\nPackages and their licences:\n\n";
    for package in packages {
        let title = format!("{} {}", package.name, package.version);
        let _ = writeln!(out, "    {title}: {}", package.licence);
        let files = licence_files(package)?;
        if files.is_empty() {
            without.push(title.clone());
        }
        for text in files {
            texts.entry(text).or_default().push(title.clone());
        }
    }
    if !without.is_empty() {
        out += "\nThese packages come without a licence file; what is listed above holds:\n\n";
        for title in without {
            let _ = writeln!(out, "    {title}");
        }
    }
    let mut texts: Vec<(Vec<String>, String)> = texts.into_iter().map(|(text, of)| (of, text)).collect();
    texts.sort();
    for (of, text) in texts {
        let _ = write!(out, "\n{}\n{}\n{}\n\n{text}\n", "=".repeat(80), of.join("\n"), "-".repeat(80));
    }
    Ok(out)
}

/// Returns the texts of the licence files in the folder of a package, without blanks at line ends.
fn licence_files(package: &Package) -> Result<Vec<String>> {
    let context = || package.folder.display().to_string();
    let mut paths = Vec::new();
    for entry in fs::read_dir(&package.folder).with_context(context)? {
        let entry = entry.with_context(context)?;
        let name = entry.file_name().to_string_lossy().to_lowercase();
        if NAMES.iter().any(|start| name.starts_with(start)) && entry.path().is_file() {
            paths.push(entry.path());
        }
    }
    paths.sort();
    let read = |path: &std::path::PathBuf| {
        let bytes = fs::read(path).with_context(|| path.display().to_string())?;
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        Ok(lines.join("\n").trim_matches('\n').to_owned())
    };
    paths.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn equal_texts_are_printed_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut metadata = Metadata::default();
        let mut add = |name: &str, files: &[(&str, &str)]| {
            let own = folder.path().join(name);
            fs::create_dir(&own).unwrap();
            for (file, text) in files {
                fs::write(own.join(file), text).unwrap();
            }
            let source = (name != "papilio").then(|| "registry".to_owned());
            let package = Package {
                name: name.to_owned(),
                version: "1.0.0".to_owned(),
                licence: "MIT".to_owned(),
                folder: own,
                source,
                ..Package::default()
            };
            metadata.packages.insert(name.to_owned(), package);
            metadata.needs.insert(name.to_owned(), Default::default());
        };
        add("papilio", &[("LICENSE", "ours")]);
        add("a", &[("LICENSE", "the text  \r\nof MIT\n"), ("main.rs", "code")]);
        add("b", &[("license-mit.txt", "the text\nof MIT")]);
        add("c", &[]);
        let all = ["a", "b", "c"].map(str::to_owned).into();
        metadata.needs.insert("papilio".to_owned(), all);
        let text = text(&metadata, &["papilio"]).unwrap();
        assert_eq!(text.matches("the text\nof MIT").count(), 1, "{text}");
        assert!(text.contains("a 1.0.0\nb 1.0.0\n---"), "{text}");
        assert!(text.contains("holds:\n\n    c 1.0.0\n"), "{text}");
        assert!(!text.contains("ours") && !text.contains("code"));
        assert!(licence_files(&Package { folder: Path::new("/none").into(), ..Package::default() }).is_err());
    }
}
