//! The description of a link and its text form.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// One direction of a link. The default is a perfect one: no delay, no loss, no limit of rate.
///
/// Text form, in any order, each at most once (percentages with or without `%`, times in
/// `s ms us ns`, rates in `bit kbit mbit gbit tbit` per second, decimal):
/// ```text
/// delay TIME [JITTER] [distribution uniform|normal]
/// loss PERCENT | loss random PERCENT | loss gemodel P [R [1-H [1-K]]]
/// duplicate PERCENT    corrupt PERCENT    reorder PERCENT [gap N]
/// rate RATE [overhead BYTES]    limit PACKETS    limit BYTES(b|kb|mb)    mtu BYTES
/// ```
/// ```
/// use linksim::impair::LinkSpec;
/// let spec: LinkSpec = "delay 10ms loss 1% rate 200mbit limit 1000".parse().unwrap();
/// assert_eq!(spec.rate, Some(200_000_000));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LinkSpec {
    /// Propagation delay.
    pub delay: Duration,
    /// Uniform: most deviation from `delay`. Normal: standard deviation.
    pub jitter: Duration,
    /// How the jitter is distributed. Any jitter reorders packets, as in netem.
    pub distribution: Distribution,
    /// Loss, decided before the bottleneck.
    pub loss: Loss,
    /// Probability of a second copy.
    pub duplicate: f64,
    /// Probability of one flipped bit.
    pub corrupt: f64,
    /// Probability of going without the delay, ahead of others.
    pub reorder: f64,
    /// At least this many packets go delayed between two that do not; 0 and 1: no such rule.
    pub gap: u32,
    /// Bits per second of the bottleneck; `None` = infinite.
    pub rate: Option<u64>,
    /// Bytes added to each packet's length when the rate is applied (lower-layer headers).
    pub overhead: u32,
    /// Packets waiting for the bottleneck; beyond that the newest is dropped.
    pub limit_packets: Option<usize>,
    /// Bytes (overhead included) waiting for the bottleneck.
    pub limit_bytes: Option<usize>,
    /// Longest packet that passes, in the bytes handed to the link; longer ones vanish, and nobody
    /// is told.
    pub mtu: Option<usize>,
}

/// Distribution of jitter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Distribution {
    /// Evenly within `delay - jitter .. delay + jitter`; netem's without a table.
    #[default]
    Uniform,
    /// Normal; cut at zero.
    Normal,
}

/// A loss process. Probabilities from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Loss {
    /// None.
    #[default]
    None,
    /// Independent.
    Random(f64),
    /// Gilbert-Elliott with the parameters of netem's `gemodel`.
    GilbertElliott {
        /// p: from the good to the bad state, per packet.
        to_bad: f64,
        /// r: from the bad to the good state, per packet.
        to_good: f64,
        /// 1-h: loss in the bad state.
        loss_bad: f64,
        /// 1-k: loss in the good state.
        loss_good: f64,
    },
}

impl Loss {
    /// The long-run share of packets lost.
    pub fn mean(&self) -> f64 {
        match *self {
            Loss::None => 0.0,
            Loss::Random(p) => p,
            Loss::GilbertElliott { to_bad, to_good, loss_bad, loss_good } => {
                let moves = to_bad + to_good;
                let bad = if moves > 0.0 { to_bad / moves } else { 0.0 };
                bad * loss_bad + (1.0 - bad) * loss_good
            }
        }
    }
}

impl LinkSpec {
    /// Returns true if packets pass as they are, at once and in order.
    pub fn is_perfect(&self) -> bool {
        *self
            == LinkSpec {
                gap: self.gap,
                overhead: self.overhead,
                distribution: self.distribution,
                ..LinkSpec::default()
            }
    }
}

/// Why a text is not a link description.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Not a word of the language.
    #[error("`{0}` is not one of delay, loss, duplicate, corrupt, reorder, rate, limit, mtu")]
    UnknownWord(String),
    /// Given twice.
    #[error("`{0}` is given twice")]
    Twice(&'static str),
    /// Nothing follows.
    #[error("`{0}` needs a value")]
    Missing(&'static str),
    /// A value that does not parse, or is out of range.
    #[error("`{word}`: `{found}` is not {wanted}")]
    BadValue {
        /// The parameter.
        word: &'static str,
        /// The line as found.
        found: String,
        /// The form it should have had.
        wanted: &'static str,
    },
    /// Reordering sends some packets without the delay: without one it does nothing.
    #[error("`reorder` needs a `delay`")]
    ReorderWithoutDelay,
    /// A queue limit without a rate bounds nothing.
    #[error("`limit` needs a `rate`")]
    LimitWithoutRate,
}

impl FromStr for LinkSpec {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut words = Words { words: text.split_whitespace().collect(), at: 0 };
        let mut spec = LinkSpec::default();
        let mut seen = Vec::new();
        while let Some(word) = words.next() {
            let key = parse_one(word, &mut words, &mut spec)?;
            if seen.contains(&key) {
                return Err(ParseError::Twice(key));
            }
            seen.push(key);
        }
        if spec.reorder > 0.0 && spec.delay.is_zero() {
            return Err(ParseError::ReorderWithoutDelay);
        }
        if spec.rate.is_none() && (spec.limit_packets.is_some() || spec.limit_bytes.is_some()) {
            return Err(ParseError::LimitWithoutRate);
        }
        Ok(spec)
    }
}

/// Parses what follows `word`; returns the name under which a repetition is refused.
fn parse_one(word: &str, words: &mut Words<'_>, spec: &mut LinkSpec) -> Result<&'static str, ParseError> {
    match word {
        "delay" | "latency" => parse_delay(words, spec).map(|()| "delay"),
        "loss" | "drop" => parse_loss(words).map(|loss| {
            spec.loss = loss;
            "loss"
        }),
        "duplicate" => words.required("duplicate", PERCENT, percent).map(|p| {
            spec.duplicate = p;
            "duplicate"
        }),
        "corrupt" => words.required("corrupt", PERCENT, percent).map(|p| {
            spec.corrupt = p;
            "corrupt"
        }),
        "reorder" => {
            spec.reorder = words.required("reorder", PERCENT, percent)?;
            if words.take_word("gap") {
                spec.gap = words.required("gap", "a number of packets", |text| text.parse().ok())?;
            }
            Ok("reorder")
        }
        "rate" => {
            spec.rate = Some(words.required("rate", "a rate above zero such as 200mbit", rate)?);
            if words.take_word("overhead") {
                spec.overhead = words.required("overhead", "a number of bytes", |text| text.parse().ok())?;
            }
            Ok("rate")
        }
        "limit" => parse_limit(words, spec),
        "mtu" => {
            spec.mtu = Some(words.required("mtu", "a number of bytes", |text| text.parse().ok())?);
            Ok("mtu")
        }
        other => Err(ParseError::UnknownWord(other.to_owned())),
    }
}

fn parse_delay(words: &mut Words<'_>, spec: &mut LinkSpec) -> Result<(), ParseError> {
    spec.delay = words.required("delay", TIME, time)?;
    if let Some(jitter) = words.optional(time) {
        spec.jitter = jitter;
    }
    if words.take_word("distribution") {
        spec.distribution = words.required("distribution", "uniform or normal", |text| match text {
            "uniform" => Some(Distribution::Uniform),
            "normal" => Some(Distribution::Normal),
            _ => None,
        })?;
    }
    Ok(())
}

fn parse_loss(words: &mut Words<'_>) -> Result<Loss, ParseError> {
    if !words.take_word("gemodel") {
        words.take_word("random");
        return Ok(Loss::Random(words.required("loss", PERCENT, percent)?));
    }
    let to_bad = words.required("gemodel", PERCENT, percent)?;
    let to_good = words.optional(percent).unwrap_or(1.0 - to_bad);
    let loss_bad = words.optional(percent).unwrap_or(1.0);
    let loss_good = words.optional(percent).unwrap_or(0.0);
    Ok(Loss::GilbertElliott { to_bad, to_good, loss_bad, loss_good })
}

fn parse_limit(words: &mut Words<'_>, spec: &mut LinkSpec) -> Result<&'static str, ParseError> {
    let text = words.next().ok_or(ParseError::Missing("limit"))?;
    if let Ok(packets) = text.parse() {
        spec.limit_packets = Some(packets);
        return Ok("limit in packets");
    }
    let (number, unit) = split_unit(text);
    let factor = match unit {
        "b" => Some(1),
        "kb" => Some(1 << 10),
        "mb" => Some(1 << 20),
        _ => None,
    };
    let bytes =
        number.parse::<usize>().ok().zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
    let wanted = "a number of packets, or of bytes with b, kb or mb";
    spec.limit_bytes = Some(bytes.ok_or_else(|| bad("limit", text, wanted))?);
    Ok("limit in bytes")
}

const PERCENT: &str = "a percentage from 0% to 100%";
const TIME: &str = "a time such as 10ms (s, ms, us, ns)";

/// The words of a description, with one word of look-ahead.
struct Words<'a> {
    words: Vec<&'a str>,
    at: usize,
}

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let word = self.words.get(self.at).copied()?;
        self.at += 1;
        Some(word)
    }

    /// Takes the next word if it is this one.
    fn take_word(&mut self, word: &str) -> bool {
        let found = self.words.get(self.at) == Some(&word);
        self.at += usize::from(found);
        found
    }

    fn required<T>(
        &mut self,
        word: &'static str,
        wanted: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<T, ParseError> {
        let text = self.next().ok_or(ParseError::Missing(word))?;
        parse(text).ok_or_else(|| bad(word, text, wanted))
    }

    /// The next word if it parses; a word that does not is left for the next parameter.
    fn optional<T>(&mut self, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let value = parse(self.words.get(self.at)?)?;
        self.at += 1;
        Some(value)
    }
}

fn bad(word: &'static str, found: &str, wanted: &'static str) -> ParseError {
    ParseError::BadValue { word, found: found.to_owned(), wanted }
}

fn percent(text: &str) -> Option<f64> {
    let number: f64 = text.strip_suffix('%').unwrap_or(text).parse().ok()?;
    (0.0..=100.0).contains(&number).then_some(number / 100.0)
}

fn time(text: &str) -> Option<Duration> {
    let (number, unit) = split_unit(text);
    let seconds = match unit {
        "s" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        "ns" => 1e-9,
        _ => return None,
    };
    let number: f64 = number.parse().ok()?;
    // Beyond an hour it is a slip of the pen, and would overflow the arithmetic of time some day.
    let duration = Duration::try_from_secs_f64(number * seconds).ok()?;
    (duration <= Duration::from_secs(3600)).then_some(duration)
}

fn rate(text: &str) -> Option<u64> {
    let (number, unit) = split_unit(text);
    let factor = match unit {
        "bit" => 1.0,
        "kbit" => 1e3,
        "mbit" => 1e6,
        "gbit" => 1e9,
        "tbit" => 1e12,
        _ => return None,
    };
    let number: f64 = number.parse().ok()?;
    let rate = (number * factor).round();
    // f64 to integer saturates; the upper bound keeps it exact.
    (1.0..=1e15).contains(&rate).then_some(rate as u64)
}

fn split_unit(text: &str) -> (&str, &str) {
    let at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    text.split_at_checked(at).unwrap_or((text, ""))
}

impl fmt::Display for LinkSpec {
    /// The text form, parseable again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if !self.delay.is_zero() || !self.jitter.is_zero() {
            let mut part = format!("delay {}ns", self.delay.as_nanos());
            if !self.jitter.is_zero() {
                let distribution =
                    if self.distribution == Distribution::Normal { "normal" } else { "uniform" };
                part += &format!(" {}ns distribution {distribution}", self.jitter.as_nanos());
            }
            parts.push(part);
        }
        match self.loss {
            Loss::None => {}
            Loss::Random(p) => parts.push(format!("loss {}%", p * 100.0)),
            Loss::GilbertElliott { to_bad, to_good, loss_bad, loss_good } => {
                let [p, r, h, k] = [to_bad, to_good, loss_bad, loss_good].map(|p| p * 100.0);
                parts.push(format!("loss gemodel {p}% {r}% {h}% {k}%"));
            }
        }
        for (word, p) in [("duplicate", self.duplicate), ("corrupt", self.corrupt)] {
            if p > 0.0 {
                parts.push(format!("{word} {}%", p * 100.0));
            }
        }
        if self.reorder > 0.0 {
            let gap = if self.gap > 1 { format!(" gap {}", self.gap) } else { String::new() };
            parts.push(format!("reorder {}%{gap}", self.reorder * 100.0));
        }
        if let Some(rate) = self.rate {
            let overhead =
                if self.overhead > 0 { format!(" overhead {}", self.overhead) } else { String::new() };
            parts.push(format!("rate {rate}bit{overhead}"));
        }
        parts.extend(self.limit_packets.map(|packets| format!("limit {packets}")));
        parts.extend(self.limit_bytes.map(|bytes| format!("limit {bytes}b")));
        parts.extend(self.mtu.map(|bytes| format!("mtu {bytes}")));
        f.write_str(&parts.join(" "))
    }
}
