//! The beginning of data-plane threads: without flows, or with those of another process.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use splice::retention::{Age, Found, Retention};
use splice::{Gateway, SessionEnd, Settings};
use tracing::{info, warn};

use super::super::RunError;
use super::{Thread, Threads};
use crate::lan::{Lan, MAX_PACKET};
use crate::plane::{Membership, Parts, PeerAddress};
use crate::retention::{Retained, uptime};
use crate::upgrade::{NotTaken, Part, SitePart};

/// Rounds in which a thread forgets what has come.
const ROUNDS: usize = 64;
/// Packets of a round.
const BUDGET: usize = 4096;

/// The beginning of a thread.
pub(super) enum Begin {
    /// No flows.
    Anew,
    /// Not yet: forget what has come by now, which another process has carried.
    Prepare(mpsc::Sender<()>),
    /// Not yet: read the state towards each peer; for each, if its session holds it. Beside it the
    /// parts among gateways of a site.
    Restore(Vec<(Part, bool)>, Vec<SitePart>, mpsc::Sender<Result<Restored, String>>),
    /// The flows that were read.
    GoOn,
}

/// The extent of the flows that were read.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::run) struct Restored {
    /// Flows of both sides.
    pub(in crate::run) flows: u64,
    /// Bytes of packets that wait.
    pub(in crate::run) bytes: u64,
}

/// The settings that a thread is told before it begins.
pub(super) struct Beginning<'a> {
    /// Its part of the settings towards each peer.
    pub(super) settings: &'a [Settings],
    pub(super) to: Vec<PeerAddress>,
    pub(super) membership: Option<&'a Membership>,
}

/// The beginning of a thread: flows towards each peer, and its part among gateways of a site.
type Begun = (Vec<Gateway>, Option<Parts>);

impl Beginning<'_> {
    /// Waits until it is known what a thread begins with. `None`: it does not.
    pub(super) fn begin(&self, begin: &mpsc::Receiver<Begin>, lan: &mut Lan) -> Option<Begun> {
        let mut read = None;
        loop {
            match begin.recv().ok()? {
                Begin::Anew => return Some(self.anew(Instant::now())),
                Begin::Prepare(reply) => {
                    forget(lan);
                    // Nobody may care to know any more; then the thread ends next.
                    let _ = reply.send(());
                }
                Begin::Restore(parts, sites, reply) => {
                    let then = parts.iter().map(|(part, _)| part.then).min();
                    let answer = self.restore(parts, &sites).map(|(mut cores, members)| {
                        let restored = Restored::of(&mut cores);
                        read = Some(((cores, members), then));
                        restored
                    });
                    let _ = reply.send(answer);
                }
                Begin::GoOn => return read.map(|(begun, then)| go_on(begun, then)),
            }
        }
    }

    fn anew(&self, now: Instant) -> Begun {
        let cores = self.settings.iter().map(|settings| Gateway::new(settings.clone(), now)).collect();
        (cores, self.membership.map(|me| Parts::new(me, &self.to, now)))
    }

    fn restore(&self, parts: Vec<(Part, bool)>, sites: &[SitePart]) -> Result<Begun, String> {
        let restore = |me| Parts::restore(me, &self.to, sites).map_err(|refused| refused.to_string());
        let members = self.membership.map(restore).transpose()?;
        Ok((restore_cores(self.settings, parts)?, members))
    }
}

/// Since then neither process has run.
fn go_on((mut cores, mut members): Begun, then: Option<Instant>) -> Begun {
    let now = Instant::now();
    let pause = then.map_or(Duration::ZERO, |then| now.saturating_duration_since(then));
    cores.iter_mut().for_each(|core| core.excuse_pause(pause, now));
    members.iter_mut().for_each(|members| members.resume(then.unwrap_or(now), now));
    (cores, members)
}

/// Has a core retain what is to outlive this process, beginning with what the one before it did.
/// What that retained longer ago than flows are remembered is nobody's any more.
pub(super) fn retain(core: &mut Gateway, retained: Option<Retained>, settings: &Settings) {
    let Some(retained) = retained else { return };
    let now = Instant::now();
    let until = now + settings.idle_flow.max(settings.linger);
    let longest = settings.lan_mtu.min(MAX_PACKET);
    let age = |then| age(then, uptime(), settings.linger);
    let file = retained.name().to_owned();
    let retention = Retention::new(Box::new(retained), longest, until, age);
    let found = retention.found();
    if found.wrong().is_some() {
        warn!(
            file,
            %found,
            expected = retention.expected(),
            why = changed(found),
            "what stands so in this file is forgotten: flows that need it end in an error"
        );
    }
    if retention.used() > 0 {
        let requests = retention.used();
        info!(file, requests, "requests that the process before retained go on where targets lack them");
    }
    core.retain(retention);
}

/// Returns what an operator has changed if memory is cut otherwise than this process cuts it.
fn changed(found: Found) -> Option<&'static str> {
    let is_cut = matches!(found, Found::Cut { .. });
    is_cut.then_some(
        "lan.mtu, limits.total_buffer, retention.size, data_plane.threads or peer.threads was changed",
    )
}

/// Judges what was noted at `then`, if nothing older than `most` matters. All in milliseconds of a
/// clock that does not go back: a time to come is another machine's, or damage.
fn age(then: u64, now: u64, most: Duration) -> Age {
    match now.checked_sub(then) {
        Some(age) if Duration::from_millis(age) <= most => Age::Recent,
        Some(_) => Age::Old,
        None => Age::ToCome,
    }
}

/// Another socket's packets are the other process's still.
fn forget(lan: &mut Lan) {
    let Lan::Packet(packet) = lan else { return };
    for _ in 0..ROUNDS {
        if packet.receive(BUDGET, &mut |_| {}).unwrap_or(0) < BUDGET {
            return;
        }
    }
}

fn restore_cores(settings: &[Settings], mut parts: Vec<(Part, bool)>) -> Result<Vec<Gateway>, String> {
    parts.sort_by_key(|(part, _)| (part.peer, part.thread));
    let restore = |(settings, (part, is_held)): (&Settings, (Part, bool))| {
        let segments = part.room().map_or(&[][..], |room| room.segments());
        let core = Gateway::restore_beside(settings.clone(), part.snapshot(), segments, part.then);
        let mut core = core.map_err(|refused| refused.to_string())?;
        if core.is_parked() && !is_held {
            core.session_down(SessionEnd::Lost, Instant::now());
        }
        Ok(core)
    };
    settings.iter().zip(parts).map(restore).collect()
}

impl Restored {
    fn of(cores: &mut [Gateway]) -> Self {
        cores.iter_mut().map(Gateway::stats).fold(Self::default(), |sum, stats| Self {
            flows: sum.flows + stats.near_flows + stats.far_flows,
            bytes: sum.bytes + stats.buffer_bytes,
        })
    }
}

impl Threads {
    /// Has the threads begin without flows.
    pub(in crate::run) fn begin_anew(&self) -> Result<(), RunError> {
        self.0.iter().try_for_each(|thread| thread.begin(Begin::Anew))
    }

    /// Has the threads forget what has come by now: another process has carried it.
    pub(in crate::run) fn prepare(&self) -> Result<(), RunError> {
        self.0.iter().try_for_each(|thread| {
            let (reply, answer) = mpsc::channel();
            thread.begin(Begin::Prepare(reply))?;
            answer.recv().map_err(|_| RunError::PlaneEnded)
        })
    }

    /// Has the threads read another process's flows, all at once. `held`: for each peer, if its
    /// session holds them.
    pub(in crate::run) fn restore(
        &self,
        (parts, sites): (Vec<Part>, Vec<SitePart>),
        held: &[bool],
    ) -> Result<Restored, RunError> {
        let mut sites_by_thread: Vec<Vec<_>> = self.0.iter().map(|_| Vec::new()).collect();
        for site in sites {
            if let Some(sites) = sites_by_thread.get_mut(usize::from(site.thread)) {
                sites.push(site);
            }
        }
        let mut by_thread: Vec<Vec<_>> = self.0.iter().map(|_| Vec::new()).collect();
        for part in parts {
            let is_held = held.get(usize::from(part.peer)).copied().unwrap_or(false);
            // A pair's number tells the thread here.
            let thread = usize::from(part.thread) % by_thread.len().max(1);
            if let Some(parts) = by_thread.get_mut(thread) {
                parts.push((part, is_held));
            }
        }
        let mut answers = Vec::new();
        for ((thread, parts), sites) in self.0.iter().zip(by_thread).zip(sites_by_thread) {
            let (reply, answer) = mpsc::channel();
            thread.begin(Begin::Restore(parts, sites, reply))?;
            answers.push(answer);
        }
        answers.into_iter().try_fold(Restored::default(), |sum, answer| {
            let Restored { flows, bytes } =
                answer.recv().map_err(|_| RunError::PlaneEnded)?.map_err(NotTaken::State)?;
            Ok(Restored { flows: sum.flows + flows, bytes: sum.bytes + bytes })
        })
    }

    /// Has the threads go on with what they have read.
    pub(in crate::run) fn go_on(&self) -> Result<(), RunError> {
        self.0.iter().try_for_each(|thread| thread.begin(Begin::GoOn))
    }
}

impl Thread {
    fn begin(&self, begin: Begin) -> Result<(), RunError> {
        self.begin.send(begin).map_err(|_| RunError::PlaneEnded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_to_come_is_not_recent() {
        let ages = |then| age(then, 100_000, Duration::from_secs(30));
        assert_eq!(
            [69_999, 70_000, 100_000, 100_001, u64::MAX].map(ages),
            [Age::Old, Age::Recent, Age::Recent, Age::ToCome, Age::ToCome]
        );
    }
}
