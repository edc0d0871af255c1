//! `papilio run`: runs a program for which mounts of Papilio are mounts of Btrfs.
//!
//! `papilio-preload` answers programs that use the C library. Others run under a supervisor:
//! `papilio_run::notify`.

use crate::UsageError;
use crate::context::Context;
use anyhow::{Context as _, bail};
use papilio_run::notify;
use papilio_run::program::{self, Kind};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library that is preloaded.
const LIBRARY: &str = "libpapilio_preload.so";
/// The variable that can hold its path.
const LIBRARY_VARIABLE: &str = "PAPILIO_PRELOAD_LIBRARY";
/// The variable by which the loader finds it.
const PRELOAD: &str = "LD_PRELOAD";

/// The exit code of env(1) for a program that cannot be run, and for one that is not there.
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;
/// A shell adds this to the number of the signal that ended a program.
const BY_SIGNAL: i32 = 128;

/// Run a program for which mounts of Papilio are mounts of Btrfs
///
/// Programs such as snapper, btrbk, duperemove or podman ask whether they are on Btrfs before they
/// work. For PROGRAM and all programs that it starts, mounts of Papilio answer as the kernel's
/// Btrfs does: the type in statfs and in the tables of mounts, a device number for each subvolume,
/// inode numbers of the subvolume, and the ioctls FICLONE, FICLONERANGE, FIDEDUPERANGE and FIEMAP.
/// So `cp --reflink=always`, filefrag and `find -xdev` work as well. Other file systems answer as
/// before. The drop-in names of btrfs-progs come first in PATH if they are installed.
/// The exit code is that of PROGRAM; 127 if it is not there, 126 if it cannot be run.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How to answer: a library that is preloaded, or a supervisor (seccomp), which also answers
    /// static programs and those in Go, and slows each look at a file. `auto` goes by PROGRAM
    #[arg(long, value_name = "HOW", default_value = "auto")]
    by: Method,
    /// Leave PATH as it is, so that `btrfs` is that of btrfs-progs
    #[arg(long)]
    stock_btrfs: bool,
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

/// A way of answering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Method {
    Auto,
    Preload,
    Supervisor,
}

impl Args {
    /// Runs the program. Without a supervisor it takes the place of this one.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let Some((name, arguments)) = self.program.split_first() else {
            return Err(UsageError::new("run: no program was given").into());
        };
        if self.by == Method::Preload && library().is_none() {
            bail!(
                "{LIBRARY} is not beside this program, or its path has a blank or a colon: {}",
                where_it_belongs()
            );
        }
        let program = match program::find(name) {
            Ok(program) => program,
            Err(error) => return not_run(context, name, error),
        };
        let by_supervisor = match self.by {
            Method::Auto => {
                library().is_none() || program::kind_of(&program).is_ok_and(|kind| kind == Kind::Direct)
            }
            by => by == Method::Supervisor,
        };
        let mut command = Command::new(&program);
        command.arg0(name).args(arguments);
        self.set_environment(&mut command);
        if !by_supervisor {
            let error = command.exec();
            return not_run(context, name, error);
        }
        let started = match notify::start(command) {
            Ok(started) => started,
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
                bail!("this kernel tells no program of another one's calls (seccomp): {error}")
            }
            Err(error) => return not_run(context, name, error),
        };
        let status = notify::serve(started).context("the supervisor ended")?;
        let code = status.code().or_else(|| status.signal().map(|signal| BY_SIGNAL + signal));
        if let Some(code @ 1..) = code {
            context.set_code(code as u8);
        }
        Ok(())
    }

    fn set_environment(&self, command: &mut Command) {
        if let Some(library) = library() {
            let mut preload = library.into_os_string();
            if let Some(others) = std::env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
                preload.push(":");
                preload.push(others);
            }
            command.env(PRELOAD, preload);
        }
        if !self.stock_btrfs
            && let Some(folder) = beside("../lib/papilio/bin")
            && folder.join("btrfs").exists()
        {
            let others = std::env::var_os("PATH").unwrap_or_default();
            let all = std::iter::once(folder).chain(std::env::split_paths(&others));
            if let Ok(path) = std::env::join_paths(all) {
                command.env("PATH", path);
            }
        }
    }
}

/// Reports a program that did not start, with the exit code of env(1).
fn not_run(context: &Context, name: &OsStr, error: io::Error) -> anyhow::Result<()> {
    let name = Path::new(name).display();
    match error.kind() {
        io::ErrorKind::NotFound => context.fail_with(NOT_FOUND, format_args!("{name}: no such program")),
        io::ErrorKind::PermissionDenied => {
            context.fail_with(CANNOT_RUN, format_args!("{name}: not a program, or no permission to run it"));
        }
        _ => context.fail_with(CANNOT_RUN, format_args!("{name}: {error}")),
    }
    Ok(())
}

/// Returns the library: the one that a variable names, beside this program, or in `../lib/papilio`.
/// The loader takes a blank or a colon for the end of a path.
fn library() -> Option<PathBuf> {
    let given = std::env::var_os(LIBRARY_VARIABLE).map(PathBuf::from);
    let places = [given, beside(LIBRARY), beside(&format!("../lib/papilio/{LIBRARY}"))];
    let is_one_word =
        |path: &PathBuf| !path.as_os_str().as_bytes().iter().any(|byte| b" :\t\n".contains(byte));
    places.into_iter().flatten().filter(is_one_word).find(|path| path.is_file())
}

/// Returns a path from the folder of this program, as links lead to it.
fn beside(name: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    own.parent()?.join(name).canonicalize().ok()
}

fn where_it_belongs() -> String {
    let folder = beside("..").unwrap_or_default();
    format!("put it into {}, or name it in {LIBRARY_VARIABLE}", folder.join("lib/papilio").display())
}
