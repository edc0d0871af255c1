//! `papilio serve`: shows a disk image, or the file system in it, to clients of a network protocol.
//! [`super::serve_nfs`] has the part for NFS, [`super::serve_http`] that for browsers, and
//! [`super::serve_vhost_user`] that for virtual machines.
//!
//! The steps, in this order:
//! 1. Block signals, before the first thread starts.
//! 2. Listen: the process gives up the right to do so, and most others, before it reads the image.
//! 3. Open and lock the image, and print the URI: the server can be used from here on.
//! 4. Wait for a signal; a second one ends the process at once.
//! 5. Let the requests in flight end, flush the image, and unlock it.

use super::serve_http::{HTTP_PORT, HttpArgs, WebClients};
use super::serve_nfs::{NFS_PORT, NfsArgs};
use super::serve_tls::{TlsArgs, TlsFiles};
#[cfg(target_os = "linux")]
use super::serve_vhost_user::VhostUserArgs;
use super::until_signal::wait_for_signal;
use crate::UsageError;
use crate::context::Context;
use crate::holder;
use crate::web_front_end::web_front_end;
use anyhow::Context as _;
use papilio::device::{Access, Device, DeviceOptions, split_partition};
use papilio_fuse::signals::Signals;
use papilio_nbd::{Address, Export, Server, Settings};
use papilio_sandbox::{Job, Sandbox};
use papilio_serving::{Network, Networks};
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The port that IANA assigned to NBD.
const NBD_PORT: u16 = 10809;
/// The most NBD clients at once.
const NBD_CONNECTIONS: u16 = 16;
/// Serve a disk image by NBD, or the file system in it by NFS, HTTP or virtiofs
///
/// With --nbd, clients see the disk in the image, whatever its format: raw, qcow2, VMDK,
/// VHDX, and for reading xz and zstd. IMAGE@N or --partition serves one partition; --partition none
/// serves the file as it is. With --nfs, clients mount the directory IMAGE:/path with NFS version
/// 3: for machines without FUSE. With --http, browsers and WebDAV clients show the directory
/// IMAGE:/path, its snapshots and the versions of its files; --writable lets them change files.
/// With --vhost-user, a virtual machine on this host mounts the file system, or the subvolume
/// IMAGE:/path, as virtiofs.
/// The command prints the URI of the export on standard output, and serves until SIGINT or SIGTERM
/// arrives. Then it ends the requests in flight, flushes the image and unlocks it.
/// NBD and NFS have no passwords. Every NBD client that can connect can read, and write unless
/// --read-only; --tls-client-ca asks clients for certificates. An NFS client names its users, and
/// each call has the permissions of its user. HTTP clients need the token in the URL that the
/// command prints, or a password.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The image or device; with --nfs and --http, also a directory in it
    #[arg(value_name = "IMAGE[:/path]", value_hint = clap::ValueHint::FilePath)]
    image: OsString,
    /// Serve the bytes of the disk with the NBD protocol
    #[arg(long, conflicts_with = "nfs")]
    nbd: bool,
    /// Serve the file system with NFS version 3, and the mount protocol on the same port
    #[arg(long, conflicts_with_all = ["socket", "export", "connections"])]
    nfs: bool,
    /// Serve the file system to browsers and WebDAV clients, for reading unless --writable
    #[arg(long, conflicts_with_all = ["nbd", "nfs", "socket", "export"])]
    http: bool,
    /// Open the image for reading, and refuse writes
    #[arg(short = 'r', long)]
    read_only: bool,
    /// Listen on a Unix socket, which is created, and removed at the end
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::FilePath, conflicts_with = "listen")]
    socket: Option<PathBuf>,
    /// Listen on a TCP port; port 0 chooses a free one. Without it, only this machine can connect
    /// [default: 127.0.0.1:10809, for NFS 127.0.0.1:2049, for HTTP 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR[:PORT]")]
    listen: Option<String>,
    /// Serve only clients with these addresses, or in these networks; further ones are disconnected
    #[arg(long, value_name = "ADDR[/BITS]", value_delimiter = ',', conflicts_with = "socket")]
    allow: Vec<Network>,
    /// The name of the export; clients that name none get it, too
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    export: String,
    /// The most clients at once [default: 16, for HTTP 128]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: Option<u16>,
    #[command(flatten)]
    files: NfsArgs,
    #[command(flatten)]
    web: HttpArgs,
    #[command(flatten)]
    tls: TlsArgs,
    #[cfg(target_os = "linux")]
    #[command(flatten)]
    machine: VhostUserArgs,
}

impl Args {
    /// Serves until a signal arrives.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        #[cfg(target_os = "linux")]
        if let Some(socket) = &self.machine.vhost_user {
            let signals = Signals::block().context("cannot block signals")?;
            let image = (&*self.image, self.read_only);
            return self.machine.serve(context, signals, image, socket, self.sandbox(context));
        }
        if !self.nbd && !self.nfs && !self.http {
            let given = "serve: no protocol was chosen: give --nbd, --nfs, --http or --vhost-user";
            return Err(UsageError::new(given).into());
        }
        let signals = Signals::block().context("cannot block signals")?;
        let (networks, sandbox) = (Networks::new(self.allow.iter().copied()), self.sandbox(context));
        if self.nfs {
            let (address, image) = (self.address(NFS_PORT), &*self.image);
            let given = (image, &*address, self.read_only);
            return self.files.serve(context, signals, given, networks, sandbox);
        }
        let tls = self.tls.read()?;
        if self.http {
            let clients = WebClients { connections: self.connections, networks, tls };
            let address = self.address(HTTP_PORT);
            return self.web.serve(context, signals, (&self.image, &address), clients, sandbox);
        }
        let mut settings = Settings::new(self.connections.unwrap_or(NBD_CONNECTIONS).into());
        settings.networks = networks;
        settings.tls = tls.as_ref().map(disk_tls).transpose()?;
        self.serve_disk(context, signals, settings, sandbox)
    }

    fn serve_disk(
        &self,
        context: &Context,
        signals: Signals,
        settings: Settings,
        sandbox: Sandbox,
    ) -> anyhow::Result<()> {
        let image = Path::new(&self.image);
        let address = match &self.socket {
            Some(path) => Address::Unix(path.clone()),
            None => Address::Tcp(self.address(NBD_PORT)),
        };
        let listener = address.listen()?;
        context.confine(sandbox, []);
        let device = self.open(context)?;
        context.seal();
        let export = Export::new(self.export.clone(), device).map_err(UsageError::new)?;
        let is_for_all = settings.tls.is_none() && settings.networks.are_all();
        let server = Server::start_on(listener, export, settings)?;
        if server.is_public() && is_for_all {
            context.warning("NBD has no passwords: other machines can reach this address; see --allow");
        }
        wait_for_signal(server.uri(), signals)?;
        server.stop().with_context(|| format!("{}: cannot flush", image.display()))
    }

    fn sandbox(&self, context: &Context) -> Sandbox {
        // An NFS server marks its handles with random bytes, a web server its locks.
        let random = Path::new("/dev/urandom");
        let mut sandbox = Sandbox::for_job(Job::Serve, context.sandbox_mode()).reads(random);
        if let Some(socket) = &self.socket {
            let folder = socket.parent().filter(|folder| !folder.as_os_str().is_empty());
            sandbox = sandbox.removes_in(folder.unwrap_or(Path::new(".")));
        }
        sandbox
    }

    /// Returns the address to listen on, on loopback unless one was given.
    fn address(&self, port: u16) -> String {
        match &self.listen {
            None => SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string(),
            Some(given) => match given.parse::<IpAddr>() {
                Ok(address) => SocketAddr::from((address, port)).to_string(),
                Err(_) => given.clone(),
            },
        }
    }

    /// Opens the whole disk in the image, or the partition that was named.
    fn open(&self, context: &Context) -> anyhow::Result<Arc<dyn Device>> {
        let access = if self.read_only { Access::ReadOnly } else { Access::ReadWrite };
        let options = DeviceOptions::new(access);
        let global = context.arguments();
        let (path, image) = (Path::new(&self.image), global.image_options());
        let chosen = global.partition.is_some() || split_partition(path).1.is_some();
        let opened = match chosen {
            true => options.open_image(path, &image),
            false => options.open_disk(path, &image).map(|disk| disk.disk),
        };
        opened.map_err(|error| holder::explain(papilio::Error::from(error)))
    }
}

/// Returns the TLS of this program for the clients of a disk.
fn disk_tls(files: &TlsFiles) -> anyhow::Result<Arc<dyn papilio_nbd::Tls>> {
    let front_end = web_front_end().context(
        "serve: TLS is in the program papilio-web, which is not installed; `make build WEB=1` builds \
         it, and it belongs beside this program or in ../lib/papilio",
    )?;
    front_end.disk_tls(files)
}
