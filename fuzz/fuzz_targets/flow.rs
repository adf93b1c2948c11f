//! The two halves of a flow between two NICs: no completion that the target has not acknowledged,
//! no wrong data, no atomic twice, and no hanging.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longhaul_fuzz::Script;
use longhaul_fuzz::flow::Flow;

fuzz_target!(|input: &[u8]| {
    let mut script = Script::new(input);
    let mut flow = Flow::new(&mut script);
    while !script.is_over() {
        flow.step(&mut script);
    }
    flow.finish();
});
