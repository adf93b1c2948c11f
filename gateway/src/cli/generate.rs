//! `longhaul generate`: manual pages, shell completions and schemas, for packages.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use schemars::{JsonSchema, Schema, schema_for};
use serde::Serialize;

use super::Cli;
use super::args::OneOrEach;
use super::failure::{Failure, Outcome, failed};
use super::output;
use crate::admin;
use crate::check::CheckedFile;
use crate::init::SiteFiles;
use crate::json;
use crate::plan::PlanReport;

/// Shells that packages bring completions for, and the folder of each.
const SHELLS: [(Shell, &str); 3] = [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")];

#[derive(Debug, Args)]
pub(super) struct GenerateArgs {
    /// Where the files go: man/, schema/, and a folder for each shell; those there are replaced
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Show what was written as JSON
    #[arg(long)]
    json: bool,
}

/// Something that was written.
#[derive(Serialize, JsonSchema)]
struct Generated {
    /// `man` or `schema`, for a folder, or the shell that a file is for.
    what: &'static str,
    /// The folder or file.
    path: PathBuf,
}

impl GenerateArgs {
    pub(super) fn run(&self) -> Outcome {
        let mut written = vec![self.manual_pages()?];
        for (shell, folder) in SHELLS {
            let to = self.dir.join(folder);
            make(&to)?;
            let path = clap_complete::generate_to(shell, &mut Cli::command(), "longhaul", &to);
            written.push(Generated { what: folder, path: path.map_err(at(&to))? });
        }
        written.push(self.schemas()?);
        let paths = |written: &[Generated]| -> String {
            written.iter().map(|Generated { path, .. }| format!("{}\n", path.display())).collect()
        };
        output::show(self.json, &written[..], paths)
    }

    fn manual_pages(&self) -> Result<Generated, Failure> {
        let path = self.dir.join("man");
        make(&path)?;
        clap_mangen::generate_to(Cli::command(), &path).map_err(at(&path))?;
        Ok(Generated { what: "man", path })
    }

    fn schemas(&self) -> Result<Generated, Failure> {
        let path = self.dir.join("schema");
        make(&path)?;
        for (name, schema) in schemas() {
            let file = path.join(format!("{name}.schema.json"));
            std::fs::write(&file, json::pretty(&schema).map_err(failed)?).map_err(at(&file))?;
        }
        Ok(Generated { what: "schema", path })
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
fn schemas() -> Vec<(&'static str, Schema)> {
    vec![
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
        ("generate", schema_for!(Vec<Generated>)),
        #[cfg(feature = "demo")]
        ("demo", schema_for!(testbed::demo::DemoReport)),
    ]
}
