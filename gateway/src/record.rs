//! `longhaul record`: losses on the way from the peer, from the data plane through the admin
//! listener into a trace.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use reliability::trace::{Entry, Header, Trace, Writer, Wrong};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::sleep;

use crate::admin::{self, Endpoint, FetchError};
use crate::json;
use crate::recorder::{NEXT, since_1970};

/// Between two questions.
const ASK_EVERY: Duration = Duration::from_millis(250);

/// Why a recording ended early. What was written before is a whole trace.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The gateway did not answer.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// It answered with something else.
    #[error("{address} answers with no trace")]
    Answer {
        /// Who.
        address: String,
        /// The error in it.
        #[source]
        source: Wrong,
    },
    /// It answered without saying where to go on.
    #[error("{0} answers with a trace that does not say where it goes on")]
    Endless(String),
    /// The trace cannot be written.
    #[error("cannot write the trace")]
    Write(#[from] io::Error),
}

/// A line of a recording as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Line {
    /// The first line: the direction, and the time of the beginning in seconds since 1970.
    Header {
        /// As "b > a".
        link: String,
        /// Seconds.
        start: f64,
    },
    /// Packets in the order of their numbers.
    Run {
        /// So many arrived in a row.
        arrived: u64,
        /// Then so many were lost in a row.
        lost: u64,
    },
    /// Packets that nothing is known of.
    Unknown {
        /// Always true.
        unknown: bool,
    },
}

impl From<&Header> for Line {
    fn from(header: &Header) -> Self {
        Self::Header { link: header.link.clone(), start: header.start.as_secs_f64() }
    }
}

impl From<Entry> for Line {
    fn from(entry: Entry) -> Self {
        match entry {
            Entry::Run(run) => Self::Run { arrived: run.arrived, lost: run.lost },
            Entry::Break => Self::Unknown { unknown: true },
        }
    }
}

/// Records as [`record`] does, with a line of JSON for each entry.
///
/// # Errors
/// See [`RecordError`].
pub async fn record_json(
    admin: &Endpoint,
    out: &mut dyn Write,
    is_over: &dyn Fn() -> bool,
) -> Result<(), RecordError> {
    let (mut next, trace) = ask(admin, u64::MAX).await?;
    write_line(&Line::from(&Header { start: since_1970(), ..trace.header }), out)?;
    while !is_over() {
        sleep(ASK_EVERY).await;
        let (after, trace) = ask(admin, next).await?;
        let restarted = (after < next).then_some(Entry::Break);
        for entry in restarted.into_iter().chain(trace.entries) {
            write_line(&Line::from(entry), out)?;
        }
        next = after;
    }
    Ok(())
}

fn write_line(line: &Line, out: &mut dyn Write) -> Result<(), RecordError> {
    out.write_all(json::line(line).map_err(io::Error::from)?.as_bytes())?;
    Ok(out.flush()?)
}

/// Records from now on until `is_over`, from the gateway whose admin listener is at `admin`.
///
/// # Errors
/// See [`RecordError`].
pub async fn record(
    admin: &Endpoint,
    out: &mut dyn Write,
    is_over: &dyn Fn() -> bool,
) -> Result<(), RecordError> {
    // A place that is not there yet: nothing that was before.
    let (mut next, trace) = ask(admin, u64::MAX).await?;
    let mut text = String::new();
    let header = Header { start: since_1970(), ..trace.header };
    let mut writer = Writer::new(&mut text, &header).map_err(io::Error::other)?;
    loop {
        write_out(writer.get_mut(), out)?;
        if is_over() {
            break;
        }
        sleep(ASK_EVERY).await;
        let answer = ask(admin, next).await;
        let (after, trace) = match answer {
            Ok(answer) => answer,
            Err(error) => {
                finish(writer, out)?;
                return Err(error);
            }
        };
        // The gateway was restarted.
        let restarted = (after < next).then_some(Entry::Break);
        for entry in restarted.into_iter().chain(trace.entries) {
            writer.push(entry).map_err(io::Error::other)?;
        }
        next = after;
    }
    finish(writer, out)
}

fn finish(writer: Writer<&mut String>, out: &mut dyn Write) -> Result<(), RecordError> {
    write_out(writer.finish().map_err(io::Error::other)?, out)
}

fn write_out(text: &mut String, out: &mut dyn Write) -> Result<(), RecordError> {
    out.write_all(text.as_bytes())?;
    out.flush()?;
    text.clear();
    Ok(())
}

/// Returns true if so much time has passed since `begin`; never if there is no such time.
pub fn is_past(begin: Instant, seconds: Option<f64>) -> bool {
    seconds.is_some_and(|seconds| begin.elapsed().as_secs_f64() >= seconds)
}

async fn ask(admin: &Endpoint, from: u64) -> Result<(u64, Trace), RecordError> {
    let text = admin::fetch(admin, &format!("/trace?from={from}")).await?;
    let next = text.lines().find_map(|line| line.strip_prefix(NEXT)?.parse().ok());
    let trace =
        Trace::parse(&text).map_err(|source| RecordError::Answer { address: admin.to_string(), source })?;
    Ok((next.ok_or_else(|| RecordError::Endless(admin.to_string()))?, trace))
}
