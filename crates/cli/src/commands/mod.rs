//! The commands.
//!
//! Owns the list of them. A new command needs a `mod` line, a variant of [`Command`], a line in
//! `DEFINITIONS` and in [`Command::run`], and an entry in [`man`].

mod backup;
mod balance;
#[cfg(target_os = "linux")]
mod bench;
mod cat;
mod check;
mod check_extents;
mod chmod;
mod chown;
mod completions;
mod compsize;
mod convert;
mod cp;
mod dedupe;
mod deleted;
mod device;
mod diff;
mod doctor;
mod du;
mod filesystem;
mod find;
mod fsck_at_boot;
mod getfattr;
pub mod heatmap;
mod history;
mod image;
mod image_archive;
mod image_partclone;
mod image_target;
mod inspect;
mod ln;
mod ls;
mod man;
mod man_markdown;
mod mkdir;
mod mkfs;
#[cfg(target_os = "linux")]
mod mount;
#[cfg(not(target_os = "linux"))]
mod mount_elsewhere;
mod mv;
mod property;
mod qgroup;
mod quota;
mod receive;
mod replace;
mod rescue;
mod rescue_change;
mod rescue_clone;
mod rescue_find;
mod rescue_full;
mod restore;
mod rm;
#[cfg(target_os = "linux")]
mod run;
mod scrub;
mod send;
mod serve;
mod serve_http;
mod serve_nfs;
mod serve_tls;
#[cfg(target_os = "linux")]
mod serve_vhost_user;
mod setfattr;
pub mod shell;
mod stat;
mod store;
mod stream;
mod subvolume;
mod touch;
pub mod treemap;
mod trim;
mod truncate;
mod tune;
#[cfg(target_os = "linux")]
mod umount;
mod until_signal;
mod verity;
mod versions;

pub use serve_tls::TlsFiles;

use crate::context::Context;
use clap::{Args as _, Subcommand};
#[cfg(not(target_os = "linux"))]
use mount_elsewhere as mount;

/// A command; its help is on the type of its arguments.
#[derive(Debug, Subcommand)]
pub enum Command {
    Ls(ls::Args),
    Cat(cat::Args),
    Stat(stat::Args),
    Cp(cp::Args),
    Mkdir(mkdir::Args),
    Mv(mv::Args),
    Rm(rm::Args),
    Ln(ln::Args),
    Touch(touch::Args),
    Truncate(truncate::Args),
    Trim(trim::Args),
    Chmod(chmod::Args),
    Chown(chown::Args),
    Getfattr(getfattr::Args),
    Setfattr(setfattr::Args),
    Verity(verity::Args),
    Find(Box<find::Args>),
    Du(du::Args),
    Usage(filesystem::usage::Args),
    Compsize(compsize::Args),
    Diff(diff::Args),
    Versions(versions::Args),
    History(history::Args),
    Dedupe(dedupe::Args),
    Heatmap(heatmap::Args),
    Treemap(treemap::Args),
    Subvolume(subvolume::Args),
    Property(property::Args),
    Quota(quota::Args),
    Qgroup(qgroup::Args),
    Balance(balance::Args),
    Device(device::Args),
    Scrub(scrub::Args),
    Replace(replace::Args),
    Backup(backup::Args),
    Send(send::Args),
    Receive(receive::Args),
    Stream(stream::Args),
    Mount(mount::Args),
    #[cfg(target_os = "linux")]
    Umount(umount::Args),
    #[cfg(target_os = "linux")]
    Run(run::Args),
    Serve(serve::Args),
    Store(store::Args),
    Mkfs(Box<mkfs::Args>),
    Filesystem(filesystem::Args),
    Check(check::Args),
    Rescue(rescue::Args),
    Restore(restore::Args),
    Tune(tune::Args),
    Convert(convert::Args),
    Image(image::Args),
    Shell(shell::Args),
    #[command(visible_alias = INSPECT_ALIAS)]
    Inspect(inspect::Args),
    #[cfg(target_os = "linux")]
    Bench(bench::Args),
    #[command(hide = true)]
    FsckAtBoot(fsck_at_boot::Args),
    #[command(hide = true)]
    BtrfsImage(image::DropInArgs),
    Doctor(doctor::Args),
    Completions(completions::Args),
    Man(man::Args),
}

/// The name of `inspect` in btrfs-progs.
const INSPECT_ALIAS: &str = "inspect-internal";

/// Adds a command's arguments to its definition.
type Define = fn(clap::Command) -> clap::Command;

/// The definition of each command alone. Building those of all commands takes longer than most
/// commands do. A test compares them with [`Command`].
const DEFINITIONS: &[(&str, Define)] = &[
    ("ls", ls::Args::augment_args),
    ("cat", cat::Args::augment_args),
    ("stat", stat::Args::augment_args),
    ("cp", cp::Args::augment_args),
    ("mkdir", mkdir::Args::augment_args),
    ("mv", mv::Args::augment_args),
    ("rm", rm::Args::augment_args),
    ("ln", ln::Args::augment_args),
    ("touch", touch::Args::augment_args),
    ("truncate", truncate::Args::augment_args),
    ("trim", trim::Args::augment_args),
    ("chmod", chmod::Args::augment_args),
    ("chown", chown::Args::augment_args),
    ("getfattr", getfattr::Args::augment_args),
    ("setfattr", setfattr::Args::augment_args),
    ("verity", verity::Args::augment_args),
    ("find", find::Args::augment_args),
    ("du", du::Args::augment_args),
    ("usage", filesystem::usage::Args::augment_args),
    ("compsize", compsize::Args::augment_args),
    ("diff", diff::Args::augment_args),
    ("versions", versions::Args::augment_args),
    ("history", history::Args::augment_args),
    ("dedupe", dedupe::Args::augment_args),
    ("heatmap", heatmap::Args::augment_args),
    ("treemap", treemap::Args::augment_args),
    ("subvolume", subvolume::Args::augment_args),
    ("property", property::Args::augment_args),
    ("quota", quota::Args::augment_args),
    ("qgroup", qgroup::Args::augment_args),
    ("balance", balance::Args::augment_args),
    ("device", device::Args::augment_args),
    ("scrub", scrub::Args::augment_args),
    ("replace", replace::Args::augment_args),
    ("backup", backup::Args::augment_args),
    ("send", send::Args::augment_args),
    ("receive", receive::Args::augment_args),
    ("stream", stream::Args::augment_args),
    ("mount", mount::Args::augment_args),
    #[cfg(target_os = "linux")]
    ("umount", umount::Args::augment_args),
    #[cfg(target_os = "linux")]
    ("run", run::Args::augment_args),
    ("serve", serve::Args::augment_args),
    ("store", store::Args::augment_args),
    ("mkfs", mkfs::Args::augment_args),
    ("filesystem", filesystem::Args::augment_args),
    ("check", check::Args::augment_args),
    ("rescue", rescue::Args::augment_args),
    ("restore", restore::Args::augment_args),
    ("tune", tune::Args::augment_args),
    ("convert", convert::Args::augment_args),
    ("image", image::Args::augment_args),
    ("shell", shell::Args::augment_args),
    ("inspect", |command| inspect::Args::augment_args(command).visible_alias(INSPECT_ALIAS)),
    #[cfg(target_os = "linux")]
    ("bench", bench::Args::augment_args),
    ("fsck-at-boot", fsck_at_boot::Args::augment_args),
    ("btrfs-image", image::DropInArgs::augment_args),
    ("doctor", doctor::Args::augment_args),
    ("completions", completions::Args::augment_args),
    ("man", man::Args::augment_args),
];

/// Returns the definition of the command with exactly this name.
pub fn definition_of(name: &str) -> Option<clap::Command> {
    let name = if name == INSPECT_ALIAS { "inspect" } else { name };
    let (name, define) = DEFINITIONS.iter().find(|(known, _)| *known == name)?;
    Some(define(clap::Command::new(*name)))
}

impl Command {
    /// Runs the command. `definition` returns the whole command line's definition, for the commands
    /// that print it in another form; `interpret` runs other commands.
    ///
    /// # Errors
    /// A failure that ended the command. Failures of single operands are reported to `context`.
    pub fn run(
        self,
        context: &Context,
        definition: fn() -> clap::Command,
        interpret: shell::Interpret,
    ) -> anyhow::Result<()> {
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
            Self::Trim(command) => command.run(context),
            Self::Chmod(command) => command.run(context),
            Self::Chown(command) => command.run(context),
            Self::Getfattr(command) => command.run(context),
            Self::Setfattr(command) => command.run(context),
            Self::Verity(command) => command.run(context),
            Self::Find(command) => command.run(context),
            Self::Du(command) => command.run(context),
            Self::Usage(command) => command.run(context),
            Self::Compsize(command) => command.run(context),
            Self::Diff(command) => command.run(context),
            Self::Versions(command) => command.run(context),
            Self::History(command) => command.run(context),
            Self::Dedupe(command) => command.run(context),
            Self::Heatmap(command) => command.run(context),
            Self::Treemap(command) => command.run(context),
            Self::Subvolume(command) => command.run(context),
            Self::Property(command) => command.run(context),
            Self::Quota(command) => command.run(context),
            Self::Qgroup(command) => command.run(context),
            Self::Balance(command) => command.run(context),
            Self::Device(command) => command.run(context),
            Self::Scrub(command) => command.run(context),
            Self::Replace(command) => command.run(context),
            Self::Backup(command) => command.run(context),
            Self::Send(command) => command.run(context),
            Self::Receive(command) => command.run(context),
            Self::Stream(command) => command.run(context),
            Self::Mount(command) => command.run(context),
            #[cfg(target_os = "linux")]
            Self::Umount(command) => command.run(context),
            #[cfg(target_os = "linux")]
            Self::Run(command) => command.run(context),
            Self::Serve(command) => command.run(context),
            Self::Store(command) => command.run(context),
            Self::Mkfs(command) => command.run(context),
            Self::Filesystem(command) => command.run(context),
            Self::Check(command) => command.run(context),
            Self::Rescue(command) => command.run(context),
            Self::Restore(command) => command.run(context),
            Self::Tune(command) => command.run(context),
            Self::Convert(command) => command.run(context),
            Self::Image(command) => command.run(context),
            Self::Shell(command) => command.run(context, definition, interpret),
            Self::Inspect(command) => command.run(context),
            #[cfg(target_os = "linux")]
            Self::Bench(command) => command.run(context),
            Self::FsckAtBoot(command) => command.run(context),
            Self::BtrfsImage(command) => command.run(context),
            Self::Doctor(command) => command.run(context),
            Self::Completions(command) => command.run(definition()),
            Self::Man(command) => command.run(definition()),
        }
    }
}
