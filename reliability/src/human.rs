//! Numbers as people read them: digits that count, and a unit. The one place that decides how a
//! share, a rate or a time looks.

use std::time::Duration;

/// `25.0 ms`, `1.20 s`, `82.0 us`.
#[must_use]
pub fn time(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    let (scale, unit) = match seconds {
        s if s < 999.5e-9 => (1e9, "ns"),
        s if s < 999.5e-6 => (1e6, "us"),
        s if s < 999.5e-3 => (1e3, "ms"),
        s if s < 3600.0 => (1.0, "s"),
        _ => (1.0 / 3600.0, "h"),
    };
    format!("{} {unit}", three_digits(seconds * scale))
}

/// [`time`] of seconds; what no duration holds is the longest there is.
#[must_use]
pub fn seconds(seconds: f64) -> String {
    time(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX))
}

/// Bytes in powers of 1024: `64 KiB`, `1.50 MiB`.
#[must_use]
pub fn size(bytes: u64) -> String {
    scaled(bytes as f64, 1024.0, &[" B", " KiB", " MiB", " GiB", " TiB", " PiB"])
}

/// Bits per second: `400 Gbit/s`.
#[must_use]
pub fn rate(bits_per_second: f64) -> String {
    scaled(bits_per_second, 1000.0, &[" bit/s", " kbit/s", " Mbit/s", " Gbit/s", " Tbit/s"])
}

/// A share in per cent, two digits that count: `25 %`, `1.2 %`, `0.0010 %`. Losses, overheads and
/// everything else that is a share.
#[must_use]
pub fn share(share: f64) -> String {
    let percent = share * 100.0;
    // Scientific notation rounds to two digits first, so that 9.99 % is 10 %.
    let rounded = format!("{percent:.1e}");
    let exponent = rounded.split_once('e').and_then(|(_, exponent)| exponent.parse::<i32>().ok());
    match exponent {
        Some(exponent) if percent != 0.0 => {
            let places = (1 - exponent).clamp(0, MOST_PLACES) as usize;
            format!("{percent:.places$} %")
        }
        _ => format!("{percent:.0} %"),
    }
}

/// Decimal places of a percentage: a share of 1e-9 and less is next to nothing.
const MOST_PLACES: i32 = 7;

/// A count or a value of a unit that follows: `1.23 M`, `250`, `8.50`.
#[must_use]
pub fn si(value: f64) -> String {
    scaled(value, 1000.0, &["", " k", " M", " G", " T"])
}

/// A time that has passed, as a clock tells it: `7.8 s`, `5 min 6 s`, `3 d 4 h`.
#[must_use]
pub fn span(seconds: f64) -> String {
    let whole = seconds as u64;
    let (days, hours, minutes) = (whole / 86_400, whole / 3600 % 24, whole / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds:.1} s"),
        (0, 0, _) => format!("{minutes} min {} s", whole % 60),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// Milliseconds for a column, without the unit: five digits, as far as there is room for them.
#[must_use]
pub fn millis(seconds: f64) -> String {
    let millis = seconds * 1e3;
    match millis {
        m if m < 1.0 => format!("{m:.4}"),
        m if m < 100.0 => format!("{m:.3}"),
        m if m < 10_000.0 => format!("{m:.1}"),
        m => format!("{m:.0}"),
    }
}

/// Divides by `step` until the value is below it. The last unit takes whatever is left.
fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut unit = "";
    for (index, name) in units.iter().enumerate() {
        unit = name;
        if value < step * 0.9995 || index + 1 == units.len() {
            break;
        }
        value /= step;
    }
    let value = if value.fract() == 0.0 { value.to_string() } else { three_digits(value) };
    format!("{value}{unit}")
}

fn three_digits(value: f64) -> String {
    let places = match value.abs() {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.places$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        let times = [0.0, 82e-9, 9.999e-6, 25e-3, 0.9999, 12.0, 7200.0]
            .map(|seconds| time(Duration::from_secs_f64(seconds)));
        assert_eq!(times, ["0.00 ns", "82.0 ns", "10.0 us", "25.0 ms", "1.00 s", "12.0 s", "2.00 h"]);
        assert_eq!(
            [0, 1, 1023, 1024, 1536, 1 << 20, 12_345_678_901, u64::MAX].map(size),
            ["0 B", "1 B", "1023 B", "1 KiB", "1.50 KiB", "1 MiB", "11.5 GiB", "16384 PiB"]
        );
        assert_eq!(
            [0.0, 1.0, 64e3, 1.5e6, 999.6e6, 400e9].map(rate),
            ["0 bit/s", "1 bit/s", "64 kbit/s", "1.50 Mbit/s", "1.00 Gbit/s", "400 Gbit/s"]
        );
        assert_eq!([0.0, 8.5, 250.0, 5.5e6].map(si), ["0", "8.50", "250", "5.50 M"]);
        assert_eq!([7.8, 306.0, 3660.0, 273_600.0].map(span), ["7.8 s", "5 min 6 s", "1 h 1 min", "3 d 4 h"]);
        assert_eq!([1e-4, 0.025, 0.25, 30.0].map(millis), ["0.1000", "25.000", "250.0", "30000"]);
        assert_eq!([0.025, -1.0, f64::INFINITY].map(seconds), ["25.0 ms", "0.00 ns", "5124095576030431 h"]);
    }

    #[test]
    fn a_share_has_two_digits_however_small() {
        for (value, text) in [
            (0.0, "0 %"),
            (1e-12, "0.0000000 %"),
            (1e-6, "0.00010 %"),
            (2.5e-6, "0.00025 %"),
            (1e-3, "0.10 %"),
            (1.2e-3, "0.12 %"),
            (9.99e-3, "1.0 %"),
            (0.012, "1.2 %"),
            (0.0999, "10 %"),
            (0.25, "25 %"),
            (2.0, "200 %"),
            (-0.031, "-3.1 %"),
        ] {
            assert_eq!(share(value), text);
        }
    }
}
