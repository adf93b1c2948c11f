//! Histograms as Prometheus text.

use std::fmt::Write;

use reliability::times::{BOUNDS, Times};

use super::table::{Kind, METRICS, Metric, Snapshot, Unit};
use crate::cells::Cells;

/// Renders a snapshot's histograms as Prometheus text. (The crate that renders all else takes
/// single observations only.)
pub(super) fn render(site: &str, peer: &str, classes: &Cells, snapshot: &Snapshot) -> String {
    let mut text = String::new();
    let metrics = METRICS.iter().filter(|metric| metric.kind == Kind::Histogram);
    for (Metric { name, meaning, .. }, times) in metrics.zip(snapshot.histograms(classes.order())) {
        // A String takes everything.
        let _ = writeln!(text, "# HELP {name} {meaning}\n# TYPE {name} histogram");
        for ((class, _), times) in classes.iter().zip(times) {
            let labels =
                format!("site=\"{}\",peer=\"{}\",class=\"{}\"", quoted(site), quoted(peer), quoted(class));
            write_series(&mut text, name, &labels, &times);
        }
    }
    text
}

fn write_series(text: &mut String, name: &str, labels: &str, times: &Times) {
    let mut below = 0;
    for (place, count) in times.counts.iter().enumerate() {
        below += count;
        let bound = BOUNDS
            .get(place)
            .map_or_else(|| "+Inf".to_owned(), |micros| (*micros as f64 / Unit::Seconds.scale()).to_string());
        let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {below}");
    }
    let sum = times.sum as f64 / Unit::Seconds.scale();
    let _ = writeln!(text, "{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {below}");
}

/// Escapes a label's value.
fn quoted(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
