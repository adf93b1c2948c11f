//! Records of flows: whatever comes is read or refused, and what was read is written alike.
#![no_main]

use libfuzzer_sys::fuzz_target;
use splice::record::{Head, MAX_HEAD};

fuzz_target!(|input: &[u8]| {
    let Ok((head, body)) = Head::parse(input) else { return };
    let length = input.len() - body.len();
    assert!(length <= MAX_HEAD);
    let mut read = input[..length].to_vec();
    // docs/protocol.md#rule-record-type: flags that the type has not are ignored.
    read[0] &= match head {
        Head::Request { .. } => 0xff,
        Head::Response { .. } => 0x8f,
        _ => 0x0f,
    };
    assert_eq!(head.emit().as_ref(), read);
    for end in 0..length {
        assert!(Head::parse(&input[..end]).is_err());
    }
});
