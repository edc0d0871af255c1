//! `papilio device add`.

use crate::context::{Context, of_image};
use crate::jobs;
use crate::mounted::{Mounted, Target};
use crate::output::Output;
use crate::usage_error::UsageError;
use anyhow::Context as _;
use papilio::device::{Access, Device, FileDevice};
use rustix::io::Errno;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Add devices to a file system
///
/// New space comes from all devices at once. `balance` spreads what is there already.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Overwrite a file system on the device
    #[arg(short, long)]
    force: bool,
    /// Do not discard the old content of the devices, which never happens: a device keeps its
    /// content until the space is written
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
        let fs = context.change(image)?;
        for path in added {
            let device = FileDevice::open(path, Access::ReadWrite)?;
            let device: Arc<dyn Device> = Arc::new(device);
            let devid = fs.add_device(device, self.force).map_err(|error| of_image(image, error));
            let devid = devid.with_context(|| path.display().to_string())?;
            if context.verbosity >= 0 {
                let mut output = Output::new()?;
                output.text(format_args!("{}: is device {devid} now\n", path.display()))?;
                output.finish()?;
            }
        }
        Ok(())
    }

    fn run_mounted(&self, context: &Context, mounted: &Mounted, added: &[PathBuf]) -> anyhow::Result<()> {
        let mount = jobs::open(mounted)?;
        for path in added {
            let shown = path.display();
            let whole = path.canonicalize().with_context(|| shown.to_string())?;
            let mut added = mount.add_device(&whole, self.force);
            let busy = Some(Errno::INPROGRESS.raw_os_error());
            while self.enqueue && added.as_ref().is_err_and(|error| error.raw_os_error() == busy) {
                std::thread::sleep(PAUSE);
                added = mount.add_device(&whole, self.force);
            }
            added.map_err(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::EXIST) => {
                    anyhow::anyhow!("{shown}: contains a file system; only -f overwrites it")
                }
                Some(Errno::INVAL) => {
                    anyhow::anyhow!("{shown}: is too small, or part of the file system already")
                }
                Some(Errno::INPROGRESS) => anyhow::anyhow!("{mounted}: another operation runs"),
                _ => mounted.at(&error).context(shown.to_string()),
            })?;
            if context.verbosity >= 0 {
                let mut output = Output::new()?;
                output.text(format_args!("{shown}: was added\n"))?;
                output.finish()?;
            }
        }
        Ok(())
    }
}
