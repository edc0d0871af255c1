//! `papilio serve --nfs`: a directory for clients of NFS version 3.

use super::until_signal::wait_for_signal;
use crate::context::Context;
use crate::holder;
use crate::path::{ImagePath, parse_image_path};
use crate::state_folder::state_folder;
use anyhow::Context as _;
use papilio::FileSystem;
use papilio_fuse::signals::Signals;
use papilio_nfs::{Export, Secret, Server, Squash};
use papilio_sandbox::Sandbox;
use papilio_serving::Networks;
use std::ffi::OsStr;
use std::path::PathBuf;

/// The port of NFS.
pub const NFS_PORT: u16 = 2049;
/// Bytes of data that the page cache of an export may hold.
const CACHE: u64 = 256 << 20;
/// The anonymous user of the kernel's NFS server.
const NOBODY: u32 = 65534;
/// The file of the secret in the folder for state.
const KEY: &str = "nfs.key";

/// The options of `serve --nfs`.
#[derive(Debug, clap::Args)]
pub struct NfsArgs {
    /// NFS: trust a client's root as root; by default it is mapped to the anonymous user
    #[arg(long, conflicts_with_all = ["nbd", "http"], overrides_with = "root_squash")]
    no_root_squash: bool,
    /// NFS: map a client's root to the anonymous user; this is the default
    #[arg(long, conflicts_with_all = ["nbd", "http"], overrides_with = "no_root_squash")]
    root_squash: bool,
    /// NFS: map every user to the anonymous one
    #[arg(long, conflicts_with_all = ["nbd", "http"])]
    all_squash: bool,
    /// NFS: the anonymous user. 0 may do everything
    #[arg(long, value_name = "UID", default_value_t = NOBODY, conflicts_with_all = ["nbd", "http"])]
    anon_uid: u32,
    /// NFS: the anonymous group
    #[arg(long, value_name = "GID", default_value_t = NOBODY, conflicts_with_all = ["nbd", "http"])]
    anon_gid: u32,
    /// NFS: the file with the secret by which clients' handles are valid after a restart; made if
    /// there is none [default: nfs.key in $XDG_STATE_HOME/papilio or /var/lib/papilio]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["nbd", "http"], value_hint = clap::ValueHint::FilePath)]
    handle_key: Option<PathBuf>,
    /// NFS: answer before changes of names and attributes are durable; a server that is killed
    /// forgets some of them
    #[arg(long = "async", conflicts_with_all = ["nbd", "http"])]
    is_async: bool,
}

impl NfsArgs {
    /// Serves until a signal arrives. `sandbox` is that of a server.
    pub fn serve(
        &self,
        context: &Context,
        signals: Signals,
        (given, address, read_only): (&OsStr, &str, bool),
        networks: Networks,
        sandbox: Sandbox,
    ) -> anyhow::Result<()> {
        let ImagePath { image, path } = parse_image_path(given)?;
        let secret = self.secret(context)?;
        let listener = papilio_nfs::listen(address)?;
        context.confine(sandbox, []);
        let options = context.options_for(&image).write(!read_only).cache_bytes(CACHE);
        let devices = papilio::open_devices(&image, &options).map_err(holder::explain)?;
        // Before the file system starts threads.
        context.seal();
        let fs = FileSystem::from_devices(devices, &options).map_err(holder::explain)?;
        context.warn_of_older(&image, &fs);
        let mut export =
            Export::new(fs.clone(), &path, read_only)?.squash(self.squash()).sync(!self.is_async);
        if let Some(secret) = secret {
            export = export.secret(&secret);
        }
        let is_for_all = networks.are_all();
        let server = Server::start_on(listener, export, networks)?;
        if server.is_public() && is_for_all {
            context.warning(
                "NFS version 3 has no passwords: other machines can reach this address, \
                 and choose the users that they act for; see --allow",
            );
        }
        wait_for_signal(&server.uri(), signals)?;
        let failed = || format!("{}: cannot write everything", image.display());
        server.stop().with_context(failed)?;
        fs.close().with_context(failed)
    }

    fn squash(&self) -> Squash {
        let squash = Squash::default().root(!self.no_root_squash).all(self.all_squash);
        squash.anonymous(self.anon_uid, self.anon_gid)
    }

    /// Returns the secret that is kept. Without a place for it, clients mount anew after a restart.
    fn secret(&self, context: &Context) -> anyhow::Result<Option<Secret>> {
        if let Some(path) = &self.handle_key {
            return Ok(Some(Secret::kept_in(path)?));
        }
        let kept = state_folder("the secret of NFS handles")
            .and_then(|folder| Ok(Secret::kept_in(&folder.join(KEY))?));
        Ok(kept
            .inspect_err(|error| {
                context.warning(format_args!("{error:#}; clients will have to mount anew after a restart"));
            })
            .ok())
    }
}
