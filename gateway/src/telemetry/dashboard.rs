//! `dashboards/grafana.json`, generated from the metric table and held to it.
//!
//! `UPDATE_EXPECTED=1 cargo test -p gateway dashboard` writes it anew.

use std::path::Path;

use serde_json::{Value, json};

use super::{Kind, METRICS, Metric, Unit};

/// Rows of the dashboard: title, and the beginnings of its metrics' names. The last one takes the
/// rest.
const ROWS: [(&str, &[&str]); 10] = [
    (
        "Session and data path",
        &[
            "longhaul_session",
            "longhaul_data_path",
            "longhaul_certificate",
            "longhaul_peer_certificate",
            "longhaul_authority",
        ],
    ),
    ("Path", &["longhaul_path_", "longhaul_congestion_"]),
    ("Lanes", &["longhaul_lane_"]),
    ("Streams by class", &["longhaul_stream", "longhaul_scheme", "longhaul_message"]),
    (
        "Survival of processes",
        &[
            "longhaul_retention_",
            "longhaul_flows_restor",
            "longhaul_flows_unrestored",
            "longhaul_flows_silenced",
            "longhaul_flows_remembered",
        ],
    ),
    ("Several gateways", &["longhaul_member", "longhaul_host_pairs", "longhaul_flows_moved"]),
    ("Flows", &["longhaul_flows", "longhaul_requesters", "longhaul_targets", "longhaul_requests"]),
    ("Long link", &["longhaul_wan_", "longhaul_link_"]),
    ("LAN", &["longhaul_lan_", "longhaul_guard_"]),
    ("Gateway", &["longhaul_"]),
];
/// Panels beside each other, of Grafana's 24 columns.
const BESIDE: usize = 3;
const WIDTH: usize = 24 / BESIDE;
const HEIGHT: usize = 7;
/// A line's name. A gateway may have several peers.
const ENDS: &str = "{{site}} > {{peer}}";
/// When Grafana asks anew for the values of a variable: also for sites that come later.
const ON_TIME_RANGE: u32 = 2;

fn dashboard() -> Value {
    let mut left: Vec<&Metric> = METRICS.iter().collect();
    let (mut panels, mut y) = (Vec::new(), 0);
    for (title, beginnings) in ROWS {
        let is_here = |metric: &&Metric| beginnings.iter().any(|begin| metric.name.starts_with(begin));
        let (here, rest) = left.into_iter().partition::<Vec<_>, _>(is_here);
        left = rest;
        panels.push(json!({
            "type": "row", "title": title, "collapsed": false,
            "gridPos": { "x": 0, "y": y, "w": 24, "h": 1 },
        }));
        y += 1;
        for (place, metric) in here.iter().enumerate() {
            let (x, down) = (place % BESIDE * WIDTH, place / BESIDE * HEIGHT);
            panels.push(panel(metric, x, y + down));
        }
        y += here.len().div_ceil(BESIDE) * HEIGHT;
    }
    json!({
        "title": "Longhaul", "uid": "longhaul", "schemaVersion": 39, "refresh": "10s", "editable": true,
        "time": { "from": "now-1h", "to": "now" },
        "templating": { "list": [
            { "name": "datasource", "type": "datasource", "query": "prometheus" },
            variable("site", "label_values(longhaul_uptime_seconds, site)"),
            variable("peer", "label_values(longhaul_uptime_seconds{site=~\"$site\"}, peer)"),
        ] },
        "panels": panels,
    })
}

/// A choice of one or more values, all of them at first.
fn variable(name: &str, query: &str) -> Value {
    json!({
        "name": name, "type": "query", "multi": true, "includeAll": true,
        "datasource": { "type": "prometheus", "uid": "${datasource}" },
        "query": query, "refresh": ON_TIME_RANGE,
    })
}

fn panel(metric: &Metric, x: usize, y: usize) -> Value {
    let Metric { name, kind, unit, label, meaning } = metric;
    let chosen = "{site=~\"$site\",peer=~\"$peer\"}";
    let selected = format!("{name}{chosen}");
    let counts = matches!(kind, Kind::Counter | Kind::Restarting);
    let query = match kind {
        Kind::Histogram => {
            let rates = format!("rate({name}_bucket{chosen}[$__rate_interval])");
            format!("histogram_quantile(0.99, sum by (site, peer, class, le) ({rates}))")
        }
        _ if counts => format!("rate({selected}[$__rate_interval])"),
        _ => selected,
    };
    let legend = match label {
        Some((label, _)) if *kind == Kind::Histogram => format!("{ENDS} {{{{{label}}}}}, 99 %"),
        Some((label, _)) => format!("{ENDS} {{{{{label}}}}}"),
        None => ENDS.to_owned(),
    };
    let unit = match unit {
        Unit::Bytes if counts => "Bps",
        Unit::Packets | Unit::MeanPackets if counts => "pps",
        _ if counts => "ops",
        Unit::Bytes if name.ends_with("_per_second") => "Bps",
        Unit::Bytes => "bytes",
        Unit::Seconds if name.ends_with("_timestamp_seconds") => "dateTimeAsIso",
        Unit::Seconds => "s",
        Unit::Share => "percentunit",
        _ => "short",
    };
    // Times since 1970 are in milliseconds at Grafana.
    let query = if unit == "dateTimeAsIso" { format!("{query} * 1000") } else { query };
    json!({
        "type": "timeseries", "title": name, "description": meaning,
        "datasource": { "type": "prometheus", "uid": "${datasource}" },
        "gridPos": { "x": x, "y": y, "w": WIDTH, "h": HEIGHT },
        "fieldConfig": { "defaults": { "unit": unit }, "overrides": [] },
        "targets": [{ "refId": "A", "expr": query, "legendFormat": legend }],
    })
}

#[test]
fn the_dashboard_is_generated_from_the_metric_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dashboards/grafana.json");
    let current = crate::json::pretty(&dashboard()).unwrap();
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        std::fs::write(&path, current).unwrap();
        return;
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), current, "dashboards/grafana.json is out of date");
    // No two lines of a panel have one name.
    assert_eq!(current.matches("\"legendFormat\": \"{{site}} > {{peer}}").count(), METRICS.len());
    for metric in METRICS {
        assert_eq!(current.matches(&format!("\"title\": \"{}\"", metric.name)).count(), 1, "{}", metric.name);
    }
}
