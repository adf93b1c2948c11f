//! No text makes the readers panic, and what they say always renders.

use std::path::Path;

use config::{Gateway, Invalid, Policy, Style};
use proptest::prelude::*;

const GATEWAY: &str = include_str!("../../../docs/examples/gateway-a.toml");
const POLICY: &str = include_str!("../../../docs/examples/policy.toml");

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn arbitrary_text(text in "\\PC*") {
        read(&text);
    }

    #[test]
    fn example_with_a_piece_replaced(
        policy: bool,
        start: prop::sample::Index,
        length in 0usize..40,
        piece in "[\\[\\]{}=\",.#\n0-9a-z \u{e9}-]{0,12}",
    ) {
        let original: Vec<char> = if policy { POLICY } else { GATEWAY }.chars().collect();
        let start = start.index(original.len());
        let end = (start + length).min(original.len());
        let mut text: String = original[..start].iter().collect();
        text.push_str(&piece);
        text.extend(&original[end..]);
        read(&text);
    }
}

fn read(text: &str) {
    let path = Path::new("x.toml");
    let outcomes = [Gateway::parse(path, text).err(), Policy::parse(path, text).err()];
    for invalid in outcomes.into_iter().flatten() {
        assert!(invalid.problems().iter().any(|problem| problem.is_error()));
        assert!(invalid.problems().iter().all(|problem| problem.position().is_some()), "{invalid}");
        let rendered = Invalid::render(&invalid, Style::Plain);
        assert!(invalid.problems().iter().all(|problem| rendered.contains(problem.message())), "{rendered}");
    }
}
