//! The effect of a policy's classes on a link, in a few lines each: `longhaul check` with a link.

use std::io::{self, Write};

use config::{ByteSize, Class, Policy, Rate};
use reliability::human;
use reliability::model::{self, Candidate, Message};
use reliability::selector::{Bucket, Estimate};

use super::{Subject, buffer_warning, headline, reports_warning, window_warning};

/// The sizes shown, as far as a class has messages of them.
const SIZES: [u64; 5] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 1 << 30];

/// A line for each size: the scheme, the time within which the class's percentile of messages is
/// complete, and what is sent beyond the data. `buffer`: the gateway's `limits.total_buffer` and
/// its data-plane threads, if it is known. `back`: the rate of the way back, if that is another.
///
/// # Errors
/// Those of `out`.
pub fn write(
    out: &mut dyn Write,
    policy: &Policy,
    (buffer, back): (Option<(ByteSize, u8)>, Option<Rate>),
    estimate: &Estimate,
) -> io::Result<()> {
    writeln!(out, "On a link of {}:", headline(estimate))?;
    let classes = policy.written().count();
    let warnings = [
        window_warning(&estimate.link),
        buffer_warning(&estimate.link, classes, buffer),
        reports_warning(&estimate.link, back),
    ];
    for warning in warnings.into_iter().flatten() {
        writeln!(out, "{warning}")?;
    }
    for class in policy.written() {
        class_outlook(out, class, estimate)?;
    }
    let is_auto = |class: &Class| matches!(class.scheme, config::Scheme::Auto(_));
    if policy.written().any(is_auto) {
        writeln!(
            out,
            "Under auto, all messages between two sizes of `divide` have one scheme: that for the size in which most of their bytes are."
        )?;
    }
    Ok(())
}

fn class_outlook(out: &mut dyn Write, class: &Class, estimate: &Estimate) -> io::Result<()> {
    if class.scheme == config::Scheme::None {
        return writeln!(out, "  {}  sends each packet once: what is lost stays lost", class.name);
    }
    writeln!(out, "  {}  {} % of messages complete within", class.name, class.percentile)?;
    let subject = Subject::of_class(class, *estimate);
    let sizes = SIZES.into_iter().filter(|size| class.matches.admits(Some(*size)));
    let sizes: Vec<u64> = sizes.collect();
    if sizes.is_empty() {
        let size = class.matches.size.and_then(|ends| ends.at_most.or(ends.at_least));
        return line(out, &subject, class, size.map_or(0, ByteSize::bytes));
    }
    sizes.into_iter().try_for_each(|size| line(out, &subject, class, size))
}

fn line(out: &mut dyn Write, subject: &Subject, class: &Class, size: u64) -> io::Result<()> {
    let scheme = match class.scheme {
        config::Scheme::Auto(_) => subject.decision(Bucket::of(size)).chosen.candidate,
        _ => subject.candidates.first().copied().unwrap_or(Candidate::Sr),
    };
    let time = model::completion(&subject.estimate.link, &subject.timers, scheme, Message::new(size));
    writeln!(
        out,
        "    {:>8}  {:<14} {:>9}  +{}",
        human::size(size),
        scheme.to_string(),
        human::time(time.percentile(subject.objective.percentile)),
        human::share(time.overhead()),
    )
}
