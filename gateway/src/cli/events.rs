//! `longhaul events`

use std::io::{self, Write};
use std::net::IpAddr;
use std::time::Duration;

use clap::Args;

use super::args::{AdminArgs, check_class_of_any, class_name};
use super::failure::{Outcome, failed};
use super::{output, runtime};
use crate::admin::ask;
use crate::events::{Event, EventKind, Events};
use crate::json;
use crate::logs::printable;

/// Between two questions.
const ASK_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(super) struct EventsArgs {
    #[command(flatten)]
    admin: AdminArgs,
    /// Go on showing events as they happen
    #[arg(long)]
    follow: bool,
    /// Show events of this kind only; several may be given
    #[arg(long, value_name = "KIND")]
    kind: Vec<EventKind>,
    /// Show events that name this address only
    #[arg(long, value_name = "IP")]
    host: Option<IpAddr>,
    /// Show events about flows of this class, or of a part of one, only
    #[arg(long, value_name = "NAME", value_parser = class_name)]
    class: Option<String>,
    /// Show each as a line of JSON
    #[arg(long)]
    json: bool,
}

impl EventsArgs {
    pub(super) fn run(&self) -> Outcome {
        let (runtime, admin) = (runtime()?, self.admin.endpoint()?);
        let mut next = 0;
        loop {
            let path = format!("/events?from={next}");
            let answer: Events = runtime.block_on(ask(&admin, &path)).map_err(failed)?;
            if answer.next < next {
                // The gateway was started again.
                next = 0;
                continue;
            }
            // Events of earlier policies may name classes that this one has not.
            if let Some(class) = self.class.as_deref().filter(|_| next == 0)
                && !answer.events.iter().any(|event| is_about(event, class))
            {
                check_class_of_any(&runtime, &admin, class)?;
            }
            self.show(&answer)?;
            next = answer.next;
            if !self.follow {
                return Ok(());
            }
            std::thread::sleep(ASK_EVERY);
        }
    }

    fn is_meant(&self, event: &Event) -> bool {
        let is_kind = |kind: &EventKind| kind.name() == event.kind;
        (self.kind.is_empty() || self.kind.iter().any(is_kind))
            && self.host.is_none_or(|host| event.names(host))
            && self.class.as_deref().is_none_or(|class| is_about(event, class))
    }

    fn show(&self, answer: &Events) -> Outcome {
        if answer.gone > 0 {
            let _ = writeln!(io::stderr(), "{} earlier events are gone", answer.gone);
        }
        let line = |event: &Event| match self.json {
            true => json::line(event).map_err(failed),
            false => Ok(printable(&event.to_string()) + "\n"),
        };
        let meant = answer.events.iter().filter(|event| self.is_meant(event));
        output::print(&meant.map(line).collect::<Result<String, _>>()?)
    }
}

/// Returns true for an event about a flow of this class, or of a part of it.
fn is_about(event: &Event, class: &str) -> bool {
    event.class.as_deref().is_some_and(|name| config::names_class(class, name))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        events: EventsArgs,
    }

    #[test]
    fn a_class_has_the_events_of_its_parts() {
        let shown = |class: &str| {
            let line = Line::try_parse_from(["events", "--class", class]).unwrap();
            let of = |class: Option<&str>| Event {
                number: 0,
                time: String::new(),
                kind: "flow_failed".to_owned(),
                peer: None,
                class: class.map(str::to_owned),
                text: String::new(),
            };
            let classes = [None, Some("default"), Some("default/64KiB"), Some("default-2")];
            classes.map(|class| line.events.is_meant(&of(class)))
        };
        assert_eq!(shown("default"), [false, true, true, false]);
        assert_eq!(shown("default/64KiB"), [false, false, true, false]);
    }
}
