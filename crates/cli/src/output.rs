//! Standard output, and the formats of names, modes, sizes and JSON.
//!
//! Owns [`Output`] and the formats that several commands share.
//!
//! **Invariants**
//! - A name from an image reaches a terminal without control characters and invalid UTF-8. Anywhere
//!   else it is written unchanged.

use crate::time;
use anyhow::Context as _;
use papilio::{FileKind, Inode, Metadata};
pub use papilio::{escaped, kind_words};
use serde_json::{Map, Value, json};
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::fd::AsFd;

/// Standard output cannot be written, which ends the run.
#[derive(Debug)]
pub struct OutputError(io::Error);

impl fmt::Display for OutputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "standard output: {}", self.0)
    }
}

impl std::error::Error for OutputError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

impl OutputError {
    /// Returns the host's error.
    pub fn into_io(self) -> io::Error {
        self.0
    }
}

impl From<io::Error> for OutputError {
    fn from(error: io::Error) -> Self {
        Self(error)
    }
}

/// Whether `error` says that the reader of our output is gone, as in `papilio find ... | head`.
/// Such a run ends silently.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let host = match cause.downcast_ref() {
            // Standard output as the target of a stream or an archive.
            Some(papilio::Error::Host { source, .. }) => Some(source),
            _ => cause.downcast_ref::<io::Error>(),
        };
        host.is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
    })
}

/// Standard output, buffered by blocks rather than lines.
pub struct Output {
    writer: BufWriter<File>,
    /// Whether it is a terminal.
    pub terminal: bool,
}

impl Output {
    /// Opens standard output.
    pub fn new() -> anyhow::Result<Self> {
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        let file = stdout.as_fd().try_clone_to_owned().context("standard output")?;
        Ok(Self { writer: BufWriter::with_capacity(64 << 10, File::from(file)), terminal })
    }

    /// Writes bytes unchanged.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        Ok(self.writer.write_all(bytes)?)
    }

    /// Writes formatted text.
    pub fn text(&mut self, text: fmt::Arguments<'_>) -> Result<(), OutputError> {
        Ok(self.writer.write_fmt(text)?)
    }

    /// Writes a name: escaped on a terminal, unchanged elsewhere.
    pub fn name(&mut self, name: &[u8]) -> Result<(), OutputError> {
        match self.terminal {
            true => self.bytes(&escaped(name)),
            false => self.bytes(name),
        }
    }

    /// Flushes the buffer.
    pub fn finish(mut self) -> Result<(), OutputError> {
        Ok(self.writer.flush()?)
    }
}

/// A JSON array that is written element by element.
pub struct JsonArray {
    any: bool,
}

impl JsonArray {
    /// Opens the array.
    pub fn begin(output: &mut Output) -> Result<Self, OutputError> {
        output.bytes(b"[")?;
        Ok(Self { any: false })
    }

    /// Adds an element.
    pub fn push(&mut self, output: &mut Output, value: &Value) -> Result<(), OutputError> {
        let separator = if self.any { ",\n" } else { "\n" };
        self.any = true;
        output.text(format_args!("{separator}{value}"))
    }

    /// Closes the array.
    pub fn end(self, output: &mut Output) -> Result<(), OutputError> {
        output.bytes(if self.any { b"\n]\n" } else { b"]\n" })
    }
}

/// Returns the ten letters of `ls -l`.
pub fn mode_letters(kind: FileKind, mode: u32) -> String {
    let mut letters = vec![kind_letter(kind)];
    let special = [(0o4000, 'S', 's'), (0o2000, 'S', 's'), (0o1000, 'T', 't')];
    for (class, (bit, without, with)) in special.into_iter().enumerate() {
        let bits = mode >> (6 - 3 * class);
        letters.push(if bits & 4 != 0 { 'r' } else { '-' });
        letters.push(if bits & 2 != 0 { 'w' } else { '-' });
        letters.push(match (mode & bit != 0, bits & 1 != 0) {
            (true, true) => with,
            (true, false) => without,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    letters.into_iter().collect()
}

/// Returns the letter of a kind in `ls -l`.
fn kind_letter(kind: FileKind) -> char {
    match kind {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::CharacterDevice => 'c',
        FileKind::BlockDevice => 'b',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    }
}

/// Returns the letter of a kind in `find -type`.
pub fn find_letter(kind: FileKind) -> char {
    match kind {
        FileKind::Regular => 'f',
        other => kind_letter(other),
    }
}

/// Formats a number of bytes like `ls -h` and `du -h`: powers of 1024, rounded up, at most three
/// digits.
pub fn human_size(bytes: u64) -> String {
    if bytes < 1024 {
        return bytes.to_string();
    }
    let mut unit = 1_u64 << 10;
    let mut letters = "KMGTPE".chars();
    let mut letter = letters.next().unwrap_or('K');
    // Takes the next unit if rounding up reaches 1024 of this one.
    while bytes.div_ceil(unit) >= 1024 {
        let Some(next) = letters.next() else { break };
        letter = next;
        unit <<= 10;
    }
    let tenths = (u128::from(bytes) * 10).div_ceil(u128::from(unit));
    match tenths {
        0..100 => format!("{}.{}{letter}", tenths / 10, tenths % 10),
        _ => format!("{}{letter}", bytes.div_ceil(unit)),
    }
}

/// Adds a byte string to a JSON object: as text if it is UTF-8, else escaped, with a second field
/// `FIELD_hex`.
pub fn json_bytes(object: &mut Map<String, Value>, field: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => drop(object.insert(field.into(), text.into())),
        Err(_) => {
            let text = String::from_utf8_lossy(&escaped(bytes)).into_owned();
            object.insert(field.into(), text.into());
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            object.insert(format!("{field}_hex"), hex.into());
        }
    }
}

/// Returns the JSON fields that every file has.
pub fn json_inode(path: &[u8], inode: &Inode) -> Map<String, Value> {
    let metadata = inode.metadata();
    let mut object = Map::new();
    json_bytes(&mut object, "path", path);
    let (major, minor) = metadata.rdev();
    let facts = json!({
        "kind": kind_words(metadata.file_type()),
        "mode": format!("{:04o}", metadata.mode() & 0o7777),
        "uid": metadata.uid(),
        "gid": metadata.gid(),
        "links": metadata.nlink(),
        "size": metadata.size(),
        "allocated": disk_bytes(inode),
        "tree": inode.tree().0,
        "inode": inode.number().0,
        "atime": time::rfc3339(metadata.atime()),
        "mtime": time::rfc3339(metadata.mtime()),
        "ctime": time::rfc3339(metadata.ctime()),
        "btime": time::rfc3339(metadata.btime()),
    });
    if let Value::Object(facts) = facts {
        object.extend(facts);
    }
    if is_device(metadata) {
        object.insert("device".into(), json!({ "major": major, "minor": minor }));
    }
    object
}

/// Returns the allocated bytes in whole sectors, as `st_blocks` of a kernel mount counts them.
pub fn disk_bytes(inode: &Inode) -> u64 {
    let sector = u64::from(inode.file_system().superblock().geometry().sector_size);
    inode.metadata().allocated_bytes().div_ceil(sector).saturating_mul(sector)
}

/// Returns whether the inode is a device node.
pub fn is_device(metadata: &Metadata) -> bool {
    matches!(metadata.file_type(), FileKind::CharacterDevice | FileKind::BlockDevice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_pipes_are_recognized() {
        let closed = || io::Error::from(io::ErrorKind::BrokenPipe);
        let host = |source| papilio::Error::Host { path: "send stream".into(), source };
        assert!(is_closed_pipe(&closed().into()) && is_closed_pipe(&host(closed()).into()));
        assert!(is_closed_pipe(&anyhow::Error::from(OutputError(closed())).context("while sending")));
        assert!(!is_closed_pipe(&host(io::ErrorKind::StorageFull.into()).into()));
    }

    #[test]
    fn names_are_escaped() {
        assert_eq!(&*escaped("grün".as_bytes()), "grün".as_bytes());
        assert_eq!(&*escaped(b"a\nb\\\x1b[1m\xff"), b"a\\nb\\\\\\033[1m\\377");
    }

    #[test]
    fn sizes_match_ls() {
        let cases = [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10 << 10, "10K"),
            ((10 << 10) + 1, "11K"),
            (1023 << 10, "1023K"),
            ((1023 << 10) + 1, "1.0M"),
            (1536 << 20, "1.5G"),
            (u64::MAX, "16E"),
        ];
        for (bytes, text) in cases {
            assert_eq!(human_size(bytes), text, "{bytes}");
        }
    }

    #[test]
    fn modes_match_ls() {
        assert_eq!(mode_letters(FileKind::Regular, 0o4755), "-rwsr-xr-x");
        assert_eq!(mode_letters(FileKind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode_letters(FileKind::Fifo, 0o2640), "prw-r-S---");
        assert_eq!(mode_letters(FileKind::Symlink, 0o777), "lrwxrwxrwx");
    }
}
