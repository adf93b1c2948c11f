//! Congestion control at one bottleneck, packet by packet: alone, among themselves, and with TCP.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test may fail")]

mod bottleneck;

use std::time::Duration;

use bottleneck::{Adaptive, Bbr, Cubic, Link, Measured, World};

const MS: Duration = Duration::from_millis(1);
const RATE: f64 = 1e8;

fn link(rtt: u32, buffer: f64, loss: f64) -> Link {
    Link { rate: RATE, rtt: rtt * MS, buffer, loss, ecn: None }
}

fn session(link: &Link) -> Adaptive {
    Adaptive::new(2.0 * RATE, 50 * MS, link.ecn.is_some())
}

fn show(case: &str, link: &Link, measured: &Measured) {
    let shares: Vec<_> = measured.shares.iter().map(|share| format!("{share:.3}")).collect();
    println!(
        "| {case} | {} ms | {} | {} | {} | {:.3} | {:.3} | {:.3} | {:.4} |",
        link.rtt.as_millis(),
        link.buffer,
        link.loss,
        shares.join(" "),
        measured.total(),
        measured.standing,
        measured.mean,
        measured.dropped
    );
}

fn cases(rtts: &[u32], buffers: &[f64], losses: &[f64], mut run: impl FnMut(Link)) {
    for rtt in rtts {
        for buffer in buffers {
            for loss in losses {
                // CASE="25 4 0" has one of them only; TRACE=1 shows it round trip by round trip.
                let case = format!("{rtt} {buffer} {loss}");
                if std::env::var("CASE").is_ok_and(|only| only != case) {
                    continue;
                }
                run(link(*rtt, *buffer, *loss));
            }
        }
    }
}

#[test]
fn alone() {
    cases(&[10, 25, 100], &[0.5, 1.0, 4.0], &[0.0, 1e-2, 5e-2], |link| {
        let mut world = World::new(link, 1);
        world.add(session(&link));
        world.run_for(60 * link.rtt);
        world.measure();
        world.run_for(300 * link.rtt);
        let measured = world.measured();
        show("alone", &link, &measured);
    });
}

#[test]
fn two() {
    cases(&[10, 25, 100], &[0.5, 1.0, 4.0], &[0.0, 1e-2], |link| {
        let mut world = World::new(link, 1);
        world.add(session(&link));
        world.run_for(100 * link.rtt + 7 * MS);
        world.add(session(&link));
        world.run_for(200 * link.rtt);
        world.measure();
        world.run_for((400 * link.rtt).max(Duration::from_secs(20)));
        let measured = world.measured();
        show("two", &link, &measured);
    });
}

#[test]
fn with_cubic() {
    cases(&[10, 25, 100], &[0.5, 1.0, 4.0], &[0.0], |link| {
        let mut world = World::new(link, 1);
        world.add(Cubic::new());
        world.run_for(100 * link.rtt);
        world.add(session(&link));
        world.run_for(Duration::from_secs(30));
        world.measure();
        world.run_for(Duration::from_secs(90));
        let measured = world.measured();
        show("cubic, longhaul", &link, &measured);
    });
}

#[test]
fn with_bbr() {
    cases(&[10, 25, 100], &[0.5, 1.0, 4.0], &[0.0], |link| {
        let mut world = World::new(link, 1);
        world.add(Bbr::new());
        world.run_for(100 * link.rtt);
        world.add(session(&link));
        world.run_for(Duration::from_secs(30));
        world.measure();
        world.run_for(Duration::from_secs(90));
        let measured = world.measured();
        show("bbr, longhaul", &link, &measured);
    });
}

#[test]
fn tcp_alone() {
    cases(&[25], &[0.5, 1.0, 4.0], &[0.0], |link| {
        for which in 0..3 {
            let mut world = World::new(link, 1);
            if which != 1 {
                world.add(Cubic::new());
            }
            if which != 0 {
                world.add(Bbr::new());
            }
            world.run_for(Duration::from_secs(20));
            world.measure();
            world.run_for(Duration::from_secs(60));
            show(["cubic", "bbr", "cubic, bbr"][which], &link, &world.measured());
        }
    });
}
