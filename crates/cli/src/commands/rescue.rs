//! `papilio rescue`: takes repairs back. Owns the list of its subcommands.

use crate::context::Context;
use papilio::device::{Access, Device, FileDevice};
use std::path::PathBuf;
use std::sync::Arc;

/// Take repairs of damaged file systems back
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    Undo(Undo),
}

/// Restore every byte that a repair changed
///
/// FILE is the undo file that `papilio check --repair` wrote. Its checksums are verified first. An
/// undo file of another image, or of one that was changed since, is refused, and nothing is
/// written.
#[derive(Debug, clap::Args)]
struct Undo {
    /// The undo file
    #[arg(value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,
    /// The image or device, and all others of its file system
    #[arg(required = true, value_hint = clap::ValueHint::FilePath)]
    image: Vec<PathBuf>,
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self, _context: &Context) -> anyhow::Result<()> {
        let Subcommand::Undo(Undo { file, image }) = self.command;
        let devices = open(&image)?;
        let bytes = papilio::undo_repair(&devices, &file)?;
        let mut output = crate::output::Output::new()?;
        output.text(format_args!("{bytes} bytes restored\n"))?;
        output.finish()?;
        Ok(())
    }
}

/// Opens all devices of a file system for writing.
pub fn open(images: &[PathBuf]) -> anyhow::Result<Vec<Arc<dyn Device>>> {
    let open = |path: &PathBuf| -> anyhow::Result<Arc<dyn Device>> {
        Ok(Arc::new(FileDevice::open(path, Access::ReadWrite)?))
    };
    images.iter().map(open).collect()
}
