//! The log: lines to standard error that can neither hold anybody up nor end anything.
//!
//! A line is formatted where it arises, every foreign byte of it escaped ([`mod@escape`]), and
//! handed to a bounded queue.
//! A thread of its own ([`sink`]) writes the queue out, and is the only one that ever waits for
//! whoever reads.
//! A full queue, a full disk and a dead reader cost lines, which are counted; one line says how
//! many once the sink is back.
//! A place in the program writes 100 lines at once and then one a second ([`limit`]), except at
//! `debug` and `trace`.

mod escape;
mod form;
mod format;
mod json;
mod limit;
mod sink;

use std::io::{self, IsTerminal};
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tracing::{Level, error};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

pub use form::Form;
#[cfg(test)]
pub(crate) use format::tests::written;
use format::{Fields, Lines};
use sink::Queue;

/// Returns what `LONGHAUL_LOG` asks for, or without it the default.
///
/// # Errors
/// A line that says what the variable holds, and what is wrong with it.
pub fn filter(default: &str) -> Result<EnvFilter, String> {
    match std::env::var("LONGHAUL_LOG") {
        Ok(text) if !text.trim().is_empty() => parse_filter(&text),
        // What the library warns of by itself, the gateway tells in its own words.
        Ok(_) | Err(_) => Ok(EnvFilter::new(format!("{default},quinn_udp=error"))),
    }
}

fn parse_filter(text: &str) -> Result<EnvFilter, String> {
    // A word alone that is no level would be a module, and everything else would fall silent.
    let is_level = |word: &str| word.parse::<LevelFilter>().is_ok();
    let bare = text.split(',').map(str::trim).find(|word| !word.contains(['=', '[']) && !is_level(word));
    if let Some(word) = bare {
        return Err(format!(
            "LONGHAUL_LOG={text}: {word:?} is no level; error, warn, info, debug, trace and off are, and \
             MODULE=LEVEL adds to one: info,session=debug"
        ));
    }
    EnvFilter::try_new(text).map_err(|error| format!("LONGHAUL_LOG={text}: {error}"))
}

/// Returns whether colours go to this stream: to a terminal, unless `NO_COLOR` is set.
pub fn takes_colour(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Why a line was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The queue was full: the sink does not keep up, or its reader has stalled.
    QueueFull,
    /// The sink refused it: a full disk, a reader that is gone.
    Sink,
    /// Its place in the program had written too many lines lately.
    Rate,
    /// One of the file of keys: its disk is too slow, or refused it.
    KeyLog,
}

impl Lost {
    /// Every reason, in the order of [`lost`].
    pub const ALL: [Self; 4] = [Self::QueueFull, Self::Sink, Self::Rate, Self::KeyLog];

    /// The reason as a metric's label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::Sink => "sink",
            Self::Rate => "rate",
            Self::KeyLog => "key_log",
        }
    }
}

/// Lost lines, by reason.
#[derive(Debug, Default)]
struct Counts([AtomicU64; Lost::ALL.len()]);

impl Counts {
    fn add(&self, reason: Lost) {
        if let Some(count) = self.0.get(reason as usize) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// In the order of [`Lost::ALL`].
    fn all(&self) -> [u64; Lost::ALL.len()] {
        self.0.each_ref().map(|count| count.load(Relaxed))
    }
}

/// One log per process, as with `tracing`'s dispatcher.
static COUNTS: Counts = Counts([const { AtomicU64::new(0) }; Lost::ALL.len()]);

/// Counts a line of the file of keys that was not written.
pub(crate) fn lose_key() {
    COUNTS.add(Lost::KeyLog);
}

/// Counts the lines that this process has lost, by reason, in the order of [`Lost::ALL`].
#[must_use]
pub fn lost() -> [u64; Lost::ALL.len()] {
    COUNTS.all()
}

/// One line of foreign text, fit to be shown: newlines and whatever a terminal would obey are
/// escaped.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    // Writing to a String never fails.
    let _ = escape::message(&mut shown, text);
    shown
}

/// The same of text of several lines, whose colours stay.
#[must_use]
pub fn printable_block(text: &str) -> String {
    escape::text(text)
}

/// The process's log, started. It ends with the process.
#[derive(Clone, Debug)]
pub struct Logs {
    queue: Arc<Queue>,
    form: Form,
}

impl Logs {
    /// Starts the thread that writes, and makes the log the process's own.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(filter: EnvFilter, form: Form) -> io::Result<Self> {
        let queue = Queue::start(sink::standard_error()?, &COUNTS, form)?;
        let logs = Self { queue: Arc::new(queue), form };
        tracing_subscriber::fmt()
            // They would be printed to standard error, which waits for its reader and panics
            // without one.
            .log_internal_errors(false)
            .with_env_filter(filter)
            .with_writer(logs.clone())
            .with_ansi(form == Form::Colour)
            .fmt_fields(Fields)
            .event_format(Lines::new(form))
            .init();
        Ok(logs)
    }

    /// Has panics logged. Otherwise they are printed, by a thread that waits until somebody reads.
    pub fn take_panics(&self) {
        panic::set_hook(Box::new(|panic| {
            let payload = panic.payload();
            let said = payload.downcast_ref::<&str>().copied();
            let said = said.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
            let place = panic.location().map(ToString::to_string).unwrap_or_default();
            let thread = std::thread::current().name().unwrap_or_default().to_owned();
            error!(thread, place, said = said.unwrap_or_default(), "panic");
        }));
    }

    /// Writes text of several lines as it is, except for what a terminal would obey. As JSON it is
    /// one line; for the journal each has the level's priority.
    pub fn print(&self, level: Level, text: &str) {
        self.queue.push(format::block(level, text, self.form).into_bytes());
    }

    /// Waits until all has been written or lost, but no longer than `patience`.
    pub fn finish(&self, patience: Duration) {
        self.queue.finish(patience);
    }
}

impl<'a> MakeWriter<'a> for Logs {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        Line(&self.queue)
    }
}

/// Takes one event's whole line.
pub struct Line<'a>(&'a Queue);

impl io::Write for Line<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // A line over its place's rate is an empty one.
        if !line.is_empty() {
            self.0.push(line.to_owned());
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_is_refused() {
        for good in
            ["info", "WARN", "info,session=debug", "off", "session=trace", "warn,gateway[plane]=debug"]
        {
            assert!(parse_filter(good).is_ok(), "{good}");
        }
        for bad in ["verbose", "session", "info,verbose", "info,session=loud", "all", "debugg"] {
            let error = parse_filter(bad).err();
            assert!(error.is_some_and(|error| error.starts_with("LONGHAUL_LOG=")), "{bad}");
        }
    }
}
