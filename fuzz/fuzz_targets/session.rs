//! Control messages: a connection's bytes, cut anywhere, are read or end it, and what is written
//! reads back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longhaul_fuzz::{Script, within};
use session::message::{MAX_MESSAGE, Message, MessageError};

/// A pairing takes 48 bytes on the wire and 60 where it is kept; beside the message, the copy
/// that is written.
const BOUND: u64 = 8 * MAX_MESSAGE as u64;

fuzz_target!(|input: &[u8]| {
    let mut script = Script::new(input);
    let mend = script.u8() & 1 == 1;
    let mut bytes = script.rest().to_vec();
    if mend {
        // Without a right length no message is whole.
        let length = bytes.len().saturating_sub(4) as u32;
        bytes.iter_mut().zip(length.to_be_bytes()).for_each(|(byte, right)| *byte = right);
    }
    within(BOUND, "control messages", || read(&bytes));
});

fn read(mut bytes: &[u8]) {
    loop {
        match Message::decode(bytes) {
            Ok(Some((message, length))) => {
                assert!((5..=4 + MAX_MESSAGE).contains(&length) && length <= bytes.len());
                assert_eq!(Message::decode(&bytes[..length - 1]), Ok(None), "of a part");
                let mut again = Vec::new();
                message.encode(&mut again);
                assert_eq!(Message::decode(&again), Ok(Some((message, again.len()))));
                bytes = &bytes[length..];
            }
            Ok(None) => return,
            Err(error) => {
                let text = error.to_string();
                assert!(text.len() < 100 && !text.chars().any(char::is_control), "{text:?}");
                assert!(!matches!(error, MessageError::OutOfOrder(_)), "decoding knows no order");
                return;
            }
        }
    }
}
