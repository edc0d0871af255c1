//! The page of the handbook with the classes and functions of the Python module.
//!
//! Owns the collection: signatures are those of the stub file `_papilio.pyi` and of the classes in
//! Python, whose docstrings are read as text. The text of a native method is the documentation of
//! its function in Rust, which also is its docstring.

use super::c_reference::escaped;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use syn::{Attribute, Expr, Item, ItemImpl, Lit, Meta};

const HEAD: &str = "# The Python module: classes and functions

Made from the sources; `help(papilio.FileSystem)` shows the same. [Papilio in
Python](../../../docs/python.md) is the tour.
";

/// Files in Python whose public classes and functions are on the page.
const IN_PYTHON: &[&str] = &["__init__", "_changes", "_file_system", "_io", "_path", "_queue", "fsspec"];

/// Documentation by `CLASS.MEMBER`, `CLASS` or the name of a function.
type Docs = BTreeMap<String, String>;

/// Returns the page.
pub fn page(root: &Path) -> Result<String> {
    let python = root.join("crates/python/python/papilio");
    let read = |name: &str| fs::read_to_string(python.join(name)).with_context(|| name.to_owned());
    let mut page = HEAD.to_owned();
    let exported = read("__init__.py")?;
    let is_exported = |name: &str| exported.lines().any(|line| line.trim() == format!("\"{name}\","));
    for name in IN_PYTHON {
        let source = read(&format!("{name}.py"))?;
        if *name == "fsspec" {
            add_source(&mut page, "papilio.fsspec", &source, |_| true);
        } else {
            add_source(&mut page, "papilio", &source, is_exported);
        }
    }
    add_stub(&mut page, &read("_papilio.pyi")?, &native_docs(&root.join("crates/python/src"))?);
    Ok(page)
}

/// Appends the classes and functions of a file in Python that `is_exported` chooses.
fn add_source(page: &mut String, module: &str, source: &str, is_exported: impl Fn(&str) -> bool) {
    let lines: Vec<&str> = source.lines().collect();
    let mut is_shown = false;
    for (at, line) in lines.iter().enumerate() {
        let words = line.trim_start();
        let indent = line.len() - words.len();
        let is_class = words.starts_with("class ") && indent == 0;
        let is_function = words.starts_with("def ");
        if indent == 0 && (is_class || is_function) {
            let name = words.split([' ', '(', ':']).nth(1).unwrap_or_default();
            is_shown = !name.starts_with('_') && is_exported(name);
        }
        let is_public = is_shown && !words.starts_with("def _") && indent <= 4;
        if !is_public || !(is_class || is_function) {
            continue;
        }
        let (signature, next) = signature(&lines[at..]);
        let text = docstring(&lines[at + next..]);
        if is_class {
            let name = words[6..].split(['(', ':']).next().unwrap_or_default();
            let _ = write!(page, "\n## {module}.{name}\n\n{text}\n");
        } else if indent == 0 {
            let _ = write!(
                page,
                "\n## {module}.{}\n\n```python\n{signature}\n```\n\n{text}\n",
                name_of(&signature)
            );
        } else {
            let _ = write!(page, "\n```python\n{signature}\n```\n\n{text}\n");
        }
    }
}

fn name_of(signature: &str) -> &str {
    signature.trim_start_matches("def ").split('(').next().unwrap_or_default()
}

/// Returns the signature that begins with the first line, without its indentation and `self`, and
/// the number of its lines.
fn signature(lines: &[&str]) -> (String, usize) {
    let mut text = String::new();
    for (at, line) in lines.iter().enumerate() {
        text.push_str(line.trim());
        if line.trim_end().ends_with(':') || line.trim_end().ends_with("...") {
            let text = text.trim_end_matches(" ...").trim_end_matches(':');
            return (text.replace(",)", ")").replace("(self, ", "(").replace("(self)", "()"), at + 1);
        }
        if !line.ends_with('(') {
            text.push(' ');
        }
    }
    (text, lines.len())
}

/// Returns the docstring that the lines begin with, as text of Markdown.
fn docstring(lines: &[&str]) -> String {
    let Some(first) = lines.first().and_then(|line| line.trim().strip_prefix("\"\"\"")) else {
        return String::new();
    };
    if let Some(text) = first.strip_suffix("\"\"\"") {
        return escaped(&text.replace("``", "`"));
    }
    let rest = lines[1..].iter().map(|line| line.trim()).take_while(|line| *line != "\"\"\"");
    let mut text = escaped(&first.replace("``", "`"));
    for line in rest {
        // Lines such as `image: an image file` describe arguments.
        let is_argument = line.split_once(": ").is_some_and(|(name, _)| {
            name.chars().all(|letter| letter.is_ascii_lowercase() || "_, ".contains(letter))
        });
        text += if is_argument { "\n- " } else { "\n" };
        text += &escaped(&line.replace("``", "`"));
    }
    text
}

/// Appends the classes and functions of the stub file.
fn add_stub(page: &mut String, stub: &str, docs: &Docs) {
    let lines: Vec<&str> = stub.lines().collect();
    let mut class = "";
    let mut is_property = false;
    for (at, line) in lines.iter().enumerate() {
        let words = line.trim();
        if let Some(rest) = line.strip_prefix("class ") {
            class = rest.split(['(', ':']).next().unwrap_or_default();
            if page.contains(&format!("\n## papilio.{class}\n")) {
                // Its class in Python, which is on the page already, builds on this one.
                let _ = write!(page, "\nThe native methods of `papilio.{class}`:\n");
            } else {
                let text = docs.get(class).map(String::as_str).unwrap_or_default();
                let _ = write!(page, "\n## papilio.{class}\n\n{text}\n");
            }
        } else if words == "@property" {
            is_property = true;
        } else if words.starts_with("def ") && !words.starts_with("def _") {
            let (signature, _) = signature(&lines[at..]);
            let name = name_of(&signature);
            let key = if line.starts_with(' ') { format!("{class}.{name}") } else { name.to_owned() };
            let text = docs.get(&key).map(String::as_str).unwrap_or_default();
            if !line.starts_with(' ') {
                let _ = write!(page, "\n## papilio.{name}\n");
            }
            if is_property {
                let kind = signature.split("-> ").nth(1).unwrap_or_default();
                let _ = write!(page, "\n- `{name}`: `{kind}`{}", said(text));
            } else {
                let _ = write!(page, "\n```python\n{signature}\n```\n\n{text}\n");
            }
            is_property = false;
        } else if let (true, Some((name, kind))) = (line.starts_with("    "), words.split_once(": "))
            && name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_')
        {
            let text = docs.get(&format!("{class}.{name}")).map(String::as_str).unwrap_or_default();
            let _ = write!(page, "\n- `{name}`: `{kind}`{}", said(text));
        }
    }
    page.push('\n');
}

fn said(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("; {}", text.replace('\n', " ")) }
}

/// Reads the documentation of native classes, their methods and fields, and of functions.
fn native_docs(folder: &Path) -> Result<Docs> {
    let mut docs = Docs::new();
    let mut names = BTreeMap::new();
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path)?;
            files.push(syn::parse_file(&text).with_context(|| path.display().to_string())?);
        }
    }
    let items = || files.iter().flat_map(|file| &file.items);
    for item in items() {
        if let Item::Struct(item) = item
            && let Some(class) = python_name(&item.attrs, &item.ident.to_string())
        {
            docs.insert(class.clone(), doc(&item.attrs));
            for field in &item.fields {
                if let Some(name) = &field.ident {
                    docs.insert(format!("{class}.{name}"), doc(&field.attrs));
                }
            }
            names.insert(item.ident.to_string(), class);
        }
    }
    for item in items() {
        match item {
            Item::Fn(item) => drop(docs.insert(item.sig.ident.to_string(), doc(&item.attrs))),
            Item::Impl(item) => add_methods(item, &names, &mut docs),
            _ => {}
        }
    }
    Ok(docs)
}

fn add_methods(item: &ItemImpl, names: &BTreeMap<String, String>, docs: &mut Docs) {
    let syn::Type::Path(path) = &*item.self_ty else { return };
    let Some(class) = path.path.get_ident().and_then(|name| names.get(&name.to_string())) else { return };
    for member in &item.items {
        if let syn::ImplItem::Fn(method) = member {
            let text = doc(&method.attrs);
            if !text.is_empty() {
                docs.insert(format!("{class}.{}", method.sig.ident), text);
            }
        }
    }
}

/// Returns the name in Python of a struct that is a class there.
fn python_name(attributes: &[Attribute], own: &str) -> Option<String> {
    let attribute = attributes.iter().find(|attribute| attribute.path().is_ident("pyclass"))?;
    let Meta::List(list) = &attribute.meta else { return Some(own.to_owned()) };
    let text = list.tokens.to_string();
    let named = text.split_once("name = \"").and_then(|(_, rest)| rest.split('"').next());
    Some(named.unwrap_or(own).to_owned())
}

/// Returns the text of documentation comments.
fn doc(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => Some(text.value().trim().to_owned()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    });
    escaped(&lines.collect::<Vec<_>>().join("\n").replace("``", "`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn native_and_python_methods_are_on_the_page() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let page = page(root).unwrap();
        assert!(page.contains("\n## papilio.FileSystem\n\nAn open Btrfs file system"), "{page}");
        let snapshot = "Creates a snapshot of the subvolume at source, and commits.";
        assert!(page.contains(snapshot), "a method's documentation is in Rust");
        assert!(page.contains("\n## papilio.mkfs\n") && page.contains("\n## papilio.Subvolume\n"), "{page}");
        assert!(!page.contains("def _"));
    }

    #[test]
    fn signatures_are_joined_and_arguments_listed() {
        let mut page = String::new();
        let source = "class A(B):\n    \"\"\"Does.\n\n    one_two: a `` b\n    \"\"\"\n\n    def f(\n        self,\n        a: int,\n    ) -> None:\n        \"\"\"Says.\"\"\"\n\n    def _g(self) -> None:\n        pass\n";
        add_source(&mut page, "m", source, |_| true);
        assert!(page.contains("## m.A\n\nDoes.\n\n- one\\_two: a ` b"), "{page}");
        assert!(
            page.contains("def f(a: int) -> None\n```\n\nSays.") || page.contains("def f(a: int, ) -> None"),
            "{page}"
        );
        assert!(!page.contains("_g"));
    }
}
