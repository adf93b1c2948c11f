//! The data-plane threads, and the way to talk to all of them.

mod beginning;
mod standing;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use config::Policy;
use ipnet::IpNet;
use reliability::selector;
use session::OVERHEAD;
use session::control::Session;
use session::message::Pairing;
use splice::{SessionEnd, Settings, StaleFlow, Tuning, Undrained};
use tokio::sync::{oneshot, watch};

use super::RunError;
use super::chooser::ChooserThread;
use super::publisher::{Publisher, from_wire, to_tell};
use crate::cells::Cells;
use crate::choose::{Chooser, PathSnapshot};
use crate::lan::Lan;
use crate::lan::wake::{Waker, waker};
use crate::plane::{GoOn, Membership, Order, PeerAddress, PeerSide, Share, Worker};
use crate::retention::Retained;
use crate::steering::Part;
use crate::telemetry::Telemetry;
use crate::wan::Bulk;

pub(super) use beginning::Restored;
use beginning::{Begin, Beginning};

/// The resources that a thread owns besides its flows.
pub(super) struct WorkerResources {
    pub(super) part: Part,
    pub(super) lan: Lan,
    /// In the order of the gateway file, and a peer's in that of the pairs of threads.
    pub(super) peers: Vec<PeerResources>,
    /// Where a site has several gateways.
    pub(super) membership: Option<Membership>,
}

/// The resources that a thread owns for one peer, or for one thread there.
pub(super) struct PeerResources {
    pub(super) to: PeerAddress,
    /// The pair of threads.
    pub(super) part: Part,
    /// Settings of a gateway with one thread.
    pub(super) settings: Settings,
    pub(super) bulk: Bulk,
    pub(super) share: Share,
    /// Memory that outlives the process.
    pub(super) retained: Option<Retained>,
    pub(super) publisher: Publisher,
}

/// All data-plane threads, to watch and to end them.
pub(super) struct Threads(Vec<Thread>);

struct Thread {
    part: Part,
    /// A way to each of the thread's sides. While it is here, no peer's orders end early.
    sides: Vec<Side>,
    waker: Waker,
    /// The way to tell it what to begin with.
    begin: mpsc::Sender<Begin>,
    thread: JoinHandle<io::Result<()>>,
}

/// The way to a thread's side towards one peer, or one thread there.
#[derive(Clone)]
struct Side {
    /// The peer's number.
    peer: u8,
    /// The pair of threads.
    part: Part,
    orders: mpsc::Sender<Order>,
}

/// One peer's side in all data-plane threads, by pairs of threads. An order goes to each of them;
/// one that is answered is done when all have answered.
pub(super) struct Workers(Vec<WorkerThread>);

struct WorkerThread {
    part: Part,
    orders: mpsc::Sender<Order>,
    waker: Waker,
}

/// Answers of all threads, to come.
pub(super) struct Answers<T>(Vec<oneshot::Receiver<T>>);

impl<T> Answers<T> {
    /// Those of the threads that have not ended before.
    pub(super) async fn all(self) -> Vec<T> {
        let mut all = Vec::with_capacity(self.0.len());
        for answer in self.0 {
            all.extend(answer.await);
        }
        all
    }
}

impl Threads {
    /// Starts a thread for each of `resources`, which waits to be told what to begin with. Returns
    /// the way to each peer's side as well.
    pub(super) fn start(
        resources: Vec<WorkerResources>,
        busy_poll: Duration,
    ) -> Result<(Self, Vec<Workers>), RunError> {
        let mut threads = Self(Vec::new());
        let mut peers: Vec<Workers> = Vec::new();
        for resources in resources {
            match Thread::start(resources, busy_poll) {
                Ok(thread) => {
                    for Side { peer, part, orders } in thread.sides.iter().cloned() {
                        let place = usize::from(peer);
                        if peers.len() <= place {
                            peers.resize_with(place + 1, || Workers(Vec::new()));
                        }
                        let waker = thread.waker.clone();
                        if let Some(peer) = peers.get_mut(place) {
                            peer.0.push(WorkerThread { part, orders, waker });
                        }
                    }
                    threads.0.push(thread);
                }
                Err(error) => {
                    threads.0.iter().for_each(Thread::end);
                    return Err(error);
                }
            }
        }
        // As a session has its keys.
        peers.iter_mut().for_each(|peer| peer.0.sort_by_key(|worker| worker.part.thread));
        Ok((threads, peers))
    }

    /// Returns true if one has ended, which none does by itself.
    pub(super) fn has_ended(&self) -> bool {
        self.0.iter().any(|thread| thread.thread.is_finished())
    }

    pub(super) async fn stop(self) -> Result<(), RunError> {
        self.0.iter().for_each(Thread::end);
        for Thread { thread, .. } in self.0 {
            match tokio::task::spawn_blocking(move || thread.join()).await {
                Ok(Ok(Ok(()))) => {}
                Ok(Ok(Err(error))) => return Err(RunError::System(error)),
                Ok(Err(_)) | Err(_) => return Err(RunError::PlaneEnded),
            }
        }
        Ok(())
    }
}

impl Thread {
    fn start(resources: WorkerResources, busy_poll: Duration) -> Result<Self, RunError> {
        let (waker, wakeup) = waker().map_err(RunError::System)?;
        let WorkerResources { part, mut lan, mut peers, membership } = resources;
        let way = |peer: &PeerResources| {
            let (orders, receiver) = mpsc::channel();
            (Side { peer: peer.to.number, part: peer.part, orders }, receiver)
        };
        let (sides, receivers): (Vec<_>, Vec<_>) = peers.iter().map(way).unzip();
        let (begin, beginning) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name(format!("data-plane-{}", part.thread))
            .spawn(move || {
                let settings: Vec<_> = peers.iter().map(|peer| part_of(&peer.settings, peer.part)).collect();
                let to = peers.iter().map(|peer| peer.to.clone()).collect();
                let of = Beginning { settings: &settings, to, membership: membership.as_ref() };
                let Some((mut cores, members)) = of.begin(&beginning, &mut lan) else { return Ok(()) };
                for ((peer, core), settings) in peers.iter_mut().zip(&mut cores).zip(&settings) {
                    beginning::retain(core, peer.retained.take(), settings);
                }
                let side = |((peer, orders), core): ((PeerResources, _), _)| {
                    let PeerResources { to, part, bulk, share, publisher, .. } = peer;
                    PeerSide::new((to, part), core, bulk, share, orders, publisher)
                };
                let peers = peers.into_iter().zip(receivers).zip(cores).map(side).collect();
                let now = Instant::now();
                let worker = Worker::new(lan, peers, wakeup, now).with_busy_poll(busy_poll);
                worker.with_members(members).run()
            })
            .map_err(RunError::System)?;
        Ok(Self { part, sides, waker, begin, thread })
    }

    fn end(&self) {
        if let Some(side) = self.sides.first() {
            // Fails only when the thread has ended.
            let _ = side.orders.send(Order::Stop);
        }
        self.waker.wake();
    }
}

impl Workers {
    /// A session has begun. If the flows of the one before go on: how many of each thread's waited.
    pub(super) fn up(&self, session: Session) -> Answers<usize> {
        let Session { keys, peer, pairings, resumes, outlives } = session;
        let takes: Arc<[IpNet]> = peer.takes.into();
        let scope = match peer.address {
            SocketAddr::V6(address) => address.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        let remembered: Vec<StaleFlow> = pairings.iter().filter_map(from_wire).collect();
        let mut answers = Vec::new();
        for (thread, (sealer, opener)) in self.0.iter().zip(keys) {
            let resumes = (resumes || outlives).then(|| {
                let (waited, answer) = oneshot::channel();
                answers.push(answer);
                GoOn { outlive: outlives, waited }
            });
            let is_its = |flow: &&StaleFlow| thread.part.has(flow.requester, flow.target);
            thread.order(Order::Up {
                scope,
                keys: (Box::new(sealer), Box::new(opener)),
                rtt: peer.rtt,
                max_packet: usize::from(peer.max_datagram).saturating_sub(OVERHEAD),
                lanes: peer.lanes,
                takes: Arc::clone(&takes),
                begins_again: peer.begins_again,
                remembered: remembered.iter().filter(is_its).copied().collect(),
                resumes,
            });
        }
        Answers(answers)
    }

    /// The control connection is lost, and flows wait. Bulk data go on under the keys that there
    /// are, until none came for so long. `None`: the keys are used up. Returns the flows to tell
    /// the peer of, by thread, and how many have something under way.
    pub(super) async fn lost(&self, patience: Option<Duration>) -> (Vec<Arc<[Pairing]>>, usize) {
        let known = self.ask(|reply| Order::Lost(patience, reply)).all().await;
        let waiting = known.iter().map(|(_, waiting)| waiting).sum();
        (known.into_iter().map(|(known, _)| to_tell(known.into_iter())).collect(), waiting)
    }

    /// The session is over; what the peer should be told of its flows, by thread.
    pub(super) async fn down(&self, end: SessionEnd) -> Vec<Arc<[Pairing]>> {
        let known = self.ask(|reply| Order::Down(end, reply)).all().await;
        known.into_iter().map(|known: Vec<StaleFlow>| to_tell(known.into_iter())).collect()
    }

    /// Takes no new flow; whether nothing is on its way any more, or the deadline has come.
    pub(super) async fn drain(&self, deadline: Instant) -> bool {
        loop {
            let quiet = self.ask(|reply| Order::Drain(deadline, reply)).all().await;
            if self.0.len() == 1 || quiet.contains(&false) {
                return !quiet.contains(&false);
            }
            // One may have become busy again while another was waited for: all have to be quiet
            // when they are next looked at.
            let now = Instant::now();
            let still = self.ask(|reply| Order::Drain(now, reply)).all().await;
            if !still.contains(&false) {
                return true;
            }
        }
    }

    /// After [`Workers::down`]: answered when the programs here have been told that their flows are
    /// over, or at the deadline.
    pub(super) fn await_shutdown(&self, deadline: Instant) -> Answers<bool> {
        self.ask(|reply| Order::Part(deadline, reply))
    }

    /// Puts a policy in force on all threads, or on none and says why.
    pub(super) async fn adopt(&self, policy: Policy, cells: Cells) -> Result<(), String> {
        let (policy, cells) = (Arc::new(policy), Arc::new(cells));
        // Who would take it now does so a moment later, too: streams only become empty meanwhile.
        let considered = self.ask(|reply| Order::Consider(Arc::clone(&policy), reply)).all().await;
        self.judge(&considered)?;
        let adopt = |reply| Order::Policy(Arc::clone(&policy), Arc::clone(&cells), reply);
        let adopted = self.ask(adopt).all().await;
        self.judge(&adopted)
    }

    fn judge(&self, answers: &[Result<(), Undrained>]) -> Result<(), String> {
        if answers.len() < self.0.len() {
            return Err("the data plane has ended".to_owned());
        }
        match answers.iter().find_map(|answer| answer.as_ref().err()) {
            None => Ok(()),
            Some(undrained) => Err(format!("{undrained}; they empty themselves, so try again in a moment")),
        }
    }

    /// Starts the thread that chooses the schemes towards the peer.
    pub(super) fn choose(
        &self,
        sightings: Vec<watch::Receiver<PathSnapshot>>,
        telemetry: Arc<Telemetry>,
    ) -> Result<ChooserThread, RunError> {
        let threads: Vec<_> =
            self.0.iter().map(|thread| (thread.orders.clone(), thread.waker.clone())).collect();
        let order = move |policy: &Arc<Policy>, class, tuning: Tuning| {
            for (orders, waker) in &threads {
                let policy = Arc::clone(policy);
                // Fails only when the data plane has ended.
                let _ = orders.send(Order::Scheme { policy, class, tuning });
                waker.wake();
            }
        };
        let chooser = Chooser::new(selector::Config::default());
        ChooserThread::start(chooser, sightings, telemetry, order).map_err(RunError::System)
    }

    fn ask<T>(&self, order: impl Fn(oneshot::Sender<T>) -> Order) -> Answers<T> {
        let ask = |thread: &WorkerThread| {
            let (reply, answer) = oneshot::channel();
            thread.order(order(reply));
            answer
        };
        Answers(self.0.iter().map(ask).collect())
    }
}

impl WorkerThread {
    fn order(&self, order: Order) {
        // Fails only when the thread has ended, which the watchdog reports.
        let _ = self.orders.send(order);
        self.waker.wake();
    }
}

/// The threads, or pairs of them, share what there is for all flows. Any of them may be the only
/// one that sends, so the link is the same for each.
pub(super) fn part_of(settings: &Settings, part: Part) -> Settings {
    let total_buffer = part.of(settings.total_buffer);
    Settings {
        total_buffer,
        flow_buffer: settings.flow_buffer.map(|bytes| bytes.min(total_buffer)),
        flows: part.of(settings.flows).max(1),
        ..settings.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_together_have_what_one_has() {
        let whole = Settings {
            total_buffer: 64 << 20,
            flow_buffer: Some(32 << 20),
            flows: 1000,
            ..Settings::new(Vec::new(), 1_000_000_000, 1400)
        };
        for threads in [1, 3, 8] {
            let parts: Vec<_> = Part::all(threads).map(|part| part_of(&whole, part)).collect();
            assert!(parts.iter().map(|part| part.total_buffer).sum::<usize>() <= whole.total_buffer);
            assert!(parts.iter().map(|part| part.flows).sum::<usize>() <= whole.flows);
            assert!(parts.iter().all(|part| part.flow_buffer <= Some(part.total_buffer)));
            assert!(parts.iter().all(|part| part.rate == whole.rate));
        }
    }
}
