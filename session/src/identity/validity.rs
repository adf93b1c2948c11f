//! Validity of certificates, and dates as people read them.

use std::fmt;
use std::time::Duration;

use rustls_pki_types::{CertificateDer, UnixTime};

/// A time, shown in UTC as in RFC 3339.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Date(pub UnixTime);

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let (year, month, day) = civil(seconds / 86_400);
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

/// Returns year, month and day of a day since 1970-01-01 (Hinnant, "chrono-Compatible Low-Level
/// Date Algorithms").
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    let year = year - u64::from(month <= 2);
    let (era, of_era) = (year / 400, year % 400);
    let from_march = (month + 9) % 12;
    let of_year = (153 * from_march + 2) / 5 + day - 1;
    (era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year).checked_sub(719_468)
}

/// Returns the earliest end of validity in a chain; `None` if a certificate cannot be read.
pub(crate) fn earliest_end(chain: &[CertificateDer<'_>]) -> Option<UnixTime> {
    let ends: Option<Vec<UnixTime>> = chain.iter().map(|certificate| end(certificate)).collect();
    ends?.into_iter().min()
}

/// Returns the latest end of validity of several authorities; `None` if none can be read.
pub(super) fn latest_end(certificates: &[CertificateDer<'_>]) -> Option<UnixTime> {
    certificates.iter().filter_map(|certificate| end(certificate)).max()
}

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Reads `notAfter` (RFC 5280, 4.1).
fn end(certificate: &[u8]) -> Option<UnixTime> {
    let (_, mut certificate, _) = element(certificate)?;
    let (SEQUENCE, mut rest, _) = element(certificate)? else { return None };
    certificate = rest;
    if let (VERSION, _, after) = element(certificate)? {
        rest = after;
    }
    // Serial number, signature, issuer.
    for _ in 0..3 {
        (_, _, rest) = element(rest)?;
    }
    let (SEQUENCE, validity, _) = element(rest)? else { return None };
    let (_, _, after_begin) = element(validity)?;
    let (kind, text, _) = element(after_begin)?;
    time(kind, text)
}

/// Returns tag, content and what follows of a DER element.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

fn time(kind: u8, text: &[u8]) -> Option<UnixTime> {
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let number = |text: Option<&str>| text?.parse::<u64>().ok();
    let (year, rest) = match kind {
        UTC_TIME => {
            let year = number(text.get(..2))?;
            (if year < 50 { 2000 + year } else { 1900 + year }, text.get(2..)?)
        }
        GENERALIZED_TIME => (number(text.get(..4))?, text.get(4..)?),
        _ => return None,
    };
    let part = |place: usize| number(rest.get(2 * place..2 * place + 2));
    let (month, day) = (part(0)?, part(1)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let seconds = days(year, month, day)? * 86_400 + part(2)? * 3600 + part(3)? * 60 + part(4)?;
    Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, shown) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_700_000_000, "2023-11-14T22:13:20Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            let date = Date(UnixTime::since_unix_epoch(Duration::from_secs(seconds)));
            assert_eq!(date.to_string(), shown);
        }
        for day in 0..200_000 {
            let (year, month, of_month) = civil(day);
            assert_eq!(days(year, month, of_month), Some(day));
        }
    }

    #[test]
    fn both_spellings_of_a_time_are_read() {
        let read = |kind, text: &str| time(kind, text.as_bytes()).map(|time| Date(time).to_string());
        assert_eq!(read(UTC_TIME, "491231235959Z").as_deref(), Some("2049-12-31T23:59:59Z"));
        assert_eq!(read(GENERALIZED_TIME, "20501231235959Z").as_deref(), Some("2050-12-31T23:59:59Z"));
        for text in ["", "Z", "491331235959Z", "4912312359Z", "49123123595aZ", "491231235959"] {
            assert_eq!(read(UTC_TIME, text), None, "{text}");
        }
    }
}
