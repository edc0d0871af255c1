//! `papilio ls`: lists names in byte order, with the options of ls(1).
//!
//! Owners are numbers, since the host's user names mean nothing inside an image.

use crate::commands::deleted;
use crate::context::{Context, describe};
use crate::output::{
    JsonArray, Output, disk_bytes, human_size, is_device, json_bytes, json_inode, mode_letters,
};
use crate::path::{ImagePath, parse_image_path};
use crate::time;
use crate::usage_error::UsageError;
use papilio::{FileKind, Inode};
use std::collections::HashSet;
use std::ffi::OsString;

/// List directories and files
///
/// Names are sorted in byte order. Owners are shown as numbers, since the host's user names mean
/// nothing inside an image. On a terminal, control characters and invalid UTF-8 in names are shown
/// as \ooo.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// The directories and files; IMAGE alone means its root directory
    #[arg(value_name = "IMAGE:/PATH", required = true, value_hint = clap::ValueHint::FilePath)]
    paths: Vec<OsString>,
    /// Show mode, links, owner, group, size and time of modification
    #[arg(short)]
    long: bool,
    /// Show names that begin with a dot, including . and ..
    #[arg(short, long)]
    all: bool,
    /// Show names that begin with a dot, except . and ..
    #[arg(short = 'A', long)]
    almost_all: bool,
    /// List subdirectories recursively
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Print one name per line
    #[arg(short = '1')]
    one_per_line: bool,
    /// Print sizes in K, M, G
    #[arg(short, long)]
    human_readable: bool,
    /// Show inode numbers
    #[arg(short, long)]
    inode: bool,
    /// Accepted for compatibility with ls(1); owners are always shown as numbers
    #[arg(short, long = "numeric-uid-gid")]
    numeric: bool,
    /// List directories themselves, not their content
    #[arg(short, long)]
    directory: bool,
    /// Like -l, with times to the nanosecond
    #[arg(long)]
    full_time: bool,
    /// List the files below each path that were deleted and that older states still have; scans the
    /// whole device
    ///
    /// Each line has the generation and the address of the newest root tree that has the file, its
    /// inode number, its size and its path. papilio cp with that --tree-root copies it, and papilio
    /// restore --deleted copies them all.
    #[arg(long, conflicts_with_all = ["recursive", "directory", "all", "almost_all"])]
    deleted: bool,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// One line of a listing.
struct ListLine {
    path: ImagePath,
    name: Vec<u8>,
    inode: Inode,
    link_target: Option<Vec<u8>>,
}

/// A run of `ls`.
struct Listing<'a> {
    arguments: &'a Args,
    context: &'a Context,
    output: Output,
    json: Option<JsonArray>,
    now: i64,
    width: usize,
    /// Whether anything was printed, so that a blank line must separate the next directory.
    printed: bool,
    headings: bool,
}

impl Args {
    /// Lists the operands.
    pub fn run(mut self, context: &Context) -> anyhow::Result<()> {
        self.long |= self.full_time;
        context.confine_to_operands(&self.paths);
        if self.deleted {
            return deleted::list(context, &self.paths, self.json, self.human_readable);
        }
        let mut output = Output::new()?;
        let json = match self.json {
            true => Some(JsonArray::begin(&mut output)?),
            false => None,
        };
        let mut listing = Listing {
            width: terminal_width(),
            arguments: &self,
            context,
            output,
            json,
            now: time::now(),
            printed: false,
            headings: self.recursive || self.paths.len() > 1,
        };
        let mut files = Vec::new();
        let mut directories = Vec::new();
        for operand in &self.paths {
            let path = parse_image_path(operand)?;
            // Like ls, follows a link to a directory, except in the long format.
            let found = match context.inode(&path, !self.long && !self.directory) {
                Err(error) if error.is::<UsageError>() => return Err(error),
                Err(error) if self.long || self.directory => Err(error),
                Err(error) => context.inode(&path, false).map_err(|_| error),
                Ok(inode) if inode.metadata().file_type() != FileKind::Directory && !self.long => {
                    context.inode(&path, false)
                }
                found => found,
            };
            match found {
                Err(error) => context.failure(&error),
                Ok(inode) if is_directory(&inode) && !self.directory => {
                    directories.push((path, inode));
                }
                Ok(inode) => files.push(listing.line(path.clone(), path.to_bytes(), inode)),
            }
        }
        files.sort_by(|a, b| a.name.cmp(&b.name));
        listing.print(&files)?;
        for (path, inode) in directories {
            listing.walk(path, inode)?;
        }
        let Listing { mut output, json, .. } = listing;
        if let Some(json) = json {
            json.end(&mut output)?;
        }
        Ok(output.finish()?)
    }
}

fn is_directory(inode: &Inode) -> bool {
    inode.metadata().file_type() == FileKind::Directory
}

impl Listing<'_> {
    fn line(&self, path: ImagePath, name: Vec<u8>, inode: Inode) -> ListLine {
        let mut link_target = None;
        if inode.metadata().file_type() == FileKind::Symlink && (self.arguments.long || self.arguments.json) {
            match inode.read_link() {
                Ok(target) => link_target = Some(target),
                Err(error) => self.context.error(describe(&path, &error)),
            }
        }
        ListLine { path, name, inode, link_target }
    }

    /// Lists a directory, and those below it under `-R`.
    fn walk(&mut self, path: ImagePath, inode: Inode) -> anyhow::Result<()> {
        let mut pending = vec![(path, inode)];
        // A corrupt directory can be its own ancestor.
        let mut visited = HashSet::new();
        while let Some((path, inode)) = pending.pop() {
            if !visited.insert((inode.tree(), inode.number())) {
                self.context.error(format_args!("{path}: directory was already listed; skipped"));
                continue;
            }
            self.heading(&path)?;
            let lines = self.read(&path, &inode);
            if self.arguments.long && self.json.is_none() {
                let total: u64 = lines.iter().map(|l| disk_bytes(&l.inode)).sum();
                match self.arguments.human_readable {
                    true => self.output.text(format_args!("total {}\n", human_size(total)))?,
                    false => self.output.text(format_args!("total {}\n", total.div_ceil(1024)))?,
                }
                self.printed = true;
            }
            self.print(&lines)?;
            if self.arguments.recursive {
                let below = lines
                    .into_iter()
                    .filter(|line| is_directory(&line.inode) && line.name != b"." && line.name != b"..");
                pending.extend(below.rev().map(|line| (line.path, line.inode)));
            }
        }
        Ok(())
    }

    fn heading(&mut self, path: &ImagePath) -> anyhow::Result<()> {
        if !self.headings || self.json.is_some() {
            return Ok(());
        }
        if self.printed {
            self.output.bytes(b"\n")?;
        }
        self.output.name(&path.to_bytes())?;
        self.output.bytes(b":\n")?;
        self.printed = true;
        Ok(())
    }

    /// Returns the sorted lines of a directory. Reports and omits what cannot be read.
    fn read(&self, path: &ImagePath, inode: &Inode) -> Vec<ListLine> {
        let mut lines = Vec::new();
        let hidden = self.arguments.all || self.arguments.almost_all;
        if self.arguments.all && !self.arguments.json {
            for name in [&b"."[..], b".."] {
                let path = path.join(name);
                match self.context.inode(&path, true) {
                    Ok(inode) => lines.push(self.line(path, name.to_vec(), inode)),
                    Err(error) => self.context.failure(&error),
                }
            }
        }
        let entries = match inode.read_dir() {
            Ok(entries) => entries,
            Err(error) => {
                self.context.error(describe(path, &error));
                return lines;
            }
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    self.context.error(describe(path, &error));
                    break;
                }
            };
            if !hidden && entry.file_name().starts_with(b".") {
                continue;
            }
            let below = path.join(entry.file_name());
            match entry.inode() {
                Ok(inode) => lines.push(self.line(below, entry.file_name().to_vec(), inode)),
                Err(error) => self.context.error(describe(&below, &error)),
            }
        }
        lines.sort_by(|a, b| a.name.cmp(&b.name));
        lines
    }

    fn print(&mut self, lines: &[ListLine]) -> anyhow::Result<()> {
        self.printed |= !lines.is_empty();
        if self.json.is_some() {
            return self.print_json(lines);
        }
        if self.arguments.long {
            return self.print_long(lines);
        }
        if self.output.terminal && !self.arguments.one_per_line {
            return self.print_columns(lines);
        }
        let digits = self.inode_digits(lines);
        for line in lines {
            self.print_inode(line, digits)?;
            self.output.name(&line.name)?;
            self.output.bytes(b"\n")?;
        }
        Ok(())
    }

    fn inode_digits(&self, lines: &[ListLine]) -> usize {
        lines.iter().map(|line| line.inode.number().0.to_string().len()).max().unwrap_or(0)
    }

    fn print_inode(&mut self, line: &ListLine, digits: usize) -> anyhow::Result<()> {
        if self.arguments.inode {
            self.output.text(format_args!("{:>digits$} ", line.inode.number().0))?;
        }
        Ok(())
    }

    fn print_json(&mut self, lines: &[ListLine]) -> anyhow::Result<()> {
        let Some(json) = &mut self.json else { return Ok(()) };
        for line in lines {
            let mut object = json_inode(&line.path.path, &line.inode);
            json_bytes(&mut object, "name", line.path.base_name().unwrap_or(b"/"));
            if let Some(target) = &line.link_target {
                json_bytes(&mut object, "target", target);
            }
            json.push(&mut self.output, &object.into())?;
        }
        Ok(())
    }

    fn print_long(&mut self, lines: &[ListLine]) -> anyhow::Result<()> {
        let rows: Vec<[String; 6]> = lines.iter().map(|line| self.long_fields(line)).collect();
        let widths: Vec<usize> =
            (0..6).map(|at| rows.iter().map(|row| row[at].len()).max().unwrap_or(0)).collect();
        let digits = self.inode_digits(lines);
        for (line, row) in lines.iter().zip(&rows) {
            self.print_inode(line, digits)?;
            let [mode, links, uid, gid, size, time] = row;
            self.output.text(format_args!(
                "{mode:<0$} {links:>1$} {uid:>2$} {gid:>3$} {size:>4$} {time:>5$} ",
                widths[0], widths[1], widths[2], widths[3], widths[4], widths[5]
            ))?;
            self.output.name(&line.name)?;
            if let Some(target) = &line.link_target {
                self.output.bytes(b" -> ")?;
                self.output.name(target)?;
            }
            self.output.bytes(b"\n")?;
        }
        Ok(())
    }

    fn long_fields(&self, line: &ListLine) -> [String; 6] {
        let metadata = line.inode.metadata();
        let size = match metadata.rdev() {
            (major, minor) if is_device(metadata) => format!("{major}, {minor}"),
            _ if self.arguments.human_readable => human_size(metadata.size()),
            _ => metadata.size().to_string(),
        };
        let time = match self.arguments.full_time {
            true => time::full(metadata.mtime()),
            false => time::short(metadata.mtime(), self.now),
        };
        [
            format!("{}{}", mode_letters(metadata.file_type(), metadata.mode()), acl_sign(&line.inode)),
            metadata.nlink().to_string(),
            metadata.uid().to_string(),
            metadata.gid().to_string(),
            size,
            time,
        ]
    }

    /// Prints as many columns as fit into the width of the terminal, filled downwards.
    fn print_columns(&mut self, lines: &[ListLine]) -> anyhow::Result<()> {
        let digits = self.inode_digits(lines);
        let cells: Vec<String> = lines
            .iter()
            .map(|line| {
                let name = String::from_utf8_lossy(&crate::output::escaped(&line.name)).into_owned();
                match self.arguments.inode {
                    true => format!("{:>digits$} {name}", line.inode.number().0),
                    false => name,
                }
            })
            .collect();
        let widths: Vec<usize> = cells.iter().map(|cell| cell.chars().count()).collect();
        let (rows, columns) = layout(&widths, self.width);
        for row in 0..rows {
            for (at, column) in columns.iter().enumerate() {
                let index = at * rows + row;
                let Some(cell) = cells.get(index) else { break };
                self.output.bytes(cell.as_bytes())?;
                if index + rows < cells.len() {
                    self.output.text(format_args!("{:1$}", "", column + 2 - widths[index]))?;
                }
            }
            self.output.bytes(b"\n")?;
        }
        Ok(())
    }
}

/// Returns `+` for a file with an ACL, and `?` if that cannot be read.
fn acl_sign(inode: &Inode) -> &'static str {
    let has = |name: &str| Ok(inode.xattr(name.as_bytes())?.is_some());
    let found = has("system.posix_acl_access")
        .and_then(|access: bool| Ok(access || has("system.posix_acl_default")?));
    match found {
        Ok(true) => "+",
        Ok(false) => "",
        Err::<_, papilio::Error>(_) => "?",
    }
}

/// Returns the smallest number of rows whose columns fit into `width`, and the width of each
/// column.
fn layout(widths: &[usize], width: usize) -> (usize, Vec<usize>) {
    let mut rows = 1;
    loop {
        let columns: Vec<usize> =
            widths.chunks(rows).map(|column| column.iter().copied().max().unwrap_or(0)).collect();
        let total = columns.iter().sum::<usize>() + 2 * columns.len().saturating_sub(1);
        if total <= width || columns.len() <= 1 {
            return (rows.min(widths.len()), columns);
        }
        // The steps grow with the number of rows, since an exact minimum is not worth a long
        // search.
        rows += 1 + rows / 16;
    }
}

fn terminal_width() -> usize {
    rustix::termios::tcgetwinsize(std::io::stdout())
        .ok()
        .map(|size| usize::from(size.ws_col))
        .filter(|&columns| columns > 0)
        .unwrap_or(80)
}

#[cfg(test)]
mod tests {
    use super::layout;

    #[test]
    fn columns_fit() {
        assert_eq!(layout(&[3, 3, 3], 80), (1, vec![3, 3, 3]));
        assert_eq!(layout(&[3, 3, 3], 8), (2, vec![3, 3]));
        assert_eq!(layout(&[90, 3], 80), (2, vec![90]));
        assert_eq!(layout(&[], 80), (0, vec![]));
    }
}
