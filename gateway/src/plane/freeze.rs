//! A worker that stands still, while another process may take over.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::mpsc;
use std::time::Instant;

use snapshot::{Beside, Written};
use tokio::sync::oneshot;

use super::{BUDGET, Observer, PeerSide, Ready, Worker};
use crate::lan::Lan;
use crate::wan::Bulk;

/// Rounds in which what has come by then is still taken in.
const LAST_ROUNDS: usize = 64;

/// The time between a worker's last packet and the word who goes on.
pub struct Freeze {
    /// Told when the thread stands still.
    pub frozen: oneshot::Sender<Frozen>,
    /// True: another process has taken over, and the thread ends. False, or no answer: it goes on.
    pub taken: mpsc::Receiver<bool>,
}

/// A worker that stands still.
pub struct Frozen {
    /// Since when.
    pub since: Instant,
    /// The state of each side.
    pub(crate) states: Result<Vec<FrozenSide>, String>,
    /// The parts in its site, if there are several gateways.
    pub sites: Result<Vec<Vec<u8>>, String>,
}

/// A side's peer and pair of threads, by their numbers, and its state.
pub(crate) type FrozenSide = ([u8; 2], Taken);

/// The state towards a peer, and the shared memory that it refers to.
pub(crate) type Taken = (Written, Option<Beside>);

/// Copies of a worker's sockets.
pub struct Lent {
    /// The LAN's, in socket mode.
    pub lan: Option<OwnedFd>,
    /// Those of bulk data: the one that receives, and the further lanes'.
    pub bulk: Vec<OwnedFd>,
    /// Bytes that wait.
    pub waiting: u64,
}

impl Lent {
    pub(super) fn of(bulk: &Bulk, lan: &Lan, waiting: u64) -> io::Result<Self> {
        let copy = |socket: BorrowedFd<'_>| socket.try_clone_to_owned();
        let lan = match lan {
            // Its sockets are copies of what passes, so the next process opens some of its own.
            Lan::Packet(_) => None,
            Lan::Socket(socket) => Some(copy(socket.fd())?),
        };
        Ok(Self { lan, bulk: bulk.sockets().map(copy).collect::<io::Result<_>>()?, waiting })
    }
}

impl<O: Observer> Worker<O> {
    /// Stands still until it is known who goes on. Returns true if this thread does.
    ///
    /// Without an answer it does: whoever would have answered has told nobody else to.
    pub(super) fn stand_still(&mut self, freeze: Freeze) -> bool {
        let now = Instant::now();
        self.members.iter_mut().for_each(|members| members.pause(now));
        // What this process has read from its sockets the next one does not find there.
        for _ in 0..LAST_ROUNDS {
            let came = self.receive(Ready::ALL, now);
            self.tend_members(now);
            self.send(now);
            if came.iter().all(|count| *count < BUDGET) {
                break;
            }
        }
        let state = |side: &mut PeerSide<O>| Ok(([side.number(), side.part().thread], side.snapshot(now)?));
        let states = self.peers.iter_mut().map(state).collect();
        let sites = self.members.as_ref().map_or(Ok(Vec::new()), |members| members.snapshot(now));
        let is_heard = freeze.frozen.send(Frozen { since: now, states, sites }).is_ok();
        let goes_on = !(is_heard && freeze.taken.recv().unwrap_or(false));
        if goes_on {
            self.members.iter_mut().for_each(|members| members.resume(now, Instant::now()));
        }
        goes_on
    }
}
