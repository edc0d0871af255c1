//! What a run gives up before it reads images that others wrote.
//!
//! Owns [`Confinement`], which takes the steps of [`papilio_sandbox`] at the right times, and keeps
//! the devices that were opened before: nothing opens them again afterwards.
//!
//! **Invariants**
//! - A run takes the steps for one job, that of its first call. A shell takes none, because its
//!   commands have different jobs.
//! - The second step comes when each image that the command named has its devices open. If one
//!   cannot be opened, the run stays at the first step.
//! - `papilio-store` takes none: the network is its job.

use crate::context::Context;
use crate::holder;
use crate::mounted::Target;
use crate::path::parse_image_path;
use crate::time;
use papilio::device::{Device, object_stores};
use papilio_sandbox::{Job, Mode, Report, Sandbox};
use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Messages about the sandbox are printed from this verbosity on.
const VERBOSE: i16 = 2;

/// The devices of an image.
type Devices = Vec<Arc<dyn Device>>;

/// What this run has given up so far.
#[derive(Default)]
pub struct Confinement {
    /// Whether no step is taken any more.
    is_settled: Cell<bool>,
    /// The sandbox between its two steps.
    entered: RefCell<Option<Sandbox>>,
    /// The images whose devices are not open yet.
    pending: RefCell<Vec<PathBuf>>,
    /// The devices of images, since the first step.
    kept: RefCell<Vec<(PathBuf, Devices)>>,
}

impl Confinement {
    /// Takes no step from now on.
    pub fn forbid(&self) {
        self.is_settled.set(true);
    }

    fn is_active(&self) -> bool {
        self.entered.borrow().is_some() || !self.kept.borrow().is_empty()
    }
}

impl Context {
    /// Leaves this run with the right to read the images of `operands`, which have the form
    /// `IMAGE:/path`. Wrong operands are left to the command.
    pub fn confine_to_operands(&self, operands: &[OsString]) {
        let images = operands.iter().filter_map(|operand| parse_image_path(operand).ok());
        self.confine_to_images(images.map(|path| path.image));
    }

    /// As [`Self::confine_to_operands`], for operands that may also be in a mount. The kernel reads
    /// mounts, so the run then keeps its rights.
    pub fn confine_to_targets(&self, operands: &[OsString]) {
        let images = operands.iter().map(|operand| match Target::parse(operand) {
            Ok(Target::Image(path)) => Some(path.image),
            Ok(Target::Mounted(_)) | Err(_) => None,
        });
        if let Some(images) = images.collect::<Option<Vec<_>>>() {
            self.confine_to_images(images);
        }
    }

    /// As [`Self::confine_to_targets`], for one target.
    pub fn confine_to_target(&self, target: &Target) {
        if let Target::Image(path) = target {
            self.confine_to_images([path.image.clone()]);
        }
    }

    /// As [`Self::confine_to_target`], for a path that stands for its mount if it is mounted.
    pub fn confine_to_place(&self, path: &Path) {
        if let Ok(target) = Target::parse(holder::place_of(path).as_os_str()) {
            self.confine_to_target(&target);
        }
    }

    /// Leaves this run with the right to read `images`.
    pub fn confine_to_images(&self, images: impl IntoIterator<Item = PathBuf>) {
        self.confine(Sandbox::for_job(Job::Read, self.sandbox_mode()), images);
    }

    /// Leaves this run with the right to read `images`, and to write the file at `output`, which may
    /// be new, or be a directory.
    pub fn confine_to_output(&self, output: &Path, images: impl IntoIterator<Item = PathBuf>) {
        let whole = output.canonicalize();
        let place = match (&whole, output.is_symlink()) {
            // A file is written in its place, or by another one beside it.
            (Ok(whole), _) if whole.is_file() => whole.parent().unwrap_or(whole),
            (Ok(whole), _) => whole,
            (Err(_), false) => match output.parent() {
                Some(folder) if !folder.as_os_str().is_empty() => folder,
                _ => Path::new("."),
            },
            // The file appears where the link leads.
            (Err(_), true) => return,
        };
        self.confine(Sandbox::for_job(Job::Extract, self.sandbox_mode()).writes_below(place), images);
    }

    /// Leaves this run with the rights of `sandbox`: takes its first step now, and the second one
    /// when the devices of all `images` are open. Without images, [`Self::seal`] takes it.
    pub fn confine(&self, sandbox: Sandbox, images: impl IntoIterator<Item = PathBuf>) {
        let own = &self.confinement;
        // fakeroot asks a process of its own about every file.
        let is_fake = std::env::var_os("FAKEROOTKEY").is_some();
        let is_off = self.sandbox_mode() == Mode::Off || object_stores().is_ok() || is_fake;
        if own.is_settled.replace(true) || is_off {
            return;
        }
        // These are files of the host that are read once.
        time::zone();
        papilio_layers::keep_terminal();
        self.tell(&sandbox.enter());
        let mut pending: Vec<PathBuf> = images.into_iter().collect();
        pending.sort();
        pending.dedup();
        let several = pending.len() > 1;
        own.pending.replace(pending.clone());
        own.entered.replace(Some(sandbox));
        for image in pending.iter().filter(|_| several) {
            // The command opens it again, and reports what is wrong with it.
            let _ = self.devices_of(image, || papilio::open_devices(image, &self.options_for(image)));
        }
    }

    /// Returns the devices of an image: those that are open already since the run is confined, or
    /// those that `open` opens.
    pub fn devices_of<E>(
        &self,
        image: &Path,
        open: impl FnOnce() -> Result<Devices, E>,
    ) -> Result<Devices, E> {
        let own = &self.confinement;
        if let Some((_, devices)) = own.kept.borrow().iter().find(|(path, _)| path == image) {
            return Ok(devices.clone());
        }
        let devices = open()?;
        if own.is_active() {
            own.kept.borrow_mut().push((image.to_owned(), devices.clone()));
            let mut pending = own.pending.borrow_mut();
            let before = pending.len();
            pending.retain(|path| path != image);
            let is_last = before > 0 && pending.is_empty();
            drop(pending);
            if is_last {
                self.seal();
            }
        }
        Ok(devices)
    }

    /// Takes the second step, if the first one was taken: everything that the command needs is
    /// open.
    pub fn seal(&self) {
        if let Some(sandbox) = self.confinement.entered.take() {
            self.tell(&sandbox.seal(papilio_layers::known_secret().is_some()));
        }
    }

    fn tell(&self, report: &Report) {
        if self.verbosity >= VERBOSE {
            self.note(format_args!("sandbox: {report}"));
        }
    }
}
