//! Open files. The file objects of the Python package read and write through them.
//!
//! Owns [`File`] and [`open_file`].

use crate::buffer::Buffer;
use crate::errors::Raise;
use crate::handle::Handle;
use crate::paths::PathArg;
use crate::slot::Slot;
use crate::stat::StatResult;
use papilio::NewInode;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;

/// How a file is opened.
#[derive(Clone, Copy, Debug)]
pub struct OpenMode {
    /// For writing too.
    pub write: bool,
    /// A missing file is created.
    pub create: bool,
    /// A file that exists is refused.
    pub exclusive: bool,
    /// The content is removed.
    pub truncate: bool,
}

/// Opens a file, and creates it if `how` asks for it (`open` with `O_CREAT`): also at the target of
/// a symbolic link, unless a new file is demanded.
pub fn open_file(
    fs: &papilio::FileSystem,
    path: &[u8],
    how: OpenMode,
    new: &NewInode<'_>,
) -> papilio::Result<papilio::File> {
    if how.exclusive {
        return fs.create(path, new)?.open();
    }
    let file = if how.create { fs.open_or_create(path, new) } else { fs.open_file(path) }?;
    if how.write {
        file.inode().check_changeable()?;
    }
    if how.truncate {
        file.set_len(0)?;
    }
    Ok(file)
}

/// An open regular file. Every method takes the offset, and any thread may call it.
#[pyclass(name = "File", module = "papilio._papilio", frozen)]
pub struct File {
    handle: Arc<Handle>,
    slot: Arc<Slot<papilio::File>>,
    path: PathArg,
    read: bool,
    write: bool,
    append: bool,
}

impl File {
    pub fn new(
        handle: Arc<Handle>,
        slot: Arc<Slot<papilio::File>>,
        path: PathArg,
        read: bool,
        write: bool,
        append: bool,
    ) -> Self {
        Self { handle, slot, path, read, write, append }
    }

    /// Returns the library's file, and the path that it was opened by.
    pub fn opened(&self) -> PyResult<(Arc<papilio::File>, PathArg)> {
        Ok((self.slot.get()?, self.path.clone()))
    }

    /// Runs `job` on the library's file, without the GIL.
    fn run<R: Send>(
        &self,
        py: Python<'_>,
        job: impl FnOnce(&papilio::File) -> papilio::Result<R> + Send,
    ) -> PyResult<R> {
        let file = self.slot.get()?;
        py.detach(move || job(&file)).raise_at(&self.path)
    }
}

#[pymethods]
impl File {
    /// Reads into a writable buffer and returns the number of bytes; fewer only at the end.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let mut buffer = Buffer::writable(buffer)?;
        self.run(py, |file| file.read_at(buffer.bytes_mut(), offset))
    }

    /// Reads up to size bytes.
    fn read<'py>(&self, py: Python<'py>, size: usize, offset: u64) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.slot.get()?;
        let left = py.detach(|| file.size()).raise_at(&self.path)?.saturating_sub(offset);
        let size = size.min(usize::try_from(left).unwrap_or(usize::MAX));
        let mut read = 0;
        let bytes = PyBytes::new_with(py, size, |buffer| {
            read = py.detach(|| file.read_at(buffer, offset)).raise_at(&self.path)?;
            Ok(())
        })?;
        // The file may have been truncated meanwhile.
        if read < size { Ok(PyBytes::new(py, &bytes.as_bytes()[..read])) } else { Ok(bytes) }
    }

    /// Writes a whole buffer and returns the offset after it; at the end of the file if it was
    /// opened for appending.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: u64) -> PyResult<u64> {
        let data = Buffer::readable(data)?;
        let bytes = data.bytes();
        if !self.append {
            self.run(py, |file| file.write_all_at(bytes, offset))?;
            return Ok(offset + bytes.len() as u64);
        }
        self.run(py, |file| {
            let _appending = self.handle.appending.lock();
            let end = file.size()?;
            file.write_all_at(bytes, end)?;
            Ok(end + bytes.len() as u64)
        })
    }

    /// The size in bytes.
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, papilio::File::size)
    }

    /// Sets the size.
    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.run(py, |file| file.set_len(size))
    }

    /// Makes the file durable.
    #[pyo3(signature = (*, data_only = false))]
    fn sync(&self, py: Python<'_>, data_only: bool) -> PyResult<()> {
        self.run(py, |file| if data_only { file.sync_data() } else { file.sync_all() })
    }

    /// The first byte of data at or after offset; None if only a hole follows.
    fn seek_data(&self, py: Python<'_>, offset: u64) -> PyResult<Option<u64>> {
        self.run(py, |file| file.seek_data(offset))
    }

    /// The first byte of a hole at or after offset; the end of the file counts as one.
    fn seek_hole(&self, py: Python<'_>, offset: u64) -> PyResult<u64> {
        self.run(py, |file| file.seek_hole(offset))
    }

    /// The metadata as it is now.
    fn stat(&self, py: Python<'_>) -> PyResult<StatResult> {
        Ok(self.run(py, papilio::File::metadata)?.into())
    }

    /// Makes a hole.
    fn punch_hole(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<()> {
        self.run(py, |file| file.punch_hole(offset, length))
    }

    /// Allocates space for a range.
    #[pyo3(signature = (offset, length, *, keep_size = false))]
    fn allocate(&self, py: Python<'_>, offset: u64, length: u64, keep_size: bool) -> PyResult<()> {
        self.run(py, |file| file.allocate(offset, length, keep_size))
    }

    /// Shares length bytes of source, all up to its end if length is 0.
    fn clone_range(
        &self,
        py: Python<'_>,
        source: &Self,
        source_offset: u64,
        length: u64,
        offset: u64,
    ) -> PyResult<()> {
        let from = source.slot.get()?;
        self.run(py, |file| file.clone_range(&from, source_offset, length, offset))
    }

    /// Shares length bytes of source where both files have the same; returns how many, or None if
    /// they differ.
    fn dedupe_range(
        &self,
        py: Python<'_>,
        source: &Self,
        source_offset: u64,
        length: u64,
        offset: u64,
    ) -> PyResult<Option<u64>> {
        let from = source.slot.get()?;
        self.run(py, |file| file.dedupe_range(&from, source_offset, length, offset))
    }

    /// Closes the file. Closing twice does nothing.
    fn close(&self, py: Python<'_>) {
        if let Some(file) = self.slot.take() {
            // The last handle of a removed file deletes it.
            py.detach(move || drop(file));
        }
    }

    /// Fails in a forked child.
    fn check_process(&self) -> PyResult<()> {
        self.slot.check_process()
    }

    /// Whether it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.slot.is_closed()
    }

    #[getter]
    fn readable(&self) -> bool {
        self.read
    }

    #[getter]
    fn writable(&self) -> bool {
        self.write
    }

    #[getter]
    fn appends(&self) -> bool {
        self.append
    }

    /// The path that it was opened by.
    #[getter]
    fn path<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.path.to_object(py)
    }
}
