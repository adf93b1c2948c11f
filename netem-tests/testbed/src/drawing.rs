//! The labels of an SVG drawing, for tests: none lies on another one or beyond the edge.
//!
//! A browser measures text by its font. Here each letter has the same generous width, so what is
//! apart here is apart there.

/// Width of a letter, in font sizes.
const WIDTH: f64 = 0.6;
/// Height of a line, in font sizes.
const HEIGHT: f64 = 0.95;

/// A label and the rectangle that it fills: left, top, right, bottom.
#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    /// Its text.
    pub text: String,
    /// The rectangle.
    pub area: [f64; 4],
}

impl Label {
    fn lies_on(&self, other: &Self) -> bool {
        let ([left, top, right, bottom], [l, t, r, b]) = (self.area, other.area);
        left < r && l < right && top < b && t < bottom
    }
}

/// Returns all labels of a drawing made by plotters, but those without text.
#[must_use]
pub fn labels(svg: &str) -> Vec<Label> {
    svg.split("<text ").skip(1).filter_map(label).collect()
}

/// Describes each pair of labels of which one lies on the other, and each label that leaves the
/// drawing.
#[must_use]
pub fn collisions(svg: &str) -> Vec<String> {
    let [width, height] = ["width", "height"].map(|name| number(svg, name).unwrap_or(0.0));
    let labels = labels(svg);
    let mut found = Vec::new();
    for (index, label) in labels.iter().enumerate() {
        let [left, top, right, bottom] = label.area;
        if left < 0.0 || top < 0.0 || right > width || bottom > height {
            found.push(format!("{:?} at {:?} leaves the drawing", label.text, label.area));
        }
        for other in labels.iter().skip(index + 1).filter(|other| label.lies_on(other)) {
            found.push(format!("{:?} and {:?} at {:?}", label.text, other.text, other.area));
        }
    }
    found
}

fn label(element: &str) -> Option<Label> {
    let (attributes, rest) = element.split_once('>')?;
    let text = rest.split("</text>").next()?.trim();
    if text.is_empty() {
        return None;
    }
    let [x, y, size] = ["x", "y", "font-size"].map(|name| number(attributes, name));
    let (x, y, size) = (x?, y?, size?);
    let (width, height) = (text.chars().count() as f64 * size * WIDTH, size * HEIGHT);
    let left = match attribute(attributes, "text-anchor")? {
        "start" => 0.0,
        "middle" => -width / 2.0,
        _ => -width,
    };
    let top = match attribute(attributes, "dy")? {
        "0.76em" => 0.0,
        "0.5ex" => -height / 2.0,
        _ => -height,
    };
    let (right, bottom) = (left + width, top + height);
    // About the anchor.
    let [left, top, right, bottom] = match attribute(attributes, "transform").and_then(turn) {
        None => [left, top, right, bottom],
        Some(90) => [-bottom, left, -top, right],
        Some(180) => [-right, -bottom, -left, -top],
        Some(_) => [top, -right, bottom, -left],
    };
    Some(Label { text: text.to_owned(), area: [x + left, y + top, x + right, y + bottom] })
}

fn attribute<'a>(attributes: &'a str, name: &str) -> Option<&'a str> {
    let start = format!(" {name}=\"");
    let attributes = attributes.trim_start();
    let rest = match attributes.strip_prefix(start.trim_start()) {
        Some(rest) => rest,
        None => attributes.split_once(&start)?.1,
    };
    rest.split('"').next()
}

fn number(attributes: &str, name: &str) -> Option<f64> {
    attribute(attributes, name)?.parse().ok()
}

fn turn(transform: &str) -> Option<u16> {
    transform.strip_prefix("rotate(")?.split(',').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(x: u32, y: u32, rest: &str, text: &str) -> String {
        format!(
            "<text x=\"{x}\" y=\"{y}\" dy=\"0.76em\" text-anchor=\"start\" font-size=\"10\" {rest}>\n{text}\n</text>\n"
        )
    }

    #[test]
    fn labels_that_lie_on_each_other_are_found() {
        let head = "<svg width=\"100\" height=\"100\" viewBox=\"0 0 100 100\">\n";
        let of = |texts: &[String]| collisions(&(head.to_owned() + &texts.concat()));
        assert_eq!(of(&[text(0, 0, "", "abcd"), text(25, 0, "", "ef"), text(0, 10, "", "gh")]), [""; 0]);
        assert_eq!(of(&[text(0, 0, "", "abcd"), text(23, 5, "", "ef")]).len(), 1);
        assert_eq!(of(&[text(0, 0, "", "abcd"), text(0, 0, "", " ")]), [""; 0]);
        // Downwards and upwards.
        assert_eq!(
            of(&[text(50, 50, "transform=\"rotate(90, 50, 50)\"", "abcd"), text(35, 60, "", "ef")]).len(),
            1
        );
        assert_eq!(
            of(&[text(50, 50, "transform=\"rotate(270, 50, 50)\"", "abcd"), text(35, 60, "", "ef")]),
            [""; 0]
        );
        let beyond = of(&[text(80, 0, "", "abcd")]);
        assert!(beyond.len() == 1 && beyond[0].contains("leaves"), "{beyond:?}");
    }
}
