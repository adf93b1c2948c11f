//! Processes that take the place of others.

use std::path::Path;
use std::time::{Duration, Instant};

use splice::retention::{Age, Memory, Retention};
use splice::site::Site;
use splice::{Gateway, Settings};

use super::{ALL, LONGEST, Node, World, member, place, settings};
use crate::traffic::Traffic;

/// A core's snapshot, and what it retained.
type Core = (Vec<u8>, Option<Box<dyn Memory>>);

/// A process that is about to take another one's place.
pub(crate) struct Heir {
    node: usize,
    /// The tick at which the one before closes its sessions, unless that is over.
    closes: Option<u64>,
    /// The tick at which it goes on.
    at: u64,
    then: Instant,
    incarnation: u64,
    /// By place.
    cores: Vec<Core>,
    site: Vec<u8>,
}

/// Ticks that a process stands still before its sessions end: it writes its state meanwhile.
const CLOSES: u64 = 10;

impl World {
    /// Another process takes a gateway's place: it goes on after so many ticks. Until then nothing
    /// is taken or said.
    pub(crate) fn upgrade(&mut self, node: usize, ticks: u64) {
        let then = self.now();
        if let Some(process) = &mut self.nodes[node] {
            process.site.pause(then);
        }
        self.flush(node);
        let Some(Node { mut cores, site, incarnation }) = self.nodes[node].take() else { return };
        let written = site.snapshot(then).unwrap();
        let cores = cores
            .iter_mut()
            .map(|core| {
                let kept = core.snapshot(then).unwrap();
                (kept, core.take_retention().map(Retention::into_memory))
            })
            .collect();
        let (closes, at) = (Some(self.tick + CLOSES), self.tick + CLOSES + ticks);
        self.heirs.push(Heir { node, closes, at, then, incarnation, cores, site: written });
    }

    /// A process that ends closes its sessions.
    fn close_sessions(&mut self, node: usize) {
        for other in (0..ALL).filter(|other| *other != node) {
            let ends = [node.min(other), node.max(other)];
            let Some(session) = self.sessions.get_mut(&(ends[0], ends[1])) else { continue };
            if std::mem::take(&mut session.is_up) {
                let known = session.lives;
                self.lose(ends, known);
            }
        }
    }

    /// Those whose time has come go on.
    pub(crate) fn go_on(&mut self) {
        let now = self.now();
        let tick = self.tick;
        let mut closing = Vec::new();
        for heir in &mut self.heirs {
            closing.extend(heir.closes.take_if(|at| *at <= tick).map(|_| heir.node));
        }
        closing.into_iter().for_each(|node| self.close_sessions(node));
        let (due, later) = std::mem::take(&mut self.heirs).into_iter().partition(|heir| heir.at <= tick);
        self.heirs = later;
        for heir in due {
            let Heir { node, then, incarnation, .. } = heir;
            let mut site = Site::restore(self.config(node, 0), &heir.site, then).unwrap();
            assert!(site.snapshot(then).unwrap() == heir.site, "written otherwise than it was read");
            site.resume(then, now);
            let others = (0..ALL).filter(|other| *other != node);
            let cores = others.zip(heir.cores).map(|(other, (kept, memory))| {
                assert_eq!(place(node, other), if other > node { other - 1 } else { other });
                restore(settings(node, other), &kept, memory, (then, now))
            });
            self.nodes[node] = Some(Node { cores: cores.collect(), site, incarnation });
        }
    }
}

fn restore(
    settings: Settings,
    kept: &[u8],
    memory: Option<Box<dyn Memory>>,
    (then, now): (Instant, Instant),
) -> Gateway {
    let until = now + settings.idle_flow.max(settings.linger);
    let mut core = Gateway::restore(settings, kept, then).unwrap();
    if let Some(memory) = memory {
        core.retain(Retention::new(memory, LONGEST, until, |_| Age::Recent));
    }
    core.excuse_pause(now.saturating_duration_since(then), now);
    core
}

/// A member whose neighbour has died while all worked, so that some of its pairs of hosts are its
/// own since long, some move to it, and some have agreed on terms of which the peers have yet to
/// hear.
fn moving_member() -> World {
    let mut world = World::new(11, Traffic::new(20_000, 3), 100);
    world.run(Duration::from_secs(5));
    world.kill(1);
    world.run(Duration::from_millis(1800));
    world
}

/// The file of version 1 is read as it was meant. If what is written changes, the version rises
/// with it (`VERSION` in `splice/src/site/kept.rs`), and this file stays here.
#[test]
fn a_members_part_of_version_1_is_read_and_written_alike() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/members/snapshots/1");
    let mut world = moving_member();
    let now = world.now();
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        let site = &world.nodes[0].as_ref().unwrap().site;
        std::fs::write(&file, site.snapshot(now).unwrap()).unwrap();
    }
    let kept = std::fs::read(&file).unwrap();
    let restore = |world: &World, kept: &[u8]| Site::restore(world.config(0, 0), kept, now);
    let mut site = restore(&world, &kept).unwrap();
    assert!(site.snapshot(now).unwrap() == kept, "written otherwise than it was read");
    let spoken = site.take_spoken(now);
    assert_eq!((spoken.pairs, site.live(now).collect::<Vec<_>>()), (2, vec![member(0)]), "{spoken:?}");
    // Another site, and whatever changes on the way.
    world.pairs = 1;
    assert!(restore(&world, &kept).is_err_and(|refused| refused.to_string().contains("limits.flows")));
    world.pairs = 100;
    assert!(Site::restore(world.config(1, 0), &kept, now).is_err());
    for place in 0..kept.len() {
        let mut changed = kept.clone();
        changed[place] ^= 1;
        assert!(restore(&world, &changed).is_err(), "byte {place}");
    }
}
