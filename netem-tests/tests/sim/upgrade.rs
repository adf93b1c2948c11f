//! Gateways that come to rest, end and begin anew under load.

use std::time::Duration;

use netem_tests::host::QpConfig;
use netem_tests::sim::{Connection, Fault, Op, Work, World};
use roce::wire::Psn;

use super::clean;

/// Twenty in a row, of either side in turn, while programs send, read and count in both directions
/// over a link that loses packets. No operation fails, and the world checks the contents.
#[test]
fn twenty_upgrades_in_a_row_end_no_flow() {
    for seed in 1..=3 {
        let ops = [Op::Write(60_000, None), Op::Send(3000, Some(7)), Op::Read(20_000), Op::FetchAdd(1)];
        let work =
            Work { ops: ops.repeat(100), depth: 8, think: Duration::from_millis(100), ..Work::default() };
        let mut scenario = clean(&[work.clone(), work], Duration::ZERO, 1);
        scenario.seed = seed;
        scenario.wan = ["delay 5ms loss 1% rate 2gbit".parse().unwrap(); 2];
        // Eight times half a second.
        let qp = QpConfig { timeout: Some(Duration::from_millis(500)), ..QpConfig::default() };
        let connection = |number: u32| {
            let mut connection = Connection { qp, ..scenario.connections[0].clone() };
            // As NCCL does, or at random.
            let psn = if seed == 1 { 0 } else { number * 12_345_678 };
            connection.lives[0].psn = [Psn::new(psn & 0xff_ffff), Psn::new((psn * 3) & 0xff_ffff)];
            connection
        };
        scenario.connections = (0..4).map(connection).collect();
        scenario.faults = (0..20_u32)
            .map(|step| {
                let upgrade = Fault::Upgrade { site: step as usize % 2, down: Duration::from_millis(300) };
                (Duration::from_millis(500) + Duration::from_millis(2500) * step, upgrade)
            })
            .collect();
        let report = World::new(scenario).unwrap().run().unwrap();
        assert_eq!((report.succeeded, report.failed, report.gave_up), (4 * 2 * 400, 0, 0), "seed {seed}");
        assert_eq!(report.atomics.executed, 4 * 2 * 100, "seed {seed}");
        let longest = report.times.iter().max().unwrap();
        println!("seed {seed}: {} upgrades within {:?}, longest {longest:?}", report.upgraded, report.busy);
        assert!(report.upgraded >= 15, "seed {seed}: {}", report.upgraded);
    }
}
