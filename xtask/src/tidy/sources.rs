//! The parsed files of the workspace, and the modules that they are.
//!
//! Owns [`Sources`], [`SourceFile`] and [`Module`]. Every `Cargo.toml` with a package gives crate
//! roots: `lib.rs`, `main.rs`, `build.rs`, files of `src/bin`, `tests`, `benches` and `examples`,
//! and the `path` of each target. From the roots, [`Sources`] follows `mod` declarations, `#[path]`
//! and literal `include!`. A file that is not reached is dead. A `mod` that a macro generates is
//! not followed.

use super::finding::Finding;
use anyhow::Context;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use syn::visit::Visit;

/// One `.rs` file.
pub struct SourceFile {
    /// Path from the workspace's root, with `/`.
    pub path: String,
    /// Content.
    pub text: String,
    /// Content, parsed.
    pub syntax: syn::File,
}

impl SourceFile {
    /// Parses `text` as the file at `path`.
    pub fn parse(path: &str, text: &str) -> anyhow::Result<Self> {
        let syntax = syn::parse_file(text)
            .map_err(|error| anyhow::anyhow!("{path}:{}: {error}", error.span().start().line))?;
        Ok(Self { path: path.to_owned(), text: text.to_owned(), syntax })
    }
}

/// One Markdown file.
pub struct Document {
    /// Path from the workspace's root, with `/`.
    pub path: String,
    /// Content.
    pub text: String,
}

/// One `Cargo.toml` with a package.
pub struct Manifest {
    /// Path from the workspace's root.
    pub path: String,
    /// Content.
    pub text: String,
    /// Content, parsed.
    pub table: toml::Table,
}

impl Manifest {
    /// Returns the directory: empty for the workspace's root, otherwise with a `/` at the end.
    fn folder(&self) -> &str {
        self.path.strip_suffix("Cargo.toml").expect("a manifest's path ends in Cargo.toml")
    }

    /// Returns the package's name.
    pub fn package(&self) -> &str {
        self.table["package"].get("name").and_then(toml::Value::as_str).unwrap_or("")
    }
}

/// A file as a module of a crate. One file can be several modules, in several crates.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Module {
    /// Path of the crate's root file.
    pub root: String,
    /// Names from the root down; empty for the root itself.
    pub names: Vec<String>,
    /// Path of the module's file.
    pub file: String,
}

/// The files of the workspace.
pub struct Sources {
    files: BTreeMap<String, SourceFile>,
    manifests: Vec<Manifest>,
    documents: Vec<Document>,
    modules: BTreeSet<Module>,
}

impl Sources {
    /// Reads and parses all files below `root`, except in hidden and generated directories.
    pub fn load(root: &Path) -> anyhow::Result<Self> {
        let mut texts = Vec::new();
        read_folder(root, root, &mut texts)?;
        Self::from_texts(texts)
    }

    /// Parses files in memory, given as pairs of path and content.
    pub fn from_texts(texts: impl IntoIterator<Item = (String, String)>) -> anyhow::Result<Self> {
        let mut files = BTreeMap::new();
        let mut manifests = Vec::new();
        let mut documents = Vec::new();
        for (path, text) in texts {
            if path.ends_with(".rs") {
                files.insert(path.clone(), SourceFile::parse(&path, &text)?);
            } else if path.ends_with(".md") {
                documents.push(Document { path, text });
            } else {
                let table: toml::Table = toml::from_str(&text).with_context(|| path.clone())?;
                if table.contains_key("package") {
                    manifests.push(Manifest { path, text, table });
                }
            }
        }
        let mut sources = Self { files, manifests, documents, modules: BTreeSet::new() };
        for root in sources.roots() {
            sources.follow(Module { root: root.clone(), names: Vec::new(), file: root });
        }
        Ok(sources)
    }

    /// Returns every `.rs` file, by path.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &SourceFile> {
        self.files.values()
    }

    /// Returns the file at `path`.
    pub fn file(&self, path: &str) -> Option<&SourceFile> {
        self.files.get(path)
    }

    /// Returns every package's manifest.
    pub fn manifests(&self) -> &[Manifest] {
        &self.manifests
    }

    /// Returns every Markdown file.
    pub fn documents(&self) -> &[Document] {
        &self.documents
    }

    /// Returns every module that is a file.
    pub fn modules(&self) -> impl Iterator<Item = &Module> {
        self.modules.iter()
    }

    /// Returns a finding for each file that no crate's root reaches.
    pub fn dead_files(&self) -> Vec<Finding> {
        let alive: BTreeSet<&str> = self.modules.iter().map(|module| module.file.as_str()).collect();
        let dead = self.files.keys().filter(|path| !alive.contains(path.as_str()));
        dead.map(|path| Finding::new(path, 1, "dead file: no `mod` leads here from a crate's root")).collect()
    }

    fn roots(&self) -> Vec<String> {
        let mut roots = BTreeSet::new();
        for manifest in &self.manifests {
            let named = target_paths(&manifest.table);
            for path in self.files.keys() {
                if let Some(inside) = path.strip_prefix(manifest.folder())
                    && (is_default_root(inside) || named.contains(&normalise(Path::new(inside))))
                {
                    roots.insert(path.clone());
                }
            }
        }
        roots.into_iter().collect()
    }

    fn follow(&mut self, module: Module) {
        let Some(file) = self.files.get(&module.file) else { return };
        // The depth limit ends the recursion of a file that includes itself.
        if !self.modules.insert(module.clone()) || module.names.len() > 64 {
            return;
        }
        let mut visitor = Declarations::new(&module);
        visitor.visit_file(&file.syntax);
        for (names, candidates) in visitor.found {
            for candidate in candidates {
                self.follow(Module { root: module.root.clone(), names: names.clone(), file: candidate });
            }
        }
    }
}

/// Collects the `mod name;` and `include!("file")` of a file.
struct Declarations<'a> {
    module: &'a Module,
    /// Names of the inline modules around the current item.
    inline: Vec<String>,
    /// Names of each module, and the files that could be it.
    found: Vec<(Vec<String>, Vec<String>)>,
}

impl<'a> Declarations<'a> {
    fn new(module: &'a Module) -> Self {
        Self { module, inline: Vec::new(), found: Vec::new() }
    }

    fn names(&self) -> Vec<String> {
        self.module.names.iter().chain(&self.inline).cloned().collect()
    }

    /// Returns the directory of the file.
    fn own_folder(&self) -> PathBuf {
        Path::new(&self.module.file).parent().unwrap_or(Path::new("")).to_path_buf()
    }

    /// Returns the directory for child modules of the innermost inline module.
    fn child_folder(&self) -> PathBuf {
        let path = Path::new(&self.module.file);
        let mut folder = self.own_folder();
        let is_root = self.module.file == self.module.root;
        if !is_root && path.file_name().is_some_and(|name| name != "mod.rs") {
            folder.push(path.file_stem().unwrap_or_default());
        }
        folder.extend(&self.inline);
        folder
    }
}

impl<'ast> Visit<'ast> for Declarations<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let name = item.ident.to_string();
        if item.content.is_some() {
            self.inline.push(name);
            syn::visit::visit_item_mod(self, item);
            self.inline.pop();
            return;
        }
        let mut names = self.names();
        names.push(name.clone());
        let candidates = match path_attribute(&item.attrs) {
            Some(path) if self.inline.is_empty() => vec![self.own_folder().join(path)],
            Some(path) => vec![self.child_folder().join(path)],
            None => {
                let folder = self.child_folder();
                vec![folder.join(format!("{name}.rs")), folder.join(&name).join("mod.rs")]
            }
        };
        self.found.push((names, candidates.iter().map(|path| normalise(path)).collect()));
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        if call.path.is_ident("include")
            && let Ok(literal) = call.parse_body::<syn::LitStr>()
        {
            let path = self.own_folder().join(literal.value());
            self.found.push((self.names(), vec![normalise(&path)]));
        }
    }
}

fn path_attribute(attributes: &[syn::Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| {
        let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
        let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &pair.value else { return None };
        pair.path.is_ident("path").then(|| text.value())
    })
}

/// Whether Cargo makes `inside`, a path within a package, a target by default.
fn is_default_root(inside: &str) -> bool {
    if ["src/lib.rs", "src/main.rs", "build.rs"].contains(&inside) {
        return true;
    }
    ["src/bin/", "tests/", "benches/", "examples/"].iter().any(|folder| {
        inside.strip_prefix(folder).is_some_and(|rest| match rest.split_once('/') {
            None => true,
            Some((_, below)) => below == "main.rs",
        })
    })
}

/// Returns the paths that the targets of `manifest` name, relative to it.
fn target_paths(manifest: &toml::Table) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    let mut add = |target: &toml::Value| {
        if let Some(path) = target.get("path").and_then(toml::Value::as_str) {
            paths.insert(normalise(Path::new(path)));
        }
    };
    manifest.get("lib").into_iter().for_each(&mut add);
    for kind in ["bin", "test", "bench", "example"] {
        manifest.get(kind).and_then(toml::Value::as_array).into_iter().flatten().for_each(&mut add);
    }
    let build = manifest["package"].get("build").and_then(toml::Value::as_str);
    paths.extend(build.map(|path| normalise(Path::new(path))));
    paths
}

/// Normalises `a/./b/../c` to `a/c`.
fn normalise(path: &Path) -> String {
    let mut parts: Vec<String> = Vec::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(parts.pop()),
            Component::Normal(name) => parts.push(name.to_string_lossy().into_owned()),
            _ => {}
        }
    }
    parts.join("/")
}

/// Whether the file `name` is read: Rust, Markdown and manifests are.
fn is_read(name: &str) -> bool {
    name.ends_with(".rs") || name.ends_with(".md") || name == "Cargo.toml"
}

fn read_folder(root: &Path, folder: &Path, texts: &mut Vec<(String, String)>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = entry.path();
        let kind = entry.file_type()?;
        if kind.is_dir() {
            let generated = ["target", "corpus", "artifacts", "coverage"].contains(&name.as_str());
            if !generated && !name.starts_with('.') {
                read_folder(root, &path, texts)?;
            }
        } else if kind.is_file() && is_read(&name) {
            let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let inside = path.strip_prefix(root).expect("the walk starts at the root");
            texts.push((normalise(inside), text));
        }
    }
    Ok(())
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Parses pairs of path and content.
    pub fn sources(texts: &[(&str, &str)]) -> Sources {
        Sources::from_texts(texts.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())))
            .expect("synthetic sources parse")
    }

    const MANIFEST: (&str, &str) = ("a/Cargo.toml", "[package]\nname = \"a\"\n");

    fn dead(texts: &[(&str, &str)]) -> Vec<String> {
        sources(texts).dead_files().into_iter().map(|finding| finding.path).collect()
    }

    #[test]
    fn reached_files_are_alive() {
        let found = dead(&[
            MANIFEST,
            (
                "a/src/lib.rs",
                "mod b; mod inline { mod c; } #[path = \"odd/d.rs\"] mod e; include!(\"f.rs\");",
            ),
            ("a/src/b.rs", "mod g;"),
            ("a/src/b/g.rs", ""),
            ("a/src/inline/c/mod.rs", "mod h;"),
            ("a/src/inline/c/h.rs", ""),
            ("a/src/odd/d.rs", ""),
            ("a/src/f.rs", ""),
            ("a/src/bin/tool.rs", ""),
            ("a/tests/t.rs", "mod helper;"),
            ("a/tests/helper/mod.rs", ""),
            ("a/benches/speed.rs", ""),
            ("a/examples/show/main.rs", ""),
            ("a/build.rs", ""),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn unreached_files_are_dead() {
        let found = dead(&[
            MANIFEST,
            ("a/src/lib.rs", "// mod b;\n"),
            ("a/src/b.rs", "mod c;"),
            ("a/src/b/c.rs", ""),
            ("a/tests/helper/mod.rs", ""),
            ("stray.rs", ""),
        ]);
        assert_eq!(found, ["a/src/b.rs", "a/src/b/c.rs", "a/tests/helper/mod.rs", "stray.rs"]);
    }

    #[test]
    fn named_targets_are_roots() {
        let manifest =
            "[package]\nname = \"fuzz\"\n[[bin]]\nname = \"node\"\npath = \"fuzz_targets/node.rs\"\n";
        let texts = [
            ("fuzz/Cargo.toml", manifest),
            ("fuzz/fuzz_targets/node.rs", ""),
            ("fuzz/fuzz_targets/other.rs", ""),
        ];
        assert_eq!(dead(&texts), ["fuzz/fuzz_targets/other.rs"]);
    }

    #[test]
    fn loading_skips_generated_and_hidden_directories() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
            std::fs::write(path, text).expect("a file");
        };
        write("Cargo.toml", "[workspace]\n");
        write("a/Cargo.toml", MANIFEST.1);
        write("a/src/lib.rs", "//! A.\n");
        write("a/src/dead.rs", "");
        write("target/debug/build.rs", "not Rust at all (");
        write(".hidden/x.rs", "not Rust at all (");
        let sources = Sources::load(folder.path()).expect("parses");
        assert_eq!(sources.files().len(), 2);
        assert_eq!(sources.dead_files().len(), 1);
        assert_eq!(sources.manifests()[0].package(), "a");
    }

    #[test]
    fn a_parse_error_names_file_and_line() {
        let error = SourceFile::parse("a.rs", "fn ok() {}\nfn (").err().expect("the text does not parse");
        assert!(error.to_string().starts_with("a.rs:2: "), "{error}");
    }
}
