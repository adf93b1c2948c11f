//! Foreign text in lines: names, reasons, file contents that others wrote.
//!
//! A newline would begin a line that nobody logged, an escape sequence would be obeyed by a
//! terminal, and a blank could pass
//! for the end of a value.

use std::fmt::{self, Write};

/// Writes text that may contain blanks, such as an event's message, with what is not printable
/// escaped as in Rust.
pub(super) fn message(to: &mut impl Write, text: &str) -> fmt::Result {
    text.chars().try_for_each(|character| match character {
        '"' | '\'' | '\\' => to.write_char(character),
        other => write!(to, "{}", other.escape_debug()),
    })
}

/// Writes a field's value: bare if it is one word, else in quotes.
pub(super) fn value(to: &mut impl Write, text: &str) -> fmt::Result {
    if is_quoted(text) || is_word(text) {
        return message(to, text);
    }
    to.write_char('"')?;
    text.chars().try_for_each(|character| match character {
        '\'' => to.write_char(character),
        other => write!(to, "{}", other.escape_debug()),
    })?;
    to.write_char('"')
}

/// Text of several lines with everything escaped that is neither printable nor a newline, a tab or
/// a colour.
pub(super) fn text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let length = colour(rest).unwrap_or(0);
        let (taken, following) = rest.split_at(length.max(character.len_utf8()));
        // Writing to a String never fails.
        let _ = match character {
            _ if length > 0 => out.write_str(taken),
            '\n' | '\t' => out.write_char(character),
            _ => message(&mut out, taken),
        };
        rest = following;
    }
    out
}

/// The length of a colour sequence that the text begins with.
fn colour(text: &str) -> Option<usize> {
    let parameters = text.strip_prefix("\x1b[")?;
    let end = parameters.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    parameters.get(end..)?.starts_with('m').then_some(end + 3)
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control() || c == '"' || c == '=')
}

/// True for one string as `Debug` writes it, and for nothing that continues behind its end.
fn is_quoted(text: &str) -> bool {
    let Some(inner) = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) else { return false };
    let mut escaped = false;
    for character in inner.chars() {
        escaped = match character {
            _ if escaped => false,
            '\\' => true,
            '"' => return false,
            _ => false,
        };
    }
    !escaped
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(write: fn(&mut String, &str) -> fmt::Result, text: &str) -> String {
        let mut out = String::new();
        write(&mut out, text).unwrap();
        out
    }

    #[test]
    fn one_value_cannot_pass_for_several() {
        let shown = |text| written(value, text);
        assert_eq!(shown("10.0.0.1:14791"), "10.0.0.1:14791");
        assert_eq!(shown("\"a b\""), "\"a b\"");
        assert_eq!(shown("bye peer=b"), "\"bye peer=b\"");
        assert_eq!(shown("\"a\" peer=\"b\""), "\"\\\"a\\\" peer=\\\"b\\\"\"");
        assert_eq!(shown("\"a\\\""), "\"\\\"a\\\\\\\"\"");
        assert_eq!(shown("x\nINFO session up\u{1b}[2J"), "\"x\\nINFO session up\\u{1b}[2J\"");
        assert_eq!(shown(""), "\"\"");
        assert_eq!(shown("it's"), "it's");
    }

    #[test]
    fn a_block_keeps_lines_and_colours_and_nothing_else() {
        let shown = text("\x1b[31;1mred\x1b[0m\n\tline\x1b[2J\x07\r\u{9b}31m\u{202e}end\x1b[");
        assert_eq!(shown, "\x1b[31;1mred\x1b[0m\n\tline\\u{1b}[2J\\u{7}\\r\\u{9b}31m\\u{202e}end\\u{1b}[");
    }

    proptest! {
        #[test]
        fn nothing_foreign_reaches_a_terminal(text: String) {
            for shown in [written(message, &text), written(value, &text)] {
                prop_assert!(!shown.contains(|c: char| c.is_control()), "{shown:?}");
            }
            let shown = written(value, &text);
            prop_assert!(is_word(&shown) || is_quoted(&shown), "{shown:?}");
        }
    }
}
