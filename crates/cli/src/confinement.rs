//! [`Confinement`]: how much a run has given up before it reads images that others wrote.
//!
//! **Invariants**
//! - A run takes the steps for one job, that of its first call. A shell takes none, because its
//!   commands have different jobs.
//! - Devices that are opened after the first step stay open, as nothing opens them again later.

use papilio::device::Device;
use papilio_sandbox::Sandbox;
use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The devices of an image.
pub type Devices = Vec<Arc<dyn Device>>;

/// The steps that a run has taken.
#[derive(Default)]
pub struct Confinement {
    /// Whether no job is chosen any more.
    is_settled: Cell<bool>,
    /// Whether the first step was taken.
    is_entered: Cell<bool>,
    /// The sandbox between its two steps.
    between: RefCell<Option<Sandbox>>,
    /// The images whose devices are not open yet.
    pending: RefCell<Vec<PathBuf>>,
    /// The devices of images, since the first step.
    kept: RefCell<Vec<(PathBuf, Devices)>>,
}

impl Confinement {
    /// Lets the run take no step from now on. Returns whether that was so before.
    pub fn forbid(&self) -> bool {
        self.is_settled.replace(true)
    }

    /// Notes the first step, and the images whose devices will be opened.
    pub fn enter(&self, sandbox: Sandbox, images: Vec<PathBuf>) {
        self.is_entered.set(true);
        self.pending.replace(images);
        self.between.replace(Some(sandbox));
    }

    /// Returns the sandbox for its second step, once, if the first one was taken.
    pub fn leave(&self) -> Option<Sandbox> {
        self.between.take()
    }

    /// Returns the devices of an image that are open since the first step.
    pub fn kept(&self, image: &Path) -> Option<Devices> {
        let kept = self.kept.borrow();
        kept.iter().find(|(path, _)| path == image).map(|(_, devices)| devices.clone())
    }

    /// Keeps the devices of an image, if the first step was taken. Returns whether it is the last
    /// of the images.
    pub fn keep(&self, image: &Path, devices: &Devices) -> bool {
        if !self.is_entered.get() {
            return false;
        }
        self.kept.borrow_mut().push((image.to_owned(), devices.clone()));
        let mut pending = self.pending.borrow_mut();
        let before = pending.len();
        pending.retain(|path| path != image);
        before > 0 && pending.is_empty()
    }
}
