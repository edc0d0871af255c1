//! The native part of the Python package `papilio`: the module `papilio._papilio`.
//!
//! The Python files of the package build on it: file objects, paths, `walk` and the fsspec file
//! system are written in Python. This crate translates calls and holds no file-system logic.
//!
//! - `handle`, `slot`: the objects of an open file system, closing, and the refusal after a fork
//! - `file_system`, `names`, `attributes`, `subvolumes`, `streams`, `archive`, `older`: the class
//!   `FileSystem`
//! - `backup`, `backup_results`: the class `Repository`, and those of its results
//! - `file`, `queue`, `scan`, `stat`, `usage`, `check`, `mkfs`: the other classes and functions
//! - `paths`, `buffer`, `times`, `errors`: conversions
//! - `device`: devices that read by a Python callback
//!
//! **Invariants**
//! - The GIL is released around every call of the library that can do I/O, so that no thread waits
//!   for a lock of the library while it holds the GIL.
//! - No lock of this crate is held while Python code runs.

#![deny(unsafe_op_in_unsafe_fn)]

mod archive;
mod attributes;
mod backup;
mod backup_results;
mod buffer;
mod check;
mod device;
mod errors;
mod file;
mod file_system;
mod handle;
mod mkfs;
mod names;
mod older;
mod older_file;
mod past;
mod paths;
mod queue;
mod scan;
mod slot;
mod space_sharing;
mod stat;
mod streams;
mod subvolumes;
mod times;
mod usage;

use pyo3::prelude::*;

/// The native part of papilio.
#[pymodule(name = "_papilio")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    #[cfg(feature = "store")]
    papilio_store::install();
    let py = module.py();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("CorruptError", py.get_type::<errors::CorruptError>())?;
    module.add("UnsupportedError", py.get_type::<errors::UnsupportedError>())?;
    module.add("IncompleteError", py.get_type::<errors::IncompleteError>())?;
    module.add("ForkError", py.get_type::<errors::ForkError>())?;
    module.add("DEFAULT_SUBVOLUME", file_system::DEFAULT_SUBVOLUME)?;
    module.add_class::<file_system::FileSystem>()?;
    module.add_class::<file::File>()?;
    module.add_class::<queue::Queue>()?;
    module.add_class::<queue::Completion>()?;
    module.add_class::<scan::ScanDir>()?;
    module.add_class::<scan::DirEntry>()?;
    module.add_class::<stat::StatResult>()?;
    module.add_class::<subvolumes::Subvolume>()?;
    module.add_class::<space_sharing::SpaceSharing>()?;
    module.add_class::<space_sharing::SubvolumeSpace>()?;
    module.add_class::<past::FileVersion>()?;
    module.add_class::<past::SnapshotOnly>()?;
    module.add_class::<past::Change>()?;
    module.add_class::<past::HistoryStep>()?;
    module.add_class::<past::DeletedSubvolume>()?;
    module.add_class::<past::Relief>()?;
    module.add_class::<usage::Usage>()?;
    module.add_class::<usage::SpaceUsage>()?;
    module.add_class::<usage::DeviceUsage>()?;
    module.add_class::<check::CheckReport>()?;
    module.add_class::<check::Finding>()?;
    module.add_class::<mkfs::Made>()?;
    module.add_class::<mkfs::ContentUpdate>()?;
    module.add_class::<older::OlderState>()?;
    module.add_class::<older_file::OlderFile>()?;
    module.add_class::<device::Device>()?;
    module.add_class::<backup::Repository>()?;
    module.add_class::<backup_results::Backup>()?;
    module.add_class::<backup_results::BackupFault>()?;
    module.add_class::<backup_results::BackupKey>()?;
    module.add_function(wrap_pyfunction!(check::check, module)?)?;
    module.add_function(wrap_pyfunction!(archive::verify_archive, module)?)?;
    module.add_function(wrap_pyfunction!(archive::restore_archive, module)?)?;
    module.add_function(wrap_pyfunction!(past::find_deleted_subvolumes, module)?)?;
    #[cfg(target_os = "linux")]
    module.add_function(wrap_pyfunction!(streams::receive, module)?)?;
    module.add_function(wrap_pyfunction!(mkfs::update_content, module)?)?;
    module.add_function(wrap_pyfunction!(mkfs::mkfs, module)?)
}
