//! The files of jobs: look-up, layout, open and removal.
//!
//! fio does this itself for files on the host and leaves it to the engine for others. This file
//! follows fio's rules and honours the same options (`fallocate`, `overwrite`, `create_fsync` and
//! others). It takes no locks.

use crate::error::EngineError;
use crate::options::{Fallocate, JobOptions};
use papilio::{ErrorKind, File, FileSystem, PathError};

/// Bytes per write when a file is filled.
const FILL_STEP: usize = 1 << 20;

/// The files of a job in a file system.
#[derive(Clone, Copy, Debug)]
pub struct Files<'a> {
    /// The file system.
    pub fs: &'a FileSystem,
    /// The options of the job.
    pub options: &'a JobOptions,
}

/// Returns the path of a file in the file system: below `root=`, also for a name that is absolute
/// on the host.
pub fn inner_path(root: &str, name: &str) -> String {
    let mut path = String::new();
    for part in root.split('/').chain(name.split('/')).filter(|part| !matches!(*part, "" | ".")) {
        path.push('/');
        path.push_str(part);
    }
    path
}

impl Files<'_> {
    fn path(&self, name: &str) -> String {
        inner_path(&self.options.root, name)
    }

    fn error(what: &'static str, path: &str) -> impl Fn(papilio::Error) -> EngineError {
        move |source| EngineError::File { what, file: path.to_owned(), source: Box::new(source) }
    }

    /// Opens the file; returns `None` if it does not exist.
    ///
    /// # Errors
    /// The look-up fails.
    pub fn find(&self, name: &str) -> Result<Option<File>, EngineError> {
        let path = self.path(name);
        match self.fs.open_file(&path) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == ErrorKind::Path(PathError::NotFound) => Ok(None),
            Err(error) => Err(Self::error("opening", &path)(error)),
        }
    }

    /// Opens the file for I/O. Creates a missing file if the job may create files.
    ///
    /// # Errors
    /// The look-up or the creation fails.
    pub fn open(&self, name: &str) -> Result<File, EngineError> {
        match self.find(name)? {
            Some(file) => Ok(file),
            None => self.create(name),
        }
    }

    /// Writes back the file's dirty pages and drops the file from the cache.
    ///
    /// # Errors
    /// Writeback fails.
    pub fn forget(&self, file: &File, name: &str) -> Result<(), EngineError> {
        file.drop_cache().map_err(Self::error("writing back", &self.path(name)))
    }

    /// Returns the size of an open file in bytes.
    ///
    /// # Errors
    /// The inode cannot be read.
    pub fn size(&self, file: &File, name: &str) -> Result<u64, EngineError> {
        file.size().map_err(Self::error("reading the size of", &self.path(name)))
    }

    /// Removes the file.
    ///
    /// # Errors
    /// The removal fails, or the file does not exist.
    pub fn remove(&self, name: &str) -> Result<(), EngineError> {
        let path = self.path(name);
        self.fs.remove_file(&path).map_err(Self::error("removing", &path))
    }

    /// Lays out a file that is shorter than `size`, as fio does on the host, and returns it. `fill`
    /// generates content that will be read.
    ///
    /// # Errors
    /// An operation on the file fails.
    pub fn lay_out(
        &self,
        name: &str,
        size: u64,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<File, EngineError> {
        let options = self.options;
        let path = self.path(name);
        let found = self.find(name)?;
        if let Some(file) = &found
            && self.size(file, name)? >= size
        {
            return Ok(file.clone());
        }
        let filled = options.reads || (options.writes && options.overwrite && !options.append);
        let anew = filled || (options.writes && !options.overwrite && !options.append);
        let file = match found {
            Some(file) if !anew => file,
            Some(file) => {
                drop(file);
                self.remove(name)?;
                self.create(name)?
            }
            None => self.create(name)?,
        };
        match options.fallocate {
            Fallocate::None => {}
            Fallocate::Whole => {
                file.allocate(0, size, false).map_err(Self::error("allocating", &path))?;
            }
            Fallocate::KeepSize => {
                file.allocate(0, size, true).map_err(Self::error("allocating", &path))?;
            }
            Fallocate::Truncate => file.set_len(size).map_err(Self::error("extending", &path))?,
        }
        if filled {
            file.set_len(size).map_err(Self::error("extending", &path))?;
            let mut buffer = vec![0; FILL_STEP.min(usize::try_from(size).unwrap_or(FILL_STEP))];
            let mut at = 0;
            while at < size {
                let step = usize::try_from(size - at).map_or(buffer.len(), |left| left.min(buffer.len()));
                fill(&mut buffer[..step]);
                file.write_all_at(&buffer[..step], at).map_err(Self::error("filling", &path))?;
                at += step as u64;
            }
        }
        if options.create_fsync {
            file.sync_all().map_err(Self::error("syncing", &path))?;
        }
        Ok(file)
    }

    fn create(&self, name: &str) -> Result<File, EngineError> {
        let path = self.path(name);
        if !self.options.may_create {
            return Err(EngineError::Value {
                job: self.options.name.clone(),
                option: "allow_file_create",
                value: "0".to_owned(),
                reason: format!("the file {path} does not exist"),
            });
        }
        self.create_parents(&path)?;
        match self.fs.create_file(&path) {
            Ok(file) => Ok(file),
            // Another job created it first.
            Err(error) if error.kind() == ErrorKind::Path(PathError::Exists) => {
                self.fs.open_file(&path).map_err(Self::error("opening", &path))
            }
            Err(error) => Err(Self::error("creating", &path)(error)),
        }
    }

    fn create_parents(&self, path: &str) -> Result<(), EngineError> {
        for (at, _) in path.match_indices('/').skip(1) {
            match self.fs.create_dir(&path[..at]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Path(PathError::Exists) => {}
                Err(error) => return Err(Self::error("creating", &path[..at])(error)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_below_root() {
        for (root, name, path) in [
            ("", "job.0.0", "/job.0.0"),
            ("", "/tmp/x", "/tmp/x"),
            ("/", "./x", "/x"),
            ("bench", "x", "/bench/x"),
            ("/a//b/", "c/./d", "/a/b/c/d"),
        ] {
            assert_eq!(inner_path(root, name), path);
        }
    }
}
