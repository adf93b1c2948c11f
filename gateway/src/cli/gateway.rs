//! `longhaul gateway`

use std::io::{self};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use config::{Content, Gateway, Policy};
use rustix::process::{Signal as KillSignal, set_parent_process_death_signal};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tracing::{Level, warn};

use super::failure::{FAILED, Failure, Outcome, failed, unusable};
use super::takeover::{Beginning, TakeOverArgs};
use super::{LAST_WORDS, one_worker, style};
use crate::causes::chain;
use crate::key_log::KeyLogFile;
use crate::logs::Logs;
use crate::requests::{self, Requests};
use crate::retention::{Predecessor, RetainedFiles};
use crate::run::{self, Files};
use crate::service::Notifier;
use crate::{check, descriptors, privileges};

#[derive(Debug, Args)]
pub(super) struct GatewayArgs {
    /// The gateway file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Append the keys of bulk data to this file, for a look into captures: whoever reads it can
    /// read the traffic
    #[arg(long, value_name = "FILE")]
    key_log: Option<PathBuf>,
    #[command(flatten)]
    take_over: TakeOverArgs,
    /// End when the process that started this one does
    #[arg(long, hide = true)]
    with_parent: bool,
}

impl GatewayArgs {
    /// Runs the gateway. Whatever its log does, a gateway ends when it is told to.
    pub(super) fn run(&self, logs: &Logs) -> ExitCode {
        logs.take_panics();
        let code = match self.until_stopped(logs) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                logs.print(Level::ERROR, &format!("{}\n", failure.text.trim_end()));
                self.take_over.say_failed(&failure.text);
                ExitCode::from(failure.code)
            }
        };
        logs.finish(LAST_WORDS);
        code
    }

    fn until_stopped(&self, logs: &Logs) -> Outcome {
        if self.with_parent {
            set_parent_process_death_signal(Some(KillSignal::TERM)).map_err(failed)?;
        }
        let file = config::check(&self.config);
        let report = check::check_to_start(file.clone());
        let problems = config::render(report.problems(), style(&io::stderr()));
        let Some(Content::Gateway(gateway, policy)) = report.content().filter(|_| report.is_valid()) else {
            if self.take_over.has_nothing_to_do(file, logs)? {
                return Ok(());
            }
            return Err(unusable(match report.content() {
                Some(Content::Policy(_)) => {
                    format!("{} is a policy file; the gateway needs a gateway file", self.config.display())
                }
                _ => problems,
            }));
        };
        if !problems.is_empty() {
            logs.print(Level::WARN, &problems);
        }
        let (gateway, policies) = ((**gateway).clone(), policies(gateway, policy)?);
        self.run_on(gateway, policies, logs)
    }

    /// Runs the gateway of files that are valid.
    fn run_on(&self, gateway: Gateway, policies: Vec<Policy>, logs: &Logs) -> Outcome {
        descriptors::provide(&gateway).map_err(failed)?;
        let Some(Beginning { heir, lock, former, doors }) = self.take_over.begin(&gateway)? else {
            return Ok(());
        };
        let key_log = self.key_log.as_deref().map(open_key_log).transpose()?;
        let notifier = Notifier::from_environment().map_err(|error| {
            failed(format!("the service manager's socket, NOTIFY_SOCKET, cannot be used: {error}"))
        })?;
        let before = heir.as_ref().map_or(Predecessor::None, |heir| heir.stand().predecessor());
        let watchdog = heir.as_ref().and_then(|heir| heir.stand().watchdog);
        let notifier = Arc::new(notifier.with_watchdog(watchdog));
        let retained = RetainedFiles::open(&gateway, &before);
        give_up_privileges(&gateway)?;
        let key_log = key_log.map(KeyLogFile::start).transpose().map_err(failed)?;
        let (announce, announced) = self.take_over.announcer().unzip();
        let path = self.config.clone();
        let files = Files { gateway, policies, path, doors, retained, lock, former, key_log, heir, announce };
        let runtime = lasting_runtime()?;
        let ended = runtime.block_on(async {
            let (stop, stopped) = oneshot::channel();
            let (requests, reloads) = requests::channel();
            let (requests, heirs) = requests.with_heirs();
            if let Some(announced) = announced {
                // Whoever started this may be gone.
                tokio::spawn(async { announced.await.map(|taken| taken.say()) });
            }
            let signals = Signals::new().map_err(failed)?;
            tokio::spawn(signals.handle_commands(
                stop,
                requests.clone(),
                logs.clone(),
                Arc::clone(&notifier),
            ));
            run::run(files, stopped, requests, (reloads, heirs), &notifier).await.map_err(|error| {
                let remedy = run::remedy(&error).map(|remedy| format!("\n  help: {remedy}"));
                failed(format!("{}{}", chain(&error), remedy.unwrap_or_default()))
            })
        });
        // Without waiting for a policy file that cannot be read.
        runtime.shutdown_background();
        ended
    }
}

/// Makes a runtime that needs no further thread once it is there.
///
/// A blocking task without an idle thread wants a new one, and panics where the system refuses it.
/// So one thread is there from the beginning, and stays.
fn lasting_runtime() -> Result<Runtime, Failure> {
    const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64);
    let runtime = one_worker(Builder::new_multi_thread().thread_keep_alive(FOR_EVER), 2)?;
    runtime.block_on(runtime.spawn_blocking(|| ())).map_err(failed)?;
    Ok(runtime)
}

/// Before there are threads that would keep what this one gives up.
fn give_up_privileges(gateway: &Gateway) -> Outcome {
    privileges::give_up(gateway).map_err(|error| failed(format!("cannot give up capabilities: {error}")))?;
    if gateway.security.filter_system_calls {
        privileges::filter_system_calls().map_err(|error| {
            failed(format!(
                "cannot filter system calls: {error}; security.filter_system_calls = false does without"
            ))
        })?;
    }
    Ok(())
}

/// Returns the policy towards each peer; `policy` is that which the file names for all.
fn policies(gateway: &Gateway, policy: &Policy) -> Result<Vec<Policy>, Failure> {
    let of = |view: &Gateway| match view.policy == gateway.policy {
        true => Ok(policy.clone()),
        false => view.load_policy().map_err(|invalid| unusable(invalid.render(style(&io::stderr())))),
    };
    gateway.views().iter().map(of).collect()
}

fn open_key_log(path: &Path) -> Result<KeyLogFile, Failure> {
    KeyLogFile::open(path).map_err(|error| unusable(format!("--key-log {}: {error}", path.display())))
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// The first signal to stop says so through `stop`; the second one ends the process. SIGHUP has
    /// the files read again.
    async fn handle_commands(
        mut self,
        stop: oneshot::Sender<()>,
        requests: Requests,
        logs: Logs,
        notifier: Arc<Notifier>,
    ) {
        let mut stop = Some(stop);
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => {}
                _ = self.terminate.recv() => {}
                _ = self.hangup.recv() => {
                    let requests = requests.clone();
                    // What came of it is logged where it is done; meanwhile, other signals count.
                    tokio::spawn(async move { requests.reload().await });
                    continue;
                }
            }
            match stop.take() {
                // If nobody listens the gateway has stopped already.
                Some(stop) => {
                    notifier.stopping();
                    let _ = stop.send(());
                }
                None => {
                    warn!("stopped for the second time: ending at once");
                    logs.finish(LAST_WORDS);
                    std::process::exit(i32::from(FAILED));
                }
            }
        }
    }
}
