//! Completion of what is typed in a shell.
//!
//! Owns [`Completer`]: the first word is completed from the names of commands, others from the
//! directories of the file system, or of the host where the command takes a path there.

use super::verbs::{self, Paths, VERBS};
use super::words::{quoted, unfinished};
use papilio::{FileKind, FileSystem};
use rustyline::completion::Pair;
use std::cell::RefCell;
use std::rc::Rc;

/// Completes words.
pub struct Completer {
    /// The file system.
    pub system: FileSystem,
    /// The directory that the shell is in.
    pub here: Rc<RefCell<Vec<u8>>>,
}

/// A name, and whether it is a directory.
type Name = (String, bool);

impl Completer {
    /// Returns where the last word of `line` begins, and what may take its place.
    fn candidates(&self, line: &str) -> (usize, Vec<Pair>) {
        let word = unfinished(line);
        let Some(verb) = word.before.first() else {
            let names = VERBS.iter().map(|verb| verb.name).filter(|name| name.starts_with(&word.text));
            let pair = |name: &str| Pair { display: name.to_owned(), replacement: format!("{name} ") };
            return (word.start, names.map(pair).collect());
        };
        let verb = verbs::find(verb);
        if verb.is_some_and(|verb| verb.paths == Paths::OfSubcommand) && word.before.len() == 1 {
            let names = ["create", "delete", "list", "show", "snapshot"];
            let names = names.into_iter().filter(|name| name.starts_with(&word.text));
            let pair = |name: &str| Pair { display: name.to_owned(), replacement: format!("{name} ") };
            return (word.start, names.map(pair).collect());
        }
        let (directory, prefix) = match word.text.rfind('/') {
            Some(at) => word.text.split_at(at + 1),
            None => ("", &word.text[..]),
        };
        // Of `get` and `put`, both sides may be meant.
        let host = verb.is_some_and(|verb| verb.paths == Paths::FromHost || verb.name == "lcd");
        let mut names = if host { of_host(directory) } else { self.of_image(directory) };
        if verb.is_some_and(|verb| verb.paths == Paths::ToHost) && names.is_empty() {
            names = of_host(directory);
        }
        names.retain(|(name, _)| name.starts_with(prefix) && (!prefix.is_empty() || !name.starts_with('.')));
        names.sort();
        let pair = |(name, is_directory): Name| {
            let end = if is_directory { "/" } else { " " };
            let display = if is_directory { format!("{name}/") } else { name.clone() };
            Pair { display, replacement: format!("{}{end}", quoted(&format!("{directory}{name}"))) }
        };
        (word.start, names.into_iter().map(pair).collect())
    }

    fn of_image(&self, directory: &str) -> Vec<Name> {
        let path = verbs::absolute(&self.here.borrow(), directory.as_bytes());
        // A directory that cannot be read has no candidates.
        let Ok(entries) = self.system.read_dir(&path[..]) else { return Vec::new() };
        let name = |entry: papilio::DirEntry| {
            let is_directory = entry.file_type() == FileKind::Directory;
            verbs::typed(entry.file_name()).map(|name| (name.to_owned(), is_directory))
        };
        entries.filter_map(Result::ok).filter_map(name).collect()
    }
}

fn of_host(directory: &str) -> Vec<Name> {
    let path = if directory.is_empty() { "." } else { directory };
    let Ok(entries) = std::fs::read_dir(path) else { return Vec::new() };
    let name = |entry: std::fs::DirEntry| {
        let is_directory = std::fs::metadata(entry.path()).is_ok_and(|found| found.is_dir());
        entry.file_name().into_string().ok().map(|name| (name, is_directory))
    };
    entries.filter_map(Result::ok).filter_map(name).collect()
}

impl rustyline::completion::Completer for Completer {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _: &rustyline::Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        Ok(self.candidates(&line[..position]))
    }
}

impl rustyline::hint::Hinter for Completer {
    type Hint = String;
}

impl rustyline::highlight::Highlighter for Completer {}

impl rustyline::validate::Validator for Completer {}

impl rustyline::Helper for Completer {}
