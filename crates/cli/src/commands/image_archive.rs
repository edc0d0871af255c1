//! `papilio image archive`, `verify`, and `restore` of archives: the used bytes of a file system in
//! one file.
//!
//! The subcommands translate arguments and results; [`papilio::archive`] does the work.

use super::image_target::{add_target, advance, bar, finish};
use crate::context::{Context, of_image};
use crate::holder::mount_of_device;
use crate::host_output::HostOutput;
use crate::output::Output;
use anyhow::{Context as _, bail};
use papilio::ImageTargets;
use papilio::archive::{
    ArchiveChain, ArchiveCreated, ArchiveError, ArchiveOptions, ArchiveReader, ArchiveSource, add_parents,
    is_archive, open_source, restore_archive, restore_sizes, verify_archive,
};
use papilio::device::{Access, Device, DeviceOptions};
use serde_json::json;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes that are read of an archive at once.
const BUFFER: usize = 1 << 20;

/// Back up the used bytes of a whole file system into one file
///
/// The archive has the tree blocks and the data of all devices, each once whatever the profile,
/// compressed by zstd, with checksums, a table of contents and an end mark. Data is read from a
/// copy that matches its checksum. Commands that read images read archives, too, and `image
/// restore` makes the same file system again.
#[derive(Debug, clap::Args)]
pub struct ArchiveArgs {
    /// Archive only what this archive does not have; it is needed to restore
    #[arg(long, value_name = "ARCHIVE", value_hint = clap::ValueHint::FilePath)]
    since: Option<PathBuf>,
    /// An archive that ARCHIVE is based on, if it is not beside it
    #[arg(long, value_name = "ARCHIVE", value_hint = clap::ValueHint::FilePath, requires = "since")]
    parent: Vec<PathBuf>,
    /// Compress with zstd, from 1 (fastest) to 19 (smallest); 0 does not compress
    #[arg(short, long, value_name = "LEVEL", default_value_t = 3, value_parser = clap::value_parser!(u8).range(0..=19))]
    compress: u8,
    /// Use N threads, 1 to 64 [default: one for each core]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: Option<u8>,
    /// Go on where no copy of tree blocks or data can be read, and note these bytes in the archive
    #[arg(long)]
    skip_unreadable: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// The image or device
    #[arg(value_name = "IMAGE", value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    /// The archive to write; - is standard output
    #[arg(value_name = "ARCHIVE", value_hint = clap::ValueHint::FilePath)]
    archive: PathBuf,
}

/// Check an archive: every checksum, its order, its table of contents, its end
///
/// With an incremental archive, all that it is based on are checked, too. `papilio check` checks
/// the file system in an archive.
#[derive(Debug, clap::Args)]
pub struct VerifyArgs {
    /// An archive that ARCHIVE is based on, if it is not beside it
    #[arg(long, value_name = "ARCHIVE", value_hint = clap::ValueHint::FilePath)]
    parent: Vec<PathBuf>,
    /// Check the archive alone
    #[arg(long, conflicts_with = "parent")]
    without_parents: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// The archive; - is standard input
    #[arg(value_name = "ARCHIVE", value_hint = clap::ValueHint::FilePath)]
    archive: PathBuf,
}

/// What `image restore` needs to restore an archive.
pub struct ArchiveRestore<'a> {
    pub archive: &'a Path,
    pub images: &'a [PathBuf],
    pub parents: &'a [PathBuf],
    pub sizes: &'a [u64],
    pub force: bool,
}

/// Returns the number of threads. It is read before the run is confined.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn of_archive(error: ArchiveError) -> anyhow::Error {
    anyhow::Error::msg(error.to_string())
}

impl ArchiveArgs {
    /// Writes an archive.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let options = ArchiveOptions::new()
            .level(self.compress.into())
            .threads(self.threads.map_or_else(cores, usize::from))
            .skip_unreadable(self.skip_unreadable);
        refuse_mounted(&self.image)?;
        let parent = match &self.since {
            None => None,
            Some(path) => Some(Arc::new(open_chain(path, &self.parent)?)),
        };
        let to_stdout = self.archive == Path::new("-");
        if to_stdout && self.json {
            return Err(crate::usage_error::UsageError::new(
                "--json and an archive on standard output exclude each other".to_owned(),
            )
            .into());
        }
        let mut file = None;
        if to_stdout {
            context.confine_to_images([self.image.clone()]);
        } else {
            refuse_targets(&self)?;
            context.confine_to_output(&self.archive, [self.image.clone()]);
        }
        let system = context.open_last_commit(&self.image, &[], true)?;
        if !to_stdout {
            file = Some(HostOutput::open(&self.archive)?);
        }
        let out: &mut dyn Write = match &mut file {
            Some(file) => file,
            None => &mut io::stdout().lock(),
        };
        let mut out = BufWriter::with_capacity(BUFFER, out);
        let bar = bar(context);
        let created =
            system.archive(parent, &mut out, &options, |done, all| advance(bar.as_ref(), done, all));
        finish(context, bar);
        let created = created.map_err(|error| of_image(&self.image, error))?;
        out.flush().with_context(|| format!("{}: cannot write", self.archive.display()))?;
        drop(out);
        if let Some(file) = file {
            file.sync_and_finish()?;
        }
        self.report(context, &created)
    }

    fn report(&self, context: &Context, created: &ArchiveCreated) -> anyhow::Result<()> {
        let image = self.image.display();
        if created.damaged_bytes > 0 {
            let bytes = created.damaged_bytes;
            context.error(format_args!("{image}: no copy of {bytes} bytes is good: archived as they are"));
        }
        if created.unreadable_bytes > 0 {
            let bytes = created.unreadable_bytes;
            context.error(format_args!("{image}: {bytes} bytes cannot be read: the archive lacks them"));
        }
        if self.archive == Path::new("-") || (context.verbosity < 1 && !self.json) {
            return Ok(());
        }
        let mut output = Output::new()?;
        if self.json {
            let result = json!({
                "id": created.id.to_string(),
                "bytes": created.bytes,
                "metadata_bytes": created.metadata_bytes,
                "data_bytes": created.data_bytes,
                "unchanged_bytes": created.unchanged_bytes,
                "damaged_bytes": created.damaged_bytes,
                "unreadable_bytes": created.unreadable_bytes,
            });
            output.text(format_args!("{result}\n"))?;
        } else {
            output.text(format_args!(
                "{}: {} bytes of tree blocks and {} of data in {} bytes\n",
                self.archive.display(),
                created.metadata_bytes,
                created.data_bytes,
                created.bytes
            ))?;
        }
        Ok(output.finish()?)
    }
}

/// Refuses a file system that is mounted for writing: it would change while it is read.
fn refuse_mounted(image: &Path) -> anyhow::Result<()> {
    let Some(mount) = mount_of_device(image) else { return Ok(()) };
    if mount.options.split(',').any(|option| option == "ro") {
        return Ok(());
    }
    let (image, point) = (image.display(), mount.point.display());
    bail!("{image}: mounted on {point}, so it would change meanwhile; unmount it, or mount it read-only")
}

/// Refuses targets that would be destroyed by mistake.
fn refuse_targets(arguments: &ArchiveArgs) -> anyhow::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    let target = &arguments.archive;
    let shown = target.display();
    if std::fs::metadata(target).is_ok_and(|found| found.file_type().is_block_device()) {
        bail!("{shown}: an archive is written to a file, not to a device");
    }
    let same = |path: &Path| path.canonicalize().ok();
    let sources = std::iter::once(&arguments.image).chain(&arguments.since).chain(&arguments.parent);
    for source in sources {
        if same(source).is_some() && same(source) == same(target) {
            bail!("{shown}: the archive would overwrite {}", source.display());
        }
    }
    Ok(())
}

/// Opens an archive with all that it is based on.
fn open_chain(path: &Path, parents: &[PathBuf]) -> anyhow::Result<ArchiveChain> {
    let file: Arc<dyn Device> = Arc::new(DeviceOptions::new(Access::ReadOnly).open(path)?);
    ArchiveChain::open_path(path, file, parents).map_err(of_archive)
}

fn stdin_source(start: Vec<u8>) -> anyhow::Result<ArchiveSource> {
    let input: Box<dyn Read + Send> = Box::new(io::Cursor::new(start).chain(BufReader::new(io::stdin())));
    ArchiveReader::new(input, "standard input").map_err(of_archive)
}

impl VerifyArgs {
    /// Checks an archive.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let verified = self.verify(context);
        if !self.json {
            return verified.map(drop);
        }
        let result = match verified {
            Ok(result) => result,
            Err(error) => {
                context.fail_silently();
                json!({"good": false, "error": format!("{error:#}")})
            }
        };
        let mut output = Output::new()?;
        output.text(format_args!("{result}\n"))?;
        Ok(output.finish()?)
    }

    fn verify(&self, context: &Context) -> anyhow::Result<serde_json::Value> {
        let is_stdin = self.archive == Path::new("-");
        let mut sources = vec![match is_stdin {
            true => stdin_source(Vec::new())?,
            false => open_source(&self.archive).map_err(of_archive)?,
        }];
        if !self.without_parents {
            add_parents(&self.archive, &self.parent, &mut sources).map_err(of_archive)?;
        }
        let bar = bar(context);
        let mut archives = Vec::new();
        let (mut unreadable, threads) = (0, cores());
        let length = |source: &ArchiveSource| std::fs::metadata(source.name()).map_or(0, |found| found.len());
        let sizes: Vec<_> = sources.iter().map(length).collect();
        context.confine_to_open_files();
        for (source, size) in sources.iter_mut().zip(sizes) {
            let summary = verify_archive(source, threads, &mut |done| advance(bar.as_ref(), done, size))?;
            let header = source.header();
            unreadable = summary.unreadable_bytes;
            archives.push(json!({
                "name": source.name(),
                "id": header.id.to_string(),
                "file_system": header.fsid.to_string(),
                "generation": header.generation.0,
                "created": header.created,
                "bytes": summary.size,
                "frames": summary.frames,
                "metadata_bytes": summary.metadata_bytes,
                "data_bytes": summary.data_bytes,
                "unreadable_bytes": summary.unreadable_bytes,
            }));
            if context.verbosity > 0 && !self.json {
                let mut output = Output::new()?;
                let (name, size, frames) = (source.name(), summary.size, summary.frames);
                output.text(format_args!("{name}: {frames} frames in {size} bytes are good\n"))?;
                output.finish()?;
            }
        }
        finish(context, bar);
        if unreadable > 0 && !self.json {
            context.error(format_args!(
                "{}: the source could not read {unreadable} bytes: the archive lacks them",
                self.archive.display()
            ));
        }
        Ok(json!({"good": unreadable == 0, "archives": archives}))
    }
}

impl ArchiveRestore<'_> {
    /// Returns whether a path names an archive. Of standard input, returns the bytes that were
    /// read to find out.
    pub fn recognise(path: &Path) -> anyhow::Result<(bool, Vec<u8>)> {
        if path != Path::new("-") {
            return Ok((is_archive(path), Vec::new()));
        }
        let mut start = Vec::new();
        io::stdin().lock().take(8).read_to_end(&mut start).context("standard input")?;
        Ok((start.starts_with(b"\x89PBK"), start))
    }

    /// Restores the archive. `start` are the bytes of standard input that were read already.
    pub fn run(self, context: &Context, start: Vec<u8>) -> anyhow::Result<()> {
        let name = self.archive.display();
        let mut sources = vec![match self.archive == Path::new("-") {
            true => stdin_source(start)?,
            false => open_source(self.archive).map_err(of_archive)?,
        }];
        let sizes = restore_sizes(&sources[0]);
        if sizes.len() != self.images.len() {
            let (needed, given) = (sizes.len(), self.images.len());
            bail!("{name}: the file system has {needed} devices, {given} were given");
        }
        if !self.sizes.is_empty() && self.sizes.len() != sizes.len() {
            bail!("--size is needed once for each of the {} devices, or not at all", sizes.len());
        }
        add_parents(self.archive, self.parents, &mut sources).map_err(of_archive)?;
        let mut targets = ImageTargets::new();
        for (number, (image, size)) in self.images.iter().zip(&sizes).enumerate() {
            let wanted = self.sizes.get(number).copied().unwrap_or(*size);
            add_target(&mut targets, image, wanted, self.force)?;
        }
        for (number, (device, size)) in targets.devices().iter().zip(&sizes).enumerate() {
            if device.size() < *size && context.verbosity > 0 {
                let (image, have) = (self.images[number].display(), device.size());
                context.warning(format_args!(
                    "{image}: {have} bytes are fewer than the {size} of the archived device: it is shrunk"
                ));
            }
        }
        let all = self.bytes_of(&sources);
        let bar = bar(context);
        let restored = restore_archive(&mut sources, targets.devices(), &std::env::temp_dir(), |done| {
            advance(bar.as_ref(), done, all);
        });
        finish(context, bar);
        let restored = restored.map_err(crate::holder::explain)?;
        targets.keep();
        context.changed_devices.note(self.images);
        if restored.unreadable_bytes > 0 {
            let bytes = restored.unreadable_bytes;
            context.error(format_args!("{name}: it lacks {bytes} bytes that its source could not read"));
        }
        if context.verbosity > 0 {
            let mut output = Output::new()?;
            output.text(format_args!("{} bytes of tree blocks and data restored\n", restored.bytes))?;
            output.finish()?;
        }
        Ok(())
    }

    fn bytes_of(&self, sources: &[ArchiveSource]) -> u64 {
        sources
            .iter()
            .filter_map(|source| std::fs::metadata(source.name()).ok())
            .map(|found| found.len())
            .sum()
    }
}
