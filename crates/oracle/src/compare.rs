//! Compares two trees entry by entry, without holding either in memory.
//!
//! The walk keeps only the names of the directories on the way down and two content buffers. An
//! error on either side is a difference, and the walk continues: one unreadable file must not hide
//! the next.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::source::{Content, Kind, Metadata, Segment, Source};

/// The inode number of the folder that stands for a subvolume missing from a snapshot
/// (`BTRFS_EMPTY_SUBVOL_DIR_OBJECTID`). The kernel invents its inode and times.
const EMPTY_SUBVOLUME: u64 = 2;
/// In files larger than this, only data is read if both sides know their holes. In bytes.
pub(crate) const READ_WHOLE: u64 = 1 << 30;
const PIECE: usize = 1 << 20;
/// Longest value that a difference shows in full, in bytes.
const SHOWN: usize = 64;

/// The facts to compare, beyond paths, types, modes, owners, sizes, links and xattrs.
#[derive(Clone, Copy, Debug)]
pub struct CompareOptions {
    /// Modification times.
    pub mtime: bool,
    /// Change times.
    pub ctime: bool,
    /// Access times.
    pub atime: bool,
    /// Creation times.
    pub btime: bool,
    /// Inode numbers, and subvolume ids if both sides know them.
    pub inode_numbers: bool,
    /// Inode flags, if both sides know them.
    pub flags: bool,
    /// File content.
    pub content: bool,
    /// Locations of data and holes in files, if both sides know them.
    pub segments: bool,
    /// FIEMAP extents, if both sides know them.
    pub extents: bool,
    /// Maximum number of differences to keep; further ones are only counted.
    pub keep: usize,
}

impl CompareOptions {
    /// Compares everything except extents: for two views of one image.
    pub const SAME_IMAGE: Self = Self {
        mtime: true,
        ctime: true,
        atime: true,
        btime: true,
        inode_numbers: true,
        flags: true,
        content: true,
        segments: true,
        extents: false,
        keep: 100,
    };
    /// Compares the facts that a faithful copy preserves: no inode numbers, and no times except
    /// mtime.
    pub const COPY: Self = Self {
        ctime: false,
        atime: false,
        btime: false,
        inode_numbers: false,
        flags: false,
        segments: false,
        ..Self::SAME_IMAGE
    };
}

impl Default for CompareOptions {
    fn default() -> Self {
        Self::SAME_IMAGE
    }
}

/// One fact that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Path relative to the root.
    pub path: PathBuf,
    /// The name of the fact.
    pub fact: String,
    /// The value on the left side (the kernel, by convention).
    pub left: String,
    /// The value on the right side.
    pub right: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}: {} | {}", self.path, self.fact, self.left, self.right)
    }
}

/// The result of a comparison.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Entries present on both sides, including the root.
    pub entries: u64,
    /// Bytes of content compared.
    pub bytes: u64,
    /// Number of differences found.
    pub total: u64,
    /// The first of these differences.
    pub differences: Vec<Difference>,
}

impl Report {
    /// Returns whether nothing differed.
    pub fn is_equal(&self) -> bool {
        self.total == 0
    }

    /// Asserts that the trees are equal and not trivially small, because two empty trees are equal
    /// too.
    ///
    /// # Panics
    /// If anything differed, showing the first differences; or if fewer than `entries` entries were
    /// compared.
    pub fn assert_equal(&self, entries: u64) {
        assert!(self.is_equal(), "{self}");
        assert!(
            self.entries >= entries,
            "only {} entries were compared, expected at least {entries}",
            self.entries
        );
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} entries, {} bytes, {} differences", self.entries, self.bytes, self.total)?;
        self.differences.iter().try_for_each(|difference| write!(f, "\n  {difference}"))?;
        match self.total - self.differences.len() as u64 {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

/// Compares the trees of two sources, from their roots down.
pub fn compare(left: &dyn Source, right: &dyn Source, options: &CompareOptions) -> Report {
    let mut walk =
        Walk { left, right, options, report: Report::default(), buffers: (vec![0; PIECE], vec![0; PIECE]) };
    walk.entry(Path::new(""));
    walk.report
}

/// Adds each differing fact of two inodes to `found`, as (fact, left, right).
pub(crate) fn metadata_differences(
    left: &Metadata,
    right: &Metadata,
    options: &CompareOptions,
    found: &mut Vec<(String, String, String)>,
) {
    let mut check = |enabled: bool, fact: &str, a: String, b: String| {
        if enabled && a != b {
            found.push((fact.to_owned(), a, b));
        }
    };
    check(true, "type", format!("{:?}", left.kind), format!("{:?}", right.kind));
    check(true, "mode", format!("{:o}", left.mode), format!("{:o}", right.mode));
    check(true, "uid", left.uid.to_string(), right.uid.to_string());
    check(true, "gid", left.gid.to_string(), right.gid.to_string());
    check(true, "nlink", left.nlink.to_string(), right.nlink.to_string());
    check(true, "size", left.size.to_string(), right.size.to_string());
    if matches!(left.kind, Kind::BlockDevice | Kind::CharacterDevice) {
        check(true, "rdev", format!("{:?}", left.rdev), format!("{:?}", right.rdev));
    }
    check(options.inode_numbers, "ino", left.ino.to_string(), right.ino.to_string());
    if let (Some(a), Some(b)) = (left.subvolume, right.subvolume) {
        check(options.inode_numbers, "subvolume", a.to_string(), b.to_string());
    }
    let synthetic = left.ino == EMPTY_SUBVOLUME || right.ino == EMPTY_SUBVOLUME;
    if let (Some(a), Some(b), false) = (left.flags, right.flags, synthetic) {
        check(options.flags, "flags", format!("{a:#x}"), format!("{b:#x}"));
    }
    for (enabled, fact, a, b) in [
        (options.mtime, "mtime", left.mtime, right.mtime),
        (options.ctime, "ctime", left.ctime, right.ctime),
        (options.atime, "atime", left.atime, right.atime),
        (options.btime, "btime", left.btime, right.btime),
    ] {
        let show = |t: crate::Time| format!("{}.{:09}", t.seconds, t.nanoseconds);
        check(enabled && !synthetic, fact, show(a), show(b));
    }
}

/// Adds each differing attribute to `found`.
pub(crate) fn xattr_differences(
    left: &BTreeMap<OsString, Vec<u8>>,
    right: &BTreeMap<OsString, Vec<u8>>,
    found: &mut Vec<(String, String, String)>,
) {
    let show = |value: Option<&Vec<u8>>| match value {
        None => "absent".to_owned(),
        Some(v) if v.len() > SHOWN => {
            format!("{} bytes, hash {:016x}", v.len(), xxhash_rust::xxh3::xxh3_64(v))
        }
        Some(v) => format!("\"{}\"", v.escape_ascii()),
    };
    let names = left.keys().chain(right.keys().filter(|name| !left.contains_key(*name)));
    for name in names {
        let (a, b) = (left.get(name), right.get(name));
        if a != b {
            found.push((format!("xattr {name:?}"), show(a), show(b)));
        }
    }
}

pub(crate) fn show_bytes(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(SHOWN)];
    let rest = if bytes.len() > SHOWN { "..." } else { "" };
    format!("\"{}\"{rest} ({} bytes)", cut.escape_ascii(), bytes.len())
}

struct Walk<'a> {
    left: &'a dyn Source,
    right: &'a dyn Source,
    options: &'a CompareOptions,
    report: Report,
    buffers: (Vec<u8>, Vec<u8>),
}

impl Walk<'_> {
    fn differ(&mut self, path: &Path, fact: &str, left: impl fmt::Display, right: impl fmt::Display) {
        self.report.total += 1;
        if self.report.differences.len() < self.options.keep {
            self.report.differences.push(Difference {
                path: path.to_owned(),
                fact: fact.to_owned(),
                left: left.to_string(),
                right: right.to_string(),
            });
        }
    }

    /// Returns both values, or records a difference that shows which side failed.
    fn both<T>(
        &mut self,
        path: &Path,
        fact: &str,
        left: io::Result<T>,
        right: io::Result<T>,
    ) -> Option<(T, T)> {
        match (left, right) {
            (Ok(a), Ok(b)) => Some((a, b)),
            (a, b) => {
                let show = |r: io::Result<T>| r.err().map_or("ok".to_owned(), |e| format!("error: {e}"));
                self.differ(path, fact, show(a), show(b));
                None
            }
        }
    }

    fn entry(&mut self, path: &Path) {
        // An explicit stack: recursion into a deep tree could overflow the test's thread.
        let mut stack = vec![path.to_owned()];
        while let Some(path) = stack.pop() {
            self.report.entries += 1;
            let (a, b) = (self.left.metadata(&path), self.right.metadata(&path));
            let Some((a, b)) = self.both(&path, "metadata", a, b) else { continue };
            let mut found = Vec::new();
            metadata_differences(&a, &b, self.options, &mut found);
            let (x, y) = (self.left.xattrs(&path), self.right.xattrs(&path));
            if let Some((x, y)) = self.both(&path, "xattrs", x, y) {
                for (side, list) in [("left", &x), ("right", &y)] {
                    self.no_duplicates(&path, side, list.iter().map(|(name, _)| name));
                }
                xattr_differences(&x.into_iter().collect(), &y.into_iter().collect(), &mut found);
            }
            for (fact, left, right) in found {
                self.differ(&path, &fact, left, right);
            }
            if a.kind != b.kind {
                continue;
            }
            match a.kind {
                Kind::Directory => self.directory(&path, &mut stack),
                Kind::Symlink => self.symlink(&path),
                Kind::File => self.file(&path, a.size.max(b.size)),
                _ => {}
            }
        }
    }

    fn no_duplicates<'n>(&mut self, path: &Path, side: &str, names: impl Iterator<Item = &'n OsString>) {
        let mut seen = std::collections::BTreeSet::new();
        for name in names {
            if !seen.insert(name) {
                self.differ(path, "duplicate name", side, format!("{name:?}"));
            }
        }
    }

    fn directory(&mut self, path: &Path, stack: &mut Vec<PathBuf>) {
        let (a, b) = (self.left.read_directory(path), self.right.read_directory(path));
        let Some((mut a, mut b)) = self.both(path, "read directory", a, b) else { return };
        a.sort_unstable();
        b.sort_unstable();
        for (side, names) in [("left", &mut a), ("right", &mut b)] {
            self.no_duplicates(path, side, names.iter());
            names.dedup();
        }
        for name in a.iter().filter(|name| b.binary_search(name).is_err()) {
            self.differ(&path.join(name), "entry", "present", "absent");
        }
        for name in b.iter().filter(|name| a.binary_search(name).is_err()) {
            self.differ(&path.join(name), "entry", "absent", "present");
        }
        // Reversed, so that the stack yields them in order.
        stack.extend(a.iter().rev().filter(|name| b.binary_search(name).is_ok()).map(|name| path.join(name)));
    }

    fn symlink(&mut self, path: &Path) {
        let (a, b) = (self.left.read_link(path), self.right.read_link(path));
        if let Some((a, b)) = self.both(path, "read link", a, b)
            && a != b
        {
            let show = |target: &OsString| show_bytes(target.as_encoded_bytes());
            self.differ(path, "target", show(&a), show(&b));
        }
    }

    fn file(&mut self, path: &Path, size: u64) {
        let mut shared = None;
        if self.options.segments || size > READ_WHOLE {
            let (a, b) = (self.left.segments(path), self.right.segments(path));
            if let Some((Some(a), Some(b))) = self.both(path, "segments", a, b) {
                if self.options.segments && a != b {
                    self.differ(path, "segments", show_segments(&a), show_segments(&b));
                }
                shared = Some(union(a, b));
            }
        }
        if self.options.extents {
            let (a, b) = (self.left.extents(path), self.right.extents(path));
            if let Some((Some(a), Some(b))) = self.both(path, "extents", a, b)
                && a != b
            {
                self.differ(path, "extents", format!("{a:?}"), format!("{b:?}"));
            }
        }
        if !self.options.content {
            return;
        }
        let whole = vec![Segment { start: 0, end: size }];
        let stretches = if size > READ_WHOLE { shared.unwrap_or(whole) } else { whole };
        let (a, b) = (self.left.open(path), self.right.open(path));
        if let Some((mut a, mut b)) = self.both(path, "open", a, b) {
            for stretch in stretches {
                if !self.content(path, a.as_mut(), b.as_mut(), stretch) {
                    return;
                }
            }
        }
    }

    /// Compares one stretch of two files; returns false after a difference.
    fn content(
        &mut self,
        path: &Path,
        left: &mut dyn Content,
        right: &mut dyn Content,
        stretch: Segment,
    ) -> bool {
        let mut offset = stretch.start;
        while offset < stretch.end {
            let wanted = usize::try_from(stretch.end - offset).map_or(PIECE, |rest| rest.min(PIECE));
            let a = read_full(left, offset, &mut self.buffers.0[..wanted]);
            let b = read_full(right, offset, &mut self.buffers.1[..wanted]);
            let fact = format!("read at {offset}");
            let Some((a, b)) = self.both(path, &fact, a, b) else { return false };
            let (x, y) = (&self.buffers.0[..a], &self.buffers.1[..b]);
            if x != y {
                let same = x.iter().zip(y).take_while(|(x, y)| x == y).count();
                let fact = format!("content at {}", offset + same as u64);
                let (x, y) = (show_bytes(&x[same..]), show_bytes(&y[same..]));
                self.differ(path, &fact, x, y);
                return false;
            }
            self.report.bytes += a as u64;
            if a < wanted {
                return true;
            }
            offset += a as u64;
        }
        true
    }
}

/// Reads until `buffer` is full or the file ends; returns the number of bytes read.
pub(crate) fn read_full(file: &mut dyn Content, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(offset + done as u64, &mut buffer[done..])? {
            0 => break,
            read => done += read,
        }
    }
    Ok(done)
}

fn union(mut a: Vec<Segment>, b: Vec<Segment>) -> Vec<Segment> {
    a.extend(b);
    a.sort_unstable_by_key(|segment| segment.start);
    let mut merged: Vec<Segment> = Vec::with_capacity(a.len());
    for segment in a {
        match merged.last_mut() {
            Some(last) if segment.start <= last.end => last.end = last.end.max(segment.end),
            _ => merged.push(segment),
        }
    }
    merged
}

fn show_segments(segments: &[Segment]) -> String {
    let shown: Vec<_> = segments.iter().take(16).map(|s| format!("{}..{}", s.start, s.end)).collect();
    let rest = if segments.len() > 16 { " ..." } else { "" };
    format!("[{}{rest}] ({} stretches)", shown.join(" "), segments.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HostTree;
    use std::os::unix::fs::PermissionsExt;

    /// Returns path and fact of every difference under [`CompareOptions::COPY`].
    fn differences(a: &Path, b: &Path) -> Vec<(PathBuf, String)> {
        let report = compare(&HostTree::new(a), &HostTree::new(b), &CompareOptions::COPY);
        report.differences.into_iter().map(|d| (d.path, d.fact)).collect()
    }

    fn tree() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::fs::create_dir(root.join("sub")).unwrap();
        std::fs::write(root.join("sub/file"), vec![7; PIECE + 10]).unwrap();
        std::fs::write(root.join("empty"), b"").unwrap();
        std::os::unix::fs::symlink("sub", root.join("link")).unwrap();
        same_times(root);
        folder
    }

    /// Gives all entries the same modification time.
    fn same_times(root: &Path) {
        let stamp = rustix::fs::Timespec { tv_sec: 1000, tv_nsec: 0 };
        let times = rustix::fs::Timestamps { last_access: stamp, last_modification: stamp };
        for name in ["sub/file", "empty", "link", "sub", "."] {
            let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
            // One of the tests removed this entry.
            let _ = rustix::fs::utimensat(rustix::fs::CWD, root.join(name), &times, flags);
        }
    }

    #[test]
    fn equal_trees_have_no_differences() {
        let (a, b) = (tree(), tree());
        let report = compare(&HostTree::new(a.path()), &HostTree::new(b.path()), &CompareOptions::COPY);
        report.assert_equal(5);
        assert_eq!(report.bytes, PIECE as u64 + 10);
    }

    #[test]
    fn each_change_is_detected() {
        type Change = fn(&Path);
        let cases: [(Change, &str, &str); 5] = [
            (|r| std::fs::write(r.join("empty"), b"x").unwrap(), "empty", "size"),
            (
                |r| {
                    let mut bytes = vec![7; PIECE + 10];
                    bytes[PIECE + 3] = 8;
                    std::fs::write(r.join("sub/file"), bytes).unwrap();
                },
                "sub/file",
                "content at 1048579",
            ),
            (
                |r| {
                    std::fs::remove_file(r.join("link")).unwrap();
                    std::os::unix::fs::symlink("bus", r.join("link")).unwrap();
                },
                "link",
                "target",
            ),
            (
                |r| std::fs::set_permissions(r.join("sub"), PermissionsExt::from_mode(0o700)).unwrap(),
                "sub",
                "mode",
            ),
            (|r| std::fs::remove_file(r.join("empty")).unwrap(), "empty", "entry"),
        ];
        for (change, path, fact) in cases {
            let (a, b) = (tree(), tree());
            change(b.path());
            same_times(b.path());
            let found = differences(a.path(), b.path());
            assert!(found.contains(&(path.into(), fact.to_owned())), "{fact}: {found:?}");
        }
    }

    #[test]
    fn overlapping_stretches_merge() {
        let s = |start, end| Segment { start, end };
        assert_eq!(union(vec![s(0, 4), s(8, 9)], vec![s(2, 6)]), [s(0, 6), s(8, 9)]);
    }
}
