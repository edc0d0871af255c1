//! `papilio completions`: the shell's completion script, from the command's own definitions.

use crate::output::Output;
use clap_complete::Shell;

/// Print a shell's completion script
///
/// For bash: papilio completions bash > /etc/bash_completion.d/papilio
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Args {
    /// Prints the script.
    pub fn run(self, mut definition: clap::Command) -> anyhow::Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut definition, "papilio", &mut script);
        let mut output = Output::new()?;
        output.bytes(&script)?;
        Ok(output.finish()?)
    }
}
