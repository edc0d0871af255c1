//! The engine's own options, as fio stores them for a job and as the engine describes them to fio.
//!
//! Owns [`EngineOptions`], which fio fills for each job, and [`table`], which describes it to fio.
//! `options.rs` interprets the values.

use crate::abi;
use crate::option_table::{OptionRecords, RECORD_OFFSET, RECORD_TYPE};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::offset_of;

/// Value of the hidden option `papilio_mark`, by which a job's copy of the options is found.
pub const MARK: c_int = 0x5061_7069;
/// [`MARK`] as the default value of that option.
const MARK_TEXT: &CStr = c"1348563049";

/// The options of a job, as fio fills them in. A string that the job does not give is NULL.
#[repr(C)]
#[derive(Debug)]
pub struct EngineOptions {
    /// Set by fio: the job while it parses options, then zero.
    job: *mut c_void,
    mark: c_int,
    /// `nodatacow=`, 0 or 1.
    pub nodatacow: c_int,
    /// `nodatasum=`, 0 or 1.
    pub nodatasum: c_int,
    /// `host_cache=`, 0 or 1.
    pub host_cache: c_int,
    /// `device_delay_us=`, unchecked.
    pub device_delay_us: c_int,
    /// `queue_threads=`, unchecked.
    pub queue_threads: c_int,
    image: *const c_char,
    mkfs: *const c_char,
    fs_size: *const c_char,
    csum: *const c_char,
    nodesize: *const c_char,
    tuning: *const c_char,
    cache: *const c_char,
    node_cache: *const c_char,
    compress: *const c_char,
    root: *const c_char,
}

enum Kind {
    Text,
    Int,
    Bool,
}

/// An option as it is described to fio.
struct Described {
    name: &'static CStr,
    kind: Kind,
    offset: usize,
    default: Option<&'static CStr>,
    help: &'static CStr,
}

const OPTIONS: [Described; 16] = [
    text(
        c"image",
        offset_of!(EngineOptions, image),
        c"Image or block device of the file system; separate several by ':'",
    ),
    text(
        c"mkfs",
        offset_of!(EngineOptions, mkfs),
        c"1 makes the file system first; force overwrites an existing one",
    ),
    text(c"fs_size", offset_of!(EngineOptions, fs_size), c"mkfs: size of the file system (8g)"),
    text(c"csum", offset_of!(EngineOptions, csum), c"mkfs: crc32c, xxhash, sha256 or blake2"),
    text(c"nodesize", offset_of!(EngineOptions, nodesize), c"mkfs: size of a tree block (16k)"),
    text(c"tuning", offset_of!(EngineOptions, tuning), c"Switches for single optimisations: row=way,row=way"),
    text(c"cache", offset_of!(EngineOptions, cache), c"Size limit of the page cache (8g)"),
    text(c"node_cache", offset_of!(EngineOptions, node_cache), c"Size limit of the tree block cache (64m)"),
    text(
        c"compress",
        offset_of!(EngineOptions, compress),
        c"As the mount option: zlib, lzo or zstd, optionally with :level",
    ),
    text(
        c"root",
        offset_of!(EngineOptions, root),
        c"Directory of the file system that holds the job's files",
    ),
    flag(
        c"nodatacow",
        offset_of!(EngineOptions, nodatacow),
        c"New files are overwritten in place and have no checksums",
    ),
    flag(c"nodatasum", offset_of!(EngineOptions, nodatasum), c"New files have no checksums"),
    flag(
        c"host_cache",
        offset_of!(EngineOptions, host_cache),
        c"direct=1 jobs reach the image through the host's page cache, too",
    ),
    Described {
        name: c"device_delay_us",
        kind: Kind::Int,
        offset: offset_of!(EngineOptions, device_delay_us),
        default: None,
        help: c"Microseconds by which each request to the image is delayed (0)",
    },
    Described {
        name: c"queue_threads",
        kind: Kind::Int,
        offset: offset_of!(EngineOptions, queue_threads),
        default: None,
        help: c"Threads per job for queued I/O that waits; 0: 2 with direct I/O, else none (0)",
    },
    Described {
        name: c"papilio_mark",
        kind: Kind::Int,
        offset: offset_of!(EngineOptions, mark),
        default: Some(MARK_TEXT),
        help: c"Internal; do not set",
    },
];

const fn text(name: &'static CStr, offset: usize, help: &'static CStr) -> Described {
    Described { name, kind: Kind::Text, offset, default: None, help }
}

const fn flag(name: &'static CStr, offset: usize, help: &'static CStr) -> Described {
    Described { name, kind: Kind::Bool, offset, default: None, help }
}

// Offsets in a record of fio's option table, besides those in `option_table.rs`.
const RECORD_LONG_NAME: usize = 8;
const RECORD_HELP: usize = 112;
const RECORD_DEFAULT: usize = 120;
const RECORD_CATEGORY: usize = 1464;
/// Category of options that belong to an engine.
const ENGINE_CATEGORY: u64 = 64;

/// Builds the option table that describes [`EngineOptions`] to fio. It is never freed: fio writes
/// into it.
pub fn table(records: OptionRecords) -> *mut c_void {
    // The last record stays zero, which ends the table.
    let words = vec![0_u64; (OPTIONS.len() + 1) * records.size / 8];
    let words = Box::leak(words.into_boxed_slice());
    for (index, option) in OPTIONS.iter().enumerate() {
        let record = &mut words[index * records.size / 8..][..records.size / 8];
        let kind = match option.kind {
            Kind::Text => records.text,
            Kind::Int => records.int,
            Kind::Bool => records.bool,
        };
        record[0] = option.name.as_ptr() as u64;
        record[RECORD_LONG_NAME / 8] = option.name.as_ptr() as u64;
        // `type` and `off1` share a word; `off2` and the other offsets stay zero.
        const { assert!(RECORD_TYPE.is_multiple_of(8) && RECORD_OFFSET == RECORD_TYPE + 4) };
        record[RECORD_TYPE / 8] = kind as u64 | (option.offset as u64) << 32;
        record[RECORD_HELP / 8] = option.help.as_ptr() as u64;
        record[RECORD_DEFAULT / 8] = option.default.map_or(0, |text| text.as_ptr() as u64);
        // The category follows the table of possible values, whose size differs between builds.
        let shift = records.size - 1512;
        record[(RECORD_CATEGORY + shift) / 8] = ENGINE_CATEGORY;
    }
    words.as_mut_ptr().cast()
}

/// The string options of [`EngineOptions`], copied. One that the job does not give is empty.
#[derive(Debug, Default)]
pub struct Texts {
    /// Images or devices, separated by `:`.
    pub image: String,
    /// `1` or `force` makes the file system first.
    pub mkfs: String,
    /// Size of a new file system.
    pub fs_size: String,
    /// Checksum type of a new file system.
    pub csum: String,
    /// Size of a tree block of a new file system.
    pub nodesize: String,
    /// Switches for single optimisations.
    pub tuning: String,
    /// Size limit of the page cache.
    pub cache: String,
    /// Size limit of the tree block cache.
    pub node_cache: String,
    /// Compression of new data.
    pub compress: String,
    /// Directory that holds the job's files.
    pub root: String,
}

impl EngineOptions {
    /// Copies the string options.
    pub fn texts(&self) -> Texts {
        // SAFETY: fio stores NULL or a NUL-terminated string that lives as long as the job.
        let text = |text: *const c_char| unsafe { abi::owned_text(text) }.unwrap_or_default();
        Texts {
            image: text(self.image),
            mkfs: text(self.mkfs),
            fs_size: text(self.fs_size),
            csum: text(self.csum),
            nodesize: text(self.nodesize),
            tuning: text(self.tuning),
            cache: text(self.cache),
            node_cache: text(self.node_cache),
            compress: text(self.compress),
            root: text(self.root),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_text_parses_as_mark() {
        assert_eq!(MARK_TEXT.to_str().unwrap().parse(), Ok(MARK));
    }
}
