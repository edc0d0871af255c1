//! A recorded tree: all facts of each entry, with a hash in place of the content.
//!
//! For comparison with a tree that no longer exists. If both trees exist, [`crate::compare`] is
//! better, because it shows where the content differs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use crate::compare::{self, CompareOptions, Difference};
use crate::source::{Content, FiemapExtent, Kind, Metadata, Segment, Source};

/// The facts to record, beyond metadata, xattrs and targets.
#[derive(Clone, Copy, Debug)]
pub struct ManifestOptions {
    /// Hashes of file content.
    pub content: bool,
    /// Locations of data in files.
    pub segments: bool,
    /// FIEMAP extents.
    pub extents: bool,
}

impl Default for ManifestOptions {
    fn default() -> Self {
        Self { content: true, segments: true, extents: false }
    }
}

/// One recorded entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The inode.
    pub metadata: Metadata,
    /// Extended attributes by name.
    pub xattrs: BTreeMap<OsString, Vec<u8>>,
    /// Target of a symbolic link.
    pub target: Option<OsString>,
    /// xxh3 (128 bits) of a file's bytes; in a huge sparse file, only of its nonzero blocks.
    pub hash: Option<u128>,
    /// Locations of data in a file.
    pub segments: Option<Vec<Segment>>,
    /// Extents of a file.
    pub extents: Option<Vec<FiemapExtent>>,
}

/// All entries of a tree by path; the path of the root is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// The entries.
    pub entries: BTreeMap<PathBuf, Entry>,
}

impl Manifest {
    /// Walks and records `source`.
    ///
    /// # Errors
    /// The first error of the source, with its path.
    pub fn read(source: &dyn Source, options: ManifestOptions) -> io::Result<Self> {
        let mut manifest = Self::default();
        let mut stack = vec![PathBuf::new()];
        while let Some(path) = stack.pop() {
            let entry = Entry::read(source, &path, options)
                .and_then(|entry| {
                    if entry.metadata.kind == Kind::Directory {
                        let names = source.read_directory(&path)?;
                        stack.extend(names.iter().map(|name| path.join(name)));
                    }
                    Ok(entry)
                })
                .map_err(|error| io::Error::new(error.kind(), format!("{path:?}: {error}")))?;
            manifest.entries.insert(path, entry);
        }
        Ok(manifest)
    }

    /// Returns all differences from `other`, sorted by path. Facts that either side did not record
    /// are skipped.
    pub fn diff(&self, other: &Self, options: &CompareOptions) -> Vec<Difference> {
        let mut differences = Vec::new();
        let mut add = |path: &Path, (fact, left, right): (String, String, String)| {
            differences.push(Difference { path: path.to_owned(), fact, left, right });
        };
        let presence = |left: &str, right: &str| ("entry".to_owned(), left.to_owned(), right.to_owned());
        for (path, entry) in &self.entries {
            match other.entries.get(path) {
                None => add(path, presence("present", "absent")),
                Some(theirs) => {
                    entry.differences(theirs, options).into_iter().for_each(|found| add(path, found));
                }
            }
        }
        for path in other.entries.keys().filter(|path| !self.entries.contains_key(*path)) {
            add(path, presence("absent", "present"));
        }
        differences.sort_by(|a, b| a.path.cmp(&b.path));
        differences
    }

    /// Returns the bytes in all files, counting each link.
    pub fn bytes(&self) -> u64 {
        let files = self.entries.values().filter(|entry| entry.metadata.kind == Kind::File);
        files.map(|entry| entry.metadata.size).sum()
    }
}

impl Entry {
    fn read(source: &dyn Source, path: &Path, options: ManifestOptions) -> io::Result<Self> {
        let metadata = source.metadata(path)?;
        let file = metadata.kind == Kind::File;
        Ok(Self {
            xattrs: source.xattrs(path)?.into_iter().collect(),
            target: match metadata.kind {
                Kind::Symlink => Some(source.read_link(path)?),
                _ => None,
            },
            hash: match file && options.content {
                true => Some(hash(source, path, metadata.size)?),
                false => None,
            },
            segments: if file && options.segments { source.segments(path)? } else { None },
            extents: if file && options.extents { source.extents(path)? } else { None },
            metadata,
        })
    }

    fn differences(&self, other: &Self, options: &CompareOptions) -> Vec<(String, String, String)> {
        let mut found = Vec::new();
        compare::metadata_differences(&self.metadata, &other.metadata, options, &mut found);
        compare::xattr_differences(&self.xattrs, &other.xattrs, &mut found);
        if self.target != other.target {
            let show = |target: &Option<OsString>| {
                target.as_ref().map_or("none".to_owned(), |t| compare::show_bytes(t.as_encoded_bytes()))
            };
            found.push(("target".to_owned(), show(&self.target), show(&other.target)));
        }
        let mut pair = |enabled: bool, fact: &str, a: Option<String>, b: Option<String>| {
            if let (true, Some(a), Some(b)) = (enabled, a, b)
                && a != b
            {
                found.push((fact.to_owned(), a, b));
            }
        };
        let hex = |hash: Option<u128>| hash.map(|hash| format!("{hash:032x}"));
        pair(options.content, "content", hex(self.hash), hex(other.hash));
        let show = |s: &Option<Vec<Segment>>| s.as_ref().map(|s| format!("{s:?}"));
        pair(options.segments, "segments", show(&self.segments), show(&other.segments));
        let show = |e: &Option<Vec<FiemapExtent>>| e.as_ref().map(|e| format!("{e:?}"));
        pair(options.extents, "extents", show(&self.extents), show(&other.extents));
        found
    }
}

fn hash(source: &dyn Source, path: &Path, size: u64) -> io::Result<u128> {
    let mut file = source.open(path)?;
    let mut hasher = Xxh3::new();
    let mut buffer = vec![0; 1 << 18];
    if size > compare::READ_WHOLE
        && let Some(segments) = source.segments(path)?
    {
        for segment in segments {
            hash_sparse(file.as_mut(), segment, &mut buffer, &mut hasher)?;
        }
        return Ok(hasher.digest128());
    }
    let mut offset = 0;
    loop {
        let read = compare::read_full(file.as_mut(), offset, &mut buffer)?;
        hasher.update(&buffer[..read]);
        if read < buffer.len() {
            return Ok(hasher.digest128());
        }
        offset += read as u64;
    }
}

/// Hashes the nonzero blocks of a stretch, each with its offset. The result does not depend on
/// whether zeros are stored or are holes.
fn hash_sparse(
    file: &mut dyn Content,
    segment: Segment,
    buffer: &mut [u8],
    hasher: &mut Xxh3,
) -> io::Result<()> {
    const BLOCK: usize = 4096;
    let mut offset = segment.start - segment.start % BLOCK as u64;
    while offset < segment.end {
        let length = usize::try_from(segment.end - offset).map_or(buffer.len(), |n| n.min(buffer.len()));
        let read = compare::read_full(file, offset, &mut buffer[..length])?;
        if read == 0 {
            break;
        }
        for (at, block) in (offset..).step_by(BLOCK).zip(buffer[..read].chunks(BLOCK)) {
            if block.iter().any(|&byte| byte != 0) {
                hasher.update(&at.to_le_bytes());
                hasher.update(block);
            }
        }
        offset += read as u64;
    }
    Ok(())
}
