//! One event as one line: time, level, spans, target, message, and fields as `name=value`.

use std::fmt::{self, Debug, Write};
use std::time::Instant;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

use super::escape;
use super::form::{Form, priority};
use super::json::{self, Record};
use super::limit::Limiter;
use super::{COUNTS, Lost};

/// A line for each event that its place may write.
#[derive(Debug, Default)]
pub(super) struct Lines {
    limiter: Limiter,
    form: Form,
}

impl Lines {
    pub(super) fn new(form: Form) -> Self {
        Self { limiter: Limiter::default(), form }
    }
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut to: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let Some(left_out) = self.limiter.admit(metadata, Instant::now()) else {
            COUNTS.add(Lost::Rate);
            return Ok(());
        };
        if self.form == Form::Json {
            return to.write_str(&as_json(context, event, left_out));
        }
        head(&mut to, *metadata.level(), self.form)?;
        for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            write!(to, "{}", span.name())?;
            let extensions = span.extensions();
            let fields = extensions.get::<FormattedFields<N>>().map(|fields| fields.fields.as_str());
            match fields {
                None | Some("") => to.write_str(": ")?,
                Some(fields) => write!(to, "{{{fields}}}: ")?,
            }
        }
        write!(to, "{}: ", metadata.target())?;
        context.field_format().format_fields(to.by_ref(), event)?;
        if left_out > 0 {
            write!(to, " left_out={left_out}")?;
        }
        to.write_char('\n')
    }
}

fn as_json<S, N>(context: &FmtContext<'_, S, N>, event: &Event<'_>, left_out: u64) -> String
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    let spans = context.event_scope().into_iter().flat_map(|scope| scope.from_root());
    let spans = spans.map(|span| {
        let extensions = span.extensions();
        match extensions.get::<FormattedFields<N>>().map(|fields| fields.fields.as_str()) {
            None | Some("") => span.name().to_owned(),
            Some(fields) => format!("{}{{{fields}}}", span.name()),
        }
    });
    let mut record = Record::default();
    event.record(&mut record);
    json::line(*event.metadata().level(), event.metadata().target(), spans.collect(), record, left_out)
}

/// Begins a line: time and level, or for the journal priority and level.
fn head(to: &mut Writer<'_>, level: Level, form: Form) -> fmt::Result {
    if form == Form::Journal {
        return write!(to, "<{}>{level} ", priority(level));
    }
    SystemTime.format_time(to)?;
    if !to.has_ansi_escapes() {
        return write!(to, " {level:>5} ");
    }
    let colour = match level {
        Level::ERROR => 31,
        Level::WARN => 33,
        Level::INFO => 32,
        Level::DEBUG => 34,
        Level::TRACE => 35,
    };
    write!(to, " \x1b[{colour}m{level:>5}\x1b[0m ")
}

/// The line that says how many were lost.
pub(super) fn confession(lost: u64, form: Form) -> String {
    const SAYS: &str = "lines of this log were lost";
    if form == Form::Json {
        let fields = [("lost".to_owned(), lost.into())].into_iter().collect();
        let record = Record { message: SAYS.to_owned(), fields };
        return json::line(Level::WARN, module_path!(), Vec::new(), record, 0);
    }
    let mut line = String::new();
    // Writing to a String never fails.
    let _ = head(&mut Writer::new(&mut line), Level::WARN, form);
    let _ = writeln!(line, "{}: {SAYS} lost={lost}", module_path!());
    line
}

/// Text of several lines that is no event's.
pub(super) fn block(level: Level, text: &str, form: Form) -> String {
    match form {
        Form::Plain | Form::Colour => escape::text(text),
        Form::Journal => {
            let priority = priority(level);
            escape::text(text).lines().map(|line| format!("<{priority}>{line}\n")).collect()
        }
        Form::Json => {
            let record = Record { message: text.trim_end().to_owned(), ..Record::default() };
            json::line(level, module_path!(), Vec::new(), record, 0)
        }
    }
}

/// Fields with every value escaped.
#[derive(Debug)]
pub(super) struct Fields;

impl<'a> FormatFields<'a> for Fields {
    fn format_fields<R: RecordFields>(&self, to: Writer<'a>, fields: R) -> fmt::Result {
        let mut visitor = Visitor { to, is_first: true, result: Ok(()) };
        fields.record(&mut visitor);
        visitor.result
    }
}

struct Visitor<'a> {
    to: Writer<'a>,
    is_first: bool,
    result: fmt::Result,
}

impl Visitor<'_> {
    fn write(&mut self, field: &Field, text: &str) -> fmt::Result {
        if !std::mem::take(&mut self.is_first) {
            self.to.write_char(' ')?;
        }
        if field.name() == "message" {
            return escape::message(&mut self.to, text);
        }
        write!(self.to, "{}=", field.name())?;
        escape::value(&mut self.to, text)
    }
}

impl Visit for Visitor<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        if self.result.is_ok() {
            self.result = self.write(field, value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
pub(super) mod tests;
