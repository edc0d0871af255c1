//! `papilio serve --http`: files for browsers and WebDAV clients.
//!
//! The server itself is in the program `papilio-web`. The steps are those of the other protocols:
//! everything that the server needs from the host is read before it gives up its rights.

use super::serve_tls::TlsFiles;
use super::until_signal::wait_for_signal;
use crate::UsageError;
use crate::context::Context;
use crate::holder;
use crate::path::{ImagePath, parse_image_path};
use crate::web_front_end::{WebJob, web_front_end};
use anyhow::Context as _;
use papilio::FileSystem;
use papilio_fuse::signals::Signals;
use papilio_sandbox::Sandbox;
use papilio_serving::Networks;
use std::ffi::OsStr;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

/// The port, and bytes of data that the page cache may hold.
pub const HTTP_PORT: u16 = 8080;
const CACHE: u64 = 256 << 20;

/// The options of `serve --http`.
#[derive(Debug, clap::Args)]
pub struct HttpArgs {
    /// HTTP: let clients upload and change files
    #[arg(long, conflicts_with_all = ["nbd", "nfs", "read_only"])]
    writable: bool,
    /// HTTP: act as this user and group of the file system; without it, as root
    #[arg(long, value_name = "UID[:GID]", conflicts_with_all = ["nbd", "nfs"], value_parser = parse_user)]
    user: Option<(u32, u32)>,
    /// HTTP: the file with the password that clients must know, instead of a token in the URL
    #[arg(long, value_name = "FILE", conflicts_with_all = ["nbd", "nfs"], value_hint = clap::ValueHint::FilePath)]
    password_file: Option<PathBuf>,
    /// HTTP: a further name by which clients reach the server; may be given more than once
    #[arg(long, value_name = "NAME", conflicts_with_all = ["nbd", "nfs"])]
    host: Vec<String>,
    /// HTTP: let other machines connect without TLS or without a password of yours
    #[arg(long, conflicts_with_all = ["nbd", "nfs"])]
    insecure: bool,
}

/// The clients that are served.
pub struct WebClients {
    pub connections: Option<u16>,
    pub networks: Networks,
    pub tls: Option<TlsFiles>,
}

fn parse_user(text: &str) -> Result<(u32, u32), String> {
    let (uid, gid) = text.split_once(':').unwrap_or((text, text));
    let number =
        |digits: &str| digits.parse().map_err(|_| format!("`{digits}` is no number of a user or group"));
    Ok((number(uid)?, number(gid)?))
}

impl HttpArgs {
    /// Serves until a signal arrives. `sandbox` is that of a server.
    pub fn serve(
        &self,
        context: &Context,
        signals: Signals,
        (image, address): (&OsStr, &str),
        clients: WebClients,
        sandbox: Sandbox,
    ) -> anyhow::Result<()> {
        let Some(front_end) = web_front_end() else {
            anyhow::bail!(
                "serve --http: papilio-web is not installed; `make build WEB=1` builds it, and it \
                 belongs beside this program or in ../lib/papilio"
            );
        };
        let ImagePath { image, path } = parse_image_path(image)?;
        let tls = clients.tls;
        let password = self.password_file.as_deref().map(read_password).transpose()?;
        let listener = TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
        self.check_reach(&listener, tls.is_some() && password.is_some())?;
        context.confine(sandbox, []);
        let options = context.options_for(&image).write(self.writable).cache_bytes(CACHE);
        let devices = papilio::open_devices(&image, &options).map_err(holder::explain)?;
        // Before the file system starts threads.
        context.seal();
        let fs = FileSystem::from_devices(devices, &options).map_err(holder::explain)?;
        context.warn_of_older(&image, &fs);
        let name = image.file_name().unwrap_or(image.as_os_str()).to_string_lossy().into_owned();
        let mut job = WebJob::new(fs.clone(), path, name);
        job.is_writable = self.writable;
        job.user = self.user;
        job.tls = tls;
        job.password = password;
        job.hosts.clone_from(&self.host);
        job.connections = clients.connections.map(usize::from);
        job.networks = clients.networks;
        let server = front_end.start(listener, job)?;
        if self.user.is_none() && context.verbosity >= 0 {
            let does = if self.writable { "reads and changes" } else { "reads" };
            context.note(format_args!("papilio: a client {does} all files, as root would; see --user"));
        }
        wait_for_signal(&server.url(), signals)?;
        let failed = || format!("{}: cannot write everything", image.display());
        server.stop().with_context(failed)?;
        fs.close().with_context(failed)
    }

    /// Refuses to be reached by other machines without TLS and a password.
    fn check_reach(&self, listener: &TcpListener, is_protected: bool) -> anyhow::Result<()> {
        let address = listener.local_addr().context("the socket has no address")?;
        if address.ip().is_loopback() || is_protected || self.insecure {
            return Ok(());
        }
        let text = format!(
            "serve --http: other machines can reach {address}: give --tls-cert, --tls-key and \
             --password-file, or --insecure"
        );
        Err(UsageError::new(text).into())
    }
}

/// Returns the first line of a file with a password.
fn read_password(path: &Path) -> anyhow::Result<Vec<u8>> {
    let content = std::fs::read(path).with_context(|| path.display().to_string())?;
    let line = content.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    anyhow::ensure!(!line.is_empty(), "{}: the first line has no password", path.display());
    Ok(line.to_vec())
}
