//! The resolved arguments that every command uses, and the state of the run.
//!
//! Owns [`Context`]: the open file systems, whether anything failed, and the one place that writes
//! to standard error.
//!
//! **Invariants**
//! - A run opens each file system once.
//! - A message is one line, even if a name in it has control characters.

use crate::args::GlobalArgs;
use crate::confinement::Confinement;
use crate::devices;
use crate::holder;
use crate::kernel_devices::ChangedDevices;
use crate::output::escaped;
use crate::path::ImagePath;
use crate::scanning;
use anyhow::Context as _;
pub use papilio::describe;
use papilio::device::Device;
use papilio::format::{LogicalAddress, TreeId};
use papilio::{
    BlockScan, Error, FileSystem, Inode, ItemFault, OlderCause, OlderState, OpenOptions, PathError,
    SubvolumeChoice,
};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The warning that the checksum tree is lost.
pub const LOST_CHECKSUMS: &str =
    "the checksum tree is lost: nothing is verified, and data that is read may be wrong";

/// Seconds that the user has to stop work that [`Context::count_down`] announces.
const COUNT_DOWN: u64 = 10;
/// The most files that are named because their newest content is not shown.
const MOST_OLDER: usize = 20;
/// Items with harmless faults that are named; the others are counted.
const MOST_HARMLESS: usize = 3;
/// As [`MOST_OLDER`], for commands whose result is a copy of everything.
pub const ALL_OLDER: usize = usize::MAX;

/// The state of a run, which all commands share.
pub struct Context {
    arguments: GlobalArgs,
    options: OpenOptions,
    /// How much to print: 0 is normal, negative values mean less, positive values more.
    pub verbosity: i16,
    opened: RefCell<Vec<(PathBuf, FileSystem)>>,
    /// The file systems that are open for writing.
    changing: RefCell<Vec<(PathBuf, FileSystem)>>,
    /// Whether no file system may be opened for writing.
    reads_only: Cell<bool>,
    /// The images that were said to be read without verification.
    unverified: RefCell<Vec<PathBuf>>,
    /// The images that were said to show an older state.
    older: RefCell<Vec<PathBuf>>,
    /// The file systems that are open for reading, whose faults are reported at the end.
    read: RefCell<Vec<(PathBuf, FileSystem)>>,
    failed: Cell<bool>,
    /// The exit code of a failure, if it is not 1.
    code: Cell<Option<u8>>,
    progress: RefCell<Option<indicatif::ProgressBar>>,
    /// The devices of which the kernel hears at the end of the run.
    pub changed_devices: ChangedDevices,
    /// How much the run has given up.
    pub confinement: Confinement,
}

impl Context {
    /// Resolves the options that all commands share.
    pub fn resolve(arguments: GlobalArgs) -> Self {
        let mut options =
            OpenOptions::new().degraded(arguments.degraded).scan(arguments.scan).orphans(arguments.orphans);
        options = options.ignore_signatures(arguments.ignores_signatures());
        if let Some(bytes) = arguments.replay_bytes {
            options = options.replay_bytes(bytes);
        }
        options = match arguments.backup_root {
            None => options,
            Some(None) => options.use_backup_root(true),
            Some(Some(number)) => options.backup_root(number.into()),
        };
        if let Some(choice) = arguments.tree_root {
            options = options.tree_root(choice);
        }
        if let Some(address) = arguments.chunk_root {
            options = options.chunk_root(LogicalAddress(address));
        }
        if let Some(address) = arguments.fs_root {
            options = options.fs_root(LogicalAddress(address));
        }
        let ignored = arguments.rescue.iter().flat_map(|list| &list.0);
        options = ignored.fold(options, |options, what| what.apply(options));
        for device in &arguments.device {
            options = options.device(device);
        }
        let image = arguments.image_options();
        options = options.partition(image.partition).allow_backing(image.allow_backing).remote(image.remote);
        if let Some(copy) = arguments.superblock {
            options = options.superblock_mirror(usize::from(copy));
        }
        if let Some(path) = &arguments.subvol {
            options = options.subvolume(SubvolumeChoice::Path(path.clone().into_vec()));
        } else if let Some(id) = arguments.subvolid {
            options = options.subvolume(SubvolumeChoice::Id(TreeId(id)));
        } else if arguments.default_subvol {
            options = options.subvolume(SubvolumeChoice::Default);
        }
        Self {
            verbosity: i16::from(arguments.verbose) - i16::from(arguments.quiet),
            arguments,
            options,
            opened: RefCell::default(),
            changing: RefCell::default(),
            reads_only: Cell::new(false),
            unverified: RefCell::default(),
            older: RefCell::default(),
            read: RefCell::default(),
            failed: Cell::new(false),
            code: Cell::new(None),
            progress: RefCell::default(),
            changed_devices: ChangedDevices::default(),
            confinement: Confinement::default(),
        }
    }

    /// Returns whether this run gives up rights. A value that means nothing ended the run before.
    pub fn sandbox_mode(&self) -> papilio_sandbox::Mode {
        self.arguments.sandbox_mode().unwrap_or_default()
    }

    /// Returns the shared options as typed.
    pub fn arguments(&self) -> &GlobalArgs {
        &self.arguments
    }

    /// Returns the options for opening the file system on `image`, with the devices that are found.
    pub fn options_for(&self, image: &Path) -> OpenOptions {
        devices::add_missing(image, &self.arguments.device, self.options.clone())
    }

    /// Opens the file system on `image`, or returns it if this run has opened it already.
    pub fn open(&self, image: &Path) -> anyhow::Result<FileSystem> {
        for known in [&self.changing, &self.opened] {
            if let Some((_, known)) = known.borrow().iter().find(|(path, _)| path == image) {
                return Ok(known.clone());
            }
        }
        let options = self.options_for(image);
        let system = self.open_with(image, &options)?;
        self.opened.borrow_mut().push((image.to_path_buf(), system.clone()));
        Ok(system)
    }

    /// Opens the file system on `image` for reading, with a scan and its progress if the options
    /// want one.
    pub fn open_with(&self, image: &Path, options: &OpenOptions) -> anyhow::Result<FileSystem> {
        self.open_on(image, &self.arguments.device, options)
    }

    /// As [`Self::open_with`], with `others` as the further devices of a scan.
    pub fn open_on(
        &self,
        image: &Path,
        others: &[PathBuf],
        options: &OpenOptions,
    ) -> anyhow::Result<FileSystem> {
        let system = self.open_any_state(image, others, options)?;
        self.report_older(image, &system, MOST_OLDER);
        Ok(system)
    }

    /// As [`Self::open_on`], but does not report that an older state is shown than the newest: the
    /// caller does.
    pub fn open_any_state(
        &self,
        image: &Path,
        others: &[PathBuf],
        options: &OpenOptions,
    ) -> anyhow::Result<FileSystem> {
        let options = &options.clone().allow_older(true);
        let devices = self.open_all(image, others, options)?;
        if !options.wants_scan() {
            let open = |options: &OpenOptions| FileSystem::from_devices(devices.clone(), options);
            let system = self.or_degraded(image, options, open).map_err(holder::explain)?;
            self.warn_of_lost_checksums(image, &system);
            self.read.borrow_mut().push((image.to_path_buf(), system.clone()));
            return Ok(system);
        }
        let scan = self.scan(&devices)?;
        let rebuilt = papilio::rebuild(&devices, options, &scan)?;
        for text in scanning::explanations(&rebuilt) {
            self.warning(format_args!("{}: {text}", image.display()));
        }
        let system = FileSystem::from_devices(devices, rebuilt.options()).map_err(holder::explain)?;
        self.warn_of_lost_checksums(image, &system);
        self.read.borrow_mut().push((image.to_path_buf(), system.clone()));
        Ok(system)
    }

    /// Opens the devices of `image` for reading, with `others` as the further devices of a scan.
    pub fn open_all(
        &self,
        image: &Path,
        others: &[PathBuf],
        options: &OpenOptions,
    ) -> anyhow::Result<Vec<Arc<dyn Device>>> {
        if !options.wants_scan() {
            let open = || papilio::open_devices(image, options);
            return self.devices_of(image, open).map_err(holder::explain);
        }
        self.devices_of(image, || scanning::open_devices(image, &self.arguments.image_options(), others))
    }

    /// Reports, once for an image, that an older state is shown than the newest one on the devices,
    /// and at most `most` of the files that are older. That is a failure, unless the options ask
    /// for this state.
    pub fn report_older(&self, image: &Path, system: &FileSystem, most: usize) {
        if system.older_states().is_empty() || self.older.borrow().iter().any(|known| known == image) {
            return;
        }
        self.older.borrow_mut().push(image.to_path_buf());
        for state in system.older_states() {
            self.report_older_state(image, system, state, most);
        }
    }

    /// Warns that a server shows an older state than the newest one on the devices.
    pub fn warn_of_older(&self, image: &Path, system: &FileSystem) {
        let name = image.display();
        system.log_item_faults();
        for state in system.older_states() {
            self.warning(format_args!("{name}: {state}"));
            for file in system.older_files(state).iter().take(MOST_OLDER).filter(|_| !state.is_asked()) {
                self.warning(format_args!("{name}: {file}"));
            }
        }
    }

    /// Reports one older state, as [`Self::report_older`] does.
    pub fn report_older_state(&self, image: &Path, system: &FileSystem, state: &OlderState, most: usize) {
        let name = image.display();
        if matches!(state.cause, OlderCause::Chosen { .. }) && !state.has_log() {
            // The user named these roots.
            return;
        }
        // A mount of the kernel shows the state of the first copy as well.
        let is_harmless = matches!(state.cause, OlderCause::NewerSuperblock { .. }) && most != ALL_OLDER;
        if state.is_asked() || is_harmless {
            return self.warning(format_args!("{name}: {state}"));
        }
        self.error(format_args!("{name}: {state}"));
        let files = system.older_files(state);
        for file in files.iter().take(most) {
            self.error(format_args!("{name}: {file}"));
        }
        if let Some(rest) = files.len().checked_sub(most).filter(|rest| *rest > 0) {
            self.error(format_args!("{name}: {rest} more are older; papilio restore lists all"));
        }
    }

    /// Reads `image` with `read`. Under the names of btrfs-progs a missing device is a warning, and
    /// the rest is read without it, as their readers do.
    ///
    /// # Errors
    /// Errors of `read`.
    pub fn or_degraded<T>(
        &self,
        image: &Path,
        options: &OpenOptions,
        read: impl Fn(&OpenOptions) -> papilio::Result<T>,
    ) -> papilio::Result<T> {
        match read(options) {
            Err(error @ Error::DeviceMissing { .. }) if self.arguments.drop_in => {
                self.warning(format_args!("{}: {error}", image.display()));
                read(&options.clone().degraded(true))
            }
            result => result,
        }
    }

    /// Warns of work that is about to begin, and gives the user of a terminal or script time to
    /// stop it, as btrfs(8) does.
    pub fn count_down(&self, warning: impl fmt::Display) {
        self.warning(format_args!("{warning}; it starts in {COUNT_DOWN} seconds, Ctrl+C stops it"));
        std::thread::sleep(std::time::Duration::from_secs(COUNT_DOWN));
    }

    /// Warns, once for an image, that its data is read without verification, if that is so because
    /// the checksum tree is lost.
    pub fn warn_of_lost_checksums(&self, image: &Path, system: &FileSystem) {
        if system.has_lost_checksums() && !self.unverified.borrow().iter().any(|known| known == image) {
            self.unverified.borrow_mut().push(image.to_path_buf());
            self.warning(format_args!("{}: {LOST_CHECKSUMS}", image.display()));
        }
    }

    /// Opens `image` and the devices that the user named for reading.
    pub fn devices(&self, image: &Path) -> anyhow::Result<Vec<Arc<dyn Device>>> {
        self.devices_of(image, || {
            scanning::open_devices(image, &self.arguments.image_options(), &self.arguments.device)
        })
    }

    /// Scans devices for tree blocks, and shows the progress on a terminal.
    pub fn scan(&self, devices: &[Arc<dyn Device>]) -> anyhow::Result<BlockScan> {
        let bar = self.is_interactive().then(scanning::new_bar);
        self.set_progress(bar.clone());
        let scanned = scanning::scan(devices, bar.clone());
        self.set_progress(None);
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        let scan = scanned?;
        for (fsid, blocks) in &scan.others {
            self.warning(format_args!(
                "{blocks} tree blocks of another file system, {fsid}, are on the devices: they were left out"
            ));
        }
        Ok(scan)
    }

    /// Opens the file system on `image` as its last commit left it, for commands that show the
    /// structures on the device. `further` are more of its devices; with `search`, missing ones are
    /// looked for.
    pub fn open_last_commit(
        &self,
        image: &Path,
        further: &[PathBuf],
        search: bool,
    ) -> anyhow::Result<FileSystem> {
        let given = [&self.arguments.device[..], further].concat();
        let mut options = self.options.clone().replay_log(false);
        for device in further {
            options = options.device(device);
        }
        if search {
            options = devices::add_missing(image, &given, options);
        }
        // The log is one of these structures. A device in use shows them, too.
        if let Some(mount) = holder::mount_of_device(image) {
            options = options.unlocked(true);
            if !mount.is_papilio() {
                // The kernel writes past the cache of the device, which may hold older blocks.
                options = options.direct_io(true);
            }
            // FUSE tells the server of no sync(2). The caller expects to see what it has synced.
            if mount.is_papilio()
                && papilio_ioctl::client::MountedPath::open(&mount.point)
                    .is_ok_and(|path| path.sync().is_err())
            {
                self.warning(format_args!("{}: the mount was not synced", mount.point.display()));
            }
        }
        self.open_any_state(image, &self.arguments.device, &options)
    }

    /// Opens the file system on `image` for writing, once per run. Call this before [`Self::open`],
    /// which then returns the same file system.
    pub fn change(&self, image: &Path) -> anyhow::Result<FileSystem> {
        self.change_with(image, |options| options)
    }

    /// As [`Self::change`], with further options. They count if it is the first call of the run.
    pub fn change_with(
        &self,
        image: &Path,
        further: impl FnOnce(OpenOptions) -> OpenOptions,
    ) -> anyhow::Result<FileSystem> {
        if let Some((_, known)) = self.changing.borrow().iter().find(|(path, _)| path == image) {
            return Ok(known.clone());
        }
        if self.reads_only.get() {
            anyhow::bail!("{}: opened for reading only", image.display());
        }
        // A reader would keep its lock.
        self.read.borrow_mut().retain(|(path, _)| path != image);
        let options = further(self.options_for(image).write(true).commit_interval(None));
        let system = FileSystem::open_with(image, &options).map_err(|error| of_image(image, error))?;
        self.changing.borrow_mut().push((image.to_path_buf(), system.clone()));
        Ok(system)
    }

    /// Reports the faults of the trees that commands read so far and went without. One that may
    /// cost something is a failure.
    pub fn report_item_faults(&self) {
        for (image, system) in self.read.take() {
            let (losses, warnings): (Vec<_>, Vec<_>) =
                system.item_faults().into_iter().partition(ItemFault::is_loss);
            for fault in losses {
                self.error(format_args!("{}: {fault}", image.display()));
            }
            // Nothing is lost by these: a few stand for the others.
            for fault in warnings.iter().take(MOST_HARMLESS) {
                self.warning(format_args!("{}: {fault}", image.display()));
            }
            if let Some(rest) = warnings.len().checked_sub(MOST_HARMLESS).filter(|rest| *rest > 0) {
                self.warning(format_args!("{}: {rest} more items were used in this way", image.display()));
            }
        }
    }

    /// Forgets the faults of file systems that are open for reading: the command reported them.
    pub fn forget_item_faults(&self) {
        self.read.take();
    }

    /// Closes the file systems that are open for writing, which commits their changes, and tells
    /// the kernel of changed devices. Reports failures.
    pub fn close(&self) {
        self.report_item_faults();
        for (image, system) in self.changing.take() {
            if let Err(error) = system.close() {
                self.error(of_image(&image, error));
            }
        }
        for failure in self.changed_devices.tell_kernel(&self.arguments.device) {
            self.warning(format_args!("{failure:#}"));
        }
    }

    /// Returns the inode that `path` names. Follows a symbolic link in the last component if
    /// `follow` is set or the path ends in a slash.
    pub fn inode(&self, path: &ImagePath, follow: bool) -> anyhow::Result<Inode> {
        let system = self.open(&path.image)?;
        let found = match follow || path.wants_directory() {
            true => system.inode(&path.path),
            false => system.inode_nofollow(&path.path),
        };
        let inode = found.map_err(|error| self.at(path, &error))?;
        if path.wants_directory() && inode.metadata().file_type() != papilio::FileKind::Directory {
            anyhow::bail!("{path}: {}", PathError::NotADirectory);
        }
        Ok(inode)
    }

    /// Adds the operand to `error`, so that the message names the path once.
    pub fn at(&self, path: &ImagePath, error: &Error) -> anyhow::Error {
        anyhow::Error::msg(describe(path, error))
    }

    /// Prints a message of btrfs-progs on success, if the command takes the place of `btrfs`.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn announce(&self, text: impl fmt::Display) -> anyhow::Result<()> {
        if self.arguments.drop_in && self.verbosity >= 0 {
            let mut output = crate::output::Output::new()?;
            output.text(format_args!("{text}\n"))?;
            output.finish()?;
        }
        Ok(())
    }

    /// Returns whether a command reports success where btrfs-progs are silent.
    pub fn tells_more(&self) -> bool {
        self.verbosity >= 0 && !self.arguments.drop_in
    }

    /// Reports a failure. The run continues and ends with exit code 1.
    pub fn error(&self, text: impl fmt::Display) {
        self.failed.set(true);
        match self.arguments.drop_in {
            // The words that scripts for btrfs-progs look for.
            true => self.line(format_args!("ERROR: {text}")),
            false => self.line(format_args!("papilio: {text}")),
        }
    }

    /// Reports an error. If a device is in use, the message names the process that uses it.
    pub fn failure(&self, error: &anyhow::Error) {
        if let Some(Error::Occupied { device, found }) = error.downcast_ref() {
            return self.error(format_args!("{device}: contains {found}; use -f to overwrite it"));
        }
        match error.downcast_ref().and_then(holder::busy_error) {
            Some(error) => self.error(error),
            None => self.error(format_args!("{error:#}")),
        }
    }

    /// Reports a failure that has an exit code of its own.
    pub fn fail_with(&self, code: u8, text: impl fmt::Display) {
        self.code.set(Some(code));
        self.error(text);
    }

    /// Sets the exit code of an answer that is no failure.
    pub fn set_code(&self, code: u8) {
        self.code.set(Some(code));
        self.failed.set(true);
    }

    /// Returns the exit code of a failure, if it is not 1.
    pub fn code(&self) -> Option<u8> {
        self.code.get()
    }

    /// Records a failure that another process has reported.
    pub fn fail_silently(&self) {
        self.failed.set(true);
    }

    /// Prints a warning, which does not change the exit code.
    pub fn warning(&self, text: impl fmt::Display) {
        if self.verbosity >= 0 {
            match self.arguments.drop_in {
                true => self.line(format_args!("WARNING: {text}")),
                false => self.line(format_args!("papilio: warning: {text}")),
            }
        }
    }

    /// Prints a line on standard error, such as the name of a file under -v.
    pub fn note(&self, text: impl fmt::Display) {
        self.line(format_args!("{text}"));
    }

    /// Forbids to open file systems for writing.
    pub fn forbid_changes(&self) {
        self.reads_only.set(true);
    }

    /// Returns whether any failure was reported, and forgets it.
    pub fn take_failure(&self) -> bool {
        self.code.set(None);
        self.failed.take()
    }

    /// Returns whether any failure was reported.
    pub fn has_failed(&self) -> bool {
        self.failed.get()
    }

    /// Returns whether progress is shown: on a terminal, unless the command is quiet.
    pub fn is_interactive(&self) -> bool {
        std::io::IsTerminal::is_terminal(&std::io::stderr()) && self.verbosity >= 0
    }

    /// Shows a progress bar of this form, if progress is shown, until [`Context::set_progress`]
    /// removes it.
    pub fn show_bar(&self, form: &str) -> Option<indicatif::ProgressBar> {
        let bar = self.is_interactive().then(|| {
            let style = indicatif::ProgressStyle::with_template(form).expect("the template is valid");
            indicatif::ProgressBar::new(0).with_style(style)
        });
        self.set_progress(bar.clone());
        bar
    }

    /// Sets the progress bar that must be suspended while a line is printed; `None` removes it.
    pub fn set_progress(&self, bar: Option<indicatif::ProgressBar>) {
        *self.progress.borrow_mut() = bar;
    }

    fn line(&self, text: fmt::Arguments<'_>) {
        let mut line = shortened(&escaped_controls(&text.to_string()));
        line.push('\n');
        // A failure to print the message cannot be reported either.
        let print = || drop(std::io::stderr().lock().write_all(line.as_bytes()));
        match &*self.progress.borrow() {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}

/// The longest word that a message shows whole, in bytes. Paths have up to 4,096 and more.
const WORD_MAX: usize = 1024;
/// Bytes that a message shows of the start, and of the end, of a longer word.
const WORD_START: usize = 300;
const WORD_END: usize = 200;

/// Cuts the middle out of very long words.
fn shortened(text: &str) -> String {
    let cut = |word: &str| -> String {
        if word.len() <= WORD_MAX {
            return word.to_owned();
        }
        let (start, end) =
            (word.floor_char_boundary(WORD_START), word.ceil_char_boundary(word.len() - WORD_END));
        format!("{}...({} bytes)...{}", &word[..start], end - start, &word[end..])
    };
    text.split(' ').map(cut).collect::<Vec<_>>().join(" ")
}

/// Adds the image to `error` if the message does not name it yet.
pub fn of_image(image: &Path, error: Error) -> anyhow::Error {
    match error {
        Error::ReadOnlyFileSystem { .. } | Error::NoSpace { .. } | Error::Path { .. } | Error::Invalid(_) => {
            anyhow::Error::msg(format!("{}: {error}", image.display()))
        }
        other => holder::explain(other),
    }
}

/// Creates a file on the host; the error names it.
pub fn create_host_file(path: &Path) -> anyhow::Result<std::fs::File> {
    std::fs::File::create(path).with_context(|| format!("{}: cannot create", path.display()))
}

fn escaped_controls(text: &str) -> String {
    match text.chars().any(char::is_control) {
        false => text.to_owned(),
        true => String::from_utf8_lossy(&escaped(text.as_bytes())).into_owned(),
    }
}
