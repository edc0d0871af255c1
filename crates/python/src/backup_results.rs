//! The results of a repository's methods.
//!
//! Owns [`Backup`], [`BackupFault`] and [`BackupKey`].

use crate::paths::decode;
use papilio::Uuid;
use papilio_backup::{Backups, KeyInfo, VerifyFault};
use pyo3::prelude::*;

/// A backup of a snapshot.
#[pyclass(name = "Backup", module = "papilio", frozen, get_all)]
pub struct Backup {
    /// The id: 64 hexadecimal digits.
    id: String,
    /// The name of the snapshot.
    name: Py<PyAny>,
    /// The time that pruning goes by, in seconds since 1970.
    time: i64,
    /// The host that made the backup.
    host: String,
    /// The operand of that.
    source: String,
    /// The UUID of the subvolume from which the snapshots of the series stem.
    series: String,
    /// The UUID of the snapshot in the stream.
    uuid: Uuid,
    is_full: bool,
    /// The id of the backup that it is based on; None for a full backup, and if it is not there.
    base: Option<String>,
    /// Bytes of the stream.
    stream_bytes: u64,
    /// Bytes of its objects as they are stored.
    stored_bytes: u64,
    /// The number of its objects.
    objects: usize,
}

#[pymethods]
impl Backup {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let name = self.name.bind(py).repr()?.to_string();
        Ok(format!("<papilio.Backup {} {name}>", self.id.get(..12).unwrap_or(&self.id)))
    }
}

impl Backup {
    pub fn new(py: Python<'_>, of: &papilio_backup::Backup, backups: &Backups) -> PyResult<Self> {
        let manifest = &of.manifest;
        Ok(Self {
            id: of.id.clone(),
            name: decode(py, &manifest.name_bytes().unwrap_or_default())?.unbind(),
            time: manifest.time,
            host: manifest.host.clone(),
            source: manifest.source.clone(),
            series: manifest.series.clone(),
            uuid: manifest.snapshot.uuid,
            is_full: manifest.base.is_none(),
            base: manifest.base.and_then(|base| backups.of(base)).map(|base| base.id.clone()),
            stream_bytes: manifest.stream_bytes,
            stored_bytes: manifest.stored_bytes(),
            objects: manifest.objects().count(),
        })
    }
}

/// Something that is wrong with a repository.
#[pyclass(name = "BackupFault", module = "papilio", frozen, get_all)]
pub struct BackupFault {
    /// The object.
    object: String,
    /// The fault.
    fault: String,
    /// The ids of the backups that cannot be restored for it.
    affects: Vec<String>,
}

#[pymethods]
impl BackupFault {
    fn __repr__(&self) -> String {
        format!("<papilio.BackupFault {}: {}>", self.object, self.fault)
    }
}

/// A key of an encrypted repository.
#[pyclass(name = "BackupKey", module = "papilio", frozen, get_all)]
pub struct BackupKey {
    /// The id: eight hexadecimal digits.
    id: String,
    label: Option<String>,
    /// Whether the repository was opened with it.
    is_current: bool,
}

#[pymethods]
impl BackupKey {
    fn __repr__(&self) -> String {
        format!("<papilio.BackupKey {}>", self.id)
    }
}

impl From<VerifyFault> for BackupFault {
    fn from(fault: VerifyFault) -> Self {
        Self { object: fault.object, fault: fault.fault, affects: fault.affects }
    }
}

impl From<KeyInfo> for BackupKey {
    fn from(KeyInfo { id, label, is_current, .. }: KeyInfo) -> Self {
        Self { id, label, is_current }
    }
}
