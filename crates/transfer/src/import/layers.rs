//! Filling from layers that lie on top of one another.
//!
//! Owns [`Layer`] and the methods of [`Populate`] that take layers. A later layer replaces what
//! earlier ones have, as the layers of a container image do: by name, directories with all that is
//! in them where another kind takes their place. Directories with the same name merge.

use super::estimate::Estimate;
use super::oci::{Blob, Store};
use super::options::{Existing, Populate, PopulateObserver, Populated};
use super::replacing::Replacing;
use super::writer::TreeWriter;
use super::{estimate, must_be_directory, tar};
use papilio_engine::errors::{Error, Result};
use papilio_fs::Inode;
use std::fs::File;
use std::path::{Path, PathBuf};

/// A layer, or the layers of a container image.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layer {
    /// A directory of the host.
    Directory(PathBuf),
    /// A tar archive, which may be compressed. Its whiteouts delete what lower layers have.
    Archive(PathBuf),
    /// A container image: an OCI image layout, as a directory or an uncompressed tar archive, or an
    /// archive of `docker save`.
    Image {
        /// The directory or archive.
        path: PathBuf,
        /// Which image, if it has several: its name or tag.
        reference: Option<String>,
    },
}

impl Populate {
    /// Unpacks layers into the directory `into`, the lowest first.
    ///
    /// # Errors
    /// As [`Populate::directory`] and [`Populate::tar`]; an image that is invalid, or whose layer
    /// does not match its digest.
    pub fn layers(
        &self,
        layers: &[Layer],
        into: &Inode,
        observer: &mut dyn PopulateObserver,
    ) -> Result<Populated> {
        must_be_directory(into)?;
        if self.reflink {
            return Err(Error::Invalid("layers share no blocks with an image".to_owned()));
        }
        let replacing = Self { existing: Existing::Replace, ..self.clone() };
        let mut writer = TreeWriter::new(&replacing, into, observer)?;
        writer.replacing = Replacing::ByLayer;
        for layer in layers {
            match layer {
                Layer::Directory(path) => {
                    replacing.walk_host(path, into, None, &mut |event| writer.take(event))?
                }
                Layer::Archive(path) => tar::unpack(path, open(path)?, into, &mut writer)?,
                Layer::Image { path, reference } => {
                    let store = Store::open(path)?;
                    for blob in store.layers(reference.as_deref())? {
                        unpack_blob(&store, &blob, into, &mut writer)?;
                    }
                }
            }
        }
        self.finish_subvolumes(into, &writer)?;
        writer.check_inode_flags()?;
        Ok(writer.done)
    }

    /// Estimates the size as [`Populate::estimated_size`], for layers, which are read to their
    /// ends.
    ///
    /// # Errors
    /// A layer that cannot be read or is invalid.
    pub fn estimated_size_of_layers(&self, layers: &[Layer]) -> Result<u64> {
        let mut sum = Estimate::default();
        for layer in layers {
            match layer {
                Layer::Directory(path) => sum.add(estimate::of_directory(path, &self.excluded)?),
                Layer::Archive(path) => sum.add(tar::estimate(path, open(path)?)?),
                Layer::Image { path, reference } => {
                    let store = Store::open(path)?;
                    for blob in store.layers(reference.as_deref())? {
                        sum.add(tar::estimate(&blob.shown(path), store.read(&blob)?)?);
                    }
                }
            }
        }
        Ok(sum.file_system_size())
    }
}

/// Unpacks a layer of an image, and compares it with its digest.
fn unpack_blob(store: &Store, blob: &Blob, into: &Inode, writer: &mut TreeWriter<'_>) -> Result<()> {
    let shown = blob.shown(store.path());
    let mut verified = store.read(blob)?;
    tar::unpack(&shown, &mut verified, into, writer)?;
    verified.finish().map_err(|source| Error::Host { path: shown, source })
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|source| Error::Host { path: path.to_path_buf(), source })
}
