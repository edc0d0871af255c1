//! `papilio image`: dumps of the metadata of a file system, and file systems made of dumps.
//!
//! Owns its subcommands and the arguments of `btrfs-image`.

use super::image_archive::{ArchiveArgs, ArchiveRestore, VerifyArgs};
use super::image_partclone;
use super::image_target::{RestoreArgs, add_target, advance, bar, finish};
use crate::context::Context;
use crate::host_output::HostOutput;
use crate::output::Output;
use crate::usage_error::UsageError;
use anyhow::{Context as _, bail};
use papilio::{ImageDump, ImageDumpOptions, NameReplacement, RestoreMode};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Dump or archive a whole file system, and restore it
///
/// `archive` backs up all that is in use into one file. `dump` writes metadata alone, in the format
/// of btrfs-image.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    Archive(ArchiveArgs),
    Verify(VerifyArgs),
    Dump(DumpArgs),
    Restore(RestoreArgs),
}

/// Write a dump of the metadata, without the data of files
///
/// The dump has every tree block of the last commit. Data in tree blocks and the checksums of data
/// become zeros. A tree block of which no copy is good is copied as it is.
#[derive(Debug, clap::Args)]
struct DumpArgs {
    #[command(flatten)]
    how: How,
    /// The image or device
    #[arg(value_name = "IMAGE", value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    /// The dump to write; - is standard output
    #[arg(value_name = "DUMP", value_hint = clap::ValueHint::FilePath)]
    dump: PathBuf,
}

/// How a dump is made.
#[derive(Debug, clap::Args)]
struct How {
    /// Compress with zlib, from 1 (fastest) to 9 (smallest); 0 does not compress
    #[arg(short, long, value_name = "LEVEL", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=9))]
    compress: u8,
    /// Use N threads, 1 to 32 [default: one for each core]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=32))]
    threads: Option<u8>,
    /// Replace names, and set xattrs to zeros; twice, by names of the same hash where there are any
    ///
    /// Names of the same hash keep directories readable. Of up to four bytes no other name has the
    /// same hash; directories with such names cannot be read in the copy.
    #[arg(short, long = "sanitize", action = clap::ArgAction::Count)]
    sanitize: u8,
    /// Find the tree blocks by walking all trees, not by the extent tree, which may be damaged
    #[arg(short, long)]
    walk: bool,
    /// Dump the data of files, too; only experimental builds of btrfs-image read such a dump
    #[arg(short, long, conflicts_with_all = ["walk", "sanitize"])]
    data: bool,
}

/// Dump the metadata of a file system, or restore it from a dump, as btrfs-image does
#[derive(Debug, clap::Args)]
pub struct DropInArgs {
    /// Restore
    #[arg(short)]
    restore: bool,
    /// Restore without a new chunk tree
    #[arg(short)]
    old: bool,
    /// Restore to several devices
    #[arg(short)]
    multi: bool,
    #[command(flatten)]
    how: How,
    /// The source, then the target; further devices with -m
    #[arg(required = true, num_args = 2..)]
    paths: Vec<PathBuf>,
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        match self.command {
            Subcommand::Archive(command) => command.run(context),
            Subcommand::Verify(command) => command.run(context),
            Subcommand::Dump(command) => dump(context, &command.how, &command.image, &command.dump),
            Subcommand::Restore(command) => restore(context, &command),
        }
    }
}

impl DropInArgs {
    /// Runs the program.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let mut paths = self.paths.into_iter();
        let source = paths.next().expect("two paths are required");
        let targets: Vec<_> = paths.collect();
        let wrong = |text: &str| Err(UsageError::new(text.to_owned()).into());
        if !self.multi && targets.len() > 1 {
            return wrong("several targets need -m");
        }
        if !self.restore && !self.multi {
            return match self.old {
                true => wrong("-o needs -r"),
                false => dump(context, &self.how, &source, &targets[0]),
            };
        }
        let how = &self.how;
        if how.walk || how.sanitize > 0 || how.compress > 0 || how.data {
            return wrong("-w, -s, -c and -d make no sense with -r");
        }
        if self.multi && targets.len() < 2 {
            return wrong("-m needs several devices");
        }
        let (multi, old) = (self.multi, self.old);
        let (parent, size) = (Vec::new(), Vec::new());
        restore(
            context,
            &RestoreArgs { multi, old, force: true, parent, size, dump: source, images: targets },
        )
    }
}

fn dump(context: &Context, how: &How, image: &Path, target: &Path) -> anyhow::Result<()> {
    let names = match how.sanitize {
        0 => NameReplacement::None,
        1 => NameReplacement::Random,
        _ => NameReplacement::SameHash,
    };
    let options = ImageDumpOptions::new()
        .names(names)
        .level(how.compress)
        .threads(how.threads.unwrap_or(0).into())
        .walk(how.walk)
        .data(how.data);
    let system = context.open_last_commit(image, &[], true)?;
    let to_stdout = target == Path::new("-");
    let mut file = None;
    if !to_stdout {
        if std::fs::metadata(target).is_ok_and(|found| found.file_type().is_block_device()) {
            bail!("{}: a dump is written to a file, not to a device", target.display());
        }
        let same = |path: &Path| path.canonicalize().ok();
        if same(image).is_some() && same(image) == same(target) {
            bail!("{}: the dump would overwrite the image", target.display());
        }
        file = Some(HostOutput::open(target)?);
    }
    let out: &mut dyn Write = match &mut file {
        Some(file) => file,
        None => &mut io::stdout().lock(),
    };
    let mut out = BufWriter::new(out);
    let bar = bar(context);
    let dumped = system.dump_image(&mut out, &options, |done, all| advance(bar.as_ref(), done, all));
    finish(context, bar);
    let dumped = dumped.map_err(|error| crate::context::of_image(image, error))?;
    out.flush().with_context(|| format!("{}: cannot write", target.display()))?;
    drop(out);
    if let Some(file) = file {
        file.finish()?;
    }
    if dumped.damaged > 0 {
        let (count, fate) =
            (dumped.damaged, if how.sanitize > 0 { "left out" } else { "copied as they are" });
        context.warning(format_args!("{}: {count} tree blocks are damaged: {fate}", image.display()));
    }
    if dumped.unread_bytes > 0 {
        let (image, bytes) = (image.display(), dumped.unread_bytes);
        context.error(format_args!("{image}: {bytes} bytes cannot be read: the dump has zeros there"));
    }
    if dumped.unmatched_names > 0 {
        let count = dumped.unmatched_names;
        context
            .warning(format_args!("{count} names have no other of the same hash: directories do not match"));
    }
    if !to_stdout && context.verbosity > 0 {
        let mut output = Output::new()?;
        let (blocks, bytes) = (dumped.blocks, dumped.bytes);
        output.text(format_args!("{}: {blocks} tree blocks in {bytes} bytes\n", target.display()))?;
        output.finish()?;
    }
    Ok(())
}

fn restore(context: &Context, arguments: &RestoreArgs) -> anyhow::Result<()> {
    let (is_archive, start) = ArchiveRestore::recognise(&arguments.dump)?;
    if is_archive {
        if arguments.old {
            return Err(UsageError::new("--old is for dumps").into());
        }
        let restore = ArchiveRestore {
            archive: &arguments.dump,
            images: &arguments.images,
            parents: &arguments.parent,
            sizes: &arguments.size,
            force: arguments.force,
        };
        return restore.run(context, start);
    }
    if let Some(input) = image_partclone::recognise(&arguments.dump)? {
        return image_partclone::restore(context, arguments, input);
    }
    if !arguments.parent.is_empty() || !arguments.size.is_empty() {
        return Err(UsageError::new("--parent and --size are for archives, and this is none").into());
    }
    let mode = match (arguments.multi, arguments.old) {
        (true, _) => RestoreMode::AllDevices,
        (_, true) => RestoreMode::Unmapped,
        _ => RestoreMode::OneDevice,
    };
    if !arguments.multi && arguments.images.len() > 1 {
        return Err(UsageError::new("several images need --multi").into());
    }
    let name = arguments.dump.display();
    let input = match arguments.dump == Path::new("-") {
        true => spooled(&start)?,
        false => File::open(&arguments.dump).with_context(|| format!("{name}: cannot open"))?,
    };
    let of_dump = |error: papilio::Error| match error {
        papilio::Error::Invalid(_) => anyhow::Error::msg(format!("{name}: {error}")),
        other => crate::holder::explain(other),
    };
    let mut dump = ImageDump::open(input).map_err(of_dump)?;
    let sizes = dump.sizes(mode).map_err(of_dump)?;
    if sizes.len() != arguments.images.len() {
        let (needed, given) = (sizes.len(), arguments.images.len());
        bail!("{name}: the file system has {needed} devices, {given} were given");
    }
    let mut targets = papilio::ImageTargets::new();
    for (image, size) in arguments.images.iter().zip(&sizes) {
        add_target(&mut targets, image, *size, arguments.force)?;
    }
    let bar = bar(context);
    let restored = dump.restore(mode, targets.devices(), |done, all| advance(bar.as_ref(), done, all));
    finish(context, bar);
    let restored = restored.map_err(of_dump)?;
    targets.keep();
    context.changed_devices.note(&arguments.images);
    if context.verbosity > 0 {
        let mut output = Output::new()?;
        output.text(format_args!("{} bytes of tree blocks and data restored\n", restored.bytes))?;
        output.finish()?;
    }
    Ok(())
}

/// Copies standard input to a file without a name, as a dump is not read in order.
fn spooled(start: &[u8]) -> anyhow::Result<File> {
    let mut file = crate::host_calls::nameless_file().context("cannot keep standard input")?;
    file.write_all(start).context("cannot keep standard input")?;
    io::copy(&mut io::stdin().lock(), &mut file).context("standard input")?;
    Ok(file)
}
