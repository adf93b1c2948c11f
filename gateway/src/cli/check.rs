//! `longhaul check`

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use config::{ByteSize, Content, Gateway, Policy, Rate, Report};

use super::failure::{Outcome, output_failed, unusable};
use super::status::known;
use super::{output, runtime, style};
use crate::admin::{self, Address, Endpoint, Status};
use crate::check::CheckedFile;
use crate::check::live::Running;
use crate::plan::link::{Known, LinkArgs};
use crate::{check, plan};

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Ask this machine, too, whether a gateway of the file can work here now
    #[arg(long)]
    live: bool,
    /// Show the outcome as JSON
    #[arg(long, conflicts_with_all = ["rate", "rtt", "drop", "burst", "packet", "back", "admin"])]
    json: bool,
    /// Gateway or policy files, told apart by their content; both files of a pair are compared
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(
        flatten,
        next_help_heading = "Say what each class would do on a link (rate and packets of a gateway file are known)"
    )]
    link: LinkArgs,
    /// Rate of the way back, if that is another, such as "20 Mbit/s"
    #[arg(long, value_name = "RATE")]
    back: Option<Rate>,
}

impl CheckArgs {
    pub(super) fn run(&self) -> Outcome {
        if self.json {
            return self.run_json();
        }
        let mut out = io::stdout().lock();
        let mut wrong = String::new();
        let known = known(&self.link)?;
        for report in self.reports() {
            let path = report.path();
            let problems = config::render(report.problems(), style(&io::stderr()));
            if report.is_valid() {
                writeln!(out, "{problems}{}: {}", path.display(), verdict(&report)).map_err(output_failed)?;
                outline(&mut out, &report).map_err(output_failed)?;
                if (self.link.is_given() || self.back.is_some())
                    && let Err(failure) = look_out(&mut out, &report, (&self.link, self.back), known)
                {
                    wrong += &format!("{}\n", failure.text);
                }
            } else {
                wrong += &problems;
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(unusable(wrong)) }
    }
}

impl CheckArgs {
    /// Errors are in the result; standard error says that there are some.
    fn run_json(&self) -> Outcome {
        let files: Vec<CheckedFile> = self.reports().iter().map(CheckedFile::new).collect();
        output::print_json(&files)?;
        match files.iter().filter(|file| !file.valid).count() {
            0 => Ok(()),
            count => Err(unusable(format!("longhaul: {count} of {} files cannot be used", files.len()))),
        }
    }

    fn reports(&self) -> Vec<Report> {
        let check = |path: &Path| match self.live {
            true => check::check_live(path, &running),
            false => check::check(path),
        };
        let mut reports: Vec<Report> = Vec::with_capacity(self.files.len());
        for path in &self.files {
            let mut report = check(path);
            for other in &reports {
                config::check_pair(other, &mut report);
                check::check_trust(other, &mut report);
            }
            reports.push(report);
        }
        reports
    }
}

/// Asks the gateway of a file what it knows of the link to its peer, if it runs and answers.
fn running(gateway: &Gateway) -> Running {
    let Some(file) = &gateway.admin else { return Running::default() };
    let ask = |admin: &Endpoint, peer: Option<&str>| {
        let status: Status = runtime().ok()?.block_on(admin::ask(&admin.about(peer), "/status")).ok()?;
        Running::of_file(gateway, &status)
    };
    let socket = Path::new(admin::SOCKET);
    let of_unit = || Endpoint::new(Address::Unix(socket.to_owned()), None, None).ok();
    let mut places = Endpoint::of_file(file).ok().into_iter().chain(socket.exists().then(of_unit).flatten());
    // A gateway of an earlier version has one peer, and knows no question about another.
    let found = places.find_map(|at| ask(&at, Some(&gateway.peer.name)).or_else(|| ask(&at, None)));
    found.unwrap_or_default()
}

/// Says in a few words what a usable file holds.
fn verdict(report: &Report) -> String {
    match report.content() {
        Some(Content::Gateway(gateway, policy)) => format!(
            "ok, gateway of site {} towards {}, {} {}",
            gateway.site.name,
            gateway.peers().map(|peer| peer.name.as_str()).collect::<Vec<_>>().join(", "),
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

/// Writes what each class does, a line each.
fn outline(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let classes = match report.content() {
        Some(Content::Gateway(_, policy) | Content::Policy(policy)) => policy.written().collect::<Vec<_>>(),
        None => return Ok(()),
    };
    let width = classes.iter().map(|class| class.name.len()).max().unwrap_or(0);
    classes.iter().try_for_each(|class| writeln!(out, "  {:<width$}  {}", class.name, class.outline()))
}

/// Writes what each class would do on the link, or on each link of several. A gateway file says
/// more of it than a policy.
fn look_out(out: &mut impl Write, report: &Report, link: (&LinkArgs, Option<Rate>), known: Known) -> Outcome {
    match report.content() {
        Some(Content::Gateway(gateway, policy)) => gateway.views().iter().try_for_each(|view| {
            if !gateway.others.is_empty() {
                writeln!(out, "towards {}:", view.peer.name).map_err(output_failed)?;
            }
            let own = (view.policy != gateway.policy).then(|| view.load_policy());
            let own = own.transpose().map_err(|invalid| unusable(invalid.render(style(&io::stderr()))))?;
            let buffer = (view.limits.total_buffer, view.thread_pairs());
            let policy = own.as_ref().unwrap_or(policy);
            look_out_on(out, policy, Some(buffer), link, &known.or(Known::written(view)))
        }),
        Some(Content::Policy(policy)) => look_out_on(out, policy, None, link, &known),
        None => Ok(()),
    }
}

fn look_out_on(
    out: &mut impl Write,
    policy: &Policy,
    buffer: Option<(ByteSize, u8)>,
    (link, back): (&LinkArgs, Option<Rate>),
    known: &Known,
) -> Outcome {
    let estimate = link.estimate(known).map_err(|error| unusable(format!("longhaul: {error}")))?;
    plan::outlook::write(out, policy, (buffer, back), &estimate).map_err(output_failed)
}
