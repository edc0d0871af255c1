//! Checks of whole file systems, and their reports.
//!
//! Owns [`CheckReport`], [`Finding`] and the function [`check()`].

use crate::device::Device;
use crate::errors::Raise;
use crate::paths::{PathArg, host_path};
use papilio::{CheckOptions, CheckStage, OpenOptions};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// A fault that a check found.
#[pyclass(name = "Finding", module = "papilio", frozen, get_all)]
pub struct Finding {
    /// Which rule is broken, such as 'link-count'. The names stay the same between versions.
    kind: String,
    /// 'error', 'warning' or 'note'.
    severity: String,
    /// The fault in one line.
    message: String,
    /// The place in words; empty if there is none.
    place: String,
    /// The id of the tree.
    tree: Option<u64>,
    inode: Option<u64>,
    /// The logical address of the block or extent.
    address: Option<u64>,
    /// The device or image.
    device: Option<String>,
    /// Bytes from the start of the device.
    offset: Option<u64>,
    text: String,
}

#[pymethods]
impl Finding {
    fn __str__(&self) -> &str {
        &self.text
    }

    fn __repr__(&self) -> String {
        format!("<papilio.Finding {}>", self.text)
    }
}

/// The result of a check.
#[pyclass(name = "CheckReport", module = "papilio", frozen, get_all)]
pub struct CheckReport {
    /// The faults, up to max_findings.
    findings: Vec<Py<Finding>>,
    /// The number of faults of each kind, including those that were not kept.
    counts: Py<PyDict>,
    /// Remarks that are not faults.
    notes: Vec<String>,
    /// Numbers of objects that the check read, by name.
    statistics: Py<PyDict>,
    errors: u64,
    warnings: u64,
    /// Whether there is no error.
    is_clean: bool,
    /// The number of findings that were counted but not kept.
    dropped: u64,
}

#[pymethods]
impl CheckReport {
    fn __repr__(&self) -> String {
        format!("<papilio.CheckReport errors={} warnings={}>", self.errors, self.warnings)
    }
}

impl CheckReport {
    pub fn new(py: Python<'_>, of: &papilio::CheckReport) -> PyResult<Self> {
        let finding = |finding: &papilio::Finding| {
            let place = &finding.place;
            let made = Finding {
                kind: finding.kind.to_string(),
                severity: finding.severity.to_string(),
                message: finding.message.clone(),
                place: place.to_string(),
                tree: place.tree.map(|tree| tree.0),
                inode: place.inode.map(|inode| inode.0),
                address: place.address.map(|address| address.0),
                device: place.device.clone(),
                offset: place.offset.map(|offset| offset.0),
                text: finding.to_string(),
            };
            Py::new(py, made)
        };
        let counts = PyDict::new(py);
        for (kind, count) in &of.counts {
            counts.set_item(kind.to_string(), *count)?;
        }
        let statistics = PyDict::new(py);
        let s = &of.statistics;
        for (name, value) in [
            ("trees", s.trees),
            ("blocks", s.blocks),
            ("metadata_bytes", s.metadata_bytes),
            ("data_extents", s.data_extents),
            ("data_bytes", s.data_bytes),
            ("subvolumes", s.subvolumes),
            ("inodes", s.inodes),
            ("files", s.files),
            ("csum_bytes", s.csum_bytes),
            ("data_bytes_read", s.data_bytes_read),
        ] {
            statistics.set_item(name, value)?;
        }
        Ok(Self {
            findings: of.findings.iter().map(finding).collect::<PyResult<_>>()?,
            counts: counts.unbind(),
            notes: of.notes.iter().map(ToString::to_string).collect(),
            statistics: statistics.unbind(),
            errors: of.errors(),
            warnings: of.warnings(),
            is_clean: of.is_clean(),
            dropped: of.dropped(),
        })
    }
}

/// Returns the library's options. `progress` is called with the stage, the part done and the total
/// or `None`; an exception that it raises is reported as unraisable.
pub fn run_options(data_csum: bool, max_findings: usize, progress: Option<Py<PyAny>>) -> CheckOptions {
    let options = CheckOptions::new().data_csum(data_csum).max_findings(max_findings);
    let Some(progress) = progress else { return options };
    options.progress(move |at| {
        let stage = match at.stage {
            CheckStage::Trees => "trees",
            CheckStage::Space => "space",
            CheckStage::Data => "data",
            // The library's feature `unstable`, which other crates of the workspace turn on, closes
            // the enumeration.
            #[allow(unreachable_patterns)]
            _ => "other",
        };
        Python::attach(|py| {
            if let Err(raised) = progress.call1(py, (stage, at.done, at.total)) {
                raised.write_unraisable(py, Some(progress.bind(py)));
            }
        });
    })
}

/// Checks the file system on an image, which may be too damaged to be opened.
#[pyfunction]
#[pyo3(signature = (
    image, *, devices = Vec::new(), degraded = false, data_csum = false, max_findings = 10_000, progress = None
))]
pub fn check(
    py: Python<'_>,
    image: &Bound<'_, PyAny>,
    devices: Vec<PathArg>,
    degraded: bool,
    data_csum: bool,
    max_findings: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<CheckReport> {
    let mut open = OpenOptions::new().degraded(degraded);
    for device in &devices {
        open = open.device(host_path(device));
    }
    let options = run_options(data_csum, max_findings, progress);
    let report = if let Ok(device) = image.cast::<Device>() {
        let device = device.get().shared();
        py.detach(|| papilio::check_devices(vec![device], &open, &options)).raise()?
    } else {
        let image: PathArg = image.extract()?;
        let path = host_path(&image);
        py.detach(|| papilio::check(path, &open, &options)).raise_at(&image)?
    };
    CheckReport::new(py, &report)
}
