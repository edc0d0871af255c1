//! `papilio cp` into a file system, from the host or from another or the same file system.
//!
//! Owns [`IntoImage`]. [`papilio::Populate`] copies from the host, and [`papilio::ImageCopy`]
//! between file systems.

use super::args::Args;
use crate::context::Context;
use crate::filling::{Caller, Report};
use crate::path::{ImagePath, Operand};
use crate::usage_error::UsageError;
use anyhow::Context as _;
use papilio::{
    CopyError, Error, Existing, ExportObserver, ExportProblem, FileKind, FileSystem, ImageCopy,
    ImageCopyOptions, Inode, NewKind, PathError, Populate, PopulateObserver,
};
use std::cell::RefCell;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The size in bytes of the pieces in which a stream is read.
const PIECE: usize = 4 << 20;

/// A copy into a file system.
pub struct IntoImage<'a> {
    pub arguments: &'a Args,
    pub context: &'a Context,
    pub destination: ImagePath,
}

/// The destination of a source.
struct CopyTarget {
    parent: Inode,
    name: Vec<u8>,
    path: ImagePath,
}

impl IntoImage<'_> {
    /// Copies all sources.
    pub fn run(&self) -> anyhow::Result<()> {
        let (arguments, context) = (self.arguments, self.context);
        let fs = match arguments.compress {
            Some(choice) => {
                context.change_with(&self.destination.image, |options| options.compress(choice))?
            }
            None => context.change(&self.destination.image)?,
        };
        let into = match fs.inode(&self.destination.path) {
            Ok(inode) if inode.file_type() == FileKind::Directory && !arguments.no_target_directory => {
                Some(inode)
            }
            Ok(_) | Err(Error::Path { kind: PathError::NotFound, .. }) => None,
            Err(error) => return Err(context.at(&self.destination, &error)),
        };
        let alone = arguments.paths.len() == 1 && arguments.target_directory.is_none();
        if into.is_none() && !alone {
            anyhow::bail!("{}: {}", self.destination, PathError::NotADirectory);
        }
        for source in &arguments.paths {
            let copied = match Operand::parse(source) {
                Operand::Host(source) => self.copy_host(&fs, into.as_ref(), &source),
                Operand::Image(source) => self.copy_image(&fs, into.as_ref(), source),
            };
            match copied {
                Ok(()) => {}
                // The failure of one source does not end the copy.
                Err(error) if is_fatal(&error) => return Err(error),
                Err(error) => context.failure(&error),
            }
        }
        Ok(())
    }

    /// Returns the destination of a source called `name`.
    fn target(&self, fs: &FileSystem, into: Option<&Inode>, name: &[u8]) -> anyhow::Result<CopyTarget> {
        if let Some(parent) = into {
            let path = self.destination.join(name);
            return Ok(CopyTarget { parent: parent.clone(), name: name.to_vec(), path });
        }
        let found = fs.parent(&self.destination.path);
        let (parent, name) = found.map_err(|error| self.context.at(&self.destination, &error))?;
        Ok(CopyTarget { parent, name: name.to_vec(), path: self.destination.clone() })
    }

    fn existing(&self) -> Existing {
        if self.arguments.no_clobber { Existing::Keep } else { Existing::Replace }
    }

    fn copy_host(&self, fs: &FileSystem, into: Option<&Inode>, source: &Path) -> anyhow::Result<()> {
        let (arguments, shown) = (self.arguments, || source.display().to_string());
        if source == Path::new("-") {
            return self.standard_input(fs, into);
        }
        let metadata = match arguments.recursive {
            true => source.symlink_metadata(),
            false => source.metadata(),
        };
        let metadata = metadata.with_context(shown)?;
        if metadata.is_dir() && !arguments.recursive {
            anyhow::bail!("{}: is a directory; copied only with -r or -a", shown());
        }
        let caller = Caller::new();
        let mut populate = Populate::new()
            .keep_attributes(arguments.archive)
            .umask(caller.umask)
            .existing(self.existing())
            .recursive(arguments.recursive)
            .follow(!arguments.recursive);
        if !arguments.archive {
            populate = populate.owner(caller.uid, caller.gid);
        }
        // `.`, `..` and `/` have no name, so their content is copied.
        let content = metadata.is_dir() && (source.file_name().is_none() || ends_in_dot(source));
        if let (true, Some(directory)) = (content, into) {
            let mut report = self.report(&self.destination.join(b""));
            populate.directory(source, directory, &mut report)?;
            return Ok(());
        }
        let name = source.file_name().map(OsStrExt::as_bytes).unwrap_or_default();
        let target = self.target(fs, into, name)?;
        if !arguments.recursive && !metadata.is_file() {
            let stream = File::open(source).with_context(shown)?;
            return self.stream(stream, &shown(), &target, caller);
        }
        let above = &target.path.path[..target.path.path.len() - target.name.len()];
        let above = ImagePath { image: target.path.image.clone(), path: above.to_vec() };
        let mut report = self.report(&above);
        populate.entry(source, &target.parent, &target.name, &mut report)?;
        Ok(())
    }

    fn report(&self, above: &ImagePath) -> Report<'_> {
        Report::new(self.context, self.arguments.no_progress, false, &above.to_bytes())
    }

    /// Copies standard input into a regular file, which the destination has to name.
    fn standard_input(&self, fs: &FileSystem, into: Option<&Inode>) -> anyhow::Result<()> {
        if into.is_some() {
            return Err(UsageError::new(format_args!(
                "cp -: {} is a directory; standard input needs the name of a file (./- is a file called -)",
                self.destination
            ))
            .into());
        }
        let target = self.target(fs, None, b"")?;
        self.stream(std::io::stdin().lock(), "standard input", &target, Caller::new())
    }

    /// Copies the bytes of a pipe or device into a regular file.
    fn stream(
        &self,
        mut stream: impl Read,
        source: &str,
        target: &CopyTarget,
        caller: Caller,
    ) -> anyhow::Result<()> {
        let at = |error: Error| self.context.at(&target.path, &error);
        let host = || source.to_owned();
        let inode = match target.parent.lookup(&target.name).map_err(at)? {
            Some(_) if self.arguments.no_clobber => return Ok(()),
            Some(existing) => existing,
            None => target.parent.create(&target.name, &caller.inode(NewKind::Regular, 0o666)).map_err(at)?,
        };
        let file = inode.open().map_err(at)?;
        file.set_len(0).map_err(at)?;
        let mut report = self.report(&target.path);
        let mut buffer = vec![0; PIECE];
        let mut offset = 0;
        loop {
            let mut length = 0;
            while length < buffer.len() {
                match stream.read(&mut buffer[length..]) {
                    Ok(0) => break,
                    Ok(more) => length += more,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error).with_context(host),
                }
            }
            if length == 0 {
                return Ok(());
            }
            file.write_all_at(&buffer[..length], offset).map_err(at)?;
            offset += length as u64;
            report.bytes(length as u64);
        }
    }

    fn copy_image(&self, fs: &FileSystem, into: Option<&Inode>, source: ImagePath) -> anyhow::Result<()> {
        let (arguments, context) = (self.arguments, self.context);
        let inode = context.inode(&source, !arguments.recursive)?;
        if inode.file_type() == FileKind::Directory && !arguments.recursive {
            anyhow::bail!("{source}: is a directory; copied only with -r or -a");
        }
        let caller = Caller::new();
        let options = ImageCopyOptions {
            keep_attributes: arguments.archive,
            existing: self.existing(),
            one_subvolume: arguments.one_file_system,
            owner: (caller.uid, caller.gid),
            umask: caller.umask,
            share: arguments.reflink.into(),
        };
        let report = ImageReport { context, report: RefCell::new(self.report(&self.destination)) };
        let mut copy = ImageCopy::new(&report, options, source.image == self.destination.image);
        let content = inode.file_type() == FileKind::Directory && source.base_name().is_none();
        if let (true, Some(directory)) = (content, into) {
            return copy.content(&source, &inode, &self.destination, directory).map_err(explain);
        }
        let name = source.base_name().unwrap_or_default();
        let target = self.target(fs, into, name)?;
        copy.entry(&source, &inode, &target.path, &target.parent, &target.name).map_err(explain)
    }
}

/// Reports a copy between file systems.
struct ImageReport<'a> {
    context: &'a Context,
    report: RefCell<Report<'a>>,
}

impl ExportObserver for ImageReport<'_> {
    fn problem(&self, problem: ExportProblem) {
        self.context.error(problem);
    }

    fn bytes(&self, count: u64) {
        self.report.borrow_mut().bytes(count);
    }

    fn wants_names(&self) -> bool {
        self.context.verbosity > 0
    }

    fn created(&self, from: &ImagePath, to: &str) -> std::io::Result<()> {
        self.context.note(format_args!("{from} -> {to}"));
        Ok(())
    }
}

fn explain(error: CopyError) -> anyhow::Error {
    match *error.error {
        // The type says that nothing more can be copied.
        Error::NoSpace { .. } | Error::ReadOnlyFileSystem { .. } => {
            anyhow::Error::from(error.error).context(error.path.to_string())
        }
        _ => error.into(),
    }
}

fn ends_in_dot(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    bytes == b"." || bytes.ends_with(b"/.") || bytes.ends_with(b"/./")
}

/// Returns whether the error concerns the whole file system, so that nothing more can be copied.
fn is_fatal(error: &anyhow::Error) -> bool {
    let fatal = |error: &Error| {
        !matches!(error, Error::Path { .. } | Error::Host { .. } | Error::Invalid(_) | Error::Open(_))
    };
    error.downcast_ref::<Error>().is_some_and(fatal) || error.is::<UsageError>()
}
