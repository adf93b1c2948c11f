//! From a [`Snapshot`] to Prometheus text.

use metrics::{Counter, Gauge, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

use super::histogram;
use super::table::{Kind, METRICS, Metric, Snapshot, Unit};
use crate::cells::Cells;

/// Renders snapshots as Prometheus text (format 0.0.4). Every series is there from the start; their
/// handles are made once.
///
/// The recorder is this exporter's own and not the process's global one, so nothing else can write
/// to it.
pub struct Exporter {
    handle: PrometheusHandle,
    /// In the order of [`Snapshot::values`].
    series: Vec<Series>,
    /// Cells of the classes.
    cells: Cells,
    site: String,
    peer: String,
}

enum Series {
    Counter(Counter),
    Gauge(Gauge, Shape),
}

/// Decides if a gauge has a value.
#[derive(Clone, Copy)]
struct Shape {
    unit: Unit,
    basis: Basis,
}

/// The basis of a gauge's value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Basis {
    /// The gateway itself.
    Own,
    /// Reports of the peer.
    Path,
    /// A lane that there is.
    Lane(usize),
    /// A time that has been measured.
    Measured,
}

/// Tells which gauges have no value now: while nothing crosses, rates and ratios are unknown and
/// not 0.
struct Absent {
    path: bool,
    lanes: [bool; config::Wan::MOST_LANES as usize],
}

impl Absent {
    fn of(snapshot: &Snapshot) -> Self {
        let crosses = snapshot.session_up > 0;
        Self {
            path: !crosses || snapshot.path_age_micros == 0,
            lanes: snapshot.lane_state.map(|state| !crosses || state == 0),
        }
    }

    fn has(&self, shape: &Shape, value: u64) -> bool {
        match shape.basis {
            Basis::Own => shape.unit == Unit::Known && value == 0,
            Basis::Path => self.path,
            Basis::Lane(lane) => self.lanes.get(lane).copied().unwrap_or(true),
            Basis::Measured => value == 0,
        }
    }
}

impl Basis {
    fn of(metric: &Metric, place: usize) -> Self {
        match metric.name {
            "longhaul_session_rtt_seconds" | "longhaul_stream_rtt_seconds" => Self::Measured,
            name if name.ends_with("_expiry_timestamp_seconds") => Self::Measured,
            name if name.starts_with("longhaul_path_") => Self::Path,
            name if name.starts_with("longhaul_lane_") => Self::Lane(place),
            // The peer has lane 0, and mostly no other.
            "longhaul_wan_opened_packets_total" if place > 0 => Self::Measured,
            _ => Self::Own,
        }
    }
}

impl Exporter {
    /// For a site, its peer, and a policy's classes. Another policy needs another exporter.
    pub fn new(site: &str, peer: &str, classes: &Cells) -> Self {
        let recorder = PrometheusBuilder::new()
            .add_global_label("site", site)
            .add_global_label("peer", peer)
            .build_recorder();
        let cells = classes.clone();
        let classes: Vec<&str> = classes.iter().map(|(name, _)| name).collect();
        let mut series = Vec::new();
        for metric in METRICS.iter().filter(|metric| metric.kind != Kind::Histogram) {
            describe(&recorder, metric);
            match metric.label {
                None => series.push(register(&recorder, metric, 0, Vec::new())),
                Some((label, [])) => {
                    let label = |value: &&str| vec![Label::new(label, (*value).to_owned())];
                    series.extend(classes.iter().map(|class| register(&recorder, metric, 0, label(class))));
                }
                Some((label, values)) => {
                    let label = |value: &&'static str| vec![Label::from_static_parts(label, value)];
                    let all = values.iter().enumerate();
                    series.extend(all.map(|(place, value)| register(&recorder, metric, place, label(value))));
                }
            }
        }
        Self { handle: recorder.handle(), series, cells, site: site.to_owned(), peer: peer.to_owned() }
    }

    /// The text for `snapshot`.
    pub fn render(&self, snapshot: &Snapshot) -> String {
        let absent = Absent::of(snapshot);
        for (series, value) in self.series.iter().zip(snapshot.values(self.cells.order())) {
            match series {
                Series::Counter(counter) => counter.absolute(value),
                Series::Gauge(gauge, shape) if absent.has(shape, value) => gauge.set(f64::NAN),
                Series::Gauge(gauge, Shape { unit: Unit::Known, .. }) => {
                    gauge.set(value.saturating_sub(1) as f64);
                }
                Series::Gauge(gauge, shape) => gauge.set(value as f64 / shape.unit.scale()),
            }
        }
        // A series without a value is none.
        let text = self.handle.render();
        let text: String = text.split_inclusive('\n').filter(|line| !line.ends_with(" NaN\n")).collect();
        text + &histogram::render(&self.site, &self.peer, &self.cells, snapshot)
    }
}

fn describe(recorder: &impl Recorder, metric: &Metric) {
    let (name, meaning) = (metric.name.into(), metric.meaning.into());
    match metric.kind {
        Kind::Counter | Kind::Restarting | Kind::Histogram => {
            recorder.describe_counter(name, None, meaning);
        }
        Kind::Gauge | Kind::Peak => recorder.describe_gauge(name, None, meaning),
    }
}

fn register(recorder: &impl Recorder, metric: &Metric, place: usize, labels: Vec<Label>) -> Series {
    const METADATA: Metadata<'_> = Metadata::new(module_path!(), Level::INFO, None);
    let key = Key::from_parts(metric.name, labels);
    match metric.kind {
        Kind::Counter | Kind::Restarting | Kind::Histogram => {
            Series::Counter(recorder.register_counter(&key, &METADATA))
        }
        Kind::Gauge | Kind::Peak => {
            let shape = Shape { unit: metric.unit, basis: Basis::of(metric, place) };
            Series::Gauge(recorder.register_gauge(&key, &METADATA), shape)
        }
    }
}
