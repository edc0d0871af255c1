//! `papilio du`: adds up the space of files. Each inode counts once.

use crate::context::{Context, describe};
use crate::operands::for_each_operand;
use crate::output::{JsonArray, Output, disk_bytes, human_size, json_bytes};
use crate::path::ImagePath;
use papilio::{DirEntry, FileKind, Inode};
use serde_json::json;
use std::collections::HashSet;
use std::ffi::OsString;

/// Show the space that files take
///
/// Counts the bytes that files have allocated, before compression, in whole sectors. An extent that
/// several files share counts in each of them. A file with several hard links counts once. The unit
/// is KiB unless -b or -h is given.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// The files and directories; IMAGE alone means its root directory
    #[arg(value_name = "IMAGE:/PATH", required = true, value_hint = clap::ValueHint::FilePath)]
    paths: Vec<OsString>,
    /// Show only a total for each argument
    #[arg(short, long, conflicts_with_all = ["all", "max_depth"])]
    summarize: bool,
    /// Show files too, not only directories
    #[arg(short, long)]
    all: bool,
    /// Print sizes in K, M, G
    #[arg(short, long)]
    human_readable: bool,
    /// Like --apparent-size, in units of one byte
    #[arg(short, long)]
    bytes: bool,
    /// Count the sizes that ls -l shows instead of the allocated space
    #[arg(long)]
    apparent_size: bool,
    /// Show only what is at most N levels below the arguments
    #[arg(short = 'd', long, value_name = "N")]
    max_depth: Option<usize>,
    /// Print a grand total
    #[arg(short = 'c', long)]
    total: bool,
    /// Stay in the subvolume of each argument
    #[arg(short = 'x', long)]
    one_file_system: bool,
    /// Print one JSON array, with sizes in bytes
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// A directory that is being added up.
struct SummedDirectory {
    path: ImagePath,
    entries: std::vec::IntoIter<DirEntry>,
    bytes: u64,
}

struct DiskUsage<'a> {
    arguments: &'a Args,
    context: &'a Context,
    output: Output,
    json: Option<JsonArray>,
    /// The inodes that were counted: those with several links, and all directories. The walk ends
    /// even if a corrupt directory is its own ancestor.
    counted: HashSet<(std::path::PathBuf, u64, u64)>,
}

impl Args {
    /// Adds up the operands.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        context.confine_to_operands(&self.paths);
        let mut output = Output::new()?;
        let json = match self.json {
            true => Some(JsonArray::begin(&mut output)?),
            false => None,
        };
        let mut sum = DiskUsage { arguments: &self, context, output, json, counted: HashSet::new() };
        let mut total = 0_u64;
        for_each_operand(context, &self.paths, |path| {
            let inode = context.inode(&path, false)?;
            total = total.saturating_add(sum.tree(path, inode)?);
            Ok(())
        })?;
        if self.total {
            sum.show(b"total", total)?;
        }
        let DiskUsage { mut output, json, .. } = sum;
        if let Some(json) = json {
            json.end(&mut output)?;
        }
        Ok(output.finish()?)
    }
}

impl DiskUsage<'_> {
    /// Returns the bytes of `inode` and everything below it, and prints lines on the way.
    fn tree(&mut self, path: ImagePath, inode: Inode) -> anyhow::Result<u64> {
        let home = inode.tree();
        let mut stack: Vec<SummedDirectory> = Vec::new();
        let mut next = Some((path, inode));
        loop {
            if let Some((path, inode)) = next.take()
                && self.is_new(&path, &inode)
            {
                let bytes = self.bytes_of(&inode);
                if inode.metadata().file_type() == FileKind::Directory {
                    let other = self.arguments.one_file_system && inode.tree() != home;
                    let entries = if other { Vec::new() } else { self.entries(&path, &inode) };
                    stack.push(SummedDirectory { path, entries: entries.into_iter(), bytes });
                } else if let Some(parent) = stack.last_mut() {
                    parent.bytes = parent.bytes.saturating_add(bytes);
                    if self.arguments.all && self.is_shown(stack.len()) {
                        self.show(&path.to_bytes(), bytes)?;
                    }
                } else {
                    self.show(&path.to_bytes(), bytes)?;
                    return Ok(bytes);
                }
            }
            let depth = stack.len();
            let Some(frame) = stack.last_mut() else { return Ok(0) };
            if let Some(entry) = frame.entries.next() {
                let path = frame.path.join(entry.file_name());
                match entry.inode() {
                    Ok(inode) => next = Some((path, inode)),
                    Err(error) => self.context.error(describe(&path, &error)),
                }
                continue;
            }
            let (path, bytes) = (frame.path.to_bytes(), frame.bytes);
            stack.pop();
            if self.is_shown(depth - 1) {
                self.show(&path, bytes)?;
            }
            match stack.last_mut() {
                Some(parent) => parent.bytes = parent.bytes.saturating_add(bytes),
                None => return Ok(bytes),
            }
        }
    }

    fn is_shown(&self, depth: usize) -> bool {
        let limit = if self.arguments.summarize { Some(0) } else { self.arguments.max_depth };
        limit.is_none_or(|limit| depth <= limit)
    }

    fn is_new(&mut self, path: &ImagePath, inode: &Inode) -> bool {
        let metadata = inode.metadata();
        if metadata.file_type() != FileKind::Directory && metadata.nlink() < 2 {
            return true;
        }
        self.counted.insert((path.image.clone(), inode.tree().0, inode.number().0))
    }

    fn bytes_of(&self, inode: &Inode) -> u64 {
        let metadata = inode.metadata();
        match self.arguments.apparent_size || self.arguments.bytes {
            true => match metadata.file_type() {
                FileKind::Regular | FileKind::Symlink => metadata.size(),
                _ => 0,
            },
            false => disk_bytes(inode),
        }
    }

    fn entries(&self, path: &ImagePath, inode: &Inode) -> Vec<DirEntry> {
        let read = || -> papilio::Result<Vec<DirEntry>> {
            let mut entries = Vec::new();
            for entry in inode.read_dir()? {
                match entry {
                    Ok(entry) => entries.push(entry),
                    Err(error) => {
                        self.context.error(describe(path, &error));
                        break;
                    }
                }
            }
            Ok(entries)
        };
        read().unwrap_or_else(|error| {
            self.context.error(describe(path, &error));
            Vec::new()
        })
    }

    fn show(&mut self, path: &[u8], bytes: u64) -> anyhow::Result<()> {
        if let Some(json) = &mut self.json {
            let mut object = serde_json::Map::new();
            json_bytes(&mut object, "path", path);
            object.insert("bytes".into(), json!(bytes));
            return Ok(json.push(&mut self.output, &object.into())?);
        }
        match (self.arguments.human_readable, self.arguments.bytes) {
            (true, _) => self.output.text(format_args!("{}\t", human_size(bytes)))?,
            (false, true) => self.output.text(format_args!("{bytes}\t"))?,
            (false, false) => self.output.text(format_args!("{}\t", bytes.div_ceil(1024)))?,
        }
        self.output.name(path)?;
        Ok(self.output.bytes(b"\n")?)
    }
}
