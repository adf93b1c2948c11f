//! Trace files: any text is read or refused with its line, and what is written reads back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use reliability::trace::{Entry, Run, Trace, Writer};

fuzz_target!(|text: &str| {
    let trace = match Trace::parse(text) {
        Ok(trace) => trace,
        Err(wrong) => {
            assert!(wrong.line >= 1 && wrong.line <= text.lines().count() + 1);
            assert!(wrong.to_string().len() <= 1000, "{wrong}");
            return;
        }
    };
    let mut writer = Writer::new(String::new(), &trace.header).expect("a string takes it");
    trace.entries.iter().for_each(|entry| writer.push(*entry).expect("a string takes it"));
    let written = writer.finish().expect("a string takes it");
    let again = Trace::parse(&written).expect("what was written can be read");
    assert_eq!(again.header.start, trace.header.start);
    let lost = |trace: &Trace| trace.totals().lost;
    assert_eq!((lost(&again), breaks(&again)), (lost(&trace), breaks(&trace)));
    let totals: u128 = arrived(&trace).sum();
    if totals <= u128::from(u64::MAX) {
        assert_eq!(arrived(&again).sum::<u128>(), totals);
    }
});

fn breaks(trace: &Trace) -> usize {
    trace.entries.iter().filter(|entry| **entry == Entry::Break).count()
}

fn arrived(trace: &Trace) -> impl Iterator<Item = u128> {
    trace.entries.iter().map(|entry| match entry {
        Entry::Run(Run { arrived, .. }) => u128::from(*arrived),
        Entry::Break => 0,
    })
}
