//! `longhaul generate`: manual pages and shell completions, for packages.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Cli;
use super::failure::{Outcome, failed, output_failed};

/// Shells that packages bring completions for, and the folder of each.
const SHELLS: [(Shell, &str); 3] = [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")];

#[derive(Debug, Args)]
pub(super) struct GenerateArgs {
    /// Where the files go: man/, and a folder for each shell; those there are replaced
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

impl GenerateArgs {
    pub(super) fn run(&self) -> Outcome {
        let man = self.dir.join("man");
        std::fs::create_dir_all(&man).map_err(failed)?;
        clap_mangen::generate_to(Cli::command(), &man).map_err(failed)?;
        let mut out = io::stdout().lock();
        writeln!(out, "{}", man.display()).map_err(output_failed)?;
        for (shell, folder) in SHELLS {
            let folder = self.dir.join(folder);
            std::fs::create_dir_all(&folder).map_err(failed)?;
            let path = clap_complete::generate_to(shell, &mut Cli::command(), "longhaul", &folder);
            writeln!(out, "{}", path.map_err(failed)?.display()).map_err(output_failed)?;
        }
        Ok(())
    }
}
