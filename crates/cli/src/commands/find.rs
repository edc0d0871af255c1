//! `papilio find`: the walk and the output of find(1). Its tests are in [`tests`].

mod tests;

use crate::context::{Context, describe};
use crate::operands::for_each_operand;
use crate::output::{JsonArray, Output, disk_bytes, is_device, json_bytes, json_inode, mode_letters};
use crate::path::ImagePath;
use crate::time;
use papilio::{DirEntry, FileKind, Inode};
use std::collections::HashSet;
use std::ffi::OsString;
use tests::{Candidate, TestArgs, Tests};

/// Find files by their properties
///
/// The tests are those of find(1), with one or two dashes (-name, --name). A file is shown if it
/// passes all tests, in which N means exactly N, +N more and -N less. There is no -o, -not or
/// -exec. The patterns of -path match the path inside the file system, from its root. Symbolic
/// links are not followed.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// The files and directories to search; IMAGE alone means its root directory
    #[arg(value_name = "IMAGE:/PATH", required = true, value_hint = clap::ValueHint::FilePath)]
    paths: Vec<OsString>,
    /// Descend at most N levels below the arguments
    #[arg(long, value_name = "N")]
    maxdepth: Option<usize>,
    /// Show only what is at least N levels below the arguments
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    mindepth: usize,
    /// Stay in the subvolume of each argument
    #[arg(long, visible_alias = "mount")]
    xdev: bool,
    /// Show directories after their content
    #[arg(long)]
    depth: bool,
    /// Print one path per line (default)
    #[arg(long)]
    print: bool,
    /// End each path with a null byte instead of a newline
    #[arg(long, conflicts_with_all = ["ls", "json"])]
    print0: bool,
    /// Print inode, KiB, mode, links, owner, group, size, time and path
    #[arg(long, conflicts_with = "json")]
    ls: bool,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    // The last field, since its heading applies to all options that follow.
    #[command(flatten)]
    tests: TestArgs,
}

struct SearchedDirectory {
    path: ImagePath,
    inode: Inode,
    entries: papilio::Entries,
}

struct Search<'a> {
    arguments: &'a Args,
    context: &'a Context,
    tests: Tests,
    output: Output,
    json: Option<JsonArray>,
    now: i64,
}

impl Args {
    /// Searches the operands.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let now = time::now();
        let tests = Tests::resolve(&self.tests, now)?;
        context.confine_to_operands(&self.paths);
        let mut output = Output::new()?;
        let json = match self.json {
            true => Some(JsonArray::begin(&mut output)?),
            false => None,
        };
        let mut search = Search { arguments: &self, context, tests, output, json, now };
        for_each_operand(context, &self.paths, |path| {
            let inode = context.inode(&path, false)?;
            search.tree(path, inode)
        })?;
        let Search { mut output, json, .. } = search;
        if let Some(json) = json {
            json.end(&mut output)?;
        }
        Ok(output.finish()?)
    }
}

impl Search<'_> {
    fn tree(&mut self, path: ImagePath, inode: Inode) -> anyhow::Result<()> {
        let home = inode.tree();
        // A corrupt directory can be its own ancestor.
        let mut entered = HashSet::new();
        let mut stack: Vec<SearchedDirectory> = Vec::new();
        let mut next = Some((path, inode));
        while next.is_some() || !stack.is_empty() {
            if let Some((path, inode)) = next.take() {
                let directory = inode.metadata().file_type() == FileKind::Directory;
                if !(directory && self.arguments.depth) {
                    self.show_if_matching(&path, &inode, stack.len())?;
                }
                if directory {
                    let within = self.arguments.maxdepth.is_none_or(|max| stack.len() < max)
                        && !(self.arguments.xdev && inode.tree() != home);
                    let again = !entered.insert((inode.tree(), inode.number()));
                    if again {
                        self.context.error(format_args!("{path}: directory was already searched; skipped"));
                    }
                    match inode.read_dir() {
                        Ok(entries) if within && !again => {
                            stack.push(SearchedDirectory { path, inode, entries });
                        }
                        Ok(_) if self.arguments.depth => self.show_if_matching(&path, &inode, stack.len())?,
                        Ok(_) => {}
                        Err(error) => self.context.error(describe(&path, &error)),
                    }
                }
                continue;
            }
            next = self.advance(&mut stack)?;
        }
        Ok(())
    }

    /// Returns the next file of the innermost directory, or leaves that directory if it has no
    /// more.
    fn advance(&mut self, stack: &mut Vec<SearchedDirectory>) -> anyhow::Result<Option<(ImagePath, Inode)>> {
        let Some(frame) = stack.last_mut() else { return Ok(None) };
        match frame.entries.next() {
            Some(Ok(entry)) => {
                let path = frame.path.join(entry.file_name());
                if self.is_excluded_by_name(&entry, stack.len()) {
                    return Ok(None);
                }
                match entry.inode() {
                    Ok(inode) => return Ok(Some((path, inode))),
                    Err(error) => self.context.error(describe(&path, &error)),
                }
                return Ok(None);
            }
            Some(Err(error)) => self.context.error(describe(&frame.path, &error)),
            None => {}
        }
        if let Some(SearchedDirectory { path, inode, .. }) = stack.pop()
            && self.arguments.depth
        {
            self.show_if_matching(&path, &inode, stack.len())?;
        }
        Ok(None)
    }

    /// Returns whether the entry alone shows that the file is neither shown nor entered, so that
    /// its inode need not be read.
    fn is_excluded_by_name(&self, entry: &DirEntry, depth: usize) -> bool {
        entry.file_type() != FileKind::Directory
            && (depth < self.arguments.mindepth || !self.tests.name_passes(entry.file_name()))
    }

    fn show_if_matching(&mut self, path: &ImagePath, inode: &Inode, depth: usize) -> anyhow::Result<()> {
        if depth < self.arguments.mindepth {
            return Ok(());
        }
        match self.tests.pass(&Candidate { path, inode }) {
            Ok(true) => self.show(path, inode),
            Ok(false) => Ok(()),
            Err(error) => {
                self.context.error(describe(path, &error));
                Ok(())
            }
        }
    }

    fn show(&mut self, path: &ImagePath, inode: &Inode) -> anyhow::Result<()> {
        if let Some(json) = &mut self.json {
            let mut object = json_inode(&path.path, inode);
            json_bytes(&mut object, "name", path.base_name().unwrap_or(b"/"));
            return Ok(json.push(&mut self.output, &object.into())?);
        }
        if self.arguments.print0 {
            self.output.bytes(&path.to_bytes())?;
            return Ok(self.output.bytes(b"\0")?);
        }
        if self.arguments.ls {
            let metadata = inode.metadata();
            let size = match metadata.rdev() {
                (major, minor) if is_device(metadata) => format!("{major}, {minor}"),
                _ => metadata.size().to_string(),
            };
            self.output.text(format_args!(
                "{:>9} {:>6} {} {:>3} {:<8} {:<8} {size:>8} {} ",
                inode.number().0,
                disk_bytes(inode) / 1024,
                mode_letters(metadata.file_type(), metadata.mode()),
                metadata.nlink(),
                metadata.uid(),
                metadata.gid(),
                time::short(metadata.mtime(), self.now),
            ))?;
        }
        self.output.name(&path.to_bytes())?;
        Ok(self.output.bytes(b"\n")?)
    }
}
