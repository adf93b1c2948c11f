//! The policy file: its types and how they are read here, conditions in `matching`,
//! `scheme = "auto"` in `auto`.

mod auto;
mod bounds;
mod cover;
mod difference;
mod matching;
mod outline;
mod parts;

use std::ops::Range;
use std::path::Path;

use toml::de::DeValue;

use crate::problem::{Invalid, Label, Problem, Sink, Source};
use crate::read::{self, Section, Wrong, integer, number, text, unit};
use crate::units::{ByteSize, Duration};

pub use auto::Allowed;
pub use bounds::Bounds;
pub use difference::Difference;
pub use matching::{Match, NotQps, QpRange, Traffic};
pub use parts::{is_class_or_part_name, names_class};

/// Classes that a file may have.
const MAX_WRITTEN: usize = 8;
/// Classes a policy may have, the parts of divided ones included. A class is streams of its own,
/// and streams are few.
pub const MAX_CLASSES: usize = 24;
/// Priorities are 0 to this.
const MAX_PRIORITY: u8 = 7;
/// GF(2^8) has so many points.
const MAX_SHARDS: u8 = 255;
const SCHEMES: [&str; 6] = ["none", "sr", "xor", "mds", "hybrid", "auto"];

/// A policy file: the classes in order. The first one that matches takes a message, and the last
/// one matches everything, so each message has exactly one class.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    classes: Vec<Class>,
}

impl Default for Policy {
    /// Returns the policy without a policy file: one class, "default", with selective repeat.
    fn default() -> Self {
        Self { classes: vec![Class::named("default")] }
    }
}

impl Policy {
    /// Reads a policy file.
    pub fn load(path: &Path) -> Result<Self, Invalid> {
        read_policy(&read::load(path)?).map(|(policy, _)| policy)
    }

    /// As [`Policy::load`], from text that stands in `path`.
    pub fn parse(path: &Path, text: &str) -> Result<Self, Invalid> {
        read_policy(&read::source(path, text.to_owned())).map(|(policy, _)| policy)
    }

    /// The classes in order: 1 to [`MAX_CLASSES`], with distinct names, the last without a match.
    /// Those of a file with [`Class::divide`] stand here in parts, the one for the shortest
    /// messages first, and the class itself after them, for what is longer.
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// The classes in the file's order: 1 to 8.
    pub fn written(&self) -> impl Iterator<Item = &Class> {
        self.classes.iter().filter(|class| class.part.is_none())
    }

    /// The classes that may take messages of a flow: those of which every condition holds but
    /// perhaps the one on the size.
    pub fn candidates(&self, traffic: &Traffic) -> Candidates {
        let bits = self.classes.iter().enumerate().map(|(index, class)| {
            let covers = class.matches.covers(traffic);
            u32::from(covers).checked_shl(index as u32).unwrap_or(0)
        });
        Candidates(bits.fold(0, |all, bit| all | bit))
    }

    /// The index of the class that takes a message of so many bytes of a flow with these
    /// candidates. With a size that is not known, a class with a condition on it takes none.
    pub fn choose(&self, candidates: Candidates, size: Option<u64>) -> usize {
        let last = self.classes.len().saturating_sub(1);
        let mut takes = self.classes.iter().enumerate().filter(|(index, _)| candidates.has(*index));
        takes.find(|(_, class)| class.matches.admits(size)).map_or(last, |(index, _)| index)
    }

    /// The index of the class that takes a message of this traffic.
    pub fn classify(&self, traffic: &Traffic, size: Option<u64>) -> usize {
        self.choose(self.candidates(traffic), size)
    }

    /// Returns true if the class takes messages without a payload, and ACKs: no earlier one takes
    /// all of them.
    pub fn takes_empty(&self, index: usize) -> bool {
        let Some(class) = self.classes.get(index) else { return false };
        let sizeless = |class: &Class| Match { size: None, ..class.matches.clone() };
        let mut earlier = self.classes.iter().take(index).filter(|class| class.matches.admits(Some(0)));
        class.matches.admits(Some(0)) && !earlier.any(|earlier| sizeless(earlier) == sizeless(class))
    }

    /// Has the connections of every class that completes remotely outlive so much.
    pub fn survive(&mut self, survive: Survive) {
        let remote = self.classes.iter_mut().filter(|class| class.completion == Completion::Remote);
        remote.for_each(|class| class.survive = survive);
    }

    /// Returns the differences that make `other` of this policy, in the other's order; none if they
    /// are equal.
    pub fn differences(&self, other: &Self) -> Vec<Difference> {
        let written = |policy: &Self| policy.written().cloned().collect::<Vec<_>>();
        difference::between(&written(self), &written(other))
    }
}

/// Some of a policy's classes. It means nothing to another policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Candidates(u32);

impl Candidates {
    fn has(self, index: usize) -> bool {
        self.0.checked_shr(index as u32).unwrap_or(0) & 1 == 1
    }
}

const _: () = assert!(MAX_CLASSES <= u32::BITS as usize, "one bit for each class");

/// One `[[class]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// Unique within the policy; the `class` label of metrics.
    pub name: String,
    /// `match`
    pub matches: Match,
    /// `scheme` and the keys that shape it.
    pub scheme: Scheme,
    /// When the requester sees a completion.
    pub completion: Completion,
    /// The refusal of requesters whose flows end with a session. `None`: silence where the session
    /// was lost, a NAK where a gateway stops.
    pub refuse: Option<Refuse>,
    /// The end that its connections outlive, at a price.
    pub survive: Survive,
    /// The percentile of completion time that counts, in percent.
    pub percentile: f64,
    /// Parity packets per data packet at most.
    pub max_overhead: f64,
    /// 0 to 7; what is more is sent first when the link is short.
    pub priority: u8,
    /// The sizes, ascending, up to which messages have streams, and a choice, of their own. Only
    /// with scheme `auto`.
    pub divide: Vec<ByteSize>,
    /// This is a part of a class, for messages up to this size; `None`: a class as it stands in the
    /// file, or what is left of it.
    pub part: Option<ByteSize>,
}

/// `scheme`: how lost packets are recovered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scheme {
    /// One of these, as the link is: what minimises the class's percentile within its overhead.
    Auto(Allowed),
    /// Not at all: for links that repair themselves.
    None,
    /// Selective repeat.
    Sr {
        /// The retransmission timeout is RTT + alpha RTT.
        alpha: f64,
    },
    /// `m` parities over `k` data packets, parity i the XOR of the packets j with j mod m = i. `m`
    /// is at most `k`.
    Xor(Block),
    /// Reed-Solomon: any `k` of the `k + m` packets restore the block.
    Mds(Block),
    /// Reed-Solomon for short transfers and the last round trip of long ones, selective repeat for
    /// the rest. `m` is the most that a block gets at first, `interleave` the least.
    Hybrid(Block),
}

/// The blocks of a coded scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Data packets per block, at least 1.
    pub k: u8,
    /// Parity packets per block, at least 1; `k + m` is at most 255.
    pub m: u8,
    /// How many blocks are filled in turn, one packet each, against bursts: 1 (none) to 64.
    pub interleave: u8,
    /// A block that is not full this long after its first packet is closed and its parity sent.
    pub flush: Duration,
}

impl Scheme {
    /// As the file spells it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Auto(_) => "auto",
            Self::None => "none",
            Self::Sr { .. } => "sr",
            Self::Xor(_) => "xor",
            Self::Mds(_) => "mds",
            Self::Hybrid(_) => "hybrid",
        }
    }

    /// The blocks, if it has any.
    pub fn block(&self) -> Option<&Block> {
        match self {
            Self::Xor(block) | Self::Mds(block) | Self::Hybrid(block) => Some(block),
            Self::Auto(_) | Self::None | Self::Sr { .. } => None,
        }
    }
}

const SR: Scheme = Scheme::Sr { alpha: 1.0 };
const FLUSH: Duration = Duration::millis(5);

/// `completion`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Completion {
    /// After the target's NIC acknowledged the message.
    #[default]
    Remote,
    /// As soon as the requester's gateway has all of a SEND or WRITE and room for it.
    Local,
}

impl Completion {
    /// As the file spells it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Remote => "remote",
            Self::Local => "local",
        }
    }
}

/// `refuse`: what requesters meet when their flows end with a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refuse {
    /// No answer for a while, so that their NICs give up by themselves. Then as `Nak`.
    Silence,
    /// NAK 0x63 (remote operational error) at once.
    Nak,
}

impl Refuse {
    /// As the file spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Silence => "silence",
            Self::Nak => "nak",
        }
    }
}

/// `survive`: what requesters that were acknowledged a part of a message outlive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Survive {
    /// A lost session. Parts of messages are acknowledged as soon as this gateway has them.
    Session,
    /// The end of a gateway's process. They are acknowledged once they stand in memory that
    /// outlives it.
    #[default]
    Process,
    /// The end of a gateway's machine. They are acknowledged once the target has them.
    Gateway,
}

impl Survive {
    /// As the file spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Process => "process",
            Self::Gateway => "gateway",
        }
    }
}

impl Class {
    /// A class with every key left out.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            matches: Match::default(),
            scheme: SR,
            completion: Completion::Remote,
            refuse: None,
            survive: Survive::default(),
            percentile: 99.9,
            max_overhead: 1.0,
            priority: 0,
            divide: Vec::new(),
            part: None,
        }
    }
}

/// The policy with its warnings.
pub(crate) fn read_policy(source: &Source) -> Result<(Policy, Vec<Problem>), Invalid> {
    let document = read::parse(source)?;
    let mut sink = Sink::new(source);
    let mut root = Section::new("", 0..0, document.get_ref());
    let classes = class_list(&mut sink, &mut root);
    root.finish(&mut sink);
    order(&mut sink, &classes);
    parts::bound(&mut sink, &classes);
    let classes: Vec<Class> = classes.iter().flat_map(|placed| placed.class.parts()).collect();
    sink.finish(Some(Policy { classes }))
}

/// A class that was read, perhaps with errors, and where it begins.
struct Placed {
    class: Class,
    header: Range<usize>,
    name: Range<usize>,
}

fn class_list(sink: &mut Sink, root: &mut Section<'_, '_>) -> Vec<Placed> {
    const EXAMPLE: &str = "[[class]] with name = \"default\" and scheme = \"sr\"";
    let Some(value) = root.value("class") else {
        root.missing("class", EXAMPLE, false);
        return Vec::new();
    };
    let DeValue::Array(elements) = value.get_ref() else {
        let help = "classes are a list: write [[class]] with two brackets".to_owned();
        sink.error(
            value.span(),
            "`class` must be a list of sections",
            read::found(value.get_ref()),
            Some(help),
        );
        return Vec::new();
    };
    let mut classes = Vec::new();
    for (index, element) in elements.iter().enumerate() {
        let DeValue::Table(table) = element.get_ref() else {
            sink.error(
                element.span(),
                "`class` must be a list of sections",
                read::found(element.get_ref()),
                Some(format!("write: {EXAMPLE}")),
            );
            continue;
        };
        if index == MAX_WRITTEN {
            let help = "each class is a stream of its own over the link; join some".to_owned();
            sink.error(
                element.span(),
                format!("there are more than {MAX_WRITTEN} classes"),
                Label::place("one too many"),
                Some(help),
            );
        }
        classes.push(class(sink, Section::new("class", element.span(), table)));
    }
    classes
}

fn class(sink: &mut Sink, mut section: Section<'_, '_>) -> Placed {
    let name = section.required(sink, "name", "name = \"default\"", class_name).unwrap_or_default();
    if !name.is_empty() {
        section.rename(format!("class {name}"));
    }
    let mut class = Class::named(name);
    if let Some(matches) = section.section(sink, "match") {
        class.matches = matching::read(sink, matches);
    }
    class.percentile = section.or(sink, "percentile", class.percentile, number(50.0..=99.9999));
    class.max_overhead = section.or(sink, "max_overhead", class.max_overhead, number(0.0..=4.0));
    class.completion = section.or(sink, "completion", class.completion, completion);
    class.refuse = section.optional(sink, "refuse", refuse);
    survive_or_default(sink, &mut section, &mut class);
    class.priority = section.or(sink, "priority", class.priority, integer(0..=MAX_PRIORITY));
    scheme(sink, &mut section, &mut class);
    let (header, name) = (section.span(), section.span_of("name"));
    section.finish(sink);
    Placed { class, header, name }
}

/// `survive`. What completes locally is told before it is anywhere else, so nothing helps it.
fn survive_or_default(sink: &mut Sink, section: &mut Section<'_, '_>, class: &mut Class) {
    if class.completion == Completion::Local {
        class.survive = Survive::Session;
        const LOCAL: &str = "remove it, or choose completion = \"remote\"";
        section.refuse(sink, "survive", "has no meaning for completion = \"local\"", LOCAL);
    } else {
        class.survive = section.or(sink, "survive", class.survive, survive);
    }
}

/// Keys of a code's shape.
const SHAPE: [&str; 4] = ["k", "m", "flush", "interleave"];
const UNCODED: &str = "remove it, or choose scheme = \"mds\", \"xor\" or \"hybrid\"";

/// `scheme` and the keys that only some schemes take.
fn scheme(sink: &mut Sink, section: &mut Section<'_, '_>, class: &mut Class) {
    if let Some(span) = section.value("beta").map(|value| value.span()) {
        let help = "remove it: the fallback follows the measured round-trip time".to_owned();
        let message = format!("`{}` is not available in this version", section.name("beta"));
        sink.error(span, message, Label::place("found here"), Some(help));
    }
    let kind = section.required(sink, "scheme", "scheme = \"sr\", or \"mds\" with k and m", scheme_kind);
    if !matches!(kind, Some(Kind::Auto) | None) {
        for key in ["allowed", "divide"] {
            section.refuse(sink, key, "has meaning for scheme = \"auto\" only", "remove it");
        }
    }
    match kind {
        Some(Kind::Auto) => scheme_auto(sink, section, class),
        Some(Kind::None) => scheme_none(sink, section, class),
        Some(Kind::Sr) => {
            for key in SHAPE {
                section.refuse(sink, key, "has no meaning for scheme = \"sr\"", UNCODED);
            }
            let alpha = section.or(sink, "alpha", 1.0, number(0.0..=16.0));
            class.scheme = Scheme::Sr { alpha };
        }
        Some(Kind::Coded(scheme)) => {
            section.refuse(sink, "alpha", "has meaning for scheme = \"sr\" only", "remove it");
            if let Some(block) = block(sink, section) {
                class.scheme = scheme(block);
                fits(sink, section, class, block);
            }
        }
        // Whatever else is there cannot be judged without the scheme.
        None => {
            for key in SHAPE.into_iter().chain(["alpha", "allowed", "divide"]) {
                section.value(key);
            }
        }
    }
}

fn scheme_auto(sink: &mut Sink, section: &mut Section<'_, '_>, class: &mut Class) {
    const CHOSEN: &str = "remove it: `auto` chooses it; max_overhead bounds the parity";
    for key in SHAPE.into_iter().chain(["alpha"]) {
        section.refuse(sink, key, "has no meaning for scheme = \"auto\"", CHOSEN);
    }
    if !section.has("max_overhead") {
        class.max_overhead = auto::MAX_OVERHEAD;
    }
    class.scheme = Scheme::Auto(auto::read(sink, section, class.max_overhead));
    class.divide = auto::divide(sink, section, &class.matches);
}

fn scheme_none(sink: &mut Sink, section: &mut Section<'_, '_>, class: &mut Class) {
    const UNSENT: &str = "remove it: nothing is sent twice";
    class.scheme = Scheme::None;
    for key in SHAPE {
        section.refuse(sink, key, "has no meaning for scheme = \"none\"", UNCODED);
    }
    section.refuse(sink, "alpha", "has no meaning for scheme = \"none\"", UNSENT);
    if class.completion == Completion::Local {
        const REMOTE: &str = "completion = \"remote\": who is told too early never learns of a loss";
        section.refuse(sink, "completion", "has to be \"remote\" for scheme = \"none\"", REMOTE);
    }
}

fn block(sink: &mut Sink, section: &mut Section<'_, '_>) -> Option<Block> {
    let k = section.required(sink, "k", "k = 32, the data packets of a block", integer(1..=MAX_SHARDS - 1));
    let m = section.required(sink, "m", "m = 8, the parity packets of a block", integer(1..=MAX_SHARDS - 1));
    let flush = section.or(sink, "flush", FLUSH, unit(Duration::micros(10)..=Duration::secs(1), "5 ms"));
    let interleave = section.or(sink, "interleave", 1, integer(1..=64));
    Some(Block { k: k?, m: m?, interleave, flush })
}

/// Checks that `k`, `m` and `max_overhead` go together.
fn fits(sink: &mut Sink, section: &Section<'_, '_>, class: &Class, Block { k, m, .. }: Block) {
    let span = section.span_of("m");
    let name = section.name("m");
    let length = u16::from(k) + u16::from(m);
    if length > u16::from(MAX_SHARDS) {
        let help = format!("k + m is at most {MAX_SHARDS}");
        sink.error(span, format!("`{name}`: the block is too long"), format!("k + m = {length}"), Some(help));
    } else if m > k && matches!(class.scheme, Scheme::Xor(_)) {
        let help = format!("each parity needs a data packet of its own: m at most {k}");
        sink.error(
            span,
            format!("`{name}` is more than k"),
            Label::Value(format!("{m} for k = {k}")),
            Some(help),
        );
    } else if f64::from(m) > class.max_overhead * f64::from(k) {
        overhead(sink, section, class.max_overhead, k, m);
    }
}

fn overhead(sink: &mut Sink, section: &Section<'_, '_>, max: f64, k: u8, m: u8) {
    let actual = f64::from(m) / f64::from(k);
    let message = format!("`{}`: the overhead is more than max_overhead", section.name("m"));
    let label = format!("m / k = {actual:.4}, max_overhead = {max}");
    let fitting = (max * f64::from(k)).floor();
    let needed = (actual * 10_000.0).ceil() / 10_000.0;
    let help = if fitting >= 1.0 {
        format!("m = {fitting}, or max_overhead = {needed}")
    } else {
        format!("a larger k, or max_overhead = {needed}")
    };
    sink.error(section.span_of("m"), message, label, Some(help));
}

/// Checks the classes together: distinct, all reachable, the last taking everything.
fn order(sink: &mut Sink, classes: &[Placed]) {
    for (index, placed) in classes.iter().enumerate() {
        let name = &placed.class.name;
        if !name.is_empty() && classes.iter().take(index).any(|earlier| earlier.class.name == *name) {
            let help = "give each class a name of its own".to_owned();
            sink.error(
                placed.name.clone(),
                format!("there are two classes named {name}"),
                Label::place("the second"),
                Some(help),
            );
        }
    }
    let catch_all = classes.iter().position(|placed| placed.class.matches.is_everything());
    match (catch_all, classes.last()) {
        (Some(index), _) => {
            for unreachable in classes.iter().skip(index + 1) {
                let earlier = classes.get(index).map_or("", |placed| placed.class.name.as_str());
                let message = format!("class {} can never match", unreachable.class.name);
                let help = format!(
                    "the first match wins, and {earlier} above matches everything: move it to the end, or give it a match"
                );
                sink.error(unreachable.header.clone(), message, format!("after {earlier}"), Some(help));
            }
        }
        (None, Some(last)) => {
            let help =
                "add at the end: [[class]] with name = \"default\", scheme = \"sr\" and no match".to_owned();
            sink.error(
                last.header.clone(),
                "no class matches everything else",
                "the last class has a match",
                Some(help),
            );
        }
        (None, None) => {}
    }
    // Of a match that was refused in part, nothing can be said.
    if !sink.has_errors() {
        covered(sink, classes, catch_all.unwrap_or(classes.len()));
    }
}

/// Warns of classes before the one that matches everything of which those above leave nothing.
fn covered(sink: &mut Sink, classes: &[Placed], catch_all: usize) {
    for (index, placed) in classes.iter().enumerate().take(catch_all) {
        let earlier = classes.iter().take(index).map(|earlier| &earlier.class.matches);
        if index > 0 && cover::is_covered(&placed.class.matches, earlier) {
            let message = format!("class {} can never match", placed.class.name);
            let help = "the first match wins: move it up, or give it another match".to_owned();
            let found = "the classes above take all of it";
            sink.warning(placed.header.clone(), message, found, Some(help));
        }
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Auto,
    None,
    Sr,
    Coded(fn(Block) -> Scheme),
}

// Converters.

fn scheme_kind(value: &DeValue<'_>) -> Result<Kind, Wrong> {
    match text(value, "sr")? {
        "none" => Ok(Kind::None),
        "sr" => Ok(Kind::Sr),
        "xor" => Ok(Kind::Coded(Scheme::Xor)),
        "mds" => Ok(Kind::Coded(Scheme::Mds)),
        "hybrid" => Ok(Kind::Coded(Scheme::Hybrid)),
        "auto" => Ok(Kind::Auto),
        other => Err(Wrong::new("is not a scheme", scheme_hint(other))),
    }
}

/// Papers write a code with its shape, `mds(32,8)`, which has keys of its own here.
fn scheme_hint(found: &str) -> String {
    let shape = found.split_once('(').and_then(|(code, shape)| {
        let (k, m) = shape.strip_suffix(')')?.split_once(',')?;
        let [k, m] = [k, m].map(|number| number.trim().parse::<u8>().ok());
        let code = code.trim();
        ["xor", "mds", "hybrid"].contains(&code).then_some((code, k?, m?))
    });
    match shape {
        Some((code, k, m)) => format!("write three keys: scheme = {code:?}, k = {k}, m = {m}"),
        None => {
            let all = "one of \"none\", \"sr\", \"xor\", \"mds\", \"hybrid\", \"auto\"";
            read::did_you_mean(found, &SCHEMES, all)
        }
    }
}

fn completion(value: &DeValue<'_>) -> Result<Completion, Wrong> {
    match text(value, "remote")? {
        "remote" => Ok(Completion::Remote),
        "local" => Ok(Completion::Local),
        _ => Err(Wrong::new(
            "is not a kind of completion",
            "\"remote\": a message is done when the target's NIC acknowledged it; \"local\": when this gateway has it",
        )),
    }
}

fn refuse(value: &DeValue<'_>) -> Result<Refuse, Wrong> {
    match text(value, "silence")? {
        "silence" => Ok(Refuse::Silence),
        "nak" => Ok(Refuse::Nak),
        _ => Err(Wrong::new(
            "is not a way to refuse",
            "\"silence\": the requester's NIC gives up by itself; \"nak\": its program sees an error at once",
        )),
    }
}

fn survive(value: &DeValue<'_>) -> Result<Survive, Wrong> {
    match text(value, "process")? {
        "session" => Ok(Survive::Session),
        "process" => Ok(Survive::Process),
        "gateway" => Ok(Survive::Gateway),
        other => Err(Wrong::new(
            "is nothing that connections can survive",
            read::did_you_mean(
                other,
                &["session", "process", "gateway"],
                "one of \"session\", \"process\", \"gateway\"",
            ),
        )),
    }
}

/// Returns true if a class may have this name, which is a label of metrics, so kept simple.
#[must_use]
pub fn is_class_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (1..=32).contains(&name.len()) && name.chars().all(plain)
}

fn class_name(value: &DeValue<'_>) -> Result<String, Wrong> {
    let name = text(value, "default")?;
    if !is_class_name(name) {
        return Err(Wrong::new(
            "is not a class name",
            "1 to 32 letters, digits, hyphens and underscores, such as \"storage\"",
        ));
    }
    Ok(name.to_owned())
}
