//! New file systems.
//!
//! Owns the function [`mkfs()`] and its result, [`Made`].

use crate::errors::Raise;
use crate::paths::{PathArg, decode, host_path};
use crate::streams::Interruptible;
use papilio::{
    ChecksumType, ContentSource, Error, MkfsContent, MkfsOptions, NewSubvolume, Populate, RaidProfile,
    Updated, Uuid,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A new file system.
#[pyclass(name = "Made", module = "papilio", frozen, get_all)]
pub struct Made {
    uuid: Uuid,
    label: Py<PyAny>,
    /// Bytes of the file system.
    total_bytes: u64,
    node_size: u32,
    sector_size: u32,
    /// The checksum algorithm, such as 'crc32c'.
    checksum: String,
    /// The features that are on, as mkfs.btrfs -O names them.
    features: Vec<&'static str>,
}

const CHECKSUMS: [ChecksumType; 4] =
    [ChecksumType::Crc32c, ChecksumType::XxHash64, ChecksumType::Sha256, ChecksumType::Blake2b];

/// Returns the profile of a name, in upper or lower case.
fn profile(name: &str) -> PyResult<RaidProfile> {
    use RaidProfile::{Dup, Raid0, Raid1, Raid1c3, Raid1c4, Raid5, Raid6, Raid10, Single};
    let all = [Single, Dup, Raid0, Raid1, Raid1c3, Raid1c4, Raid5, Raid6, Raid10];
    let found = all.into_iter().find(|profile| profile.name().eq_ignore_ascii_case(name));
    found.ok_or_else(|| {
        PyValueError::new_err(format!(
            "profile {name:?}: expected one of {}",
            all.map(RaidProfile::name).join(", ")
        ))
    })
}

fn checksum(name: &str) -> PyResult<ChecksumType> {
    let same = |known: &str| known.replace('-', "").eq_ignore_ascii_case(&name.replace('-', ""));
    let aliases = |kind: ChecksumType| match kind {
        ChecksumType::XxHash64 => "xxhash",
        ChecksumType::Blake2b => "blake2",
        other => other.name(),
    };
    let found = CHECKSUMS.into_iter().find(|kind| same(kind.name()) || same(aliases(*kind)));
    found.ok_or_else(|| {
        let names = CHECKSUMS.map(ChecksumType::name).join(", ");
        PyValueError::new_err(format!("checksum {name:?}: expected one of {names}"))
    })
}

/// Creates a file system in an image or on devices. With size, a missing image is created. With
/// content, a directory of the host or a tar archive, it is filled, and by default as large as that
/// needs.
#[pyfunction]
#[pyo3(signature = (
    *images, size = None, label = None, uuid = None, node_size = None, checksum = None, data_profile = None,
    metadata_profile = None, features = None, force = false, discard = false, timestamp = None,
    content = None, compress = None, shrink = false,
))]
#[expect(clippy::too_many_arguments, reason = "they are keyword arguments in Python")]
pub fn mkfs(
    py: Python<'_>,
    images: Vec<PathArg>,
    size: Option<u64>,
    label: Option<PathArg>,
    uuid: Option<Uuid>,
    node_size: Option<u32>,
    checksum: Option<&str>,
    data_profile: Option<&str>,
    metadata_profile: Option<&str>,
    features: Option<&str>,
    force: bool,
    discard: bool,
    timestamp: Option<Bound<'_, PyAny>>,
    content: Option<PathArg>,
    compress: Option<&str>,
    shrink: bool,
) -> PyResult<Made> {
    let Some(first) = images.first() else {
        return Err(PyValueError::new_err("mkfs: name an image or a device"));
    };
    let mut options = MkfsOptions::new().force(force).discard(discard);
    if let Some(size) = size {
        options = options.size(size);
    }
    if let Some(label) = label {
        options = options.label(label.bytes);
    }
    if let Some(uuid) = uuid {
        options = options.fsid(uuid);
    }
    if let Some(bytes) = node_size {
        options = options.node_size(bytes);
    }
    if let Some(name) = checksum {
        options = options.checksum(self::checksum(name)?);
    }
    if let Some(name) = data_profile {
        options = options.data_profile(profile(name)?);
    }
    if let Some(name) = metadata_profile {
        options = options.metadata_profile(profile(name)?);
    }
    if let Some(list) = features {
        let parsed = options.feature_list(list);
        options = parsed.map_err(|error: Error| PyValueError::new_err(error.to_string()))?;
    }
    let timestamp = timestamp.map(|time| crate::times::from_seconds(&time)).transpose()?;
    if let Some(time) = timestamp {
        options = options.timestamp(time);
    }
    let paths: Vec<_> = images.iter().map(host_path).collect();
    let made = match content {
        None if shrink || compress.is_some() => {
            return Err(PyValueError::new_err("mkfs: shrink and compress need content"));
        }
        None => py.detach(|| papilio::mkfs_many(&paths, &options)).raise_at(first)?,
        Some(content) => {
            let compress = compress.map(crate::file_system::compression).transpose()?;
            let make = MkfsContent::new()
                .populate(Populate::new().steady_access_times(timestamp.is_some()))
                .compress(compress)
                .timestamp(timestamp)
                .shrink(shrink)
                .sized(size.is_some());
            let from = host_path(&content);
            let made = py.detach(|| {
                make.make(&paths, &options, ContentSource::at(&from)?, &mut Interruptible::default())
            });
            made.raise()?.0
        }
    };
    Made::of(py, &made)
}

/// The amount of work of update_content().
#[pyclass(name = "ContentUpdate", module = "papilio", frozen, get_all)]
pub struct ContentUpdate {
    /// Names that were made, where none was.
    created: u64,
    /// Entries whose data, attributes or kind were changed.
    changed: u64,
    /// Names that were removed. A directory counts as one.
    removed: u64,
    /// Entries that were as they should be.
    unchanged: u64,
    /// Bytes of file data written, without holes.
    bytes_written: u64,
    /// Bytes of file data that were equal.
    bytes_equal: u64,
}

#[pymethods]
impl ContentUpdate {
    fn __repr__(&self) -> String {
        format!(
            "<papilio.ContentUpdate created={} changed={} removed={} unchanged={}>",
            self.created, self.changed, self.removed, self.unchanged
        )
    }
}

/// Makes the content of the file system in an image that of a directory of the host. Files are
/// compared byte by byte, and only what differs is written. Names that the directory lacks are
/// removed. An image that is a regular file may grow. The names in subvolumes are directories that
/// are subvolumes; others are refused.
#[pyfunction]
#[pyo3(signature = (
    *images, content, subvolumes = Vec::new(), compress = None, shrink = false, timestamp = None,
))]
pub fn update_content(
    py: Python<'_>,
    images: Vec<PathArg>,
    content: PathArg,
    subvolumes: Vec<PathArg>,
    compress: Option<&str>,
    shrink: bool,
    timestamp: Option<Bound<'_, PyAny>>,
) -> PyResult<ContentUpdate> {
    if images.is_empty() {
        return Err(PyValueError::new_err("update_content: name an image or a device"));
    }
    let timestamp = timestamp.map(|time| crate::times::from_seconds(&time)).transpose()?;
    let mut populate = Populate::new().steady_access_times(timestamp.is_some());
    for path in &subvolumes {
        populate = populate.subvolume(&path.bytes[..], NewSubvolume::default());
    }
    let compress = compress.map(crate::file_system::compression).transpose()?;
    let make = MkfsContent::new().populate(populate).compress(compress).timestamp(timestamp).shrink(shrink);
    let (paths, from) = (images.iter().map(host_path).collect::<Vec<_>>(), host_path(&content));
    let updated = py.detach(|| make.update(&paths, &from, &mut Interruptible::default())).raise()?;
    let Updated { created, changed, removed, unchanged, bytes_written, bytes_equal, .. } = updated;
    Ok(ContentUpdate { created, changed, removed, unchanged, bytes_written, bytes_equal })
}

impl Made {
    fn of(py: Python<'_>, made: &papilio::Made) -> PyResult<Self> {
        Ok(Self {
            uuid: made.fsid,
            label: decode(py, &made.label)?.unbind(),
            total_bytes: made.total_bytes,
            node_size: made.node_size,
            sector_size: made.sector_size,
            checksum: made.checksum.name().to_owned(),
            features: made.features.iter().map(|feature| feature.name()).collect(),
        })
    }
}

#[pymethods]
impl Made {
    fn __repr__(&self) -> String {
        format!("<papilio.Made {} total_bytes={}>", self.uuid, self.total_bytes)
    }
}
