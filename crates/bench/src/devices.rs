//! `papilio bench devices`: scrubs a file system of many files, balances it, replaces its device,
//! and removes one of two.
//!
//! Both sides work in turn on the same two backing files, which are written before the first
//! measurement. Each operation leaves a file system like the one before it: a replaced or removed
//! device is the target of the next round. A run begins without caches: with a new mount, or the
//! file system just opened. It ends with everything on the device.
//!
//! The kernel's side is a loop device with direct I/O where the host's file system has that, and
//! the commands of btrfs-progs. Papilio's side opens the files directly.

use crate::backing::Place;
use crate::measure::{Times, row};
use anyhow::{Context, ensure};
use papilio::device::{Access, Device, DeviceOptions};
use papilio::{
    BalanceFilter, BalanceOptions, DevReplaceState, FileSystem, MkfsOptions, OpenOptions, ReplaceOptions,
    ScrubOptions,
};
use papilio_oracle::mount::Mount;
use papilio_oracle::{LoopDevice, Need, Scratch};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Files of one directory.
const DIRECTORY: u64 = 500;

/// Arguments of `devices`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Number of rounds; the output shows medians
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Number of files
    #[arg(long, default_value_t = 100_000)]
    files: u64,
    /// MiB of data in all files
    #[arg(long, default_value_t = 4096)]
    mib: u64,
    /// Where the two backing files are: ram, or a directory
    #[arg(long, value_name = "ram|DIR", default_value = "ram")]
    backing: Place,
    /// Run only Papilio, for use with a profiler
    #[arg(long)]
    papilio_only: bool,
}

/// The two devices, of which the first has the file system.
struct World {
    scratch: Scratch,
    used: PathBuf,
    spare: PathBuf,
    direct: bool,
}

/// One of the measured operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeviceJob {
    Scrub,
    Balance,
    Replace,
    Remove,
}

/// Runs the comparison and prints a row for each operation.
///
/// # Errors
/// The kernel's Btrfs is not available, or either side fails.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if let Some(why) = Need::KERNEL_MOUNT.iter().find_map(|need| need.missing()) {
        anyhow::bail!(why);
    }
    let bytes = arguments.mib << 20;
    let mut world = World::new(&arguments.backing, bytes, arguments.files)?;
    let jobs = [DeviceJob::Scrub, DeviceJob::Balance, DeviceJob::Replace, DeviceJob::Remove];
    let mut times: [[Times; 2]; 4] = Default::default();
    for round in 0..arguments.rounds {
        for (job, times) in jobs.into_iter().zip(&mut times) {
            eprintln!("round {} of {}: {job:?}", round + 1, arguments.rounds);
            if !arguments.papilio_only {
                world.by_kernel(job, &mut times[0])?;
            }
            world.by_papilio(job, &mut times[1])?;
        }
    }
    for (job, times) in jobs.into_iter().zip(&times) {
        row(&format!("{job:?}").to_lowercase(), bytes, &times[0], &times[1])?;
    }
    Ok(())
}

/// Makes a file whose blocks are all written, so that no side pays for them.
fn touched(scratch: &Scratch, name: &str, size: u64) -> anyhow::Result<PathBuf> {
    let path = scratch.image(name, size)?;
    let (file, zeros) = (File::options().write(true).open(&path)?, vec![0; 1 << 20]);
    for at in (0..size).step_by(zeros.len()) {
        crate::interrupt::check()?;
        file.write_all_at(&zeros[..zeros.len().min((size - at) as usize)], at)?;
    }
    file.sync_all()?;
    Ok(path)
}

impl World {
    fn new(place: &Place, bytes: u64, files: u64) -> anyhow::Result<Self> {
        let folder = match place {
            Place::Ram => Path::new("/dev/shm"),
            Place::Path(path) => path,
        };
        // The kernel replaces a device only where it could make a further block group of each kind.
        let size = bytes + bytes / 2 + (1 << 30);
        let scratch = Scratch::under(folder, 2 * size)?;
        let (used, spare) = (touched(&scratch, "one", size)?, touched(&scratch, "two", size)?);
        let direct = *place != Place::Ram;
        let world = Self { scratch, used, spare, direct };
        papilio::mkfs_device(&world.open(&world.used)?, &MkfsOptions::new())?;
        let fs = FileSystem::from_devices(vec![world.open(&world.used)?], &writable())?;
        let each = (bytes / files) as usize;
        let random: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(each + 8192).collect();
        for number in 0..files {
            crate::interrupt::check()?;
            if number % DIRECTORY == 0 {
                fs.create_dir(format!("/d{}", number / DIRECTORY))?;
            }
            let from = number as usize % 8192;
            fs.write(name(number), &random[from..from + each])?;
        }
        fs.close()?;
        Ok(world)
    }

    fn open(&self, path: &Path) -> anyhow::Result<Arc<dyn Device>> {
        Ok(Arc::new(DeviceOptions::new(Access::ReadWrite).direct(self.direct).open(path)?))
    }

    /// The spare device has taken the place of the other.
    fn swap(&mut self) {
        std::mem::swap(&mut self.used, &mut self.spare);
    }

    fn by_kernel(&mut self, job: DeviceJob, times: &mut Times) -> anyhow::Result<()> {
        let used = LoopDevice::attach_direct(&self.used)?;
        let spare = LoopDevice::attach_direct(&self.spare)?;
        let mounted = Mount::btrfs(&self.scratch, used.path(), "", false)?;
        let at = mounted.path();
        if job == DeviceJob::Remove {
            btrfs(["device", "add", "-f", "-K"], [spare.path(), at])?;
        }
        times.take(1, || {
            match job {
                DeviceJob::Scrub => btrfs(["scrub", "start", "-B"], [at])?,
                DeviceJob::Balance => btrfs(["balance", "start", "--full-balance"], [at])?,
                DeviceJob::Replace => {
                    btrfs(["replace", "start", "-B", "-f", "-K"], [used.path(), spare.path(), at])?;
                }
                DeviceJob::Remove => btrfs(["device", "remove"], [used.path(), at])?,
            }
            mounted.sync()?;
            Ok(1)
        })?;
        drop(mounted);
        if matches!(job, DeviceJob::Replace | DeviceJob::Remove) {
            self.swap();
        }
        Ok(())
    }

    fn by_papilio(&mut self, job: DeviceJob, times: &mut Times) -> anyhow::Result<()> {
        let fs = FileSystem::from_devices(vec![self.open(&self.used)?], &writable())?;
        let spare = self.open(&self.spare)?;
        let devid = fs.usage()?.devices[0].devid;
        if job == DeviceJob::Remove {
            fs.add_device(spare.clone(), true)?;
        }
        times.take(1, || {
            match job {
                DeviceJob::Scrub => {
                    let report = fs.scrub(&ScrubOptions::new(), |_| true)?;
                    ensure!(report.finished && !report.total().has_errors(), "scrub: {report:?}");
                }
                DeviceJob::Balance => {
                    let all = || Some(BalanceFilter::default());
                    let all = BalanceOptions { data: all(), metadata: all(), system: all(), force: false };
                    fs.balance(&all, |_| true)?;
                }
                DeviceJob::Replace => {
                    let how = ReplaceOptions { force: true, ..ReplaceOptions::default() };
                    let go_on = |_: &_| papilio::BalanceControl::Continue;
                    let report = fs.replace_device(devid, &spare, how, go_on)?;
                    ensure!(report.state == DevReplaceState::Finished, "replace: {report:?}");
                }
                DeviceJob::Remove => {
                    ensure!(fs.remove_device(devid, |_| true)?, "the device was not removed")
                }
            }
            fs.sync()?;
            Ok(1)
        })?;
        fs.close()?;
        if matches!(job, DeviceJob::Replace | DeviceJob::Remove) {
            self.swap();
        }
        Ok(())
    }
}

fn name(number: u64) -> String {
    format!("/d{}/file{number}", number / DIRECTORY)
}

fn writable() -> OpenOptions {
    OpenOptions::new().write(true).commit_interval(None)
}

fn btrfs<'a>(
    words: impl IntoIterator<Item = &'a str>,
    paths: impl IntoIterator<Item = &'a Path>,
) -> anyhow::Result<()> {
    let words: Vec<&OsStr> =
        words.into_iter().map(OsStr::new).chain(paths.into_iter().map(Path::as_os_str)).collect();
    let output = Command::new("btrfs").args(&words).output().context("btrfs")?;
    ensure!(output.status.success(), "btrfs {words:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
