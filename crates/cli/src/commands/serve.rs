//! `papilio serve`: shows a disk image to clients of a network protocol.
//!
//! The steps, in this order:
//! 1. Block signals, before the first thread starts.
//! 2. Open and lock the image.
//! 3. Listen, and print the URI: the server can be used from here on.
//! 4. Wait for a signal; a second one ends the process at once.
//! 5. Let the requests in flight end, flush the image, and unlock it.

use crate::UsageError;
use crate::context::Context;
use crate::holder;
use anyhow::Context as _;
use papilio::device::{Access, Device, DeviceOptions, split_partition};
use papilio_fuse::signals::Signals;
use papilio_nbd::{Address, Export, Server};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// The port that IANA assigned to NBD, for clients of this machine.
const DEFAULT_ADDRESS: &str = "127.0.0.1:10809";

/// Serve the bytes of a disk image or a partition to NBD clients
///
/// Clients see the disk in the image, whatever its format: raw, qcow2, and for reading VMDK, xz and
/// zstd. IMAGE@N or --partition serves one partition; --partition none serves the file as it is.
/// The command prints the URI of the export on standard output, and serves until SIGINT or SIGTERM
/// arrives. Then it ends the requests in flight, flushes the image and unlocks it.
/// NBD has no passwords: every client that can connect can read, and write unless --read-only.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The image or device
    #[arg(value_name = "IMAGE", value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    /// Serve the NBD protocol; there is no other yet
    #[arg(long)]
    nbd: bool,
    /// Open the image for reading, and refuse writes
    #[arg(short = 'r', long)]
    read_only: bool,
    /// Listen on a Unix socket, which is created, and removed at the end
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::FilePath, conflicts_with = "listen")]
    socket: Option<PathBuf>,
    /// Listen on a TCP port; port 0 chooses a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = DEFAULT_ADDRESS)]
    listen: String,
    /// The name of the export; clients that name none get it, too
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    export: String,
    /// The most clients at once
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,
}

impl Args {
    /// Serves until a signal arrives.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        if !self.nbd {
            return Err(UsageError::new("serve: no protocol was chosen: give --nbd").into());
        }
        let signals = Signals::block().context("cannot block signals")?;
        let device = self.open(context)?;
        let export = Export::new(self.export.clone(), device).map_err(UsageError::new)?;
        let address = match &self.socket {
            Some(path) => Address::Unix(path.clone()),
            None => Address::Tcp(self.listen.clone()),
        };
        let server = Server::start(&address, export, self.connections.into())?;
        if server.is_public() {
            context.warning("NBD has no passwords: other machines can reach this address");
        }
        let mut output = std::io::stdout().lock();
        // A reader that has gone away does not need the server to end.
        let _ = writeln!(output, "{}", server.uri()).and_then(|()| output.flush());
        drop(output);
        signals.wait().context("cannot wait for signals")?;
        end_on_second_signal(signals);
        server.stop().with_context(|| format!("{}: cannot flush", self.image.display()))
    }

    /// Opens the whole disk in the image, or the partition that was named.
    fn open(&self, context: &Context) -> anyhow::Result<Arc<dyn Device>> {
        let access = if self.read_only { Access::ReadOnly } else { Access::ReadWrite };
        let options = DeviceOptions::new(access);
        let global = context.arguments();
        let image = global.image_options();
        let chosen = global.partition.is_some() || split_partition(&self.image).1.is_some();
        let opened = match chosen {
            true => options.open_image(&self.image, &image),
            false => options.open_disk(&self.image, &image).map(|disk| disk.disk),
        };
        opened.map_err(|error| holder::explain(papilio::Error::from(error)))
    }
}

/// Ends the process at a second signal, for the user who does not want to wait for clients.
fn end_on_second_signal(signals: Signals) {
    let wait = move || {
        if signals.wait().is_ok() {
            std::process::exit(1);
        }
    };
    // Without the thread, the wait is bounded by the server alone.
    let _ = std::thread::Builder::new().name("papilio-signals".to_owned()).spawn(wait);
}
