//! Classes that are divided by message size.

use super::bounds::Bounds;
use super::{Class, MAX_CLASSES, Placed, is_class_name};
use crate::problem::Sink;
use crate::units::ByteSize;

impl Class {
    /// The class in the parts that it is divided into, each before the next: what is up to the
    /// first size, then what is up to the second and not in the first, and in the end, under the
    /// class's own name and condition, what is left.
    pub(super) fn parts(&self) -> impl Iterator<Item = Self> + '_ {
        let part = |cut| {
            let mut part = Self {
                name: format!("{}/{}", self.name, spaceless(cut)),
                divide: Vec::new(),
                part: Some(cut),
                ..self.clone()
            };
            part.matches.size = Some(Bounds { at_most: Some(cut), ..self.matches.size.unwrap_or_default() });
            part
        };
        self.divide.iter().copied().map(part).chain(std::iter::once(self.clone()))
    }
}

/// A label of metrics is easier to write without.
fn spaceless(size: ByteSize) -> String {
    size.to_string().replace(' ', "")
}

/// Checks that there are streams for all parts.
pub(super) fn bound(sink: &mut Sink, classes: &[Placed]) {
    let mut parts = 0;
    for placed in classes {
        parts += 1 + placed.class.divide.len();
        if parts > MAX_CLASSES {
            let message = format!("the classes have more than {MAX_CLASSES} parts");
            let help =
                "each part is streams of its own over the link; divide some less, or give them divide = []"
                    .to_owned();
            sink.error(placed.header.clone(), message, format!("{parts} up to here"), Some(help));
            return;
        }
    }
}

/// Returns true if a class, or a part of a divided one, may have this name.
#[must_use]
pub fn is_class_or_part_name(name: &str) -> bool {
    let Some((class, size)) = name.split_once('/') else { return is_class_name(name) };
    let is_plain = size.chars().all(|c| c.is_ascii_alphanumeric());
    is_class_name(class) && is_plain && size.parse::<ByteSize>().is_ok()
}

/// Returns true if `asked` names this class, or the class that it is a part of.
#[must_use]
pub fn names_class(asked: &str, class: &str) -> bool {
    class.strip_prefix(asked).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_names_its_parts_too_and_a_part_itself() {
        for (asked, class, is_named) in [
            ("default", "default", true),
            ("default", "default/64KiB", true),
            ("default/64KiB", "default/64KiB", true),
            ("default/64KiB", "default", false),
            ("default/64KiB", "default/64KiBi", false),
            ("default", "default-2", false),
            ("default-2", "default", false),
        ] {
            assert_eq!(names_class(asked, class), is_named, "{asked} {class}");
        }
    }

    #[test]
    fn every_part_has_a_name_that_can_be_asked_for() {
        let mut class = Class::named("bulk");
        class.divide = [1, 1000, 1500, 65_536, 1 << 40].map(ByteSize::from_bytes).into();
        for part in class.parts() {
            assert!(is_class_or_part_name(&part.name) && names_class("bulk", &part.name), "{}", part.name);
        }
    }
}
