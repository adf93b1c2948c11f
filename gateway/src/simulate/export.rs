//! The results for other programs.

use std::fmt::Write;

use serde::Serialize;

use super::SimulateError;
use super::row::Row;
use crate::json;

/// An array of objects, one per row; times in seconds.
///
/// # Errors
/// A row that cannot be written as JSON.
pub fn json<T: Serialize>(rows: &[T]) -> Result<String, SimulateError> {
    Ok(json::pretty(rows).map_err(std::io::Error::from)?)
}

/// The same with a line per row. What could not be told is an empty field.
#[must_use]
pub fn csv(rows: &[Row]) -> String {
    let mut text = String::from(
        "size,scheme,until,sites,rate_bit_s,rtt,lost_packets,count,mean,standard_error,p50,p99,p999,delivered_mean,ideal,slowdown,\
         wire_bytes_per_byte,repaired,lost,packets,seed\n",
    );
    for row in rows {
        let may = |time: Option<f64>| time.map_or(String::new(), |time| time.to_string());
        let Row {
            size, scheme, until, rate_bit_s, rtt, lost_packets, count, mean, standard_error, p50, ..
        } = row;
        let sites = row.sites.map_or(String::new(), |sites| sites.to_string());
        let (p99, p999) = (may(row.p99), may(row.p999));
        let Row {
            delivered_mean, ideal, slowdown, wire_bytes_per_byte, repaired, lost, packets, seed, ..
        } = row;
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{size},{scheme},{until},{sites},{rate_bit_s},{rtt},{lost_packets},{count},{mean},{standard_error},{p50},{p99},{p999},\
             {delivered_mean},{ideal},{slowdown},{wire_bytes_per_byte},{repaired},{lost},{packets},{seed}"
        );
    }
    text
}
