//! Classes that are divided by message size.

use super::bounds::Bounds;
use super::{Class, MAX_CLASSES, Placed};
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
