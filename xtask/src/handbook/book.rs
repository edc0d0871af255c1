//! The pages of the book: where each comes from, where it goes, and what its links become.
//!
//! A page has two paths: that in the repository, by which its links are written, and that in the
//! book. Pages below handbook/src lose that prefix; documents keep their paths. A link to a file of
//! the repository that is not in the book becomes one to the repository's web page. Links to
//! nothing, also within a page, are errors, which are listed together.

use super::links;
use anyhow::{Context, Result, bail, ensure};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const OWN: &str = "handbook/src/";
const REPOSITORY: &str = "https://github.com/papilio-fs/papilio/blob/main/";

/// A page before its links are rewritten.
#[derive(Debug)]
struct Page {
    /// Pieces of text, each with the path by which its links are written.
    parts: Vec<(String, String)>,
}

/// All pages, by their paths in the book.
#[derive(Debug)]
pub struct Book {
    root: PathBuf,
    summary: String,
    pages: BTreeMap<String, Page>,
}

impl Book {
    /// Loads the pages that the summary lists. `made` has those that no file of the repository is.
    ///
    /// # Errors
    /// A page is missing.
    pub fn load(root: &Path, summary: &str, made: Vec<(String, String)>) -> Result<Self> {
        let mut made: BTreeMap<String, String> = made.into_iter().collect();
        let mut pages = BTreeMap::new();
        let listed = RefCell::new(Vec::new());
        links::rewrite(&summary.replace("    ", "  "), |target| {
            listed.borrow_mut().push(target.to_owned());
            Ok(target.to_owned())
        })?;
        for path in listed.into_inner() {
            let page = match made.remove(&path) {
                Some(text) => Page { parts: vec![(format!("{OWN}{path}"), text)] },
                None => Self::load_page(root, &path)?,
            };
            ensure!(pages.insert(path.clone(), page).is_none(), "SUMMARY.md lists {path} twice");
        }
        ensure!(made.is_empty(), "SUMMARY.md does not list {:?}", made.keys());
        Ok(Self { root: root.to_path_buf(), summary: summary.to_owned(), pages })
    }

    fn load_page(root: &Path, path: &str) -> Result<Page> {
        let own = format!("{OWN}{path}");
        let source = if root.join(&own).exists() { own } else { path.to_owned() };
        let text = fs::read_to_string(root.join(&source)).with_context(|| source.clone())?;
        let mut parts = Vec::new();
        let mut rest = text.as_str();
        while let Some((before, after)) = rest.split_once("<!-- include: ") {
            let (what, after) = after.split_once(" -->").context("an include does not end")?;
            let (file, name) = what.split_once('#').context("an include names a section")?;
            let included = fs::read_to_string(root.join(file)).with_context(|| file.to_owned())?;
            let included =
                links::section(&included, name).with_context(|| format!("{file} has no {name}"))?;
            parts.push((source.clone(), before.to_owned()));
            parts.push((file.to_owned(), included.to_owned()));
            rest = after;
        }
        parts.push((source, rest.to_owned()));
        Ok(Page { parts })
    }

    /// Writes all pages and the pictures that they show into a folder, and returns their number.
    ///
    /// # Errors
    /// Links that lead nowhere, all in one message; files that cannot be written.
    pub fn write(&self, folder: &Path) -> Result<usize> {
        let headings: BTreeMap<&str, Vec<String>> = self
            .pages
            .iter()
            .map(|(path, page)| {
                let text: String = page.parts.iter().map(|(_, text)| format!("{text}\n")).collect();
                (path.as_str(), links::headings(&text))
            })
            .collect();
        let mut pictures = BTreeSet::new();
        let mut broken = Vec::new();
        for (path, page) in &self.pages {
            let mut out = String::new();
            for (source, text) in &page.parts {
                out += &links::rewrite(text, |target| {
                    let changed = self.target(source, path, target, &headings, &mut pictures);
                    Ok(changed.unwrap_or_else(|why| {
                        broken.push(format!("{source}: {target}: {why}"));
                        target.to_owned()
                    }))
                })?;
            }
            write(&folder.join(path), out.as_bytes())?;
        }
        if !broken.is_empty() {
            bail!("links that lead nowhere:\n{}", broken.join("\n"));
        }
        for picture in pictures {
            let source = if self.root.join(format!("{OWN}{picture}")).exists() { OWN } else { "" };
            let bytes = fs::read(self.root.join(format!("{source}{picture}")))?;
            write(&folder.join(picture), &bytes)?;
        }
        write(&folder.join("SUMMARY.md"), self.summary.as_bytes())?;
        Ok(self.pages.len())
    }

    /// Returns a link's target in the book.
    fn target(
        &self,
        source: &str,
        page: &str,
        target: &str,
        headings: &BTreeMap<&str, Vec<String>>,
        pictures: &mut BTreeSet<String>,
    ) -> Result<String> {
        if target.contains("://") || target.starts_with("mailto:") {
            return Ok(target.to_owned());
        }
        let (file, name) = target.split_once('#').map_or((target, None), |(file, name)| (file, Some(name)));
        let file = if file.is_empty() { source.to_owned() } else { joined(source, file)? };
        let in_book = file.strip_prefix(OWN).unwrap_or(&file).to_owned();
        if let Some(known) = headings.get(in_book.as_str()) {
            if let Some(name) = name {
                ensure!(known.iter().any(|heading| heading == name), "no such heading");
            }
            let name = name.map(|name| format!("#{name}")).unwrap_or_default();
            return Ok(format!("{}{name}", relative(page, &in_book)));
        }
        ensure!(self.root.join(&file).exists(), "no such file");
        if [".svg", ".png"].iter().any(|end| file.ends_with(end)) {
            pictures.insert(in_book.clone());
            return Ok(relative(page, &in_book));
        }
        Ok(format!("{REPOSITORY}{file}"))
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().context("a file has a folder")?;
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(path, bytes))
        .with_context(|| path.display().to_string())
}

/// Returns the path that a link in the file `source` means.
fn joined(source: &str, target: &str) -> Result<String> {
    let mut parts: Vec<&str> = source.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop().context("it leads out of the repository")?),
            part => parts.push(part),
        }
    }
    Ok(parts.join("/"))
}

/// Returns the link from one page to another.
fn relative(from: &str, to: &str) -> String {
    let from: Vec<&str> = from.split('/').collect();
    let to: Vec<&str> = to.split('/').collect();
    let folders = from.len() - 1;
    let same = from[..folders].iter().zip(&to).take_while(|(one, other)| one == other).count();
    let same = same.min(to.len() - 1);
    format!("{}{}", "../".repeat(folders - same), to[same..].join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_relative_to_their_pages() {
        assert_eq!(joined("handbook/src/recipes/a.md", "../../../docs/b.md").unwrap(), "docs/b.md");
        assert!(joined("a.md", "../b.md").is_err());
        assert_eq!(relative("recipes/a.md", "docs/b.md"), "../docs/b.md");
        assert_eq!(relative("recipes/a.md", "recipes/b.md"), "b.md");
        assert_eq!(relative("a.md", "docs/internals/b.md"), "docs/internals/b.md");
        assert_eq!(relative("docs/internals/a.md", "c.md"), "../../c.md");
    }

    #[test]
    fn links_that_lead_nowhere_are_listed() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| write(&root.path().join(path), text.as_bytes()).unwrap();
        put(
            "handbook/src/one.md",
            "# One\n[a](two.md#part) [b](../../docs/d.md) [c](../../code.rs) ![p](p.svg)\n",
        );
        put("handbook/src/two.md", "# Two\n## Part\n<!-- include: docs/d.md#sec -->\n");
        put("docs/d.md", "# D\n## Sec\n[code](../code.rs) [one](internals.md)\n## End\n");
        put("docs/internals.md", "");
        put("code.rs", "");
        put("handbook/src/p.svg", "<svg/>");
        let summary = "- [1](one.md)\n  - [2](two.md)\n- [3](docs/d.md)\n";
        let out = tempfile::tempdir().unwrap();
        let read = |path: &str| fs::read_to_string(out.path().join(path)).unwrap();
        let book = || Book::load(root.path(), summary, Vec::new()).unwrap();
        assert_eq!(book().write(out.path()).unwrap(), 3);
        let expected =
            format!("# One\n[a](two.md#part) [b](docs/d.md) [c]({REPOSITORY}code.rs) ![p](p.svg)\n");
        assert_eq!(read("one.md"), expected);
        assert!(read("two.md").contains(&format!("[code]({REPOSITORY}code.rs)")), "{}", read("two.md"));
        assert_eq!(read("p.svg"), "<svg/>");
        put("handbook/src/one.md", "# One\n[a](two.md#gone) [b](gone.md)\n");
        let error = book().write(out.path()).unwrap_err().to_string();
        assert!(error.contains("one.md: two.md#gone: no such heading"), "{error}");
        assert!(error.contains("one.md: gone.md: no such file"), "{error}");
        assert!(Book::load(root.path(), "- [1](none.md)\n", Vec::new()).is_err());
        let left = vec![("x.md".to_owned(), String::new())];
        assert!(Book::load(root.path(), summary, left).is_err(), "a page that no line lists");
    }
}
