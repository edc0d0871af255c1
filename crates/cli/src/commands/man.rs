//! `papilio man`: the manual pages, from the command's own definitions.

use crate::args::Cli;
use crate::output::Output;
use anyhow::Context as _;
use clap::CommandFactory;
use std::path::PathBuf;

/// Write the manual pages
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where the pages go, one for each command; without it the main page is printed
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    directory: Option<PathBuf>,
}

impl Args {
    /// Writes the pages.
    pub fn run(self) -> anyhow::Result<()> {
        let mut command = Cli::command();
        command.build();
        let Some(directory) = self.directory else {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page)?;
            let mut output = Output::new()?;
            output.bytes(&page)?;
            return Ok(output.finish()?);
        };
        std::fs::create_dir_all(&directory)
            .and_then(|()| clap_mangen::generate_to(command, &directory))
            .with_context(|| format!("{}: cannot write manual pages", directory.display()))
    }
}
