//! `papilio shell`: commands inside one file system, line by line.
//!
//! Owns the loop over the lines of a terminal or a script. Lines become the arguments of other
//! commands ([`verbs`]), which share the open file system.
//!
//! - [`words`]: the words of a line; [`pattern`]: patterns in them; [`completer`]: completion.

mod completer;
mod pattern;
mod verbs;
mod words;

use crate::context::Context;
use crate::output::{Output, escaped};
use crate::usage_error::UsageError;
use anyhow::{Context as _, anyhow, bail};
use completer::Completer;
use papilio::{FileKind, FileSystem};
use pattern::{Kind, Listing};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{CompletionType, Config, Editor};
use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use verbs::{Paths, VERBS, Verb};
use words::Word;

/// How often changes are committed.
const COMMIT_INTERVAL: Duration = Duration::from_secs(30);
/// Lines of the history that are kept.
const HISTORY: usize = 1000;

/// Runs the arguments of a command.
pub type Interpret = fn(&Context, Vec<OsString>) -> anyhow::Result<()>;

/// Run commands inside a file system, line by line
///
/// The commands are those of papilio: ls, cat, cp, mkdir, rm, mv, ln, find, subvolume and more,
/// with the same options; paths are relative to a directory that cd changes. `get` and `put` copy
/// to and from the host. `help` lists all commands. The patterns *, ?, [...] and ** of sh(1) stand
/// for the paths that they match; quotes and backslashes escape them.
///
/// On a terminal the tab key completes commands and paths, and lines are kept in a history. Without
/// one the lines of standard input are a script, which ends at the first failure.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Open the file system for reading only
    #[arg(short, long)]
    read_only: bool,
    /// Go on after a failure in a script
    #[arg(short = 'k', long)]
    keep_going: bool,
    /// Run this line instead of standard input; may be given more than once
    #[arg(short, long, value_name = "LINE")]
    command: Vec<String>,
    /// The image or device
    #[arg(value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
}

/// A shell.
struct Shell<'c> {
    context: &'c Context,
    system: FileSystem,
    image: PathBuf,
    read_only: bool,
    here: Rc<RefCell<Vec<u8>>>,
    definition: clap::Command,
    interpret: Interpret,
}

/// Whether a shell goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AfterLine {
    Line,
    End,
}

impl Args {
    /// Runs lines until the end, or until `exit`.
    pub fn run(
        self,
        context: &Context,
        definition: fn() -> clap::Command,
        interpret: Interpret,
    ) -> anyhow::Result<()> {
        context.confinement.forbid();
        // Operands name it while `lcd` changes the directory.
        let image = std::path::absolute(&self.image).context("the current directory")?;
        let system = if self.read_only {
            context.forbid_changes();
            context.open(&image)?
        } else {
            context.change_with(&image, |options| options.commit_interval(Some(COMMIT_INTERVAL)))?
        };
        let here = Rc::new(RefCell::new(b"/".to_vec()));
        let mut definition = definition();
        definition.build();
        let read_only = self.read_only;
        let mut shell = Shell { context, system, image, read_only, here, definition, interpret };
        if !self.command.is_empty() {
            return shell.script(self.command.into_iter().map(Ok), self.keep_going);
        }
        if std::io::stdin().is_terminal() {
            return shell.interactive();
        }
        shell.script(std::io::stdin().lock().lines(), self.keep_going)
    }
}

impl Shell<'_> {
    fn script(
        &mut self,
        lines: impl Iterator<Item = std::io::Result<String>>,
        keep_going: bool,
    ) -> anyhow::Result<()> {
        let mut failed = false;
        for line in lines {
            let next = self.line(&line.context("standard input")?)?;
            failed |= self.context.take_failure();
            if next == AfterLine::End || failed && !keep_going {
                break;
            }
        }
        if failed {
            self.context.fail_silently();
        }
        Ok(())
    }

    fn interactive(&mut self) -> anyhow::Result<()> {
        let config = Config::builder()
            .completion_type(CompletionType::List)
            .max_history_size(HISTORY)
            .and_then(|config| config.history_ignore_dups(true))
            .map(|config| config.history_ignore_space(true).build())
            .context("the terminal")?;
        let mut editor: Editor<Completer, FileHistory> =
            Editor::with_config(config).context("the terminal")?;
        editor.set_helper(Some(Completer { system: self.system.clone(), here: Rc::clone(&self.here) }));
        let history = history_file();
        if let Some(history) = &history {
            // Without a history so far there is nothing to load.
            let _ = editor.load_history(history);
        }
        let name = self.image.file_name().unwrap_or_default().to_string_lossy().into_owned();
        loop {
            let here = String::from_utf8_lossy(&self.here.borrow()).into_owned();
            match editor.readline(&format!("{name}:{here}> ")) {
                Ok(line) => {
                    if !line.trim().is_empty() {
                        let _ = editor.add_history_entry(&line);
                    }
                    let next = self.line(&line)?;
                    // The user has seen it.
                    self.context.take_failure();
                    if next == AfterLine::End {
                        break;
                    }
                }
                Err(ReadlineError::Interrupted) => {}
                Err(ReadlineError::Eof) => break,
                Err(error) => return Err(anyhow!("the terminal: {error}")),
            }
        }
        if let Some(history) = &history {
            let made = history.parent().map_or(Ok(()), std::fs::create_dir_all);
            if let Err(error) = made.map_err(ReadlineError::from).and_then(|()| editor.save_history(history))
            {
                self.context.warning(format_args!("{}: {error}", history.display()));
            }
        }
        Ok(())
    }

    /// Runs a line, and reports its failure.
    ///
    /// # Errors
    /// Standard output is closed.
    fn line(&mut self, line: &str) -> anyhow::Result<AfterLine> {
        match self.run(line) {
            Ok(next) => Ok(next),
            Err(error) if crate::output::is_closed_pipe(&error) => Err(error),
            Err(error) => {
                self.context.failure(&error);
                Ok(AfterLine::Line)
            }
        }
    }

    fn run(&mut self, line: &str) -> anyhow::Result<AfterLine> {
        let words =
            words::split(line).map_err(|open| UsageError::new(format_args!("{} is not closed", open.0)))?;
        let Some((name, words)) = words.split_first() else { return Ok(AfterLine::Line) };
        let Some(verb) = verbs::find(&name.text) else {
            bail!(UsageError::new(format_args!("{}: no such command; help lists them", name.text)));
        };
        if verb.paths == Paths::Own {
            return self.own(verb, words);
        }
        let (image, here) = (&self.image, self.here.borrow().clone());
        let expand = |pattern: &str, inside: bool| self.expand(pattern, inside);
        let arguments = verbs::arguments(&self.definition, verb, words, image, &here, &expand)?;
        (self.interpret)(self.context, arguments)?;
        Ok(AfterLine::Line)
    }

    /// Returns the paths that a pattern matches, in the file system or on the host.
    fn expand(&self, pattern: &str, inside: bool) -> Vec<Vec<u8>> {
        pattern::expand(pattern, &|directory| match inside {
            true => self.entries(directory),
            false => host_entries(directory),
        })
    }

    /// Returns the entries of a directory; a directory that cannot be read has none.
    fn entries(&self, directory: &[u8]) -> Listing {
        let path = verbs::absolute(&self.here.borrow(), directory);
        let Ok(entries) = self.system.read_dir(&path[..]) else { return Vec::new() };
        let entry = |entry: papilio::DirEntry| {
            let kind = match entry.file_type() {
                FileKind::Directory => Kind::Directory,
                FileKind::Symlink => Kind::Symlink,
                _ => Kind::Other,
            };
            (entry.file_name().to_vec(), kind)
        };
        entries.filter_map(Result::ok).map(entry).collect()
    }

    fn own(&mut self, verb: &Verb, words: &[Word]) -> anyhow::Result<AfterLine> {
        let most = usize::from(matches!(verb.name, "cd" | "lcd"));
        if words.len() > most {
            bail!(UsageError::new(format_args!("{}: too many words", verb.name)));
        }
        match verb.name {
            "cd" => {
                let path = self.one_path(words.first(), "/", true)?;
                self.change_directory(&path)?;
            }
            "lcd" => {
                let path = self.one_path(words.first(), ".", false)?;
                let path = Path::new(OsStr::from_bytes(&path));
                std::env::set_current_dir(path).with_context(|| path.display().to_string())?;
            }
            "pwd" => {
                let mut output = Output::new()?;
                output.name(&self.here.borrow())?;
                output.text(format_args!("\n"))?;
                output.finish()?;
            }
            // A file system that is open for reading has nothing to commit.
            "sync" if self.read_only => {}
            "sync" => self.system.sync()?,
            "help" => help()?,
            _ => return Ok(AfterLine::End),
        }
        Ok(AfterLine::Line)
    }

    /// Returns the path that a word names, or the only one that it matches.
    fn one_path(&self, word: Option<&Word>, without: &str, inside: bool) -> anyhow::Result<Vec<u8>> {
        let Some(word) = word else { return Ok(without.into()) };
        let Some(pattern) = &word.pattern else { return Ok(word.text.clone().into()) };
        let mut found = self.expand(pattern, inside);
        match (found.pop(), found.len()) {
            (Some(path), 0) => Ok(path),
            (None, _) => bail!(UsageError::new(format_args!("{}: nothing matches", word.text))),
            (_, more) => {
                bail!(UsageError::new(format_args!("{}: {} paths match", word.text, more + 1)))
            }
        }
    }

    fn change_directory(&self, word: &[u8]) -> anyhow::Result<()> {
        let shown = || String::from_utf8_lossy(&escaped(word)).into_owned();
        let path = verbs::normal(&verbs::absolute(&self.here.borrow(), word));
        let found =
            self.system.inode(&path[..]).map_err(|error| anyhow!("{}: {}", shown(), short(&error)))?;
        if found.file_type() != FileKind::Directory {
            bail!("{}: {}", shown(), papilio::PathError::NotADirectory);
        }
        *self.here.borrow_mut() = path;
        Ok(())
    }
}

/// Returns the text of an error without the path that it names.
fn short(error: &papilio::Error) -> String {
    match error {
        papilio::Error::Path { kind, .. } => kind.to_string(),
        other => other.to_string(),
    }
}

fn host_entries(directory: &[u8]) -> Listing {
    let path = if directory.is_empty() { b"." } else { directory };
    let Ok(entries) = std::fs::read_dir(OsStr::from_bytes(path)) else { return Vec::new() };
    let entry = |entry: std::fs::DirEntry| {
        let kind = match entry.file_type() {
            Ok(kind) if kind.is_dir() => Kind::Directory,
            Ok(kind) if kind.is_symlink() => Kind::Symlink,
            _ => Kind::Other,
        };
        (entry.file_name().as_bytes().to_vec(), kind)
    };
    entries.filter_map(Result::ok).map(entry).collect()
}

fn help() -> anyhow::Result<()> {
    let mut output = Output::new()?;
    for verb in &VERBS {
        output.text(format_args!("{:10} {}\n", verb.name, verb.help))?;
    }
    Ok(output.finish()?)
}

/// Returns the file of the history.
fn history_file() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let state = match set("XDG_STATE_HOME") {
        Some(state) => PathBuf::from(state),
        None => Path::new(&set("HOME")?).join(".local/state"),
    };
    Some(state.join("papilio/history"))
}
