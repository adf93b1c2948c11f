//! Prometheus text of several peers as one.

/// Lines of one metric: what says of it, and its series.
struct Family<'a> {
    name: &'a str,
    lines: Vec<&'a str>,
}

/// Puts the series of two texts together, since those of one metric have to stand in a row
/// (Prometheus' text format 0.0.4).
pub(super) fn merge(one: &str, other: &str) -> String {
    let mut families = families(one);
    for family in self::families(other) {
        match families.iter_mut().find(|known| known.name == family.name) {
            Some(known) => known.lines.extend(family.lines.iter().filter(|line| !line.starts_with('#'))),
            None => families.push(family),
        }
    }
    let lines = families.iter().flat_map(|family| &family.lines);
    lines.flat_map(|line| [*line, "\n"]).collect()
}

fn families(text: &str) -> Vec<Family<'_>> {
    let mut families: Vec<Family<'_>> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let about = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE "));
        let name = about.and_then(|rest| rest.split(' ').next());
        match (families.last_mut(), name) {
            // Series follow what says of their metric.
            (Some(last), None) => last.lines.push(line),
            (Some(last), Some(name)) if last.name == name => last.lines.push(line),
            (_, name) => families.push(Family { name: name.unwrap_or_default(), lines: vec![line] }),
        }
    }
    families
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_a_metric_stand_in_a_row() {
        let text = |peer: &str, more: &str| {
            format!(
                "# HELP a A\n# TYPE a counter\na{{peer=\"{peer}\"}} 1\n\n{more}\
                 # HELP b B\n# TYPE b histogram\nb_bucket{{peer=\"{peer}\"}} 2\nb_sum{{peer=\"{peer}\"}} 3\n"
            )
        };
        let merged = merge(&text("x", ""), &text("y", "# TYPE c gauge\nc{peer=\"y\"} 4\n"));
        assert_eq!(
            merged,
            "# HELP a A\n# TYPE a counter\na{peer=\"x\"} 1\na{peer=\"y\"} 1\n\
             # HELP b B\n# TYPE b histogram\nb_bucket{peer=\"x\"} 2\nb_sum{peer=\"x\"} 3\n\
             b_bucket{peer=\"y\"} 2\nb_sum{peer=\"y\"} 3\n# TYPE c gauge\nc{peer=\"y\"} 4\n"
        );
    }
}
