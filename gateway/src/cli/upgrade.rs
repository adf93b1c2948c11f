//! `longhaul upgrade`

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

use clap::Args;

use super::failure::{self, FAILED, Failure, failed};
use super::output;
use crate::logs::printable_block;
use crate::upgrade::{Announcement, Outcome};

#[derive(Debug, Args)]
pub(super) struct UpgradeArgs {
    /// The gateway file
    #[arg(value_name = "FILE")]
    config: PathBuf,
    /// Do nothing if the running gateway is this very program
    #[arg(long)]
    if_replaced: bool,
    /// Append the keys of bulk data to this file, as `longhaul gateway` does
    #[arg(long, value_name = "FILE")]
    key_log: Option<PathBuf>,
    /// Show the outcome as JSON
    #[arg(long)]
    json: bool,
}

impl UpgradeArgs {
    /// Starts this program's gateway, which outlives this command, and waits until it has taken
    /// over or has not.
    pub(super) fn run(&self) -> failure::Outcome {
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(program);
        command.args(["gateway", "--take-over", "--announce", "--config"]).arg(&self.config);
        if self.if_replaced {
            command.arg("--if-replaced");
        }
        if let Some(path) = &self.key_log {
            command.arg("--key-log").arg(path);
        }
        // A terminal's Ctrl-C is not for the gateway.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        let mut gateway = command.spawn().map_err(failed)?;
        let mut said = String::new();
        if let Some(out) = gateway.stdout.take() {
            BufReader::new(out).read_line(&mut said).map_err(failed)?;
        }
        let told = match Announcement::read(&said) {
            Some(told) if told.outcome != Outcome::Failed => told,
            told => return self.failed(told, &gateway.wait().map_err(failed)?),
        };
        output::show(self.json, &told, |told| printable_block(&format!("{}\n", told.text)))
    }

    /// The new process has ended. It has told why to standard error, where that was to be had.
    fn failed(&self, told: Option<Announcement>, ended: &ExitStatus) -> failure::Outcome {
        if self.json {
            let unsaid = || Announcement::nothing(Outcome::Failed, &format!("the new process: {ended}"));
            output::print_json(&told.unwrap_or_else(unsaid))?;
        }
        let code = ended.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0);
        let text = "longhaul: no upgrade; if a gateway runs with this file, it goes on".to_owned();
        Err(Failure { code: code.unwrap_or(FAILED), text })
    }
}
