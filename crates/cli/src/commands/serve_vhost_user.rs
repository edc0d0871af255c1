//! `papilio serve --vhost-user`: a file system for a virtual machine, which mounts it as virtiofs.

use super::until_signal::wait_for_signal;
use crate::UsageError;
use crate::context::Context;
use crate::holder;
use crate::path::{ImagePath, parse_image_path};
use anyhow::Context as _;
use papilio::{FileSystem, SubvolumeChoice};
use papilio_fuse::MountOptions;
use papilio_fuse::guest::GuestSession;
use papilio_fuse::signals::Signals;
use papilio_sandbox::Sandbox;
use papilio_virtiofs::{Listening, Server, TAG_BYTES, Tag};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Bytes of data that the page cache may hold. The guest has one of its own.
const CACHE: u64 = 256 << 20;

/// The options of `serve --vhost-user`.
#[derive(Debug, clap::Args)]
pub struct VhostUserArgs {
    /// Serve the file system to a virtual machine, as a virtiofs device, on this Unix socket
    #[arg(
        long,
        value_name = "SOCKET",
        value_hint = clap::ValueHint::FilePath,
        conflicts_with_all = ["nbd", "nfs", "http", "socket", "listen", "allow", "export", "connections"]
    )]
    pub vhost_user: Option<PathBuf>,
    /// virtiofs: the name that the guest mounts: mount -t virtiofs NAME /mnt
    #[arg(long, value_name = "NAME", default_value = "papilio", conflicts_with_all = ["nbd", "nfs", "http"])]
    tag: String,
}

impl VhostUserArgs {
    /// Serves until a signal arrives. `sandbox` is that of a server.
    pub fn serve(
        &self,
        context: &Context,
        signals: Signals,
        (given, read_only): (&OsStr, bool),
        socket: &Path,
        sandbox: Sandbox,
    ) -> anyhow::Result<()> {
        let tag = Tag::new(&self.tag).ok_or_else(|| {
            UsageError::new(format!("serve: --tag: `{}` is not a name of 1 to {TAG_BYTES} bytes", self.tag))
        })?;
        let ImagePath { image, path } = parse_image_path(given)?;
        let listening = Listening::new(socket)?;
        let folder = socket.parent().filter(|folder| !folder.as_os_str().is_empty());
        context.confine(sandbox.removes_in(folder.unwrap_or(Path::new("."))), []);
        let mut options = context.options_for(&image).write(!read_only).cache_bytes(CACHE);
        if path != b"/" {
            options = options.subvolume(SubvolumeChoice::Path(path));
        }
        let devices = papilio::open_devices(&image, &options).map_err(holder::explain)?;
        // Before the file system starts threads.
        context.seal();
        let fs = FileSystem::from_devices(devices, &options).map_err(holder::explain)?;
        context.warn_of_older(&image, &fs);
        let shown = MountOptions::parse(if read_only { "ro" } else { "rw" })?;
        let server = Server::start(listening, GuestSession::new(fs, &image, &shown), tag)?;
        wait_for_signal(&format!("vhost-user:{}", socket.display()), signals)?;
        server.stop().with_context(|| format!("{}: cannot write everything", image.display()))
    }
}
