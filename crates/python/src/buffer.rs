//! Memory of Python objects: the buffer protocol.
//!
//! Owns [`Buffer`]. The stable ABI has the buffer protocol since Python 3.11 only, and PyO3 binds
//! it there only. The wheel serves 3.9 and 3.10 too, so the two functions are declared here.
//! CPython has exported them, with this layout of `Py_buffer`, since 3.0; 3.11 made the same layout
//! part of the stable ABI.

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{c_char, c_int, c_void};

/// `Py_buffer` of `Include/pybuffer.h`.
#[repr(C)]
struct View {
    buf: *mut c_void,
    obj: *mut ffi::PyObject,
    len: ffi::Py_ssize_t,
    itemsize: ffi::Py_ssize_t,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut ffi::Py_ssize_t,
    strides: *mut ffi::Py_ssize_t,
    suboffsets: *mut ffi::Py_ssize_t,
    internal: *mut c_void,
}

/// Flags of `PyObject_GetBuffer`: contiguous bytes without a shape, and writable ones.
const SIMPLE: c_int = 0;
const WRITABLE: c_int = 1;

unsafe extern "C" {
    fn PyObject_GetBuffer(object: *mut ffi::PyObject, view: *mut View, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut View);
}

/// The contiguous bytes of an object, which cannot be resized or freed meanwhile.
pub struct Buffer {
    /// In a box, because the object's exporter may point into it.
    view: Box<View>,
}

// SAFETY: the pointers stay valid in every thread until `Drop`, which attaches to the interpreter.
unsafe impl Send for Buffer {}
// SAFETY: shared use only reads the pointers.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Borrows the bytes of `object` for reading.
    pub fn readable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::get(object, SIMPLE)
    }

    /// Borrows the bytes of `object` for writing; an object that cannot be written is refused.
    pub fn writable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::get(object, WRITABLE)
    }

    fn get(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<Self> {
        let mut view = Box::new(View {
            buf: std::ptr::null_mut(),
            obj: std::ptr::null_mut(),
            len: 0,
            itemsize: 0,
            readonly: 0,
            ndim: 0,
            format: std::ptr::null_mut(),
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            suboffsets: std::ptr::null_mut(),
            internal: std::ptr::null_mut(),
        });
        // SAFETY: the object is alive, and the view has the layout that CPython fills.
        let failed = unsafe { PyObject_GetBuffer(object.as_ptr(), &raw mut *view, flags) };
        if failed != 0 {
            return Err(PyErr::take(object.py())
                .unwrap_or_else(|| PyBufferError::new_err("the object has no buffer")));
        }
        Ok(Self { view })
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        usize::try_from(self.view.len).unwrap_or(0)
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        if self.len() == 0 {
            return &[];
        }
        // SAFETY: the exporter keeps `len` contiguous bytes at `buf` until the view is released.
        // Another thread may write them meanwhile, as with every `write` of CPython's `io`: the
        // bytes that are stored are then any mix, but each is read once, into a checksum or a copy.
        unsafe { std::slice::from_raw_parts(self.view.buf.cast(), self.len()) }
    }

    /// Returns the bytes, for writing.
    ///
    /// # Panics
    /// If the buffer was borrowed for reading.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(self.view.readonly == 0, "the buffer is borrowed for writing");
        if self.len() == 0 {
            return &mut [];
        }
        // SAFETY: as in `bytes`; the exporter agreed to writes. Another thread that uses the same
        // object meanwhile sees any mix of old and new bytes, as with every `readinto` of `io`.
        unsafe { std::slice::from_raw_parts_mut(self.view.buf.cast(), self.len()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the view was filled by `PyObject_GetBuffer` and is released once, attached.
        Python::attach(|_| unsafe { PyBuffer_Release(&raw mut *self.view) });
    }
}
