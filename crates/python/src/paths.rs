//! Paths: `str`, `bytes` and `os.PathLike` arguments, and the strings that results have.
//!
//! Owns [`PathArg`]. Names in an image are bytes. In `str` they are UTF-8 with
//! `surrogateescape`, whatever the locale, so that every name survives a round trip.

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A path that a caller passed.
#[derive(Clone, Debug)]
pub struct PathArg {
    /// The bytes of the path.
    pub bytes: Vec<u8>,
    /// Whether it was `bytes`, and results are to be too.
    pub is_bytes: bool,
}

impl PathArg {
    /// A path whose Python form is `str`.
    pub fn text(bytes: Vec<u8>) -> Self {
        Self { bytes, is_bytes: false }
    }

    /// Returns the path in the form in which it was passed.
    pub fn to_object<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        name_object(py, &self.bytes, self.is_bytes)
    }

    /// Returns this path joined with a name.
    pub fn join(&self, name: &[u8]) -> Vec<u8> {
        let mut joined = Vec::with_capacity(self.bytes.len() + 1 + name.len());
        joined.extend_from_slice(&self.bytes);
        if !joined.is_empty() && !joined.ends_with(b"/") {
            joined.push(b'/');
        }
        joined.extend_from_slice(name);
        joined
    }
}

impl<'py> FromPyObject<'_, 'py> for PathArg {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let path = if object.is_instance_of::<PyString>() || object.is_instance_of::<PyBytes>() {
            object.to_owned()
        } else {
            // SAFETY: the argument is a live object, and the result a new reference or null with an
            // exception set.
            unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyOS_FSPath(object.as_ptr()))? }
        };
        let (bytes, is_bytes) = match path.cast::<PyBytes>() {
            Ok(bytes) => (bytes.as_bytes().to_vec(), true),
            Err(_) => (encode(path.cast::<PyString>()?)?, false),
        };
        if bytes.contains(&0) {
            return Err(PyValueError::new_err("a path contains a null byte"));
        }
        Ok(Self { bytes, is_bytes })
    }
}

/// Returns the bytes of a string.
pub fn encode(text: &Bound<'_, PyString>) -> PyResult<Vec<u8>> {
    // SAFETY: the argument is a live string, both names end in NUL, and the result is a new
    // reference or null with an exception set.
    let encoded = unsafe {
        let encoded =
            ffi::PyUnicode_AsEncodedString(text.as_ptr(), c"utf-8".as_ptr(), c"surrogateescape".as_ptr());
        Bound::from_owned_ptr_or_err(text.py(), encoded)?
    };
    Ok(encoded.cast::<PyBytes>()?.as_bytes().to_vec())
}

/// Returns the string of a name.
pub fn decode<'py>(py: Python<'py>, name: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: pointer and length are those of a slice, the name of the error handler ends in NUL,
    // and the result is a new reference or null with an exception set.
    unsafe {
        let text = ffi::PyUnicode_DecodeUTF8(
            name.as_ptr().cast(),
            name.len() as ffi::Py_ssize_t,
            c"surrogateescape".as_ptr(),
        );
        Bound::from_owned_ptr_or_err(py, text)
    }
}

/// Returns a name as `bytes` or as `str`.
pub fn name_object<'py>(py: Python<'py>, name: &[u8], is_bytes: bool) -> PyResult<Bound<'py, PyAny>> {
    if is_bytes { Ok(PyBytes::new(py, name).into_any()) } else { decode(py, name) }
}

/// Converts a host path.
pub fn host_path(path: &PathArg) -> PathBuf {
    PathBuf::from(OsString::from_vec(path.bytes.clone()))
}
