//! Devices over devices, which the layers of a program open.
//!
//! Owns [`Layers`], the request of its calls, and the process's installed layers. LUKS, md and LVM
//! are in the crate `papilio-layers`, which brings ciphers and key derivation. Programs that need
//! none of them do not compile it.
//!
//! **Invariant**: the first layers that a program installs stay until it ends.

use crate::device::Device;
use crate::error::OpenErrorKind;
use crate::image::ImageOptions;
use crate::open::OpenOptions;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// The device that is wanted of those over a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerChoice<'a> {
    /// The one that has a Btrfs file system.
    Btrfs,
    /// The one that nothing lies on.
    Top,
    /// The logical volume `GROUP/VOLUME`.
    Volume(&'a str),
}

/// A request to open the layers over a device.
#[derive(Clone, Debug)]
pub struct LayerRequest<'a> {
    /// The path of the file that has the device.
    pub path: &'a Path,
    /// How further members are opened.
    pub open: &'a OpenOptions,
    /// How images of further members are opened.
    pub image: &'a ImageOptions,
    /// The device that is wanted.
    pub choice: LayerChoice<'a>,
}

/// Finds and opens encrypted volumes, arrays and logical volumes over a device.
pub trait Layers: Send + Sync {
    /// Returns whether a layer lies on a device. A Btrfs file system on it may be the layer's: a
    /// mirror of md with its metadata at the end shows it on each member.
    fn is_layer(&self, device: &dyn Device) -> bool;

    /// Opens the device that is wanted of those over `base`.
    ///
    /// # Errors
    /// Damaged or unsupported headers; a wrong key; members that are missing; no such device.
    fn open(
        &self,
        base: Arc<dyn Device>,
        request: &LayerRequest<'_>,
    ) -> Result<Arc<dyn Device>, OpenErrorKind>;
}

static INSTALLED: OnceLock<&'static dyn Layers> = OnceLock::new();

/// Installs the layers of this process, and returns whether there were none before.
pub fn install_layers(layers: &'static dyn Layers) -> bool {
    INSTALLED.set(layers).is_ok()
}

/// Returns the layers of this process, if the program installed some.
pub(crate) fn layers() -> Option<&'static dyn Layers> {
    INSTALLED.get().copied()
}
