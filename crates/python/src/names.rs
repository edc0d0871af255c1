//! `FileSystem`: directories and names, called as in `os`.
//!
//! Owns these methods. Each takes paths as `str`, `bytes` or `os.PathLike`.

use crate::errors::Raise;
use crate::file::{File, OpenMode, open_file};
use crate::file_system::FileSystem;
use crate::paths::{PathArg, name_object};
use crate::scan::ScanDir;
use crate::stat::StatResult;
use papilio::{Error, NewKind, PathError, RenameMode};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::Arc;

/// The file type in `st_mode`.
const TYPE_MASK: u32 = 0o170_000;

#[pymethods]
impl FileSystem {
    /// Returns the metadata of an inode.
    #[pyo3(signature = (path, *, follow_symlinks = true))]
    fn stat(&self, py: Python<'_>, path: PathArg, follow_symlinks: bool) -> PyResult<StatResult> {
        let found = self.run(py, |fs| {
            if follow_symlinks { fs.metadata(&path.bytes) } else { fs.symlink_metadata(&path.bytes) }
        })?;
        Ok(found.raise_at(&path)?.into())
    }

    /// Returns the metadata of an inode, without following a symbolic link.
    fn lstat(&self, py: Python<'_>, path: PathArg) -> PyResult<StatResult> {
        Ok(self.run(py, |fs| fs.symlink_metadata(&path.bytes))?.raise_at(&path)?.into())
    }

    /// Returns the names in a directory, in the order of their creation.
    #[pyo3(signature = (path = None))]
    fn listdir<'py>(&self, py: Python<'py>, path: Option<PathArg>) -> PyResult<Bound<'py, PyList>> {
        let path = path.unwrap_or_else(|| PathArg::text(b"/".to_vec()));
        let names = self.run(py, |fs| {
            let entries = fs.read_dir(&path.bytes)?;
            entries.map(|entry| Ok(entry?.file_name().to_vec())).collect::<papilio::Result<Vec<_>>>()
        })?;
        let list = PyList::empty(py);
        for name in names.raise_at(&path)? {
            list.append(name_object(py, &name, path.is_bytes)?)?;
        }
        Ok(list)
    }

    /// Returns an iterator over the entries of a directory, which is also a context manager.
    #[pyo3(signature = (path = None))]
    fn scandir(&self, py: Python<'_>, path: Option<PathArg>) -> PyResult<ScanDir> {
        let path = path.unwrap_or_else(|| PathArg::text(b"/".to_vec()));
        let entries = self.run(py, |fs| fs.read_dir(&path.bytes))?.raise_at(&path)?;
        Ok(ScanDir::new(Arc::clone(&self.handle), path, entries.with_inodes()))
    }

    /// Creates a directory.
    #[pyo3(signature = (path, mode = 0o777))]
    fn mkdir(&self, py: Python<'_>, path: PathArg, mode: u32) -> PyResult<()> {
        let new = self.handle.new_inode(NewKind::Directory, mode);
        self.run(py, |fs| fs.create(&path.bytes, &new).map(drop))?.raise_at(&path)
    }

    /// Removes an empty directory.
    fn rmdir(&self, py: Python<'_>, path: PathArg) -> PyResult<()> {
        self.run(py, |fs| fs.remove_dir(&path.bytes))?.raise_at(&path)
    }

    /// Removes a name of a file; its last one deletes the file.
    fn unlink(&self, py: Python<'_>, path: PathArg) -> PyResult<()> {
        self.run(py, |fs| fs.remove_file(&path.bytes))?.raise_at(&path)
    }

    /// Renames src to dst and replaces a file or an empty directory there.
    #[pyo3(signature = (src, dst, *, no_replace = false, exchange = false))]
    fn rename(
        &self,
        py: Python<'_>,
        src: PathArg,
        dst: PathArg,
        no_replace: bool,
        exchange: bool,
    ) -> PyResult<()> {
        let mode = match (no_replace, exchange) {
            (false, false) => RenameMode::Replace,
            (true, false) => RenameMode::NoReplace,
            (false, true) => RenameMode::Exchange,
            (true, true) => return Err(PyValueError::new_err("no_replace and exchange exclude each other")),
        };
        self.run(py, |fs| fs.rename_with(&src.bytes, &dst.bytes, mode))?.raise_between(&src, &dst)
    }

    /// Gives the inode src the further name dst. Does not follow a symbolic link.
    #[pyo3(signature = (src, dst, *, follow_symlinks = false))]
    fn link(&self, py: Python<'_>, src: PathArg, dst: PathArg, follow_symlinks: bool) -> PyResult<()> {
        let linked = self.run(py, |fs| {
            if !follow_symlinks {
                return fs.hard_link(&src.bytes, &dst.bytes);
            }
            let target = fs.inode(&src.bytes)?;
            let (parent, name) = fs.parent(&dst.bytes)?;
            parent.hard_link(&target, name)
        })?;
        linked.raise_between(&src, &dst)
    }

    /// Creates a symbolic link at dst that points to src.
    fn symlink(&self, py: Python<'_>, src: PathArg, dst: PathArg) -> PyResult<()> {
        let new = self.handle.new_inode(NewKind::Symlink(&src.bytes), 0o777);
        self.run(py, |fs| fs.create(&dst.bytes, &new).map(drop))?.raise_between(&src, &dst)
    }

    /// Returns the target of a symbolic link.
    fn readlink<'py>(&self, py: Python<'py>, path: PathArg) -> PyResult<Bound<'py, PyAny>> {
        let target = self.run(py, |fs| fs.read_link(&path.bytes))?.raise_at(&path)?;
        name_object(py, &target, path.is_bytes)
    }

    /// Creates a file, a FIFO, a socket or a device file. The device number is that of os.makedev.
    #[pyo3(signature = (path, mode = 0o600, device = 0))]
    fn mknod(&self, py: Python<'_>, path: PathArg, mode: u32, device: u64) -> PyResult<()> {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let kind = match mode & TYPE_MASK {
            0 | 0o100_000 => NewKind::Regular,
            0o010_000 => NewKind::Fifo,
            0o140_000 => NewKind::Socket,
            0o020_000 => NewKind::CharacterDevice { major, minor },
            0o060_000 => NewKind::BlockDevice { major, minor },
            _ => return Err(PyValueError::new_err("mknod makes neither directories nor symbolic links")),
        };
        let new = self.handle.new_inode(kind, mode);
        self.run(py, |fs| fs.create(&path.bytes, &new).map(drop))?.raise_at(&path)
    }

    /// Changes the size of a file.
    fn truncate(&self, py: Python<'_>, path: PathArg, length: u64) -> PyResult<()> {
        self.run(py, |fs| fs.open_file(&path.bytes)?.set_len(length))?.raise_at(&path)
    }

    /// Makes one file or directory durable, without a commit where the log tree allows it.
    fn fsync(&self, py: Python<'_>, path: PathArg) -> PyResult<()> {
        self.run(py, |fs| fs.inode(&path.bytes)?.sync_all())?.raise_at(&path)
    }

    /// Opens a file for the classes of the Python package.
    #[pyo3(signature = (path, *, read, write, create, exclusive, truncate, append, mode = 0o666, direct = false))]
    #[expect(clippy::too_many_arguments, reason = "they are keyword arguments in Python")]
    fn _open(
        &self,
        py: Python<'_>,
        path: PathArg,
        read: bool,
        write: bool,
        create: bool,
        exclusive: bool,
        truncate: bool,
        append: bool,
        mode: u32,
        direct: bool,
    ) -> PyResult<File> {
        let how = OpenMode { write, create, exclusive, truncate };
        let new = self.handle.new_inode(NewKind::Regular, mode);
        let opened = self.run(py, |fs| {
            let mut file = open_file(fs, &path.bytes, how, &new)?;
            file.set_direct(direct);
            Ok::<_, Error>(file)
        })?;
        let slot = self.handle.give("file", opened.raise_at(&path)?);
        Ok(File::new(Arc::clone(&self.handle), slot, path, read, write, append))
    }

    /// Whether a path exists: 'd' for a directory, 'f' for a file, 'l' for a symbolic link, '?' for
    /// other kinds; None if not.
    #[pyo3(signature = (path, *, follow_symlinks = true))]
    fn _kind(&self, py: Python<'_>, path: PathArg, follow_symlinks: bool) -> PyResult<Option<char>> {
        let found = self.run(py, |fs| {
            if follow_symlinks { fs.metadata(&path.bytes) } else { fs.symlink_metadata(&path.bytes) }
        })?;
        match found {
            Ok(metadata) if metadata.is_dir() => Ok(Some('d')),
            Ok(metadata) if metadata.is_file() => Ok(Some('f')),
            Ok(metadata) if metadata.is_symlink() => Ok(Some('l')),
            Ok(_) => Ok(Some('?')),
            Err(Error::Path {
                kind:
                    PathError::NotFound
                    | PathError::NotADirectory
                    | PathError::SymlinkLoop
                    | PathError::NameTooLong
                    | PathError::NoSubvolume,
                ..
            }) => Ok(None),
            Err(error) => Err(error).raise_at(&path),
        }
    }
}
