//! How the space of a file system is used.
//!
//! Owns [`Usage`], [`SpaceUsage`] and [`DeviceUsage`].

use crate::paths::decode;
use papilio::Uuid;
use pyo3::prelude::*;

/// The space of all chunks of one type and one profile.
#[pyclass(name = "SpaceUsage", module = "papilio", frozen, get_all)]
pub struct SpaceUsage {
    /// 'Data', 'Metadata', 'System' or 'Data+Metadata'.
    kind: &'static str,
    /// The profile, such as 'single' or 'RAID1'.
    profile: &'static str,
    /// Capacity in bytes.
    total: u64,
    /// Used bytes.
    used: u64,
    /// Bytes of devices that the chunks take.
    raw_total: u64,
    /// Bytes of devices that the used bytes take.
    raw_used: u64,
}

/// A device.
#[pyclass(name = "DeviceUsage", module = "papilio", frozen, get_all)]
pub struct DeviceUsage {
    devid: u64,
    uuid: Uuid,
    /// The path; None if the device is missing.
    path: Option<Py<PyAny>>,
    /// Bytes that belong to the file system.
    total: u64,
    /// Bytes that no chunk takes.
    unallocated: u64,
}

/// How the space is used, in bytes.
#[pyclass(name = "Usage", module = "papilio", frozen, get_all)]
pub struct Usage {
    spaces: Vec<Py<SpaceUsage>>,
    devices: Vec<Py<DeviceUsage>>,
    /// Bytes of all devices.
    device_size: u64,
    /// Bytes of devices that chunks take.
    allocated: u64,
    unallocated: u64,
    /// Bytes of missing devices.
    missing: u64,
    /// Bytes of metadata space that the kernel reserves.
    global_reserve: u64,
    /// Data that would fit on the empty devices, as statvfs shows.
    total: u64,
    free: u64,
    available: u64,
}

impl Usage {
    pub fn new(py: Python<'_>, of: &papilio::Usage) -> PyResult<Self> {
        let space = |space: &papilio::SpaceUsage| {
            let made = SpaceUsage {
                kind: space.kind_name(),
                profile: space.profile.name(),
                total: space.total,
                used: space.used,
                raw_total: space.raw_total,
                raw_used: space.raw_used,
            };
            Py::new(py, made)
        };
        let device = |device: &papilio::DeviceUsage| {
            let path = device.path.as_ref().map(|path| decode(py, path.as_bytes())).transpose()?;
            let made = DeviceUsage {
                devid: device.devid.0,
                uuid: device.uuid,
                path: path.map(Bound::unbind),
                total: device.total,
                unallocated: device.unallocated(),
            };
            Py::new(py, made)
        };
        let statfs = of.statfs();
        Ok(Self {
            spaces: of.spaces.iter().map(space).collect::<PyResult<_>>()?,
            devices: of.devices.iter().map(device).collect::<PyResult<_>>()?,
            device_size: of.device_size(),
            allocated: of.allocated(),
            unallocated: of.unallocated(),
            missing: of.missing(),
            global_reserve: of.global_reserve,
            total: statfs.total,
            free: statfs.free,
            available: statfs.available,
        })
    }
}

#[pymethods]
impl Usage {
    fn __repr__(&self) -> String {
        format!("<papilio.Usage total={} free={} available={}>", self.total, self.free, self.available)
    }
}
