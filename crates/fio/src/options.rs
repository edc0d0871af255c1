//! The engine's own options, and what a job says with them and with fio's.
//!
//! Owns [`EngineOptions`], which fio fills for each job, the table that describes it to fio, and
//! [`JobOptions`], what comes out of it. Invariant: an option that cannot be honoured is refused, never
//! ignored.

use crate::abi::{self, ThreadData};
use crate::discover::{Fio, OptionRecords, RECORD_OFFSET, RECORD_TYPE};
use crate::error::EngineError;
use crate::mount::{MkfsRequest, MountRequest};
use papilio::format::ChecksumType;
use papilio::{CompressionChoice, Tuning};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::offset_of;
use std::path::PathBuf;

/// Stands in each job's options, so that they can be found.
pub const MARK: c_int = 0x5061_7069;
const MARK_TEXT: &CStr = c"1348563049";

/// The options of a job, as fio fills them in: texts are NULL where not given.
#[repr(C)]
#[derive(Debug)]
pub struct EngineOptions {
    /// fio's: the job.
    job: *mut c_void,
    mark: c_int,
    nodatacow: c_int,
    nodatasum: c_int,
    queue_threads: c_int,
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

struct Described {
    name: &'static CStr,
    kind: Kind,
    offset: usize,
    default: Option<&'static CStr>,
    help: &'static CStr,
}

const OPTIONS: [Described; 14] = [
    text(
        c"image",
        offset_of!(EngineOptions, image),
        c"Image or device with the file system; several separated by ':'",
    ),
    text(
        c"mkfs",
        offset_of!(EngineOptions, mkfs),
        c"1 makes the file system first, force also over another one",
    ),
    text(c"fs_size", offset_of!(EngineOptions, fs_size), c"mkfs: bytes of the file system (8g)"),
    text(c"csum", offset_of!(EngineOptions, csum), c"mkfs: crc32c, xxhash, sha256 or blake2"),
    text(c"nodesize", offset_of!(EngineOptions, nodesize), c"mkfs: bytes of a tree block (16k)"),
    text(
        c"tuning",
        offset_of!(EngineOptions, tuning),
        c"Switches of optimisations, row=way with commas between",
    ),
    text(c"cache", offset_of!(EngineOptions, cache), c"Limit of the page cache in bytes (8g)"),
    text(
        c"node_cache",
        offset_of!(EngineOptions, node_cache),
        c"Limit of the cache of tree blocks in bytes (64m)",
    ),
    text(
        c"compress",
        offset_of!(EngineOptions, compress),
        c"As the mount option: zlib, lzo, zstd, with :level",
    ),
    text(
        c"root",
        offset_of!(EngineOptions, root),
        c"Directory of the file system under which the job's files lie",
    ),
    flag(
        c"nodatacow",
        offset_of!(EngineOptions, nodatacow),
        c"New files are written in place and have no checksums",
    ),
    flag(c"nodatasum", offset_of!(EngineOptions, nodatasum), c"New files have no checksums"),
    Described {
        name: c"queue_threads",
        kind: Kind::Int,
        offset: offset_of!(EngineOptions, queue_threads),
        default: None,
        help: c"Threads of each job that run what is queued, instead of the job's own (0)",
    },
    Described {
        name: c"papilio_mark",
        kind: Kind::Int,
        offset: offset_of!(EngineOptions, mark),
        default: Some(MARK_TEXT),
        help: c"The engine's own; leave it alone",
    },
];

const fn text(name: &'static CStr, offset: usize, help: &'static CStr) -> Described {
    Described { name, kind: Kind::Text, offset, default: None, help }
}

const fn flag(name: &'static CStr, offset: usize, help: &'static CStr) -> Described {
    Described { name, kind: Kind::Bool, offset, default: None, help }
}

/// Offsets in a record of fio's table of options, besides those that [`crate::discover`] reads.
const RECORD_LONG_NAME: usize = 8;
const RECORD_HELP: usize = 112;
const RECORD_DEFAULT: usize = 120;
const RECORD_CATEGORY: usize = 1464;
/// Category of engines' options.
const ENGINE_CATEGORY: u64 = 64;

/// Describes [`EngineOptions`] to fio. Lives as long as the process: fio writes into it.
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
        // Two integers side by side, `type` and `off1`; `off2` and the others stay zero.
        const { assert!(RECORD_TYPE.is_multiple_of(8) && RECORD_OFFSET == RECORD_TYPE + 4) };
        record[RECORD_TYPE / 8] = kind as u64 | (option.offset as u64) << 32;
        record[RECORD_HELP / 8] = option.help.as_ptr() as u64;
        record[RECORD_DEFAULT / 8] = option.default.map_or(0, |text| text.as_ptr() as u64);
        // Behind the table of values, whose size makes most of a record.
        let shift = records.size - 1512;
        record[(RECORD_CATEGORY + shift) / 8] = ENGINE_CATEGORY;
    }
    words.as_mut_ptr().cast()
}

/// How a file's room is made when it is laid out (fio's `fallocate=`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallocate {
    /// Not at all.
    None,
    /// `fallocate`, and the size grows: `native` and `posix`.
    Whole,
    /// `fallocate`, and the size stays.
    KeepSize,
    /// `ftruncate`.
    Truncate,
}

/// What a job asks for.
#[derive(Debug)]
pub struct JobOptions {
    /// Its name.
    pub name: String,
    /// What is to be mounted, and how.
    pub mount: MountRequest,
    /// The directory that its files lie in.
    pub root: String,
    /// I/Os in flight at most.
    pub iodepth: usize,
    /// Threads that run what is queued; none for the job's own.
    pub queue_threads: usize,
    /// Reads among its I/O.
    pub reads: bool,
    /// Writes among its I/O.
    pub writes: bool,
    /// `overwrite=1`.
    pub overwrite: bool,
    /// `file_append=1`.
    pub append: bool,
    /// `allow_file_create=1`.
    pub may_create: bool,
    /// `create_on_open=1`.
    pub create_on_open: bool,
    /// `create_fsync=1`.
    pub create_fsync: bool,
    /// `fallocate=`.
    pub fallocate: Fallocate,
    /// `direct=1`: its I/O goes past the page cache.
    pub direct: bool,
    /// `invalidate=1`: a file that it opens is not cached.
    pub invalidate: bool,
}

impl JobOptions {
    /// Of a job.
    ///
    /// # Errors
    /// A missing `image=`, and values that cannot be honoured.
    pub fn of(fio: &Fio, job: ThreadData) -> Result<Self, EngineError> {
        let (offsets, own) = (&fio.offsets, fio.engine_options(job)?);
        let name = job.text_option(offsets.name);
        let flag = |offset| job.option(offset) != 0;
        let refuse = |option, value: &str, reason: &str| {
            Err(EngineError::Value {
                job: name.clone(),
                option,
                value: value.to_owned(),
                reason: reason.to_owned(),
            })
        };
        if flag(offsets.pre_read) {
            return refuse("pre_read", "1", "fio would read files of the host");
        }
        if flag(offsets.fsync_on_close) {
            return refuse("fsync_on_close", "1", "fio would sync files of the host; use end_fsync=1");
        }
        let direction = job.option(offsets.rw);
        Ok(Self {
            mount: own.mount_request(&name, fio.is_read_only())?,
            root: own.texts().root,
            iodepth: job.option(offsets.iodepth).max(1) as usize,
            queue_threads: own.queue_threads(&name)?,
            reads: direction & 1 != 0,
            writes: direction & 2 != 0,
            overwrite: flag(offsets.overwrite),
            append: flag(offsets.file_append),
            may_create: flag(offsets.allow_file_create),
            create_on_open: flag(offsets.create_on_open),
            create_fsync: flag(offsets.create_fsync),
            direct: flag(offsets.direct),
            invalidate: flag(offsets.invalidate),
            fallocate: match job.option(offsets.fallocate) {
                2 | 4 => Fallocate::Whole,
                3 => Fallocate::KeepSize,
                5 => Fallocate::Truncate,
                _ => Fallocate::None,
            },
            name,
        })
    }
}

/// The texts of [`EngineOptions`], empty where not given.
#[derive(Debug, Default)]
struct Texts {
    image: String,
    mkfs: String,
    fs_size: String,
    csum: String,
    nodesize: String,
    tuning: String,
    cache: String,
    node_cache: String,
    compress: String,
    root: String,
}

impl EngineOptions {
    fn texts(&self) -> Texts {
        // SAFETY: fio stores NULL or a NUL-terminated string that stays as long as the job.
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

    fn queue_threads(&self, job: &str) -> Result<usize, EngineError> {
        match self.queue_threads {
            threads @ 0..=256 => Ok(threads as usize),
            threads => Err(EngineError::Value {
                job: job.to_owned(),
                option: "queue_threads",
                value: threads.to_string(),
                reason: "not a number from 0 to 256".to_owned(),
            }),
        }
    }

    fn mount_request(&self, job: &str, read_only: bool) -> Result<MountRequest, EngineError> {
        let request = self.texts().mount_request(job, read_only)?;
        Ok(MountRequest { no_data_cow: self.nodatacow != 0, no_data_sums: self.nodatasum != 0, ..request })
    }
}

impl Texts {
    fn mount_request(&self, job: &str, read_only: bool) -> Result<MountRequest, EngineError> {
        let images = split_paths(&self.image);
        if images.is_empty() {
            let what = "the image or device that holds the file system";
            return Err(EngineError::Missing { job: job.to_owned(), option: "image", what });
        }
        let value = |option, value: &str, reason: String| EngineError::Value {
            job: job.to_owned(),
            option,
            value: value.to_owned(),
            reason,
        };
        let compress: Option<CompressionChoice> = match self.compress.as_str() {
            "" => None,
            text => Some(
                text.parse().map_err(|error: papilio::Error| value("compress", text, error.to_string()))?,
            ),
        };
        let tuning: Tuning = self
            .tuning
            .parse()
            .map_err(|error: papilio::TuningError| value("tuning", &self.tuning, error.to_string()))?;
        let cache_bytes = match self.cache.as_str() {
            "" => 0,
            text => {
                parse_bytes(text).filter(|bytes| *bytes == 0 || *bytes >= CACHE_MIN).ok_or_else(|| {
                    value(
                        "cache",
                        text,
                        format!("not a size in bytes, of {CACHE_MIN} at least, or 0 for none"),
                    )
                })?
            }
        };
        let node_cache_bytes = match self.node_cache.as_str() {
            "" => None,
            text => {
                let bytes = parse_bytes(text).and_then(|bytes| usize::try_from(bytes).ok());
                Some(bytes.ok_or_else(|| value("node_cache", text, "not a size in bytes".to_owned()))?)
            }
        };
        let mkfs = self.mkfs_request(&value)?;
        if mkfs.is_some() && read_only {
            return Err(value("mkfs", &self.mkfs, "not with --readonly".to_owned()));
        }
        Ok(MountRequest {
            images,
            mkfs,
            compress,
            tuning,
            cache_bytes,
            node_cache_bytes,
            no_data_cow: false,
            no_data_sums: false,
            read_only,
        })
    }

    fn mkfs_request(
        &self,
        value: &dyn Fn(&'static str, &str, String) -> EngineError,
    ) -> Result<Option<MkfsRequest>, EngineError> {
        let force = match self.mkfs.as_str() {
            "" | "0" => {
                let only = [("fs_size", &self.fs_size), ("csum", &self.csum), ("nodesize", &self.nodesize)];
                return match only.into_iter().find(|(_, text)| !text.is_empty()) {
                    Some((option, text)) => Err(value(option, text, "it goes with mkfs=1".to_owned())),
                    None => Ok(None),
                };
            }
            "1" => false,
            "force" => true,
            other => return Err(value("mkfs", other, "not 0, 1 or force".to_owned())),
        };
        let bytes = |option, text: &str| match text {
            "" => Ok(None),
            _ => match parse_bytes(text) {
                Some(bytes) => Ok(Some(bytes)),
                None => Err(value(option, text, "not a number of bytes (4096, 16k, 8g)".to_owned())),
            },
        };
        let checksum = match self.csum.as_str() {
            "" | "crc32c" => ChecksumType::Crc32c,
            "xxhash" => ChecksumType::XxHash64,
            "sha256" => ChecksumType::Sha256,
            "blake2" => ChecksumType::Blake2b,
            other => return Err(value("csum", other, "not crc32c, xxhash, sha256 or blake2".to_owned())),
        };
        let node_size = match bytes("nodesize", &self.nodesize)?.map(u32::try_from) {
            None => None,
            Some(Ok(size)) => Some(size),
            Some(Err(_)) => return Err(value("nodesize", &self.nodesize, "too large".to_owned())),
        };
        Ok(Some(MkfsRequest { force, size: bytes("fs_size", &self.fs_size)?, checksum, node_size }))
    }
}

/// Paths with `:` between; `\:` is a colon of a path, as in fio's `filename=`.
fn split_paths(text: &str) -> Vec<PathBuf> {
    let mut paths = vec![String::new()];
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            ':' => paths.push(String::new()),
            '\\' if characters.as_str().starts_with(':') => {
                paths.last_mut().expect("one at least").extend(characters.next())
            }
            other => paths.last_mut().expect("one at least").push(other),
        }
    }
    paths.into_iter().filter(|path| !path.is_empty()).map(PathBuf::from).collect()
}

/// Bytes of the smallest page cache.
const CACHE_MIN: u64 = 1 << 20;

/// A number of bytes with an optional suffix k, m, g or t, powers of 1024, as fio has them.
fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let shift = match suffix.strip_suffix("ib").or(suffix.strip_suffix('b')).unwrap_or(suffix) {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_its_text() {
        assert_eq!(MARK_TEXT.to_str().unwrap().parse(), Ok(MARK));
    }

    #[test]
    fn bytes_have_fios_suffixes() {
        for (text, bytes) in [
            ("4096", 4096),
            ("16k", 16 << 10),
            ("3M", 3 << 20),
            ("8g", 8 << 30),
            ("8GiB", 8 << 30),
            ("1tb", 1 << 40),
        ] {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        }
        for text in ["", "k", "4x", "-1", "1.5g", "99999999t", "16ki"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
    }

    #[test]
    fn what_cannot_be_honoured_is_refused() {
        let with = |change: &dyn Fn(&mut Texts)| {
            let mut texts = Texts { image: "a.img".into(), ..Texts::default() };
            change(&mut texts);
            texts.mount_request("j", false).map_err(|error| error.to_string())
        };
        let request = with(&|texts| texts.image = "a.img:b.img".into()).unwrap();
        assert_eq!(request.images, ["a.img", "b.img"].map(PathBuf::from));
        assert!(request.mkfs.is_none() && request.compress.is_none());
        let colons = with(&|texts| texts.image = r"a\:1.img:c\d:".into()).unwrap();
        assert_eq!(colons.images, ["a:1.img", r"c\d"].map(PathBuf::from));
        let tuned = with(&|texts| texts.tuning = "nocow_check=collect-all".into()).unwrap();
        assert_eq!(tuned.tuning.nocow_check, papilio::NocowCheck::CollectAll);
        assert_eq!(tuned.node_cache_bytes, None);
        let cached = with(&|texts| texts.node_cache = "256m".into()).unwrap();
        assert_eq!(cached.node_cache_bytes, Some(256 << 20));
        let made = with(&|texts| {
            (texts.mkfs, texts.fs_size) = ("1".into(), "1g".into());
            (texts.csum, texts.nodesize) = ("xxhash".into(), "4k".into());
        });
        let expected = MkfsRequest {
            force: false,
            size: Some(1 << 30),
            checksum: ChecksumType::XxHash64,
            node_size: Some(4096),
        };
        assert_eq!(made.unwrap().mkfs, Some(expected));

        let refused = |change: &dyn Fn(&mut Texts), text: &str| {
            let error = with(change).unwrap_err();
            assert!(error.contains(text) && !error.contains('\n'), "{error}");
        };
        refused(&|texts| texts.image.clear(), "image= is missing");
        refused(&|texts| texts.cache = "1x".into(), "cache=1x: not a size");
        refused(&|texts| texts.cache = "4k".into(), "cache=4k: not a size in bytes, of 1048576 at least");
        refused(&|texts| texts.node_cache = "much".into(), "node_cache=much: not a size");
        refused(&|texts| texts.tuning = "nocow_check=perhaps".into(), "tuning=nocow_check=perhaps");
        refused(&|texts| texts.csum = "sha256".into(), "goes with mkfs=1");
        refused(&|texts| texts.mkfs = "yes".into(), "mkfs=yes");
        refused(&|texts| texts.compress = "zip".into(), "compress=zip");
        refused(&|texts| (texts.mkfs, texts.csum) = ("1".into(), "md5".into()), "csum=md5");
        refused(&|texts| (texts.mkfs, texts.fs_size) = ("1".into(), "big".into()), "fs_size=big");
        let texts = Texts { image: "a.img".into(), mkfs: "1".into(), ..Texts::default() };
        assert!(texts.mount_request("j", true).is_err());
    }
}
