//! `papilio cp`: chooses the destination of each source by the rules of cp(1).
//!
//! [`papilio::export`] copies to the host and to archives, [`into`] into a file system.

mod args;
mod into;

pub use args::Args;

use crate::context::{Context, create_host_file};
use crate::copy;
use crate::copy::CopyReport;
use crate::copy::progress::Progress;
use crate::path::{ImagePath, Operand};
use crate::usage_error::UsageError;
use into::IntoImage;
use papilio::{
    FileKind, HostOptions, HostPlace, HostSink, Inode, PathError, Source, SourceOptions, TarSink, host_kind,
};
use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{BufWriter, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

impl Args {
    /// Copies the sources.
    pub fn run(mut self, context: &Context) -> anyhow::Result<()> {
        self.recursive |= self.archive || self.to_tar.is_some();
        let destination = match (&self.target_directory, &self.to_tar) {
            (None, None) => self.paths.pop(),
            (directory, _) => directory.clone(),
        };
        if self.paths.is_empty() {
            let missing = "cp: the destination is missing";
            return Err(UsageError::new(missing).into());
        }
        let destination = match destination.map(|path| Operand::parse(&path)) {
            Some(Operand::Image(destination)) => {
                return IntoImage { arguments: &self, context, destination }.run();
            }
            Some(Operand::Host(destination)) if destination == Path::new("-") => {
                let text = "cp: - is no destination: `papilio cat` writes files to standard output, cp --to-tar - \
                            an archive (./- is a file called -)";
                return Err(UsageError::new(text).into());
            }
            Some(Operand::Host(destination)) => Some(destination),
            None => None,
        };
        if self.compress.is_some() {
            return Err(UsageError::new("cp: --compress needs a destination in a file system").into());
        }
        let wanted = self.image_paths()?;
        let kept = self.archive || self.to_tar.is_some();
        let options = SourceOptions {
            recursive: self.recursive,
            one_subvolume: self.one_file_system,
            links: kept,
            xattrs: kept,
            segments: self.to_tar.is_some(),
            ..SourceOptions::default()
        };
        if self.json && self.to_tar.as_deref() == Some(Path::new("-")) {
            return Err(UsageError::new("cp: --json and the archive both go to standard output").into());
        }
        let images = wanted.iter().map(|path| path.image.clone());
        match (&destination, self.to_tar.as_deref()) {
            (_, Some(archive)) if archive == Path::new("-") => context.confine_to_images(images),
            (_, Some(output)) => context.confine_to_output(output, images),
            (Some(output), None) => context.confine_to_output(output, images),
            (None, None) => {}
        }
        let shown = !self.no_progress && context.verbosity == 0 && std::io::stderr().is_terminal();
        let progress = Progress::new(shown);
        context.set_progress(progress.bar());
        let copied = match (destination, &self.to_tar) {
            (_, Some(archive)) => self.to_tar(context, wanted, options, archive, &progress),
            (Some(destination), None) => self.to_host(context, wanted, options, &destination, &progress),
            (None, None) => Ok(()),
        };
        context.set_progress(None);
        if let Some(bar) = progress.bar() {
            bar.finish_and_clear();
        }
        copied
    }

    fn image_paths(&self) -> Result<Vec<ImagePath>, UsageError> {
        let path = |argument: &OsString| match Operand::parse(argument) {
            Operand::Image(path) => Ok(path),
            Operand::Host(path) => Err(UsageError::new(format_args!(
                "{}: both this and the destination are on the host; name one as IMAGE:/path",
                path.display()
            ))),
        };
        self.paths.iter().map(path).collect()
    }

    /// Returns the sources that can be copied. Reports the others.
    fn sources(&self, context: &Context, wanted: Vec<ImagePath>) -> anyhow::Result<Vec<Source>> {
        let mut sources = Vec::new();
        for path in wanted {
            let inode = match context.inode(&path, !self.recursive) {
                Ok(inode) => inode,
                Err(error) => {
                    context.failure(&error);
                    continue;
                }
            };
            match refuse_without_recursion(&path, &inode) {
                Some(refusal) if !self.recursive => context.error(refusal),
                _ => sources.push(Source { path, inode }),
            }
        }
        Ok(sources)
    }

    fn to_tar(
        &self,
        context: &Context,
        wanted: Vec<ImagePath>,
        options: SourceOptions,
        archive: &Path,
        progress: &Progress,
    ) -> anyhow::Result<()> {
        let sources = self.sources(context, wanted)?;
        let file = if archive == Path::new("-") {
            let stdout = std::io::stdout();
            if stdout.is_terminal() {
                anyhow::bail!("refusing to write an archive to a terminal; redirect it");
            }
            stdout.as_fd().try_clone_to_owned()?.into()
        } else if sources.is_empty() {
            // An existing archive is not truncated for nothing.
            return Ok(());
        } else {
            create_host_file(archive)?
        };
        let writer: Box<dyn Write> = Box::new(BufWriter::with_capacity(1 << 20, file));
        let name = archive.display().to_string();
        let paths = sources.iter().map(|source| source.path.clone()).collect();
        let report = CopyReport { context, progress, json: self.json };
        let mut sink = TarSink::new(&report, writer, name, paths);
        copy::run(sources, options, &mut sink, &report)?;
        sink.finish().map_err(copy::explain)
    }

    fn to_host(
        &self,
        context: &Context,
        wanted: Vec<ImagePath>,
        options: SourceOptions,
        destination: &Path,
        progress: &Progress,
    ) -> anyhow::Result<()> {
        let kind = host_kind(destination);
        let directory = kind.is_some_and(|kind| kind.is_dir());
        let into = directory && !self.no_target_directory;
        if !into && (self.target_directory.is_some() || wanted.len() > 1) {
            anyhow::bail!("{}: not a directory", destination.display());
        }
        let mut placed = Placed::default();
        let mut sources = Vec::new();
        for source in self.sources(context, wanted)? {
            let place = match into {
                true => placed.inside(&source, destination),
                false => self.as_destination(&source, destination),
            };
            match place {
                Ok(place) => sources.push((source, place)),
                Err(refusal) => context.error(refusal),
            }
        }
        let options_of_host = HostOptions { archive: self.archive, no_clobber: self.no_clobber };
        let places = sources.iter().map(|(source, place)| (source.path.clone(), place.clone())).collect();
        let sources = sources.into_iter().map(|(source, _)| source).collect();
        let report = CopyReport { context, progress, json: self.json };
        let mut sink = HostSink::new(&report, options_of_host, places)?;
        let copied = copy::run(sources, options, &mut sink, &report);
        sink.finish();
        copied
    }

    /// Returns the place of a single source whose new name is the destination.
    fn as_destination(&self, source: &Source, destination: &Path) -> Result<HostPlace, String> {
        let shown = destination.display();
        let is_directory = source.inode.metadata().file_type() == FileKind::Directory;
        let slash = destination.as_os_str().as_bytes().ends_with(b"/");
        match host_kind(destination) {
            Some(kind) if kind.is_dir() && is_directory => Ok(HostPlace::Content(destination.to_path_buf())),
            Some(kind) if kind.is_dir() => Err(format!("{shown}: cannot overwrite a directory with a file")),
            Some(_) if is_directory => Err(format!("{shown}: cannot overwrite a file with a directory")),
            Some(kind) if kind.is_file() => {
                // Links are followed in the path that the user gave.
                let real = destination.canonicalize().map_err(|e| format!("{shown}: {e}"))?;
                named(&real, true)
            }
            Some(_) => Ok(HostPlace::Stream(destination.to_path_buf())),
            None if destination.symlink_metadata().is_ok() => {
                Err(format!("{shown}: not writing through a dangling symbolic link"))
            }
            None if slash && !is_directory => Err(format!("{shown}: not a directory")),
            None => named(destination, false),
        }
    }
}

/// Returns why a source cannot be copied without `-r`, if it cannot.
fn refuse_without_recursion(path: &ImagePath, inode: &Inode) -> Option<String> {
    match inode.metadata().file_type() {
        FileKind::Directory => {
            Some(format!("{path}: {}; copied only with -r or -a", PathError::IsADirectory))
        }
        _ => None,
    }
}

fn named(path: &Path, in_place: bool) -> Result<HostPlace, String> {
    let Some(name) = path.file_name() else {
        return Err(format!("{}: no such file or directory", path.display()));
    };
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    };
    Ok(HostPlace::Named { parent, name: name.as_bytes().to_vec(), in_place })
}

/// The names that were copied into a directory, so that no source overwrites the copy of another.
#[derive(Default)]
struct Placed {
    taken: HashMap<Vec<u8>, FileKind>,
}

impl Placed {
    fn inside(&mut self, source: &Source, directory: &Path) -> Result<HostPlace, String> {
        let Some(name) = source.path.base_name() else {
            return Ok(HostPlace::Content(directory.to_path_buf()));
        };
        let kind = source.inode.metadata().file_type();
        let directories = kind == FileKind::Directory;
        match self.taken.insert(name.to_vec(), kind) {
            Some(FileKind::Directory) if directories => {}
            None => {}
            Some(_) => {
                return Err(format!(
                    "{}: will not overwrite {}, which was just created",
                    source.path,
                    directory.join(std::ffi::OsStr::from_bytes(name)).display()
                ));
            }
        }
        let parent = directory.to_path_buf();
        Ok(HostPlace::Named { parent, name: name.to_vec(), in_place: false })
    }
}
