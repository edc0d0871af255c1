//! The rights of a run: commands say here which ones they need.
//!
//! Owns the methods of [`Context`] that take the steps of [`papilio_sandbox`] at the right times.
//! A run without a call of them keeps its rights.
//!
//! **Invariants**
//! - The second step comes when each image that the command named has its devices open. If one
//!   cannot be opened, the run stays at the first step.
//! - `papilio-store` takes no step: the network is its job.

use crate::confinement::Devices;
use crate::context::Context;
use crate::holder;
use crate::mounted::Target;
use crate::path::parse_image_path;
use crate::time;
use papilio::device::object_stores;
use papilio_sandbox::{Job, Mode, Report, Sandbox};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Messages about the sandbox are printed from this verbosity on.
const VERBOSE: i16 = 2;

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

    /// Leaves this run with the right to read `images`, and to write to the file or directory at
    /// `output`. The file may be new.
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

    /// Leaves this run with the right to read the files that are open.
    pub fn confine_to_open_files(&self) {
        self.confine_to_images([]);
        self.seal();
    }

    /// Leaves this run with the right to read the files of a repository of backups, and to write to
    /// the directory at `output`. [`Self::seal`] takes the second step, once the key is known.
    pub fn confine_to_repository(&self, repository: &Path, output: Option<&Path>) {
        let (job, place) = match output {
            None => (Job::Read, None),
            Some(output) => match output.canonicalize() {
                Ok(place) => (Job::Extract, Some(place)),
                // The command reports it.
                Err(_) => return,
            },
        };
        let mut sandbox = Sandbox::for_job(job, self.sandbox_mode()).reads(repository);
        if let Some(place) = place {
            sandbox = sandbox.writes_below(&place);
        }
        // A sample of objects is chosen at random.
        self.confine(sandbox.reads(Path::new("/dev/urandom")), []);
    }

    /// Leaves this run with the rights of `sandbox`: takes its first step now, and the second one
    /// when the devices of all `images` are open. Without images, [`Self::seal`] takes it.
    pub fn confine(&self, sandbox: Sandbox, images: impl IntoIterator<Item = PathBuf>) {
        // fakeroot asks a process of its own about every file.
        let is_fake = std::env::var_os("FAKEROOTKEY").is_some();
        let is_off = self.sandbox_mode() == Mode::Off || object_stores().is_ok() || is_fake;
        if self.confinement.forbid() || is_off {
            return;
        }
        // These are files of the host that are read once.
        time::zone();
        papilio_layers::keep_terminal();
        papilio_layers::keep_command_secret();
        self.tell(&sandbox.enter());
        let mut pending: Vec<PathBuf> = images.into_iter().collect();
        pending.sort();
        pending.dedup();
        let several = pending.len() > 1;
        self.confinement.enter(sandbox, pending.clone());
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
        if let Some(devices) = self.confinement.kept(image) {
            return Ok(devices);
        }
        let devices = open()?;
        if self.confinement.keep(image, &devices) {
            self.seal();
        }
        Ok(devices)
    }

    /// Takes the second step, if the first one was taken: everything that the command needs is
    /// open.
    pub fn seal(&self) {
        if let Some(sandbox) = self.confinement.leave() {
            self.tell(&sandbox.seal(papilio_layers::known_secret().is_some()));
        }
    }

    fn tell(&self, report: &Report) {
        if self.verbosity >= VERBOSE {
            self.note(format_args!("sandbox: {report}"));
        }
    }
}
