//! The request that a job makes with the engine's options and with fio's.
//!
//! Owns [`JobOptions`].
//!
//! **Invariants**
//! - An option that the engine cannot honour is refused, never ignored.

use crate::abi::ThreadData;
use crate::discover::Fio;
use crate::engine_options::{EngineOptions, Texts};
use crate::error::EngineError;
use crate::mount::{MkfsRequest, MountRequest};
use papilio::format::ChecksumType;
use papilio::{CompressionChoice, Tuning};
use std::path::PathBuf;
use std::time::Duration;

/// How space for a file is allocated when it is laid out (fio's `fallocate=`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallocate {
    /// No allocation.
    None,
    /// `fallocate` that extends the file: `native` and `posix`.
    Whole,
    /// `fallocate` that leaves the file's size alone.
    KeepSize,
    /// `ftruncate`.
    Truncate,
}

/// The options of a job, resolved.
#[derive(Debug)]
pub struct JobOptions {
    /// The job's name.
    pub name: String,
    /// The mount that the job runs on.
    pub mount: MountRequest,
    /// Directory of the file system that holds the job's files.
    pub root: String,
    /// Maximum number of I/Os in flight.
    pub iodepth: usize,
    /// Number of threads that run queued I/O; with 0 the job's own thread does.
    pub queue_threads: usize,
    /// The job reads.
    pub reads: bool,
    /// The job writes.
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
    /// `direct=1`: the job's I/O bypasses the page cache.
    pub direct: bool,
    /// `invalidate=1`: opening a file drops its pages from the cache.
    pub invalidate: bool,
}

impl JobOptions {
    /// Reads the options of `job`.
    ///
    /// # Errors
    /// `image=` is missing, or a value cannot be honoured.
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
            return refuse("pre_read", "1", "fio would read files on the host");
        }
        if flag(offsets.fsync_on_close) {
            return refuse("fsync_on_close", "1", "fio would sync files on the host; use end_fsync=1");
        }
        let direction = job.option(offsets.rw);
        Ok(Self {
            mount: MountRequest {
                direct_io: flag(offsets.direct) && own.host_cache == 0,
                ..mount_request(own, &name, fio.is_read_only())?
            },
            root: own.texts().root,
            iodepth: job.option(offsets.iodepth).max(1) as usize,
            queue_threads: queue_threads(own, &name)?,
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

/// Combines the engine's own options of a job into a request for a mount.
fn mount_request(own: &EngineOptions, job: &str, read_only: bool) -> Result<MountRequest, EngineError> {
    let request = own.texts().mount_request(job, read_only)?;
    Ok(MountRequest {
        device_delay: device_delay(own, job)?,
        no_data_cow: own.nodatacow != 0,
        no_data_sums: own.nodatasum != 0,
        ..request
    })
}

fn device_delay(own: &EngineOptions, job: &str) -> Result<Option<Duration>, EngineError> {
    match own.device_delay_us {
        0 => Ok(None),
        microseconds @ 1..=10_000_000 => Ok(Some(Duration::from_micros(microseconds as u64))),
        microseconds => Err(EngineError::Value {
            job: job.to_owned(),
            option: "device_delay_us",
            value: microseconds.to_string(),
            reason: "not a number from 0 to 10000000".to_owned(),
        }),
    }
}

fn queue_threads(own: &EngineOptions, job: &str) -> Result<usize, EngineError> {
    match own.queue_threads {
        threads @ 0..=256 => Ok(threads as usize),
        threads => Err(EngineError::Value {
            job: job.to_owned(),
            option: "queue_threads",
            value: threads.to_string(),
            reason: "not a number from 0 to 256".to_owned(),
        }),
    }
}

impl Texts {
    fn mount_request(&self, job: &str, read_only: bool) -> Result<MountRequest, EngineError> {
        let images = split_paths(&self.image);
        if images.is_empty() {
            let what = "give the image or device that holds the file system";
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
                        format!("not a size of at least {CACHE_MIN} bytes, or 0 for no cache"),
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
            return Err(value("mkfs", &self.mkfs, "fio runs with --readonly".to_owned()));
        }
        Ok(MountRequest {
            images,
            mkfs,
            compress,
            tuning,
            cache_bytes,
            node_cache_bytes,
            direct_io: false,
            device_delay: None,
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
                    Some((option, text)) => Err(value(option, text, "only valid with mkfs=1".to_owned())),
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
                None => Err(value(option, text, "not a size in bytes (such as 4096, 16k or 8g)".to_owned())),
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

/// Splits a list of paths at `:`; `\:` is a colon within a path, as in fio's `filename=`.
fn split_paths(text: &str) -> Vec<PathBuf> {
    let mut paths = vec![String::new()];
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            ':' => paths.push(String::new()),
            '\\' if characters.as_str().starts_with(':') => {
                paths.last_mut().expect("starts with one path").extend(characters.next())
            }
            other => paths.last_mut().expect("starts with one path").push(other),
        }
    }
    paths.into_iter().filter(|path| !path.is_empty()).map(PathBuf::from).collect()
}

/// Smallest size of the page cache in bytes.
const CACHE_MIN: u64 = 1 << 20;

/// Parses a size in bytes with fio's optional suffixes k, m, g and t, powers of 1024.
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
    fn sizes_take_fio_suffixes() {
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
    fn invalid_options_are_refused() {
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
        refused(&|texts| texts.cache = "4k".into(), "cache=4k: not a size of at least 1048576 bytes");
        refused(&|texts| texts.node_cache = "much".into(), "node_cache=much: not a size");
        refused(&|texts| texts.tuning = "nocow_check=perhaps".into(), "tuning=nocow_check=perhaps");
        refused(&|texts| texts.csum = "sha256".into(), "only valid with mkfs=1");
        refused(&|texts| texts.mkfs = "yes".into(), "mkfs=yes");
        refused(&|texts| texts.compress = "zip".into(), "compress=zip");
        refused(&|texts| (texts.mkfs, texts.csum) = ("1".into(), "md5".into()), "csum=md5");
        refused(&|texts| (texts.mkfs, texts.fs_size) = ("1".into(), "big".into()), "fs_size=big");
        let texts = Texts { image: "a.img".into(), mkfs: "1".into(), ..Texts::default() };
        assert!(texts.mount_request("j", true).is_err());
    }
}
