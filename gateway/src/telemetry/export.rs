//! From a [`Snapshot`] to Prometheus text.

use metrics::{Counter, Gauge, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

use super::cells::Cells;
use super::table::{Kind, METRICS, Metric, Snapshot, Unit};

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
    cells: Vec<usize>,
}

enum Series {
    Counter(Counter),
    Gauge(Gauge, Unit),
}

impl Exporter {
    /// For a site, its peer, and a policy's classes. Another policy needs another exporter.
    pub fn new(site: &str, peer: &str, classes: &Cells) -> Self {
        let recorder = PrometheusBuilder::new()
            .add_global_label("site", site)
            .add_global_label("peer", peer)
            .build_recorder();
        let cells = classes.order().to_vec();
        let classes: Vec<&str> = classes.iter().map(|(name, _)| name).collect();
        let mut series = Vec::new();
        for metric in METRICS {
            describe(&recorder, metric);
            match metric.label {
                None => series.push(register(&recorder, metric, Vec::new())),
                Some((label, [])) => {
                    let label = |value: &&str| vec![Label::new(label, (*value).to_owned())];
                    series.extend(classes.iter().map(|class| register(&recorder, metric, label(class))));
                }
                Some((label, values)) => {
                    let label = |value: &&'static str| vec![Label::from_static_parts(label, value)];
                    series.extend(values.iter().map(|value| register(&recorder, metric, label(value))));
                }
            }
        }
        Self { handle: recorder.handle(), series, cells }
    }

    /// The text for `snapshot`.
    pub fn render(&self, snapshot: &Snapshot) -> String {
        for (series, value) in self.series.iter().zip(snapshot.values(&self.cells)) {
            match series {
                Series::Counter(counter) => counter.absolute(value),
                Series::Gauge(gauge, unit) => gauge.set(value as f64 / unit.scale()),
            }
        }
        self.handle.render()
    }
}

fn describe(recorder: &impl Recorder, metric: &Metric) {
    let (name, meaning) = (metric.name.into(), metric.meaning.into());
    match metric.kind {
        Kind::Counter => recorder.describe_counter(name, None, meaning),
        Kind::Gauge | Kind::Peak => recorder.describe_gauge(name, None, meaning),
    }
}

fn register(recorder: &impl Recorder, metric: &Metric, labels: Vec<Label>) -> Series {
    const METADATA: Metadata<'_> = Metadata::new(module_path!(), Level::INFO, None);
    let key = Key::from_parts(metric.name, labels);
    match metric.kind {
        Kind::Counter => Series::Counter(recorder.register_counter(&key, &METADATA)),
        Kind::Gauge | Kind::Peak => Series::Gauge(recorder.register_gauge(&key, &METADATA), metric.unit),
    }
}
