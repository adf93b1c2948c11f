//! Checks of the gateways as a whole: bounds, rest, and that garbage changes nothing.

use config::Policy;
use rand::RngExt;
use rand_pcg::Pcg64Mcg;
use reliability::mtu::PIECE_HEADER;
use reliability::stream::{self, Kind, UNCODED_HEADER};
use splice::{Gateway, PathStats, Stats};

use super::{Report, World};
use crate::sim::Broken;
use crate::sim::datagrams::Carried;
use crate::sim::flow::Atomics;
use crate::sim::program::Tally;
use crate::sim::site::Site;
use linksim::impair::LinkStats;

/// Bytes that both sides keep for reuse, or may take whatever the settings say.
const SPARE_PAGES: u64 = 2 << 20;

impl World {
    /// Both gateways' counters, and those of their streams.
    #[must_use]
    pub fn describe(&mut self) -> String {
        let mut text = String::new();
        let now = self.now;
        for site in &mut self.sites {
            let name = site.name();
            let Some(gateway) = &mut site.gateway else { continue };
            let classes: Vec<_> = gateway.classes().collect();
            let due = gateway.next_timeout(now).map(|at| at.saturating_duration_since(now));
            text += &format!("gateway {name}, timer due in {due:?}: {:#?}\n{classes:#?}\n", gateway.stats());
        }
        text
    }

    /// Returns what the gateway of a site knows of its lanes by now, and what their links were
    /// given; nothing without a session.
    #[must_use]
    pub fn lanes(&self, site: usize) -> Vec<(PathStats, LinkStats)> {
        let gateway = self.sites.get(site).and_then(|site| site.gateway.as_ref());
        let links = self.wan.get(site).into_iter().flatten().map(|link| *link.stats());
        gateway.into_iter().flat_map(|gateway| gateway.paths(self.now)).zip(links).collect()
    }

    /// Returns, for each connection, how many operations succeeded, and how many ended in an error.
    pub fn outcomes(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.programs.iter().map(|program| (program.tally.succeeded, program.tally.failed))
    }

    /// I5: what is held stays below its settings.
    pub(super) fn check_bounds(&mut self) -> Result<(), Broken> {
        for site in &mut self.sites {
            let (flows, buffer) = (site.settings().flows as u64, site.settings().total_buffer as u64);
            let Some(gateway) = &mut site.gateway else { continue };
            let stats = gateway.stats();
            let held = [
                ("near flows", stats.near_flows, flows),
                ("far flows", stats.far_flows, flows),
                ("unpaired flows", stats.unpaired_flows, 2 * flows),
                ("buffer bytes", stats.buffer_bytes, buffer),
                ("bytes to keep records in order", stats.reorder_bytes, buffer / 4 + SPARE_PAGES),
                ("timers", stats.timers, 4 * (stats.near_flows + stats.far_flows) + 256),
                ("packets for the LAN", stats.lan_queue, 32_768),
                ("remembered flows", stats.remembered, 131_072),
            ];
            for (what, held, most) in held {
                if held > most {
                    return Err(("I5", format!("{held} {what} at site {}, {most} at most", site.name())));
                }
            }
        }
        Ok(())
    }

    /// Checks what a site's gateway observed of the packet numbers, unless somebody played with
    /// them.
    pub(super) fn check_numbers(&self, site: usize) -> Result<(), Broken> {
        let gateway = self.sites.get(site).and_then(|site| site.gateway.as_ref());
        let (Some(gateway), Some(numbers)) = (gateway, self.numbers.get(site)) else { return Ok(()) };
        if self.scenario.garbage > 0.0 {
            return Ok(());
        }
        gateway.paths(self.now).try_for_each(|path| numbers.check(&path))
    }

    pub(super) fn report(&mut self) -> Result<Report, Broken> {
        (0..2).try_for_each(|site| self.check_numbers(site))?;
        let (tally, atomics, not_received) = self.tally()?;
        let gateways = self.check_rest()?;
        self.check_carried(&gateways)?;
        let duplicates = self
            .sites
            .each_ref()
            .map(|site| site.hosts.iter().map(|station| station.host.stats().duplicates).sum());
        let wan = self.wan.each_ref().map(|lanes| {
            lanes.iter().fold((0, 0), |(submitted, lost), lane| {
                (submitted + lane.stats().submitted, lost + lane.stats().lost)
            })
        });
        let of_gateways = self.sites.each_ref().map(|site| site.gateway.iter());
        Ok(Report {
            steps: self.steps,
            busy: self.finished.unwrap_or(self.now) - self.start,
            succeeded: tally.succeeded,
            failed: tally.failed,
            not_received,
            not_posted: tally.not_posted,
            gave_up: tally.gave_up,
            early: tally.early,
            lost: tally.lost,
            times: tally.times,
            atomics,
            mads: self.watch.carried.mads.1,
            duplicates,
            gateways,
            wan,
            paths: of_gateways.clone().map(|all| all.flat_map(|gateway| gateway.paths(self.now)).collect()),
            classes: of_gateways.map(|all| all.flat_map(Gateway::classes).collect()),
            policies_refused: self.sites.iter().map(|site| site.refused).sum(),
            benign: self.benign,
            outage: self.scenario.outage(),
            resumed: self.control.resumed(),
            reborn: self.control.reborn(),
            outlives: self.scenario.outlives_crashes(),
            retained_carried: self.sites.iter().map(Site::retained_carried).sum(),
            upgraded: self.watch.upgraded,
        })
    }

    /// I7: every program has come to its end. Returns how their operations ended, and how many met
    /// no receive.
    fn tally(&self) -> Result<(Tally, Atomics, u64), Broken> {
        let (mut tally, mut atomics, mut not_received) = (Tally::default(), Atomics::default(), 0);
        for program in &self.programs {
            if !program.is_over() {
                return Err(("I7", "nothing moves any more, and a program waits".to_owned()));
            }
            program.check_sealed(&self.sites)?;
            not_received += program.check_not_received()?;
            tally.succeeded += program.tally.succeeded;
            tally.failed += program.tally.failed;
            tally.not_posted += program.tally.not_posted;
            tally.gave_up += program.tally.gave_up;
            atomics += program.atomics();
            tally.early += program.tally.early;
            tally.lost += program.tally.lost;
            tally.times.extend(&program.tally.times);
        }
        let is_hidden = self.benign || self.scenario.outlives_crashes();
        if is_hidden && tally.failed + tally.not_posted + tally.gave_up + tally.lost > 0 {
            return Err(("I7", format!("nothing went wrong, and yet: {tally:?}")));
        }
        Ok((tally, atomics, not_received))
    }

    /// The gateways hold nothing any more. Returns their counters.
    fn check_rest(&mut self) -> Result<[Stats; 2], Broken> {
        let mut gateways = [Stats::default(), Stats::default()];
        for (site, into) in self.sites.iter_mut().zip(&mut gateways) {
            let name = site.name();
            let Some(gateway) = &mut site.gateway else { continue };
            let waiting: usize = gateway.classes().map(|class| class.backlog + class.in_flight).sum();
            let stats = gateway.stats();
            let left = [
                ("near flows", stats.near_flows),
                ("far flows", stats.far_flows),
                ("unpaired flows", stats.unpaired_flows),
                ("buffers", stats.buffers),
                ("buffer bytes", stats.buffer_bytes),
                ("bytes to keep records in order", stats.reorder_bytes_used),
                ("timers", stats.timers),
                ("packets for the LAN", stats.lan_queue),
                ("remembered flows", stats.remembered),
                ("bytes in streams", waiting as u64),
                ("streams of former classes", stats.draining_streams),
                ("malformed records", stats.bad_records),
            ];
            if let Some((what, count)) = left.into_iter().find(|(_, count)| *count > 0) {
                return Err(("rest", format!("{count} {what} at site {name}")));
            }
            *into = stats.clone();
        }
        Ok(gateways)
    }

    /// I8 and I6: what is carried came out, and only garbage was refused.
    fn check_carried(&self, gateways: &[Stats; 2]) -> Result<(), Broken> {
        let Carried { offered, emitted, mads: (taken, mads), .. } = &self.watch.carried;
        let dropped: u64 =
            gateways.iter().map(|stats| stats.lan_drops.iter().sum::<u64>() + stats.lan_queue_dropped).sum();
        if self.benign && *offered > emitted + dropped {
            let what =
                format!("{offered} datagrams came in, {emitted} came out, {dropped} packets were dropped");
            return Err(("I8", what));
        }
        if self.benign && taken != mads {
            return Err(("I8", format!("{taken} packets of connection management came in, {mads} came out")));
        }
        for (gateway, fed) in gateways.iter().zip(self.watch.garbage) {
            if gateway.bad_packets > fed {
                let what = format!("{} WAN packets were refused, {fed} of them garbage", gateway.bad_packets);
                return Err(("I6", what));
            }
        }
        Ok(())
    }
}

/// I9: a gateway has the policy that its site adopted last, and streams for each of its classes.
pub(super) fn check_policy(site: &Site) -> Result<(), Broken> {
    let Some(gateway) = &site.gateway else { return Ok(()) };
    let names = |policy: &Policy| policy.classes().iter().map(|class| class.name.clone()).collect::<Vec<_>>();
    let (adopted, counted) = (&site.settings().policy, gateway.classes().map(|class| class.name));
    if gateway.policy() != adopted || names(adopted) != counted.collect::<Vec<_>>() {
        return Err(("I9", format!("gateway {} has {:?}, not {adopted:?}", site.name(), gateway.policy())));
    }
    Ok(())
}

/// In the first byte of DATA and PARITY, whose streams' numbers are in that and in the next one.
const STREAMS: u8 = 0x80;

/// A packet that no gateway may take for one of its peer's.
pub(super) fn garbage(real: &[u8], rng: &mut Pcg64Mcg) -> Vec<u8> {
    let is_streams = real.first().is_some_and(|first| first & STREAMS != 0);
    match rng.random_range(0..3) {
        0 => {
            let mut bytes = vec![0; rng.random_range(0..200)];
            rng.fill(&mut bytes[..]);
            if let Some(kind) = bytes.first_mut() {
                *kind = *kind & !STREAMS | 8;
            }
            bytes
        }
        // Shorter than any packet's fixed part. A whole header would be a packet that carries
        // nothing, and the receiver would take the real one for its copy.
        1 => {
            let header = match stream::classify(real) {
                Ok((Kind::Piece, _)) => PIECE_HEADER,
                Ok((Kind::Data | Kind::Parity, _)) => UNCODED_HEADER,
                _ => 24,
            };
            real.iter().copied().take(rng.random_range(0..24).min(header - 1)).collect()
        }
        _ => {
            let mut bytes = real.to_vec();
            // A stream that nobody has.
            if let [first, second, ..] = &mut bytes[..]
                && is_streams
            {
                (*first, *second) = (*first | 3, *second | 0x80);
                return bytes;
            }
            let end = bytes.len().min(4);
            rng.fill(&mut bytes[1..end]);
            if let Some(stream) = bytes.get_mut(2) {
                *stream |= 0x80;
            }
            bytes
        }
    }
}

/// I6: a gateway that was fed garbage counted it as malformed, and nothing else changed.
pub(super) fn check_refused(before: &Stats, after: &Stats, garbage: &[u8]) -> Result<(), Broken> {
    let expected = Stats { bad_packets: before.bad_packets + 1, ..before.clone() };
    let [expected, after] = [expected, after.clone()].map(|stats| format!("{stats:?}"));
    if after == expected {
        return Ok(());
    }
    Err(("I6", format!("after {} bytes of garbage: {after}, not {expected}", garbage.len())))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rand::SeedableRng;
    use reliability::stream::{Receiver, ReceiverConfig, Sender, SenderConfig, StreamId};

    use super::*;

    /// Without a block, DATA has its shortest header: what is cut off it may be no packet.
    #[test]
    fn a_stream_takes_no_garbage_for_its_packet() {
        let (stream, now) = (StreamId(7), Instant::now());
        let mut sender = Sender::new(SenderConfig::new(stream, 1400), now);
        sender.push(&[b"record"], now).unwrap();
        let mut real = [0; 1400];
        let len = sender.poll_transmit(now, &mut real).unwrap().len;
        let mut receiver = Receiver::new(ReceiverConfig::new(stream, 1400), now);
        for seed in 0..1000 {
            let garbage = garbage(&real[..len], &mut Pcg64Mcg::seed_from_u64(seed));
            let taken = receiver.handle_packet(&garbage, now, &mut |_| {});
            assert!(taken.is_err(), "seed {seed}: {garbage:?}");
        }
    }
}
