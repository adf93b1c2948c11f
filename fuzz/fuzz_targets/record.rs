//! Records of flows: whatever comes is read or refused, and what was read is written alike.
#![no_main]

use libfuzzer_sys::fuzz_target;
use splice::record::{Head, MAX_HEAD};

fuzz_target!(|input: &[u8]| {
    let Ok((head, body)) = Head::parse(input) else { return };
    let length = input.len() - body.len();
    assert!(length <= MAX_HEAD);
    let written = head.emit();
    assert_eq!(written.as_ref(), &input[..length]);
    for end in 0..length {
        assert!(Head::parse(&input[..end]).is_err());
    }
});
