//! Problems in a file, and where they stand: [`Problem`] and [`Invalid`].

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, Severity, SourceCode,
};

/// A file's text under its name, for the excerpts in problems.
pub(crate) type Source = Arc<NamedSource<String>>;

/// Words beside a place in a file, for an excerpt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Label {
    /// The value that was found.
    Value(String),
    /// Words that say what was found.
    Words(String),
    /// They say no more than that this is the place. What was found stands there.
    Place(Cow<'static, str>),
}

impl Label {
    /// The value is named here, and the message says what it is.
    pub const NAMED: Self = Self::place("named here");

    /// Words that only point at the place.
    pub const fn place(words: &'static str) -> Self {
        Self::Place(Cow::Borrowed(words))
    }
}

impl<T: Into<String>> From<T> for Label {
    fn from(words: T) -> Self {
        Self::Words(words.into())
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => write!(f, "found {value}"),
            Self::Words(words) => f.write_str(words),
            Self::Place(words) => f.write_str(words),
        }
    }
}

/// One thing wrong with a file. As a [`Diagnostic`] it renders with an excerpt of the file.
#[derive(Clone, Debug)]
pub struct Problem {
    severity: Severity,
    message: String,
    source: Option<Source>,
    span: Option<Range<usize>>,
    label: Label,
    help: Option<String>,
}

impl Problem {
    pub(crate) fn new(severity: Severity, message: impl Into<String>) -> Self {
        Self {
            severity,
            message: message.into(),
            source: None,
            span: None,
            label: Label::from(""),
            help: None,
        }
    }

    pub(crate) fn at(mut self, source: &Source, span: Range<usize>, label: impl Into<Label>) -> Self {
        self.source = Some(Arc::clone(source));
        self.span = Some(span);
        self.label = label.into();
        self
    }

    /// Keeps what was found where the key does not stand in the file.
    pub(crate) fn without_place(mut self, label: impl Into<Label>) -> Self {
        self.label = label.into();
        self
    }

    pub(crate) fn help(mut self, help: Option<String>) -> Self {
        self.help = help;
        self
    }

    /// Returns true if the file cannot be used because of it; otherwise it is a warning.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }

    /// Returns the problem in one line without the place.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns what was found: the file's own words where the excerpt only points at them.
    pub fn found(&self) -> Option<&str> {
        match &self.label {
            Label::Place(_) => self.written(),
            Label::Value(found) | Label::Words(found) => {
                Some(found.as_str()).filter(|found| !found.is_empty())
            }
        }
    }

    /// Returns the file's text at the place, if it is one line.
    fn written(&self) -> Option<&str> {
        let text = self.source.as_ref()?.inner().get(self.span.clone()?)?.trim();
        (!text.is_empty() && !text.contains('\n')).then_some(text)
    }

    /// Returns the remedy.
    pub fn remedy(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// Returns the name of the file that it is in: the one checked, or the policy file it names.
    pub fn file(&self) -> Option<&str> {
        self.source.as_ref().map(|source| source.name())
    }

    /// Line and column, both counted from 1, in characters.
    pub fn position(&self) -> Option<(usize, usize)> {
        let text = self.source.as_ref()?.inner();
        let before = text.get(..self.span.as_ref()?.start)?;
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.matches('\n').count() + 1;
        let column = before.get(line_start..)?.chars().count() + 1;
        Some((line, column))
    }

    fn start(&self) -> usize {
        self.span.as_ref().map_or(0, |span| span.start)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        // Without a place there is no excerpt that says it.
        match self.found() {
            Some(found) if self.span.is_none() => write!(f, ": {found}"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Problem {}

impl Diagnostic for Problem {
    fn severity(&self) -> Option<Severity> {
        Some(self.severity)
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        let help = self.help.as_ref()?;
        Some(Box::new(help))
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        let source = self.source.as_ref()?;
        Some(source)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let span = self.span.clone()?;
        let label = Some(self.label.to_string()).filter(|label| !label.is_empty());
        let labeled = LabeledSpan::new(label, span.start, span.len());
        Some(Box::new(std::iter::once(labeled)))
    }
}

/// Everything wrong with a file (or with the policy file it names), in the order of the text.
#[derive(Clone, Debug)]
pub struct Invalid {
    problems: Vec<Problem>,
}

impl Invalid {
    /// The problems, errors and warnings; at least one is an error.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The problems as text for a terminal, each with its excerpt. Colour as [`Style`] says.
    pub fn render(&self, style: Style) -> String {
        render(&self.problems, style)
    }
}

impl fmt::Display for Invalid {
    /// One line per error: position, message. [`Invalid::render`] shows more.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errors = self.problems.iter().filter(|problem| problem.is_error());
        for (index, problem) in errors.enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            if let (Some(source), Some((line, column))) = (&problem.source, problem.position()) {
                write!(f, "{}:{line}:{column}: ", source.name())?;
            }
            f.write_str(&problem.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for Invalid {}

/// How problems are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Unicode lines and colours, for a terminal.
    Colour,
    /// Unicode lines only.
    Plain,
}

/// Draws problems one after the other, a blank line between them.
pub fn render(problems: &[Problem], style: Style) -> String {
    let theme = match style {
        Style::Colour => GraphicalTheme::unicode(),
        Style::Plain => GraphicalTheme::unicode_nocolor(),
    };
    let handler = GraphicalReportHandler::new_themed(theme)
        .with_links(false)
        .with_context_lines(1)
        .with_wrap_lines(false);
    let mut text = String::new();
    for problem in problems {
        // Writing to a String fails only if the handler does; the one-line form is still worth
        // having then.
        if handler.render_report(&mut text, problem).is_err() {
            text.push_str(&problem.message);
        }
        text.push('\n');
    }
    text
}

/// Collects problems while a file is read.
pub(crate) struct Sink {
    source: Source,
    problems: Vec<Problem>,
}

impl Sink {
    pub(crate) fn new(source: &Source) -> Self {
        Self { source: Arc::clone(source), problems: Vec::new() }
    }

    pub(crate) fn error(
        &mut self,
        span: Range<usize>,
        message: impl Into<String>,
        label: impl Into<Label>,
        help: Option<String>,
    ) {
        let problem = Problem::new(Severity::Error, message).at(&self.source, span, label);
        self.problems.push(problem.help(help));
    }

    pub(crate) fn warning(
        &mut self,
        span: Range<usize>,
        message: impl Into<String>,
        label: impl Into<Label>,
        help: Option<String>,
    ) {
        let problem = Problem::new(Severity::Warning, message).at(&self.source, span, label);
        self.problems.push(problem.help(help));
    }

    /// Returns true if something is wrong so far, beyond warnings.
    pub(crate) fn has_errors(&self) -> bool {
        self.problems.iter().any(Problem::is_error)
    }

    /// The value if nothing but warnings came up.
    pub(crate) fn finish<T>(mut self, value: Option<T>) -> Result<(T, Vec<Problem>), Invalid> {
        self.problems.sort_by_key(Problem::start);
        let valid = !self.has_errors();
        match value {
            Some(value) if valid => Ok((value, self.problems)),
            _ => Err(Invalid { problems: self.problems }),
        }
    }
}

impl From<Problem> for Invalid {
    fn from(problem: Problem) -> Self {
        Self { problems: vec![problem] }
    }
}

impl Invalid {
    pub(crate) fn into_problems(self) -> Vec<Problem> {
        self.problems
    }
}
