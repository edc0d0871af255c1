//! `papilio device add`.

use crate::commands::filesystem::warn_of_profiles;
use crate::context::{Context, of_image};
use crate::devices::{absolute, is_same_file, open_for_writing, siblings};
use crate::jobs;
use crate::kernel_jobs;
use crate::mounted::{Mounted, Target};
use crate::output::Output;
use crate::scanning;
use crate::usage_error::UsageError;
use anyhow::{Context as _, bail};
use papilio::format::DeviceId;
use papilio::{FileSystem, FoundDevice, OpenOptions};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Add devices to a file system
///
/// New space comes from all devices at once. `balance` spreads what is there already. A seed is not
/// written: the first device becomes a new file system that builds on it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Overwrite a file system on the device
    #[arg(short, long)]
    force: bool,
    /// Accepted for compatibility; added devices are never discarded
    #[arg(short = 'K', long)]
    nodiscard: bool,
    /// Wait while the server of a mount does other work
    #[arg(long)]
    enqueue: bool,
    /// The devices or image files to add, then the file system's image or device, or a
    /// directory in its mount
    #[arg(required = true, value_name = "DEVICE... IMAGE|PATH")]
    #[arg(value_hint = clap::ValueHint::FilePath)]
    paths: Vec<PathBuf>,
}

fn was_added(context: &Context, path: &Path) -> anyhow::Result<()> {
    if context.tells_more() {
        let mut output = Output::new()?;
        output.text(format_args!("{}: was added\n", path.display()))?;
        output.finish()?;
    }
    Ok(())
}

fn report(context: &Context, path: &Path, devid: DeviceId) -> anyhow::Result<()> {
    if context.tells_more() {
        let mut output = Output::new()?;
        output.text(format_args!("{}: is device {devid} now\n", path.display()))?;
        output.finish()?;
    }
    Ok(())
}

/// How long --enqueue waits between two attempts.
const PAUSE: Duration = Duration::from_millis(100);

impl Args {
    /// Adds the devices.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let (image, added) = self.paths.split_last().expect("clap requires one");
        if added.is_empty() {
            return Err(UsageError::new("device add: name a device and an image or path").into());
        }
        if let Target::Mounted(mounted) = Target::parse(image.as_os_str())? {
            return self.run_mounted(context, &mounted, added);
        }
        // Opening the image reports what is wrong with it.
        if let Ok(Some(seed)) = FoundDevice::read(image)
            && seed.seeding
        {
            return self.sprout(context, image, &seed, added);
        }
        let fs = context.change(image)?;
        self.add_all(context, &fs, image, added)?;
        Ok(())
    }

    fn add_all(
        &self,
        context: &Context,
        fs: &FileSystem,
        image: &Path,
        added: &[PathBuf],
    ) -> anyhow::Result<()> {
        let mut own = vec![image];
        own.extend(context.arguments().device.iter().map(PathBuf::as_path));
        for path in added {
            if own.iter().any(|own| is_same_file(own, path)) {
                bail!("{}: is a device of the file system already", path.display());
            }
            own.push(path);
            let devid = fs.add_device(open_for_writing(path)?, self.force);
            report(context, path, devid.map_err(|error| of_new_device(path, error))?)?;
            context.changed_devices.note([image, path]);
        }
        Ok(())
    }

    /// Makes a new file system that builds on a seed.
    fn sprout(
        &self,
        context: &Context,
        image: &Path,
        seed: &FoundDevice,
        added: &[PathBuf],
    ) -> anyhow::Result<()> {
        let given = &context.arguments().device;
        let mut others = given.clone();
        let found = siblings(seed, given).into_iter().map(|device| device.path);
        others.extend(found.filter(|path| !given.contains(path)));
        let (first, rest) = added.split_first().expect("a device was named");
        let is_of_seed = |path: &PathBuf| path == image || others.contains(path);
        if let Some(path) = added.iter().find(|path| is_of_seed(path)) {
            bail!("{}: is a device of the seed", path.display());
        }
        let seeds = scanning::open_devices(image, &context.arguments().image_options(), &others)?;
        let options = OpenOptions::new().commit_interval(None);
        let fs = FileSystem::sprout(&seeds, &open_for_writing(first)?, self.force, &options);
        let fs = fs.map_err(|error| of_image(image, error)).with_context(|| first.display().to_string())?;
        let devid = fs.usage()?.devices.iter().map(|device| device.devid).max();
        report(context, first, devid.expect("there is a device"))?;
        context.changed_devices.note([first]);
        if context.tells_more() {
            let mut output = Output::new()?;
            let (fsid, image) = (fs.uuid(), image.display());
            output.text(format_args!("New file system {fsid} builds on the seed {image}\n"))?;
            output.finish()?;
        }
        self.add_all(context, &fs, first, rest)?;
        Ok(fs.close()?)
    }

    fn run_mounted(&self, context: &Context, mounted: &Mounted, added: &[PathBuf]) -> anyhow::Result<()> {
        if !mounted.mount.is_papilio() {
            for path in added {
                kernel_jobs::add(mounted, path, self.force, self.enqueue)?;
                was_added(context, path)?;
            }
            return warn_of_profiles(context, &mounted.path);
        }
        let mount = jobs::open(mounted)?;
        for path in added {
            let shown = path.display();
            let whole = absolute(path).with_context(|| shown.to_string())?;
            let mut added = mount.add_device(&whole, self.force);
            let busy = Some(Errno::INPROGRESS.raw_os_error());
            while self.enqueue && added.as_ref().is_err_and(|error| error.raw_os_error() == busy) {
                std::thread::sleep(PAUSE);
                added = mount.add_device(&whole, self.force);
            }
            added.map_err(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::EXIST) => {
                    anyhow::anyhow!("{shown}: contains a file system; use -f to overwrite it")
                }
                Some(Errno::INVAL) => {
                    // The server of a seed tells its reason.
                    let state = mount.state().ok().filter(|state| !state.writable);
                    let why = state.and_then(|state| state.failure);
                    let usual = "is too small, or part of the file system already".to_owned();
                    anyhow::anyhow!("{shown}: {}", why.unwrap_or(usual))
                }
                Some(Errno::INPROGRESS) => anyhow::anyhow!("{mounted}: another operation runs"),
                _ => mounted.at(&error).context(shown.to_string()),
            })?;
            context.changed_devices.note([path]);
            was_added(context, path)?;
        }
        warn_of_profiles(context, &mounted.path)
    }
}

/// Adds the new device to an error that does not name it yet.
fn of_new_device(path: &Path, error: papilio::Error) -> anyhow::Error {
    match error.to_string().starts_with(&*path.to_string_lossy()) {
        true => error.into(),
        false => of_image(path, error),
    }
}
