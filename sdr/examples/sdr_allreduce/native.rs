//! The ring in real time: sealed UDP, a thread for each site, and a relay for each link.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sdr::layers::{Scheme, Timing};
use sdr::udp::now;
use sdr::{Mtu, QpAttr, Shape};

use crate::Result;
use crate::emulated::connected;
use crate::model::mean;
use crate::ring::{Ends, SITES, Site, around, schemes, text};

/// Numbers of a segment: 1 MiB.
const NUMBERS: usize = 1 << 17;
/// Pause between two looks of a site.
const PAUSE: Duration = Duration::from_micros(200);

/// Runs the ring once with each layer, at 1 Gbit/s, 25 ms and each loss.
pub(crate) fn native() -> Result<()> {
    let attr = QpAttr {
        chunk_log: 12,
        in_flight_log: 26,
        messages_log: 7,
        mtu: Mtu::B4096,
        rate: 1_000_000_000,
        ..QpAttr::default()
    };
    let (shape, bytes) = (Shape::new(&attr)?, NUMBERS as u64 * 8);
    println!(
        "{SITES} sites, segments of {bytes} bytes, {} bit/s, {:?}; contents are checked",
        attr.rate, attr.rtt
    );
    println!("The model is the least mean by the published formulas.");
    for drop in [1e-5, 1e-4, 1e-3, 1e-2] {
        for (name, scheme) in schemes(&attr, drop, bytes)? {
            let time = run(attr, &scheme, drop)?;
            let model = mean(&attr, &shape, &scheme, bytes, drop);
            println!(
                "drop {drop:.0e}  {name:10} {:10}  {:6.0} ms  model {:6.0} ms  sums right",
                text(&scheme),
                time.as_secs_f64() * 1e3,
                model * 1e3
            );
        }
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a program may rest between two looks")]
fn run(attr: QpAttr, scheme: &Scheme, drop: f64) -> Result<Duration> {
    let (mut near, mut far, mut links) = (Vec::new(), Vec::new(), Vec::new());
    for seed in 0..SITES as u64 {
        let (a, b, relay) = connected(attr, drop, seed)?;
        near.push((a.send, a.receive, a.control));
        far.push((b.send, b.receive, b.control));
        links.push((a.link, b.link, relay));
    }
    let idle = Arc::new(AtomicUsize::new(0));
    let start = now();
    let mut threads = Vec::new();
    for (index, ((send, _, to_next), (_, receive, from_last))) in around(near, far).enumerate() {
        let (Some(send), Some(receive)) = (send, receive) else {
            return Err("one direction only".into());
        };
        let timing = Timing::new(attr.rtt, attr.rate);
        let ends = Ends { send, to_next, receive, from_last };
        let mut site = Site::new((index, SITES), NUMBERS, scheme, timing, ends, start)?;
        let idle = Arc::clone(&idle);
        threads.push(std::thread::spawn(move || {
            let mut is_counted = false;
            while idle.load(Ordering::Relaxed) < SITES {
                if let Err(error) = site.poll(now()) {
                    return Err(error.to_string());
                }
                if !is_counted && site.done_at().is_some() && site.is_idle() {
                    is_counted = true;
                    idle.fetch_add(1, Ordering::Relaxed);
                }
                std::thread::sleep(PAUSE);
            }
            if site.is_right() { Ok(site.done_at()) } else { Err("wrong sums".into()) }
        }));
    }
    let mut last = start;
    for thread in threads {
        let done = thread.join().map_err(|_| "a site panicked")??;
        last = last.max(done.unwrap_or(start));
    }
    std::mem::drop(links);
    Ok(last - start)
}
