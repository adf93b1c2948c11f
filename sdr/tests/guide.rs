//! The guide shows the examples as they are, and they are short.

use std::path::Path;

#[test]
fn the_guide_shows_the_examples_in_sixty_lines_each() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let guide = read("docs/sdr.md");
    for example in ["sdr/examples/partial.rs", "sdr-c/examples/partial.c"] {
        let text = read(example);
        assert!(guide.contains(&text), "docs/sdr.md does not show {example} as it is");
        assert!(text.lines().count() <= 60, "{example} is too long");
    }
}
