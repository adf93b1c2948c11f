//! Numbers as an operator reads them: three digits and a unit.

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

/// Bytes in powers of 1024: `64 KiB`, `1.50 MiB`.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in UNITS {
        if value < 1023.5 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if value.fract() == 0.0 { format!("{value} {unit}") } else { format!("{} {unit}", three_digits(value)) }
}

/// Bits per second: `400 Gbit/s`.
#[must_use]
pub fn rate(bits_per_second: u64) -> String {
    const UNITS: [&str; 4] = ["kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"];
    let mut value = bits_per_second as f64;
    let mut unit = "bit/s";
    for next in UNITS {
        if value < 999.5 {
            break;
        }
        value /= 1000.0;
        unit = next;
    }
    if value.fract() == 0.0 { format!("{value} {unit}") } else { format!("{} {unit}", three_digits(value)) }
}

/// A share in per cent: `25 %`, `0.12 %`.
#[must_use]
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent.abs() {
        0.0 => "0 %".to_owned(),
        p if p < 0.005 => "0.00 %".to_owned(),
        p if p < 0.995 => format!("{percent:.2} %"),
        p if p < 9.95 => format!("{percent:.1} %"),
        _ => format!("{percent:.0} %"),
    }
}

/// A loss rate: `1e-3`, `2.5e-6`, `0`.
#[must_use]
pub fn drop(drop: f64) -> String {
    if drop == 0.0 {
        return "0".to_owned();
    }
    let text = format!("{drop:.1e}");
    text.replace(".0e", "e")
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
            [1, 64_000, 1_500_000, 400_000_000_000].map(rate),
            ["1 bit/s", "64 kbit/s", "1.50 Mbit/s", "400 Gbit/s"]
        );
        assert_eq!(
            [0.0, 1e-9, 1.2e-3, 0.031, 0.25, 2.0].map(percent),
            ["0 %", "0.00 %", "0.12 %", "3.1 %", "25 %", "200 %"]
        );
        assert_eq!([0.0, 1e-3, 2.5e-6, 0.3].map(drop), ["0", "1e-3", "2.5e-6", "3e-1"]);
    }
}
