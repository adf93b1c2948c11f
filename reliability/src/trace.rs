//! Loss traces: which packets of a path arrived, in the order of their numbers, as text.
//!
//! ```text
//! longhaul-trace 1
//! link a > b
//! start 1732212345.250
//! 1234 1
//! 88 3
//! break
//! 400 0
//! ```
//! The first line names format and version. `link` is free text. `start` is when the recording
//! began, in seconds since 1970 (UTC). Then each line `arrived lost` says that so many packets
//! arrived in a row and so many after them were lost; `lost` is 0 only at the end or before a
//! break. `break`: some packets are missing here that nothing is known of. Empty lines and lines
//! that begin with `#` mean nothing.

use std::fmt;
use std::time::Duration;

/// First word of a trace.
const MAGIC: &str = "longhaul-trace";
/// The version written, and the only one read.
const VERSION: u32 = 1;
/// Longest text of `link`, in bytes.
const MAX_LINK: usize = 200;

/// So many arrived, then so many lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Run {
    /// Packets that arrived.
    pub arrived: u64,
    /// Packets lost after these.
    pub lost: u64,
}

/// A line of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Arrivals and the losses after them.
    Run(Run),
    /// Unknown packets.
    Break,
}

/// The header of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Which link and direction, in one line.
    pub link: String,
    /// When the recording began, since 1970 (UTC). Milliseconds are kept.
    pub start: Duration,
}

/// A whole trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Its header.
    pub header: Header,
    /// Its lines.
    pub entries: Vec<Entry>,
}

/// A line that is no part of a trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: `{found}` is not {wanted}")]
pub struct Wrong {
    /// Counted from 1; the one after the last if something is missing at the end.
    pub line: usize,
    /// The line as found.
    pub found: String,
    /// The form it should have had.
    pub wanted: &'static str,
}

impl Trace {
    /// Reads a whole trace.
    ///
    /// # Errors
    /// The first line that is wrong.
    pub fn parse(text: &str) -> Result<Self, Wrong> {
        let mut parser = Parser::default();
        let mut entries = Vec::new();
        for line in text.lines() {
            entries.extend(parser.line(line)?);
        }
        Ok(Self { header: parser.finish()?, entries })
    }

    /// Packets that arrived and packets lost, in all.
    #[must_use]
    pub fn totals(&self) -> Run {
        let mut totals = Run::default();
        for entry in &self.entries {
            if let Entry::Run(run) = entry {
                totals.arrived = totals.arrived.saturating_add(run.arrived);
                totals.lost = totals.lost.saturating_add(run.lost);
            }
        }
        totals
    }
}

/// Reads a trace line by line, for those that do not fit into memory. Feed it every line, without
/// its end, then call [`Parser::finish`].
#[derive(Clone, Debug, Default)]
pub struct Parser {
    lines: usize,
    version: Option<u32>,
    link: Option<String>,
    start: Option<Duration>,
}

impl Parser {
    /// The next line; `None` if it tells of no packets.
    ///
    /// # Errors
    /// If it cannot stand there.
    pub fn line(&mut self, line: &str) -> Result<Option<Entry>, Wrong> {
        self.lines += 1;
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return Ok(None);
        }
        let (key, value) = line.split_once(' ').unwrap_or((line, ""));
        if self.version.is_none() {
            self.version = Some(VERSION).filter(|version| key == MAGIC && value.parse() == Ok(*version));
            return self.version.map(|_| None).ok_or_else(|| self.wrong(line, "`longhaul-trace 1`"));
        }
        if self.link.is_none() {
            self.link = Some(value.to_owned()).filter(|text| key == "link" && text.len() <= MAX_LINK);
            return self.link.as_ref().map(|_| None).ok_or_else(|| self.wrong(line, "`link TEXT`"));
        }
        if self.start.is_none() {
            self.start = seconds(value).filter(|_| key == "start");
            return self.start.map(|_| None).ok_or_else(|| self.wrong(line, "`start SECONDS`"));
        }
        if line == "break" {
            return Ok(Some(Entry::Break));
        }
        let run = key.parse().ok().zip(value.parse().ok()).map(|(arrived, lost)| Run { arrived, lost });
        match run {
            Some(run) if run != Run::default() => Ok(Some(Entry::Run(run))),
            _ => Err(self.wrong(line, "`ARRIVED LOST`, two counts of which one is above 0, or `break`")),
        }
    }

    /// Returns the trace's header, after its last line.
    ///
    /// # Errors
    /// If it ended before.
    pub fn finish(mut self) -> Result<Header, Wrong> {
        self.lines += 1;
        let wrong = |wanted| self.wrong("the end", wanted);
        self.version.ok_or_else(|| wrong("`longhaul-trace 1`"))?;
        let link = self.link.clone().ok_or_else(|| wrong("`link TEXT`"))?;
        let start = self.start.ok_or_else(|| wrong("`start SECONDS`"))?;
        Ok(Header { link, start })
    }

    fn wrong(&self, found: &str, wanted: &'static str) -> Wrong {
        let found = found.chars().take(80).collect();
        Wrong { line: self.lines, found, wanted }
    }
}

fn seconds(text: &str) -> Option<Duration> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    if !digits(whole) || !digits(part) {
        return None;
    }
    let millis = format!("{part:0<3}").get(..3)?.parse().ok()?;
    Some(Duration::new(whole.parse().ok()?, 0) + Duration::from_millis(millis))
}

/// Writes a trace. Arrivals that no loss follows wait for the next entry, so entries may be cut
/// anywhere.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    arrived: u64,
}

impl<W: fmt::Write> Writer<W> {
    /// Writes the header. Line ends in its text become blanks, and too long a text is cut.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(mut out: W, header: &Header) -> Result<Self, fmt::Error> {
        let mut link = header.link.replace(char::is_control, " ").trim().to_owned();
        while link.len() > MAX_LINK {
            link.pop();
        }
        let start = header.start;
        writeln!(out, "{MAGIC} {VERSION}\nlink {link}")?;
        writeln!(out, "start {}.{:03}", start.as_secs(), start.subsec_millis())?;
        Ok(Self { out, arrived: 0 })
    }

    /// Writes the next entry.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn push(&mut self, entry: Entry) -> fmt::Result {
        match entry {
            Entry::Run(Run { arrived, lost }) => {
                self.arrived = self.arrived.saturating_add(arrived);
                if lost > 0 {
                    writeln!(self.out, "{} {lost}", std::mem::take(&mut self.arrived))?;
                }
                Ok(())
            }
            Entry::Break => {
                self.flush()?;
                writeln!(self.out, "break")
            }
        }
    }

    /// Writes what waits, and hands back `out`.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn finish(mut self) -> Result<W, fmt::Error> {
        self.flush()?;
        Ok(self.out)
    }

    /// Returns the output so far.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.out
    }

    fn flush(&mut self) -> fmt::Result {
        match std::mem::take(&mut self.arrived) {
            0 => Ok(()),
            arrived => writeln!(self.out, "{arrived} 0"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> Header {
        Header { link: "a > b".to_owned(), start: Duration::from_millis(1_732_212_345_250) }
    }

    fn run(arrived: u64, lost: u64) -> Entry {
        Entry::Run(Run { arrived, lost })
    }

    fn written(header: &Header, entries: &[Entry]) -> String {
        let mut writer = Writer::new(String::new(), header).unwrap();
        entries.iter().for_each(|entry| writer.push(*entry).unwrap());
        writer.finish().unwrap()
    }

    const EXAMPLE: &str = "longhaul-trace 1\nlink a > b\nstart 1732212345.250\n1234 1\n88 3\nbreak\n400 0\n";

    #[test]
    fn the_example_reads_and_writes() {
        let entries = [run(1234, 1), run(88, 3), Entry::Break, run(400, 0)];
        assert_eq!(written(&header(), &entries), EXAMPLE);
        let trace = Trace::parse(EXAMPLE).unwrap();
        assert_eq!(trace, Trace { header: header(), entries: entries.to_vec() });
        assert_eq!(trace.totals(), Run { arrived: 1722, lost: 4 });
    }

    #[test]
    fn arrivals_wait_for_their_losses() {
        let entries = [run(1, 0), run(2, 0), run(0, 5), run(3, 0), Entry::Break, Entry::Break, run(0, 1)];
        let text = written(&header(), &entries);
        assert!(text.ends_with("\n3 5\n3 0\nbreak\nbreak\n0 1\n"), "{text}");
    }

    #[test]
    fn comments_and_blanks_mean_nothing() {
        let text = EXAMPLE.replace('\n', "\r\n# note\r\n\r\n");
        assert_eq!(Trace::parse(&text), Trace::parse(EXAMPLE));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (from, to, line) in [
            ("longhaul-trace 1", "longhaul-trace 2", 1),
            ("longhaul-trace 1\n", "", 1),
            ("link a > b", "lonk a > b", 2),
            ("start 1732212345.250", "start -1", 3),
            ("start 1732212345.250", "start 1e9", 3),
            ("88 3", "88", 5),
            ("88 3", "88 -3", 5),
            ("88 3", "0 0", 5),
            ("88 3", "88 3 4", 5),
            ("88 3", "88 18446744073709551616", 5),
            ("break", "brake", 6),
        ] {
            let wrong = Trace::parse(&EXAMPLE.replace(from, to)).unwrap_err();
            assert_eq!(wrong.line, line, "{to}: {wrong}");
        }
        let wrong = Trace::parse("longhaul-trace 1\nlink x\n").unwrap_err();
        assert_eq!(wrong.to_string(), "line 3: `the end` is not `start SECONDS`");
    }

    #[test]
    fn a_text_of_several_lines_or_pages_stays_one_line() {
        for link in ["a\nbreak\r\n1 2".to_owned(), "é".repeat(500), String::new()] {
            let text = written(&Header { link, ..header() }, &[run(1, 1)]);
            let trace = Trace::parse(&text).unwrap();
            assert_eq!(trace.entries, [run(1, 1)]);
            assert!(trace.header.link.len() <= MAX_LINK);
        }
    }

    proptest! {
        #[test]
        fn what_was_written_reads_back(
            runs in prop::collection::vec((0..u64::MAX, 1..u64::MAX), 0..50),
            millis in 0..u64::from(u32::MAX) * 1000,
        ) {
            let entries: Vec<_> = runs.into_iter().map(|(arrived, lost)| run(arrived, lost)).collect();
            let header = Header { start: Duration::from_millis(millis), ..header() };
            let trace = Trace::parse(&written(&header, &entries)).unwrap();
            prop_assert_eq!(trace, Trace { header, entries });
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,40}(\n\\PC{0,20}){0,5}") {
            let _ = Trace::parse(&text);
            let _ = Trace::parse(&format!("{EXAMPLE}{text}"));
        }
    }
}
