//! `papilio subvolume sync`.

use crate::context::Context;
use crate::mounted::Target;
use papilio::Subvolume;
use papilio::format::TreeId;
use std::ffi::OsString;
use std::time::Duration;

/// Wait until deleted subvolumes are cleaned up and their space is free
///
/// In a mount, the command waits for the server, which cleans up in the background. On an image,
/// the command cleans up.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A directory in the mount, or the image
    #[arg(value_name = "PATH|IMAGE", value_hint = clap::ValueHint::AnyPath)]
    path: OsString,
    /// Wait only for the subvolumes with these ids
    #[arg(value_name = "ID")]
    ids: Vec<u64>,
    /// The time between two checks of a mount
    #[arg(short = 's', long, value_name = "SECONDS", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
}

impl Args {
    /// Waits for the cleanup.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let mounted = match Target::parse(&self.path)? {
            Target::Mounted(mounted) => mounted,
            Target::Image(path) => {
                let fs = context.change(&path.image)?;
                let done = fs.sync().and_then(|()| fs.clean_subvolumes()).and_then(|()| fs.sync());
                return done.map_err(|error| context.at(&path, &error));
            }
        };
        let directory = mounted.open()?;
        // Commits the deletion first, since space is not free before.
        directory.sync().map_err(|error| mounted.at(&error))?;
        let mut pause = Duration::from_millis(10);
        loop {
            let all = directory.subvolumes().map_err(|error| mounted.at(&error))?;
            if !all.iter().any(|subvolume| subvolume.is_being_deleted() && self.wants(subvolume)) {
                return directory.sync().map_err(|error| mounted.at(&error));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_secs(self.seconds));
        }
    }

    fn wants(&self, subvolume: &Subvolume) -> bool {
        self.ids.is_empty() || self.ids.iter().any(|&id| subvolume.id == TreeId(id))
    }
}
