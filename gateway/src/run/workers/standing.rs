//! Data-plane threads that stand still, while another process may take over.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::time::Instant;

use tokio::sync::oneshot;

use super::{Answers, Side, Threads};
use crate::lan::wake::Waker;
use crate::plane::{Ahead, Freeze, Frozen, Lent, Order};
use crate::upgrade::{COPY, Offer, Place, Waiting};

/// Threads and peers that are told of as having something waiting, those with most.
const MOST_ROOMS: usize = 500;

/// The way to have all threads copy packets ahead, for whoever waits for that.
pub(in crate::run) struct Copier(Vec<(Vec<Side>, Waker)>);

impl Copier {
    /// Has packets copied, and waits until that is done, or for [`COPY`].
    pub(in crate::run) fn copy(&self, offers: Vec<Offer>) {
        let deadline = Instant::now() + COPY;
        let (done, is_done) = mpsc::channel();
        let mut awaited = 0;
        for Offer { extent, beside, alive } in offers {
            let is_its = |side: &&Side| (side.peer, side.part.thread) == (extent.peer, extent.thread);
            let to = self.0.iter().find_map(|(sides, waker)| Some((sides.iter().find(is_its)?, waker)));
            let Some((side, waker)) = to else { continue };
            // Fails only when the thread has ended.
            let _ = side.orders.send(Order::CopyAhead(Box::new(Ahead { beside, done: done.clone(), alive })));
            waker.wake();
            awaited += 1;
        }
        for _ in 0..awaited {
            if is_done.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_err() {
                return;
            }
        }
    }
}

impl Threads {
    /// Copies of the sockets that another process may go on with, and the bytes that wait.
    pub(in crate::run) async fn lend(&self) -> io::Result<(Vec<(Place, OwnedFd)>, Vec<Waiting>)> {
        let (mut sockets, mut all_waiting) = (Vec::new(), Vec::new());
        for thread in &self.0 {
            for (nth, Side { peer, part, orders }) in thread.sides.iter().enumerate() {
                let (reply, answer) = oneshot::channel();
                // Fails only when the thread has ended.
                let _ = orders.send(Order::Lend(reply));
                thread.waker.wake();
                let Lent { lan, bulk, waiting } = answer.await.map_err(|_| io::ErrorKind::NotConnected)??;
                let (peer, at) = (*peer, part.thread);
                all_waiting.push(Waiting { thread: at, peer, bytes: waiting });
                let lan = lan.filter(|_| nth == 0).map(|socket| (Place::Lan(thread.part.thread), socket));
                sockets.extend(lan);
                let bulk = (0..).zip(bulk);
                sockets.extend(bulk.map(|(nth, socket)| (Place::Bulk(peer, at, nth), socket)));
            }
        }
        // The text that tells of them is bounded.
        all_waiting.sort_by_key(|waiting| std::cmp::Reverse(waiting.bytes));
        all_waiting.truncate(MOST_ROOMS);
        Ok((sockets, all_waiting))
    }

    /// The way to have packets copied ahead.
    pub(in crate::run) fn copier(&self) -> Copier {
        let way = |thread: &super::Thread| (thread.sides.clone(), thread.waker.clone());
        Copier(self.0.iter().map(way).collect())
    }

    /// Has all threads stand still until each is told who goes on.
    pub(in crate::run) fn freeze(&self) -> (Vec<mpsc::Sender<bool>>, Answers<Frozen>) {
        let freeze = |thread: &super::Thread| {
            let (frozen, state) = oneshot::channel();
            let (verdict, taken) = mpsc::channel();
            if let Some(side) = thread.sides.first() {
                // Fails only when the thread has ended, which shows in the missing answer.
                let _ = side.orders.send(Order::Freeze(Freeze { frozen, taken }));
            }
            thread.waker.wake();
            (verdict, state)
        };
        let (verdicts, states) = self.0.iter().map(freeze).unzip();
        (verdicts, Answers(states))
    }
}
