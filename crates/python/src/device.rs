//! Devices that read by a Python callback.
//!
//! Owns [`Device`], for images that Python code can reach and the host cannot open: behind fsspec,
//! in an archive, in a database. Such a device is for reading only.
//!
//! **Locks:** the callback runs with the GIL, in whatever thread of the library reads. No lock of
//! this crate is held then.

use crate::buffer::Buffer;
use papilio::PhysicalAddress;
use papilio::device::Access;
use pyo3::prelude::*;
use std::io;
use std::sync::Arc;

/// The device that the library sees.
pub struct PythonDevice {
    read: Py<PyAny>,
    size: u64,
    name: String,
}

impl std::fmt::Debug for PythonDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PythonDevice").field("name", &self.name).field("size", &self.size).finish()
    }
}

fn read_only() -> io::Error {
    io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the device is open read-only")
}

impl papilio::device::Device for PythonDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn access(&self) -> Access {
        Access::ReadOnly
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        let length = buffer.len();
        if offset.0.checked_add(length as u64).is_none_or(|end| end > self.size) {
            let text = format!("read of {length} bytes at {offset} reaches past the end at {}", self.size);
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        let filled = Python::attach(|py| {
            let bytes = self.read.call1(py, (offset.0, length))?;
            let bytes = Buffer::readable(bytes.bind(py))?;
            if bytes.len() == length {
                buffer.copy_from_slice(bytes.bytes());
            }
            Ok::<_, PyErr>(bytes.len())
        });
        match filled {
            Ok(filled) if filled == length => Ok(()),
            Ok(filled) => {
                let text = format!("the reader returned {filled} bytes instead of {length}");
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, text))
            }
            Err(raised) => Err(io::Error::other(raised)),
        }
    }

    fn write_at(&self, _buffer: &[u8], _offset: PhysicalAddress) -> io::Result<()> {
        Err(read_only())
    }

    fn flush(&self) -> io::Result<()> {
        Err(read_only())
    }

    fn discard(&self, _offset: PhysicalAddress, _length: u64) -> io::Result<()> {
        Err(read_only())
    }
}

/// A read-only device whose bytes a callback returns.
///
/// read(offset, length) returns exactly length bytes, as any object with a buffer. It is called
/// from several threads at once.
#[pyclass(name = "Device", module = "papilio", frozen)]
pub struct Device {
    shared: Arc<PythonDevice>,
}

impl Device {
    pub fn shared(&self) -> Arc<dyn papilio::device::Device> {
        Arc::clone(&self.shared) as _
    }
}

#[pymethods]
impl Device {
    #[new]
    #[pyo3(signature = (read, size, name = "device"))]
    fn new(read: Py<PyAny>, size: u64, name: &str) -> Self {
        Self { shared: Arc::new(PythonDevice { read, size, name: name.to_owned() }) }
    }

    /// Bytes.
    #[getter]
    fn size(&self) -> u64 {
        self.shared.size
    }

    /// The name in messages.
    #[getter]
    fn name(&self) -> &str {
        &self.shared.name
    }
}
