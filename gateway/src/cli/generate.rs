//! `longhaul generate`: manual pages, shell completions and schemas, for packages.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use schemars::{Schema, schema_for};

use super::Cli;
use super::args::OneOrEach;
use super::failure::{Failure, Outcome, failed, output_failed};
use crate::admin;
use crate::check::CheckedFile;
use crate::init::SiteFiles;
use crate::plan::PlanReport;

/// Shells that packages bring completions for, and the folder of each.
const SHELLS: [(Shell, &str); 3] = [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")];

#[derive(Debug, Args)]
pub(super) struct GenerateArgs {
    /// Where the files go: man/, schema/, and a folder for each shell; those there are replaced
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

impl GenerateArgs {
    pub(super) fn run(&self) -> Outcome {
        let man = self.dir.join("man");
        make(&man)?;
        clap_mangen::generate_to(Cli::command(), &man).map_err(at(&man))?;
        let mut out = io::stdout().lock();
        writeln!(out, "{}", man.display()).map_err(output_failed)?;
        for (shell, folder) in SHELLS {
            let folder = self.dir.join(folder);
            make(&folder)?;
            let path = clap_complete::generate_to(shell, &mut Cli::command(), "longhaul", &folder);
            writeln!(out, "{}", path.map_err(at(&folder))?.display()).map_err(output_failed)?;
        }
        let folder = self.dir.join("schema");
        make(&folder)?;
        for (name, schema) in schemas() {
            let path = folder.join(format!("{name}.schema.json"));
            let text = serde_json::to_string_pretty(&schema).map_err(failed)?;
            std::fs::write(&path, text + "\n").map_err(at(&path))?;
        }
        writeln!(out, "{}", folder.display()).map_err(output_failed)
    }
}

fn make(folder: &Path) -> Outcome {
    std::fs::create_dir_all(folder).map_err(at(folder))
}

/// Names the file or folder that an error is about.
fn at(path: &Path) -> impl Fn(io::Error) -> Failure {
    move |error| failed(format!("{}: {error}", path.display()))
}

/// JSON schemas of what commands print with `--json`, by command.
fn schemas() -> [(&'static str, Schema); 14] {
    [
        ("status", schema_for!(OneOrEach<admin::Status>)),
        ("healthy", schema_for!(admin::Health)),
        ("flows", schema_for!(OneOrEach<admin::FlowList>)),
        ("doctor", schema_for!(OneOrEach<admin::DoctorReport>)),
        // A line each.
        ("events", schema_for!(crate::events::Event)),
        ("check", schema_for!(Vec<CheckedFile>)),
        ("init", schema_for!(Vec<SiteFiles>)),
        ("plan", schema_for!(PlanReport)),
        ("simulate", schema_for!(Vec<crate::simulate::Row>)),
        // A line each.
        ("record", schema_for!(crate::record::Line)),
        ("keys", schema_for!(crate::keys::Summary)),
        ("reload", schema_for!(crate::requests::Answer)),
        ("upgrade", schema_for!(crate::upgrade::Announcement)),
        ("bundle", schema_for!(crate::bundle::Summary)),
    ]
}
