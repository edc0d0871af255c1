//! `FileSystem`: modes, owners, times and extended attributes, called as in `os`.
//!
//! Owns these methods.

use crate::buffer::Buffer;
use crate::errors::Raise;
use crate::file_system::FileSystem;
use crate::paths::{PathArg, name_object};
use crate::times::{from_ns, from_seconds};
use papilio::{Error, Inode, PathError, SetAttributes, SetTime, XattrSet};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

/// `os.XATTR_CREATE` and `os.XATTR_REPLACE`.
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;

/// Returns the inode at a path.
fn inode(fs: &papilio::FileSystem, path: &PathArg, follow: bool) -> papilio::Result<Inode> {
    if follow { fs.inode(&path.bytes) } else { fs.inode_nofollow(&path.bytes) }
}

/// Returns an id to set; -1 leaves it unchanged.
fn id(value: i64) -> PyResult<Option<u32>> {
    match value {
        -1 => Ok(None),
        _ => u32::try_from(value).map(Some).map_err(|_| PyValueError::new_err("the id is out of range")),
    }
}

#[pymethods]
impl FileSystem {
    /// Sets the permission bits.
    #[pyo3(signature = (path, mode, *, follow_symlinks = true))]
    fn chmod(&self, py: Python<'_>, path: PathArg, mode: u32, follow_symlinks: bool) -> PyResult<()> {
        let set = SetAttributes { mode: Some(mode & 0o7777), ..SetAttributes::default() };
        self.run(py, |fs| inode(fs, &path, follow_symlinks)?.set_attributes(&set))?.raise_at(&path)
    }

    /// Sets owner and group; -1 leaves one unchanged.
    #[pyo3(signature = (path, uid, gid, *, follow_symlinks = true))]
    fn chown(
        &self,
        py: Python<'_>,
        path: PathArg,
        uid: i64,
        gid: i64,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        let set = SetAttributes { uid: id(uid)?, gid: id(gid)?, ..SetAttributes::default() };
        self.run(py, |fs| inode(fs, &path, follow_symlinks)?.set_attributes(&set))?.raise_at(&path)
    }

    /// Sets the times of access and modification: (atime, mtime) in seconds, or in ns; now without
    /// either.
    #[pyo3(signature = (path, times = None, *, ns = None, follow_symlinks = true))]
    fn utime(
        &self,
        py: Python<'_>,
        path: PathArg,
        times: Option<(Bound<'_, PyAny>, Bound<'_, PyAny>)>,
        ns: Option<(i128, i128)>,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        let (atime, mtime) = match (times, ns) {
            (Some(_), Some(_)) => {
                return Err(PyValueError::new_err("utime: give either times or ns, not both"));
            }
            (Some((atime, mtime)), None) => {
                (SetTime::At(from_seconds(&atime)?), SetTime::At(from_seconds(&mtime)?))
            }
            (None, Some((atime, mtime))) => (SetTime::At(from_ns(atime)?), SetTime::At(from_ns(mtime)?)),
            (None, None) => (SetTime::Now, SetTime::Now),
        };
        let set = SetAttributes { atime: Some(atime), mtime: Some(mtime), ..SetAttributes::default() };
        self.run(py, |fs| inode(fs, &path, follow_symlinks)?.set_attributes(&set))?.raise_at(&path)
    }

    /// Returns the value of an extended attribute.
    #[pyo3(signature = (path, attribute, *, follow_symlinks = true))]
    fn getxattr<'py>(
        &self,
        py: Python<'py>,
        path: PathArg,
        attribute: PathArg,
        follow_symlinks: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.run(py, |fs| {
            let value = inode(fs, &path, follow_symlinks)?.xattr(&attribute.bytes)?;
            value.ok_or_else(|| Error::Path { path: path.bytes.clone(), kind: PathError::NoAttribute })
        })?;
        Ok(PyBytes::new(py, &value.raise_at(&path)?))
    }

    /// Sets an extended attribute. Flags are os.XATTR_CREATE and os.XATTR_REPLACE.
    #[pyo3(signature = (path, attribute, value, flags = 0, *, follow_symlinks = true))]
    fn setxattr(
        &self,
        py: Python<'_>,
        path: PathArg,
        attribute: PathArg,
        value: &Bound<'_, PyAny>,
        flags: u32,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        let how = match flags {
            0 => XattrSet::Any,
            XATTR_CREATE => XattrSet::Create,
            XATTR_REPLACE => XattrSet::Replace,
            _ => return Err(PyValueError::new_err("flags: expected 0, XATTR_CREATE or XATTR_REPLACE")),
        };
        let value = Buffer::readable(value)?;
        let set = self.run(py, |fs| {
            inode(fs, &path, follow_symlinks)?.set_xattr(&attribute.bytes, value.bytes(), how)
        })?;
        set.raise_at(&path)
    }

    /// Returns the names of the extended attributes.
    #[pyo3(signature = (path = None, *, follow_symlinks = true))]
    fn listxattr<'py>(
        &self,
        py: Python<'py>,
        path: Option<PathArg>,
        follow_symlinks: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let path = path.unwrap_or_else(|| PathArg::text(b"/".to_vec()));
        let attributes = self.run(py, |fs| inode(fs, &path, follow_symlinks)?.xattrs())?.raise_at(&path)?;
        let list = PyList::empty(py);
        for attribute in &attributes {
            list.append(name_object(py, &attribute.name, false)?)?;
        }
        Ok(list)
    }

    /// Removes an extended attribute.
    #[pyo3(signature = (path, attribute, *, follow_symlinks = true))]
    fn removexattr(
        &self,
        py: Python<'_>,
        path: PathArg,
        attribute: PathArg,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        self.run(py, |fs| inode(fs, &path, follow_symlinks)?.remove_xattr(&attribute.bytes))?.raise_at(&path)
    }
}
