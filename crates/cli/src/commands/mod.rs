//! The commands. Owns the list of them; a new one is a `mod` line, a variant and a line in
//! [`Command::run`].

pub mod bench;
pub mod cat;
pub mod check;
pub mod chmod;
pub mod chown;
pub mod completions;
pub mod cp;
pub mod du;
pub mod filesystem;
pub mod find;
pub mod getfattr;
pub mod inspect;
pub mod ln;
pub mod ls;
pub mod man;
pub mod mkdir;
pub mod mkfs;
pub mod mount;
pub mod mv;
pub mod property;
pub mod rm;
pub mod setfattr;
pub mod stat;
pub mod subvolume;
pub mod touch;
pub mod truncate;
pub mod umount;

use crate::context::Context;
use clap::Subcommand;

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List directories and files
    Ls(ls::Args),
    /// Write the content of files to standard output
    Cat(cat::Args),
    /// Show everything that is known of files
    Stat(stat::Args),
    /// Copy files and directories out of a file system, into one, and within it
    Cp(cp::Args),
    /// Make directories
    Mkdir(mkdir::Args),
    /// Rename files and directories
    Mv(mv::Args),
    /// Remove files and directories
    Rm(rm::Args),
    /// Make a further name of a file, or a symbolic link
    Ln(ln::Args),
    /// Change the times of files; make those that are not there
    Touch(touch::Args),
    /// Change the sizes of files
    Truncate(truncate::Args),
    /// Change modes
    Chmod(chmod::Args),
    /// Change owners and groups
    Chown(chown::Args),
    /// Show extended attributes
    Getfattr(getfattr::Args),
    /// Set or remove an extended attribute
    Setfattr(setfattr::Args),
    /// Find files by their properties
    Find(Box<find::Args>),
    /// Add up the space that files take
    Du(du::Args),
    /// List, show, make and delete subvolumes and snapshots
    Subvolume(subvolume::Args),
    /// Show and set properties: ro, compression
    Property(property::Args),
    /// Mount a file system through FUSE
    Mount(mount::Args),
    /// Unmount, and wait until the image is closed
    Umount(umount::Args),
    /// Make a file system
    Mkfs(Box<mkfs::Args>),
    /// Show the devices of file systems and how their space is used; change label and size
    Filesystem(filesystem::Args),
    /// Check a file system, without writing
    Check(check::Args),
    /// Look at the structures that a file system is made of
    Inspect(inspect::Args),
    /// Compare Papilio with the kernel's Btrfs on the same workloads, in turn
    Bench(Box<bench::Args>),
    /// Print a shell's completion script
    Completions(completions::Args),
    /// Write the manual pages
    Man(man::Args),
}

impl Command {
    /// Does it.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        match self {
            Self::Ls(command) => command.run(context),
            Self::Cat(command) => command.run(context),
            Self::Stat(command) => command.run(context),
            Self::Cp(command) => command.run(context),
            Self::Mkdir(command) => command.run(context),
            Self::Mv(command) => command.run(context),
            Self::Rm(command) => command.run(context),
            Self::Ln(command) => command.run(context),
            Self::Touch(command) => command.run(context),
            Self::Truncate(command) => command.run(context),
            Self::Chmod(command) => command.run(context),
            Self::Chown(command) => command.run(context),
            Self::Getfattr(command) => command.run(context),
            Self::Setfattr(command) => command.run(context),
            Self::Find(command) => command.run(context),
            Self::Du(command) => command.run(context),
            Self::Subvolume(command) => command.run(context),
            Self::Property(command) => command.run(context),
            Self::Mount(command) => command.run(context),
            Self::Umount(command) => command.run(context),
            Self::Mkfs(command) => command.run(context),
            Self::Filesystem(command) => command.run(context),
            Self::Check(command) => command.run(context),
            Self::Inspect(command) => command.run(context),
            Self::Bench(command) => command.run(context),
            Self::Completions(command) => command.run(),
            Self::Man(command) => command.run(),
        }
    }
}
