//! The command line.
//!
//! Exit status: 0 done; 1 something failed while running; 2 wrong usage, or a file that cannot be used. Results go to standard
//! output, errors in one block and logs to standard error.

use std::error::Error;
use std::ffi::OsString;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use config::{Content, Report, Style};
use tracing::warn;
use tracing_subscriber::EnvFilter;

use rustix::process::{Signal as KillSignal, set_parent_process_death_signal};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::bench;
use crate::demo::Demo;
use crate::interrupt;
use crate::logs::{Logs, printable_block};
use crate::plan::link::{Known, LinkArgs};
use crate::plan::{self, PlanArgs, PlanError};
use crate::reload::Requests;
use crate::run::{self, Files};
use crate::simulate::{SimulateArgs, SimulateError};
use crate::{admin, check, keys, privileges, record, reload};

const FAILED: u8 = 1;
const UNUSABLE: u8 = 2;

/// Where `longhaul status` asks unless told otherwise: the address of the example gateway files.
const DEFAULT_ADMIN: &str = "127.0.0.1:9464";

#[derive(Debug, Parser)]
#[command(name = "longhaul", version, about = "A reliability gateway for RDMA (RoCEv2) between datacenters", long_about = None)]
#[command(
    after_help = "LONGHAUL_LOG sets what is logged to standard error: error, warn, info (default), debug, trace, \
                        or per module, such as info,session=debug."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// See what gateways do about loss: two of them on this machine, under a minute, no privileges
    Demo(DemoArgs),
    /// Run a gateway until SIGINT or SIGTERM
    Gateway(GatewayArgs),
    /// Check gateway and policy files, with everything they name
    Check(CheckArgs),
    /// Make an authority, and a certificate and key for each site
    Keys(KeysArgs),
    /// Show a running gateway's state
    Status(StatusArgs),
    /// Have a running gateway read its policy file again
    Reload(ReloadArgs),
    /// Compare the schemes for a link by their expected completion times, by message size
    Plan(PlanArgs),
    /// Find out how long messages take on a link, by size and scheme: the gateway's own machines in virtual time
    Simulate(SimulateArgs),
    /// Record which packets from the peer are lost, as a trace, until SIGINT or SIGTERM
    Record(RecordArgs),
    /// Measure what sealed UDP can do on this machine, by datagram length
    Bench(BenchArgs),
}

#[derive(Debug, Args)]
struct GatewayArgs {
    /// The gateway file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// End when the process that started this one does
    #[arg(long, hide = true)]
    with_parent: bool,
}

#[derive(Debug, Args)]
struct DemoArgs {
    /// A quarter of the time; percentiles then rest on few messages
    #[arg(long)]
    quick: bool,
}

#[derive(Debug, Args)]
struct CheckArgs {
    /// Gateway or policy files, told apart by their content
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(
        flatten,
        next_help_heading = "Say what each class would do on a link (rate and packets of a gateway file are known)"
    )]
    link: LinkArgs,
}

#[derive(Debug, Args)]
struct KeysArgs {
    /// Where the files go: ca.crt, ca.key, and NAME.crt, NAME.key for each site
    #[arg(long)]
    dir: PathBuf,
    /// Replace certificates and keys of the named sites; the authority is never replaced
    #[arg(long)]
    force: bool,
    /// Site names, as in the gateway files
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

#[derive(Debug, Args)]
struct StatusArgs {
    /// The gateway's admin.listen
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_ADMIN)]
    admin: SocketAddr,
    /// Show it as JSON
    #[arg(long)]
    json: bool,
    /// Show which schemes are in force, and why
    #[arg(long, conflicts_with = "json")]
    why: bool,
}

#[derive(Debug, Args)]
struct RecordArgs {
    /// The gateway's admin.listen
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_ADMIN)]
    admin: SocketAddr,
    /// End after so many seconds
    #[arg(long, value_parser = recording)]
    seconds: Option<f64>,
    /// Where the trace goes; standard output if absent
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct ReloadArgs {
    /// The gateway's admin.listen
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_ADMIN)]
    admin: SocketAddr,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
struct BenchArgs {
    #[command(subcommand)]
    what: Option<BenchCommand>,
    /// Seconds per datagram length
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    seconds: f64,
    /// UDP payload in bytes; several may be given [default: 256 1448 4200 8900]
    #[arg(value_name = "BYTES")]
    lengths: Vec<usize>,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Measure a pair of gateways on this machine as a share of that
    Pair(PairArgs),
    /// Measure what flows, and the length of the link, cost a pair of gateways in memory
    Memory(MemoryArgs),
    /// Find out whether a gateway keeps anything of what has passed: changing load for as long as is wanted
    Soak(SoakArgs),
    /// Measure what a pair of gateways on this machine adds to the time of a small message
    Latency(SecondsArgs),
    /// Measure what a host that floods takes from another one of its site
    Flood(SecondsArgs),
    /// Measure the way over the WAN by itself, records in and records out, as a share of that
    Wan(WanArgs),
}

#[derive(Debug, Args)]
struct SecondsArgs {
    /// Seconds per transfer
    #[arg(long, default_value_t = 3.0, value_parser = seconds)]
    seconds: f64,
}

#[derive(Debug, Args)]
struct PairArgs {
    #[command(flatten)]
    length: SecondsArgs,
    /// How goodput grows with the number of queue pairs, of which a list is given: 1,10,100,1000,10000
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=16_384))]
    flows: Vec<u32>,
}

#[derive(Debug, Args)]
struct WanArgs {
    #[command(flatten)]
    length: SecondsArgs,
    /// How goodput grows with the number of data-plane threads, of which a list is given: 1,2
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=8))]
    threads: Vec<u8>,
}

#[derive(Debug, Args)]
struct MemoryArgs {
    #[command(flatten)]
    length: SecondsArgs,
    /// Queue pairs, for what one costs
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=16_384))]
    flows: u32,
}

#[derive(Debug, Args)]
struct SoakArgs {
    /// Seconds
    #[arg(long, default_value_t = 3600.0, value_parser = soaking)]
    seconds: f64,
    /// Of everything random [default: another one each time]
    #[arg(long)]
    seed: Option<u64>,
}

/// Why a command did not do what it was asked.
struct Failure {
    code: u8,
    text: String,
}

type Outcome = Result<(), Failure>;

/// The whole program.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        // Help and version are such "errors" too; clap knows which go where. If that fails there is nowhere left to say so.
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(UNUSABLE));
        }
    };
    let outcome = match start_logs(default_log(&cli.command)) {
        Ok(logs) => match cli.command {
            // Whatever its log does, a gateway ends when it is told to.
            Command::Gateway(args) => return gateway_to_its_end(&args, &logs),
            command => {
                let outcome = dispatch(command);
                logs.finish(LAST_WORDS);
                outcome
            }
        },
        Err(failure) => Err(failure),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = writeln!(io::stderr(), "{}", printable_block(failure.text.trim_end()));
            ExitCode::from(failure.code)
        }
    }
}

/// How long a program that is done waits for its log to be written.
const LAST_WORDS: Duration = Duration::from_millis(500);

fn gateway_to_its_end(args: &GatewayArgs, logs: &Logs) -> ExitCode {
    logs.take_panics();
    let code = match gateway(args, logs) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            logs.print(&format!("{}\n", failure.text.trim_end()));
            ExitCode::from(failure.code)
        }
    };
    logs.finish(LAST_WORDS);
    code
}

fn dispatch(command: Command) -> Outcome {
    match command {
        Command::Demo(args) => demo(&args),
        // It needs the log as well.
        Command::Gateway(_) => Ok(()),
        Command::Check(args) => check_files(&args),
        Command::Keys(args) => make_keys(&args),
        Command::Status(args) => status(&args),
        Command::Reload(args) => reload(&args),
        Command::Plan(args) => plan(&args),
        Command::Simulate(args) => simulate(&args),
        Command::Record(args) => record(&args),
        Command::Bench(args) => bench(&args),
    }
}

/// What shows its progress itself does not want a gateway's log in between.
fn default_log(command: &Command) -> &'static str {
    match command {
        Command::Demo(_) | Command::Bench(_) => "warn",
        _ => "info",
    }
}

fn start_logs(default: &str) -> Result<Logs, Failure> {
    let filter = match std::env::var("LONGHAUL_LOG") {
        Ok(text) => {
            EnvFilter::try_new(&text).map_err(|error| unusable(format!("LONGHAUL_LOG={text}: {error}")))?
        }
        Err(_) => EnvFilter::new(default),
    };
    Logs::start(filter, style(&io::stderr()) == Style::Colour).map_err(failed)
}

fn demo(args: &DemoArgs) -> Outcome {
    let runtime = runtime()?;
    let interrupted = interrupt::watch(&runtime).map_err(failed)?;
    let demo = Demo { program: std::env::current_exe().map_err(failed)?, quick: args.quick };
    demo.run(&mut io::stdout().lock(), &|| interrupted.load(Ordering::Acquire))
        .map_err(|error| failed(chain(&error)))
}

fn gateway(args: &GatewayArgs, logs: &Logs) -> Outcome {
    if args.with_parent {
        set_parent_process_death_signal(Some(KillSignal::TERM)).map_err(failed)?;
    }
    let report = check::check(&args.config);
    let problems = config::render(report.problems(), style(&io::stderr()));
    let Some(Content::Gateway(gateway, policy)) = report.content().filter(|_| report.is_valid()) else {
        return Err(unusable(match report.content() {
            Some(Content::Policy(_)) => {
                format!("{} is a policy file; the gateway needs a gateway file", args.config.display())
            }
            _ => problems,
        }));
    };
    if !problems.is_empty() {
        logs.print(&problems);
    }
    let files = Files { gateway: (**gateway).clone(), policy: policy.clone() };
    // Before there are threads that would keep what this one gives up.
    privileges::give_up(gateway).map_err(|error| failed(format!("cannot give up capabilities: {error}")))?;
    if gateway.security.filter_system_calls {
        privileges::filter_system_calls().map_err(|error| {
            failed(format!(
                "cannot filter system calls: {error}; security.filter_system_calls = false does without"
            ))
        })?;
    }
    let runtime = runtime()?;
    let ended = runtime.block_on(async {
        let (stop, stopped) = oneshot::channel();
        let (requests, reloads) = reload::channel();
        let signals = Signals::new().map_err(failed)?;
        tokio::spawn(signals.obey(stop, requests.clone(), logs.clone()));
        run::run(files, stopped, requests, reloads).await.map_err(|error| failed(chain(&error)))
    });
    // Without waiting for a policy file that cannot be read.
    runtime.shutdown_background();
    ended
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

    /// The first signal to stop says so through `stop`; the second one ends the process. SIGHUP has the policy file read again.
    async fn obey(mut self, stop: oneshot::Sender<()>, requests: Requests, logs: Logs) {
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
                Some(stop) => drop(stop.send(())),
                None => {
                    warn!("stopped for the second time: ending at once");
                    logs.finish(LAST_WORDS);
                    std::process::exit(i32::from(FAILED));
                }
            }
        }
    }
}

/// An error with its causes, each once.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let line = error.to_string();
        if !text.ends_with(&line) {
            text += &format!(": {line}");
        }
        cause = error.source();
    }
    text
}

fn check_files(args: &CheckArgs) -> Outcome {
    let mut out = io::stdout().lock();
    let mut wrong = String::new();
    let known = known(&args.link)?;
    for path in &args.files {
        let report = check::check(path);
        let problems = config::render(report.problems(), style(&io::stderr()));
        if report.is_valid() {
            writeln!(out, "{problems}{}: {}", path.display(), verdict(&report)).map_err(output_failed)?;
            outline(&mut out, &report).map_err(output_failed)?;
            if args.link.is_given()
                && let Err(failure) = look_out(&mut out, &report, &args.link, known)
            {
                wrong += &format!("{}\n", failure.text);
            }
        } else {
            wrong += &problems;
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(unusable(wrong)) }
}

/// What a usable file says, in a few words.
fn verdict(report: &Report) -> String {
    match report.content() {
        Some(Content::Gateway(gateway, policy)) => format!(
            "ok, gateway of site {} towards {}, {} {}",
            gateway.site.name,
            gateway.peer.name,
            policy.written().count(),
            if policy.written().count() == 1 { "class" } else { "classes" },
        ),
        Some(Content::Policy(policy)) => {
            let classes: Vec<&str> = policy.written().map(|class| class.name.as_str()).collect();
            format!("ok, policy with {}", classes.join(", "))
        }
        None => "ok".to_owned(),
    }
}

/// What each class does, a line each.
fn outline(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let classes = match report.content() {
        Some(Content::Gateway(_, policy) | Content::Policy(policy)) => policy.written().collect::<Vec<_>>(),
        None => return Ok(()),
    };
    let width = classes.iter().map(|class| class.name.len()).max().unwrap_or(0);
    classes.iter().try_for_each(|class| writeln!(out, "  {:<width$}  {}", class.name, class.outline()))
}

/// What each class would do on the link. A gateway file says more of it than a policy.
fn look_out(out: &mut impl Write, report: &Report, link: &LinkArgs, known: Known) -> Outcome {
    let (policy, written, buffer) = match report.content() {
        Some(Content::Gateway(gateway, policy)) => {
            let buffer = (gateway.limits.total_buffer, gateway.plane.threads);
            (policy, Known::written(gateway), Some(buffer))
        }
        Some(Content::Policy(policy)) => (policy, Known::default(), None),
        None => return Ok(()),
    };
    let estimate =
        link.estimate(&known.or(written)).map_err(|error| unusable(format!("longhaul: {error}")))?;
    plan::outlook::write(out, policy, buffer, &estimate).map_err(output_failed)
}

fn make_keys(args: &KeysArgs) -> Outcome {
    if let Some(name) = args.names.iter().find(|name| !config::is_site_name(name)) {
        let rule = "1 to 63 lower-case letters, digits and hyphens, as in the gateway files";
        return Err(unusable(format!("longhaul: {name:?} is no site name: {rule}")));
    }
    let request = keys::Request { dir: &args.dir, sites: &args.names, force: args.force };
    let summary = keys::generate(&request).map_err(failed)?;
    let mut out = io::stdout().lock();
    let mut show = |name: &str, pair: &keys::Pair| {
        let outcome = match pair.outcome {
            keys::Outcome::Created => "created",
            keys::Outcome::Replaced => "replaced",
            keys::Outcome::Kept => "kept",
        };
        writeln!(out, "{outcome:<9} {name:<10} {}  {}", pair.certificate.display(), pair.key.display())
            .map_err(output_failed)
    };
    show("authority", &summary.authority)?;
    for site in &summary.sites {
        show(&site.name, &site.files)?;
    }
    writeln!(
        out,
        "Give each site its own .crt and .key and {}; keep {} to yourself.",
        summary.authority.certificate.display(),
        summary.authority.key.display()
    )
    .map_err(output_failed)
}

fn status(args: &StatusArgs) -> Outcome {
    let text = runtime()?.block_on(admin::fetch(args.admin, "/status")).map_err(failed)?;
    let mut out = io::stdout().lock();
    if args.json {
        return out.write_all(text.as_bytes()).map_err(output_failed);
    }
    let status = parse_status(args.admin, &text)?;
    let shown = if args.why { status.why() } else { status.to_string() };
    out.write_all(printable_block(&shown).as_bytes()).map_err(output_failed)
}

fn parse_status(admin: SocketAddr, text: &str) -> Result<admin::Status, Failure> {
    serde_json::from_str(text)
        .map_err(|error| failed(format!("{admin} speaks of a status this version does not know: {error}")))
}

/// What a running gateway knows of the link, if one is to be asked.
fn known(link: &LinkArgs) -> Result<Known, Failure> {
    let Some(admin) = link.admin() else { return Ok(Known::default()) };
    let text = runtime()?.block_on(admin::fetch(admin, "/status")).map_err(failed)?;
    Ok(Known::of(&parse_status(admin, &text)?))
}

fn plan(args: &PlanArgs) -> Outcome {
    let mut out = io::stdout().lock();
    let colour = style(&io::stdout());
    let known = known(args.link())?;
    args.run(&mut out, colour, &known).map_err(|error| match error {
        PlanError::Policy(invalid) => unusable(invalid.render(style(&io::stderr()))),
        PlanError::Link(error) => unusable(format!("longhaul: {error}")),
        PlanError::Output(error) => output_failed(error),
        error @ PlanError::Picture { .. } => failed(error),
    })
}

fn simulate(args: &SimulateArgs) -> Outcome {
    args.run(&mut io::stdout().lock()).map_err(|error| match error {
        SimulateError::Usage(_) | SimulateError::File { .. } => unusable(format!("longhaul: {error}")),
        SimulateError::Output(error) => output_failed(error),
        SimulateError::Transfer(_) | SimulateError::Violated { .. } => failed(error),
    })
}

fn record(args: &RecordArgs) -> Outcome {
    let runtime = runtime()?;
    let interrupted = interrupt::watch(&runtime).map_err(failed)?;
    let mut out: Box<dyn Write> = match &args.file {
        None => Box::new(io::stdout()),
        Some(path) => {
            Box::new(File::create(path).map_err(|error| failed(format!("{}: {error}", path.display())))?)
        }
    };
    let begin = Instant::now();
    let is_over = || interrupted.load(Ordering::Acquire) || record::is_past(begin, args.seconds);
    let recording = record::record(args.admin, &mut *out, &is_over);
    runtime.block_on(recording).map_err(|error| failed(chain(&error)))
}

fn reload(args: &ReloadArgs) -> Outcome {
    let answer = runtime()?.block_on(admin::reload(args.admin)).map_err(failed)?;
    if !answer.adopted {
        return Err(unusable(format!("{}{answer}", answer.problems)));
    }
    let _ = write!(io::stderr(), "{}", printable_block(&answer.problems));
    write!(io::stdout().lock(), "{}", printable_block(&answer.to_string())).map_err(output_failed)
}

fn bench(args: &BenchArgs) -> Outcome {
    let mut out = io::stdout().lock();
    let Some(what) = &args.what else {
        let lengths: &[usize] =
            if args.lengths.is_empty() { &[256, 1448, 4200, 8900] } else { &args.lengths };
        return bench::ceiling(&mut out, args.seconds, lengths).map_err(|error| failed(chain(&error)));
    };
    let runtime = runtime()?;
    let interrupted = interrupt::watch(&runtime).map_err(failed)?;
    let interrupted = || interrupted.load(Ordering::Acquire);
    let program = std::env::current_exe().map_err(failed)?;
    match what {
        BenchCommand::Pair(PairArgs { length: SecondsArgs { seconds }, flows }) if flows.is_empty() => {
            bench::Pair { program, seconds: *seconds }.run(&mut out, &interrupted)
        }
        BenchCommand::Pair(PairArgs { length: SecondsArgs { seconds }, flows }) => {
            bench::Flows { program, seconds: *seconds, counts: flows.clone() }.run(&mut out, &interrupted)
        }
        BenchCommand::Memory(MemoryArgs { length: SecondsArgs { seconds }, flows }) => {
            bench::Memory { program, seconds: *seconds, flows: *flows }.run(&mut out, &interrupted)
        }
        BenchCommand::Soak(SoakArgs { seconds, seed }) => {
            let seed = seed.unwrap_or_else(rand::random);
            bench::Soak { program, seconds: *seconds, seed }.run(&mut out, &interrupted)
        }
        BenchCommand::Wan(WanArgs { length: SecondsArgs { seconds }, threads }) if !threads.is_empty() => {
            bench::Threads { seconds: *seconds, counts: threads.clone() }.run(&mut out, &interrupted)
        }
        BenchCommand::Wan(WanArgs { length: SecondsArgs { seconds }, .. }) => {
            bench::Wan { seconds: *seconds }.run(&mut out, &interrupted)
        }
        BenchCommand::Flood(SecondsArgs { seconds }) => {
            bench::Flood { program, seconds: *seconds }.run(&mut out, &interrupted)
        }
        BenchCommand::Latency(SecondsArgs { seconds }) => {
            bench::Latency { program, seconds: *seconds }.run(&mut out, &interrupted)
        }
    }
    .map_err(|error| failed(chain(&error)))
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(failed)
}

fn seconds(text: &str) -> Result<f64, String> {
    seconds_within(text, 0.01, 3600.0)
}

fn recording(text: &str) -> Result<f64, String> {
    seconds_within(text, 0.0, 1e7)
}

fn soaking(text: &str) -> Result<f64, String> {
    seconds_within(text, 1.0, 1e7)
}

fn seconds_within(text: &str, least: f64, most: f64) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (least..=most).contains(&seconds) => Ok(seconds),
        _ => Err(format!("a number of seconds from {least} to {most}")),
    }
}

fn style(stream: &impl IsTerminal) -> Style {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if stream.is_terminal() && !plain { Style::Colour } else { Style::Plain }
}

fn unusable(text: impl Into<String>) -> Failure {
    Failure { code: UNUSABLE, text: text.into() }
}

fn failed(error: impl Display) -> Failure {
    Failure { code: FAILED, text: format!("longhaul: {error}") }
}

#[expect(clippy::needless_pass_by_value, reason = "so that it fits map_err")]
fn output_failed(error: io::Error) -> Failure {
    failed(format!("cannot write the result: {error}"))
}
