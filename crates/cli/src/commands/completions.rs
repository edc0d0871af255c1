//! `papilio completions`: the completion script of a shell, from the definition of the command
//! line.

use crate::output::Output;
use clap_complete::Shell;

/// Print the completion script of a shell
///
/// For example: papilio completions bash > /etc/bash_completion.d/papilio
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Args {
    /// Prints the script for the command line that `definition` describes.
    pub fn run(self, mut definition: clap::Command) -> anyhow::Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut definition, "papilio", &mut script);
        let mut output = Output::new()?;
        output.bytes(&script)?;
        Ok(output.finish()?)
    }
}
