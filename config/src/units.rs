//! Values with units: [`Rate`], [`Duration`] and [`ByteSize`].
//!
//! Each is written as a number, an optional space and a unit ("1 Gbit/s", "10ms", "16 MiB").
//! Numbers may have decimals; the value is computed exactly, and one that is not a whole number of
//! the base unit is refused rather than rounded. `Display` writes the largest unit that divides the
//! value exactly, so what is displayed parses to the same value.

use std::fmt;
use std::str::FromStr;

/// A data rate in bit/s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

impl Rate {
    /// From bit/s.
    pub const fn from_bits_per_second(bits: u64) -> Self {
        Self(bits)
    }

    /// In bit/s.
    pub const fn bits_per_second(self) -> u64 {
        self.0
    }

    /// In byte/s, rounded down.
    pub const fn bytes_per_second(self) -> u64 {
        self.0 / 8
    }
}

/// A length of time in nanoseconds; a [`std::time::Duration`] that is written with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(std::time::Duration);

impl Duration {
    /// From the standard library's type.
    pub const fn new(duration: std::time::Duration) -> Self {
        Self(duration)
    }

    pub(crate) const fn micros(micros: u64) -> Self {
        Self(std::time::Duration::from_micros(micros))
    }

    pub(crate) const fn millis(millis: u64) -> Self {
        Self(std::time::Duration::from_millis(millis))
    }

    pub(crate) const fn secs(secs: u64) -> Self {
        Self(std::time::Duration::from_secs(secs))
    }

    /// The standard library's type.
    pub const fn get(self) -> std::time::Duration {
        self.0
    }
}

impl From<Duration> for std::time::Duration {
    fn from(duration: Duration) -> Self {
        duration.0
    }
}

/// A size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(u64);

impl ByteSize {
    /// From bytes.
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    pub(crate) const fn kib(kib: u64) -> Self {
        Self(kib << 10)
    }

    pub(crate) const fn mib(mib: u64) -> Self {
        Self(mib << 20)
    }

    pub(crate) const fn gib(gib: u64) -> Self {
        Self(gib << 30)
    }

    /// In bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// In bytes, as far as this machine can address them.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// Why a value with a unit was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnitError {
    /// Nothing but blanks.
    Empty,
    /// It does not start with a decimal number.
    NoNumber,
    /// Its number has a comma or an exponent.
    NotPlain {
        /// The form that is taken.
        hint: String,
    },
    /// A bare number.
    NoUnit {
        /// The units that there are.
        hint: String,
    },
    /// The unit is not one of this quantity's.
    UnknownUnit {
        /// As it was written.
        unit: String,
        /// The unit that is probably meant, why the unit is refused, or the units that there are.
        hint: String,
    },
    /// Smaller steps than the base unit.
    TooFine(&'static str),
    /// Beyond 64 bits of the base unit.
    TooLarge,
}

impl UnitError {
    /// Returns the fault, and what would be right where a hint says it.
    pub(crate) fn parts(&self) -> (String, Option<&str>) {
        match self {
            Self::Empty => ("is empty".to_owned(), None),
            Self::NoNumber => ("does not start with a number".to_owned(), None),
            Self::NotPlain { hint } => ("is not in plain decimals".to_owned(), Some(hint)),
            Self::NoUnit { hint } => ("has no unit".to_owned(), Some(hint)),
            Self::UnknownUnit { unit, hint } => (format!("has the unknown unit `{unit}`"), Some(hint)),
            Self::TooFine(base) => (format!("is finer than {base}"), None),
            Self::TooLarge => ("is too large".to_owned(), None),
        }
    }
}

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts() {
            (fault, Some(hint)) => write!(f, "{fault}: {hint}"),
            (fault, None) => f.write_str(&fault),
        }
    }
}

impl std::error::Error for UnitError {}

/// One quantity's units: as displayed, further spellings, and the size in base units; the largest
/// first.
struct Units {
    base: &'static str,
    units: &'static [(&'static str, &'static [&'static str], u64)],
    refused: &'static [(&'static [&'static str], &'static str)],
    /// Why a unit that ends in a small `b` is refused, if it is.
    small_b: Option<&'static str>,
    /// True if `MS` may stand for `ms`.
    any_case: bool,
}

const RATE: Units = Units {
    base: "1 bit/s",
    units: &[
        ("Tbit/s", &["tbit"], 1_000_000_000_000),
        ("Gbit/s", &["gbit"], 1_000_000_000),
        ("Mbit/s", &["mbit"], 1_000_000),
        ("kbit/s", &["kbit"], 1_000),
        ("bit/s", &["bit"], 1),
    ],
    refused: &[(
        &["bps", "kbps", "mbps", "gbps", "tbps", "b/s", "kb/s", "mb/s", "gb/s", "tb/s"],
        "it means bits to some programs and bytes to others: write kbit/s, Mbit/s or Gbit/s",
    )],
    small_b: None,
    any_case: true,
};

const DURATION: Units = Units {
    base: "1 ns",
    units: &[
        ("h", &["hour", "hours"], 3_600_000_000_000),
        ("min", &["minute", "minutes"], 60_000_000_000),
        ("s", &["sec", "second", "seconds"], 1_000_000_000),
        ("ms", &["msec"], 1_000_000),
        ("us", &["\u{b5}s", "\u{3bc}s", "usec"], 1_000),
        ("ns", &["nsec"], 1),
    ],
    refused: &[(&["m", "M"], "write min for minutes or ms for milliseconds")],
    small_b: None,
    any_case: false,
};

const BYTES: Units = Units {
    base: "1 B",
    units: &[
        ("TiB", &[], 1 << 40),
        ("TB", &[], 1_000_000_000_000),
        ("GiB", &[], 1 << 30),
        ("GB", &[], 1_000_000_000),
        ("MiB", &[], 1 << 20),
        ("MB", &[], 1_000_000),
        ("KiB", &[], 1 << 10),
        ("kB", &[], 1_000),
        ("B", &["byte", "bytes"], 1),
    ],
    refused: &[(
        &["k", "m", "g", "t"],
        "write KiB, MiB or GiB (powers of 1024), or kB, MB or GB (powers of 1000)",
    )],
    small_b: Some(
        "a small b means bits: write KiB, MiB or GiB (powers of 1024), or kB, MB or GB (powers of 1000)",
    ),
    any_case: true,
};

/// A quantity that values with a unit are of, for documentation and schemas.
#[derive(Clone, Copy)]
pub struct Quantity {
    /// Its name in the reference: "rate", "time" or "size".
    pub name: &'static str,
    units: &'static Units,
}

impl Quantity {
    /// All that there are.
    pub const ALL: [Self; 3] = [
        Self { name: "rate", units: &RATE },
        Self { name: "time", units: &DURATION },
        Self { name: "size", units: &BYTES },
    ];

    /// Returns its units as they are displayed, the smallest first.
    pub fn units(self) -> impl Iterator<Item = &'static str> {
        self.units.units.iter().rev().map(|(name, ..)| *name)
    }

    /// Returns true if it is a value of this quantity.
    #[must_use]
    pub fn takes(self, text: &str) -> bool {
        self.units.parse(text).is_ok()
    }

    /// Returns the regular expression (ECMA 262, as in JSON schemas) of what is taken, whatever the
    /// bounds of a key.
    #[must_use]
    pub fn pattern(self) -> String {
        let spellings = self.units.units.iter().flat_map(|(name, others, _)| {
            std::iter::once(*name).chain(others.iter().copied()).map(|unit| self.units.pattern_of(unit))
        });
        let spellings: Vec<_> = spellings.collect();
        format!(r"^\s*[0-9]+(\.[0-9]+)?\s*({})\s*$", spellings.join("|"))
    }
}

impl std::fmt::Debug for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Units {
    /// Returns the expression of one spelling.
    fn pattern_of(&self, unit: &str) -> String {
        let last = unit.len().saturating_sub(1);
        let either = |(place, letter): (usize, char)| {
            let is_bits = self.small_b.is_some() && place == last && letter.eq_ignore_ascii_case(&'b');
            match self.any_case && letter.is_ascii_alphabetic() && !is_bits {
                true => format!("[{}{}]", letter.to_ascii_uppercase(), letter.to_ascii_lowercase()),
                false => letter.to_string(),
            }
        };
        unit.char_indices().map(either).collect()
    }

    fn parse(&self, text: &str) -> Result<u64, UnitError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(UnitError::Empty);
        }
        let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        if let Some(hint) = plain_hint(number, unit) {
            return Err(UnitError::NotPlain { hint });
        }
        let (mantissa, divisor) = decimal(number)?;
        let value = mantissa.checked_mul(u128::from(self.scale(unit.trim())?)).ok_or(UnitError::TooLarge)?;
        if value % divisor != 0 {
            return Err(UnitError::TooFine(self.base));
        }
        u64::try_from(value / divisor).map_err(|_| UnitError::TooLarge)
    }

    fn scale(&self, unit: &str) -> Result<u64, UnitError> {
        if unit.is_empty() {
            return Err(UnitError::NoUnit { hint: self.names() });
        }
        if let Some(hint) = self.small_b.filter(|_| unit.ends_with('b')) {
            let bytes = self.nearly(unit).filter(|name| name.ends_with("iB"));
            let bytes = bytes.map(|name| format!("; bytes are {name}")).unwrap_or_default();
            return Err(UnitError::UnknownUnit { unit: unit.to_owned(), hint: format!("{hint}{bytes}") });
        }
        let same = |name: &str| name == unit || (self.any_case && name.eq_ignore_ascii_case(unit));
        let found =
            self.units.iter().find(|(name, others, _)| same(name) || others.iter().any(|other| same(other)));
        if let Some((_, _, scale)) = found {
            return Ok(*scale);
        }
        let refused = self.refused.iter().find(|(names, _)| names.iter().any(|name| same(name)));
        let hint = match (refused, self.nearly(unit)) {
            (Some((_, hint)), _) => (*hint).to_owned(),
            (None, Some(name)) => format!("did you mean {name}?"),
            (None, None) => self.names(),
        };
        Err(UnitError::UnknownUnit { unit: unit.to_owned(), hint })
    }

    /// Returns the unit that differs from this one in the case of letters alone.
    fn nearly(&self, unit: &str) -> Option<&'static str> {
        let same = |name: &&str| name.eq_ignore_ascii_case(unit);
        let units = self.units.iter();
        units
            .flat_map(|(name, others, _)| std::iter::once(name).chain(*others))
            .find(|name| same(name))
            .copied()
    }

    fn names(&self) -> String {
        let names: Vec<_> = self.units.iter().map(|(name, ..)| *name).collect();
        format!("the units are {}", names.join(", "))
    }

    fn write(&self, value: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let largest = self
            .units
            .iter()
            .find(|(_, _, scale)| value != 0 && value.is_multiple_of(*scale))
            .or(self.units.last());
        match largest {
            Some((name, _, scale)) => write!(f, "{} {name}", value / scale),
            None => write!(f, "{value}"),
        }
    }
}

/// Returns how a number with a decimal comma or an exponent is written here; what follows `number`
/// begins `rest`.
fn plain_hint(number: &str, rest: &str) -> Option<String> {
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let mut after = rest.chars();
    let mark = after.next()?;
    let rest = after.as_str();
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, unit) = rest.split_at_checked(end)?;
    match mark {
        // Three digits may be thousands as well.
        ',' if is_digits(number) && is_digits(digits) && digits.len() != 3 => Some(
            format!("decimals follow a point: {number}.{digits} {}", unit.trim_start()).trim_end().to_owned(),
        ),
        ',' if is_digits(digits) => Some("write no commas; decimals follow a point".to_owned()),
        'e' | 'E' if is_digits(digits) || rest.starts_with(['+', '-']) => {
            Some("write no exponent, but a larger or smaller unit".to_owned())
        }
        _ => None,
    }
}

/// "1.50" -> (150, 100). At most 18 digits on either side of the point, which keeps the arithmetic
/// above within 128 bits.
fn decimal(number: &str) -> Result<(u128, u128), UnitError> {
    const MAX_DIGITS: usize = 18;
    let (whole, fraction) = match number.split_once('.') {
        Some((_, "")) => return Err(UnitError::NoNumber),
        Some(parts) => parts,
        None => (number, ""),
    };
    if whole.is_empty() || fraction.contains('.') {
        return Err(UnitError::NoNumber);
    }
    if whole.len() > MAX_DIGITS || fraction.len() > MAX_DIGITS {
        return Err(UnitError::TooLarge);
    }
    let mut mantissa = 0u128;
    let mut divisor = 1u128;
    for digit in whole.bytes() {
        mantissa = mantissa * 10 + u128::from(digit - b'0');
    }
    for digit in fraction.bytes() {
        mantissa = mantissa * 10 + u128::from(digit - b'0');
        divisor *= 10;
    }
    Ok((mantissa, divisor))
}

impl FromStr for Rate {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        RATE.parse(text).map(Self)
    }
}

impl FromStr for Duration {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let nanos = DURATION.parse(text)?;
        Ok(Self(std::time::Duration::from_nanos(nanos)))
    }
}

impl FromStr for ByteSize {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        BYTES.parse(text).map(Self)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        RATE.write(self.0, f)
    }
}

impl fmt::Display for Duration {
    /// Durations beyond 64 bits of nanoseconds (584 years), which cannot be written in a file, are
    /// shown as that.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        DURATION.write(u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX), f)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        BYTES.write(self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rates() {
        for (text, bits) in [
            ("1 Gbit/s", 1_000_000_000),
            ("1gbit", 1_000_000_000),
            ("1.5 Gbit/s", 1_500_000_000),
            ("100Mbit/s", 100_000_000),
            (" 64 kbit ", 64_000),
            ("0.001 kbit/s", 1),
            ("1.6 Tbit/s", 1_600_000_000_000),
        ] {
            assert_eq!(text.parse::<Rate>().unwrap().bits_per_second(), bits, "{text}");
        }
        let hint = "the units are Tbit/s, Gbit/s, Mbit/s, kbit/s, bit/s".to_owned();
        let bare = UnitError::NoUnit { hint: hint.clone() };
        assert_eq!(bare.parts(), ("has no unit".to_owned(), Some(hint.as_str())));
        assert_eq!("1000".parse::<Rate>(), Err(bare));
        let unit = "furlong".to_owned();
        assert_eq!("1 furlong".parse::<Rate>(), Err(UnitError::UnknownUnit { unit, hint }));
        assert_eq!("".parse::<Rate>(), Err(UnitError::Empty));
        assert_eq!("-1 Gbit/s".parse::<Rate>(), Err(UnitError::NoNumber));
        assert_eq!("1. Gbit/s".parse::<Rate>(), Err(UnitError::NoNumber));
        assert_eq!("1.2.3 Gbit/s".parse::<Rate>(), Err(UnitError::NoNumber));
        assert_eq!("0.5 bit/s".parse::<Rate>(), Err(UnitError::TooFine("1 bit/s")));
        assert_eq!("999999999 Tbit/s".parse::<Rate>(), Err(UnitError::TooLarge));
        for refused in ["1 Gbps", "1 GB/s"] {
            let error = refused.parse::<Rate>().unwrap_err();
            assert!(error.to_string().contains(": it means bits to some programs"), "{error}");
        }
    }

    #[test]
    fn durations() {
        for (text, nanos) in [
            ("5 s", 5_000_000_000),
            ("500ms", 500_000_000),
            ("1.5 us", 1_500),
            ("10 \u{b5}s", 10_000),
            ("5 min", 300_000_000_000),
        ] {
            let parsed: Duration = text.parse().unwrap();
            assert_eq!(parsed.get(), std::time::Duration::from_nanos(nanos), "{text}");
        }
        let error = "5 m".parse::<Duration>().unwrap_err();
        let hint = "has the unknown unit `m`: write min for minutes or ms for milliseconds";
        assert_eq!(error.to_string(), hint);
    }

    #[test]
    fn byte_sizes() {
        for (text, bytes) in [("16 MiB", 16 << 20), ("1.5 KiB", 1536), ("1kB", 1000), ("7 B", 7)] {
            assert_eq!(text.parse::<ByteSize>().unwrap().bytes(), bytes, "{text}");
        }
        assert_eq!("0.1 KiB".parse::<ByteSize>(), Err(UnitError::TooFine("1 B")));
        // Megabits to everybody else.
        for text in ["512 Mb", "512Gb", "512 mb", "512 kb", "512 Mib", "1 b"] {
            let error = text.parse::<ByteSize>().unwrap_err();
            let is_named = error.to_string().contains("`: a small b means bits: write KiB");
            assert!(is_named, "{text}: {error}");
        }
        assert_eq!("2 mB".parse::<ByteSize>().unwrap().bytes(), 2_000_000);
    }

    #[test]
    fn what_is_meant_is_told() {
        let told = |error: UnitError| error.to_string();
        let time = |text: &str| told(text.parse::<Duration>().unwrap_err());
        let size = |text: &str| told(text.parse::<ByteSize>().unwrap_err());
        let rate = |text: &str| told(text.parse::<Rate>().unwrap_err());
        assert_eq!(time("5 Min"), "has the unknown unit `Min`: did you mean min?");
        assert_eq!(time("5 Seconds"), "has the unknown unit `Seconds`: did you mean seconds?");
        assert_eq!(time("5 M"), "has the unknown unit `M`: write min for minutes or ms for milliseconds");
        assert!(size("1 gib").ends_with(" (powers of 1000); bytes are GiB"), "{}", size("1 gib"));
        assert!(size("1 gb").ends_with(" (powers of 1000)"), "{}", size("1 gb"));
        let comma = "is not in plain decimals: decimals follow a point: 1.5 Gbit/s";
        assert_eq!((rate("1,5 Gbit/s"), rate("1,5Gbit/s")), (comma.to_owned(), comma.to_owned()));
        for text in ["1,000 Mbit/s", "1.5,2 Mbit/s"] {
            assert_eq!(rate(text), "is not in plain decimals: write no commas; decimals follow a point");
        }
        for text in ["1e9 bit/s", "1.5E+9 bit/s", "1e-3 Gbit/s"] {
            let exponent = "is not in plain decimals: write no exponent, but a larger or smaller unit";
            assert_eq!(rate(text), exponent);
        }
        assert!(rate("1 exabit").contains("the units are"), "{}", rate("1 exabit"));
    }

    /// Matches the patterns that there are: digits, letters, one choice of spellings, and a letter
    /// in either case.
    fn matches(pattern: &str, text: &str) -> bool {
        let choices = pattern.strip_prefix(r"^\s*[0-9]+(\.[0-9]+)?\s*(").unwrap();
        let choices = choices.strip_suffix(r")\s*$").unwrap();
        let text = text.trim();
        let digits =
            |text: &str| text.len() - text.trim_start_matches(|char: char| char.is_ascii_digit()).len();
        let (whole, rest) = text.split_at(digits(text));
        let fraction = rest.strip_prefix('.').map_or(0, digits);
        let rest = if fraction > 0 { &rest[fraction + 1..] } else { rest };
        let spelt = |choice: &str| {
            let (mut unit, mut choice) = (rest.trim_start().chars(), choice.chars());
            while let Some(letter) = choice.next() {
                let letters: String = match letter {
                    '[' => choice.by_ref().take_while(|letter| *letter != ']').collect(),
                    letter => letter.into(),
                };
                if !unit.next().is_some_and(|found| letters.contains(found)) {
                    return false;
                }
            }
            unit.next().is_none()
        };
        !whole.is_empty() && choices.split('|').any(spelt)
    }

    /// Editors take what the program takes, and nothing else.
    #[test]
    fn patterns_are_what_is_parsed() {
        let all = [&RATE, &DURATION, &BYTES];
        let taken = all
            .iter()
            .flat_map(|units| units.units)
            .flat_map(|(name, others, _)| std::iter::once(*name).chain(others.iter().copied()));
        let refused = all.iter().flat_map(|units| units.refused).flat_map(|(names, _)| names.iter().copied());
        let units: Vec<&str> =
            taken.chain(refused).chain(["", "furlong", "Mib", "b", "T", "TBB", "s s", "Tib"]).collect();
        for quantity in Quantity::ALL {
            let (pattern, mut count) = (quantity.pattern(), 0);
            for unit in &units {
                for unit in [(*unit).to_owned(), unit.to_uppercase(), unit.to_lowercase()] {
                    for number in ["12", " 12 ", "2.0 ", "\t2.000", "2. ", ".5 ", "-1", "1 1", ""] {
                        let text = format!("{number}{unit} ");
                        let is_taken = matches(&pattern, &text);
                        assert_eq!(is_taken, quantity.takes(&text), "{quantity:?} {text:?}");
                        count += usize::from(is_taken);
                    }
                }
            }
            assert!(count >= 40, "{quantity:?}: {count}");
        }
    }

    proptest! {
        #[test]
        fn display_parses_to_the_same_value(value: u64, shift in 0u32..64) {
            // The parser takes 18 digits; larger numbers need a larger unit than they divide by.
            let value = (value >> shift).min(999_999_999_999_999_999);
            prop_assert_eq!(Rate(value).to_string().parse(), Ok(Rate(value)));
            prop_assert_eq!(ByteSize(value).to_string().parse(), Ok(ByteSize(value)));
            let duration = Duration(std::time::Duration::from_nanos(value));
            prop_assert_eq!(duration.to_string().parse(), Ok(duration));
        }

        #[test]
        fn never_panics(text in "\\PC*") {
            let _ = text.parse::<Rate>();
            let _ = text.parse::<Duration>();
            let _ = text.parse::<ByteSize>();
        }
    }
}
