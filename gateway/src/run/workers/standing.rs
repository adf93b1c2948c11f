//! Data-plane threads that stand still, while another process may take over.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc;

use tokio::sync::oneshot;

use super::{Answers, Threads};
use crate::plane::{Freeze, Frozen, Lent, Order};
use crate::upgrade::Place;

impl Threads {
    /// Copies of the sockets that another process may go on with.
    pub(in crate::run) async fn lend(&self) -> io::Result<Vec<(Place, OwnedFd)>> {
        let mut sockets = Vec::new();
        for thread in &self.0 {
            for (peer, orders) in (0..).zip(&thread.orders) {
                let (reply, answer) = oneshot::channel();
                // Fails only when the thread has ended.
                let _ = orders.send(Order::Lend(reply));
                thread.waker.wake();
                let Lent { lan, bulk } = answer.await.map_err(|_| io::ErrorKind::NotConnected)??;
                let at = thread.part.thread;
                let lan = lan.filter(|_| peer == 0).map(|socket| (Place::Lan(at), socket));
                sockets.extend(lan);
                let bulk = (0..).zip(bulk);
                sockets.extend(bulk.map(|(nth, socket)| (Place::Bulk(peer, at, nth), socket)));
            }
        }
        Ok(sockets)
    }

    /// Has all threads stand still until each is told who goes on.
    pub(in crate::run) fn freeze(&self) -> (Vec<mpsc::Sender<bool>>, Answers<Frozen>) {
        let freeze = |thread: &super::Thread| {
            let (frozen, state) = oneshot::channel();
            let (verdict, taken) = mpsc::channel();
            if let Some(orders) = thread.orders.first() {
                // Fails only when the thread has ended, which shows in the missing answer.
                let _ = orders.send(Order::Freeze(Freeze { frozen, taken }));
            }
            thread.waker.wake();
            (verdict, state)
        };
        let (verdicts, states) = self.0.iter().map(freeze).unzip();
        (verdicts, Answers(states))
    }
}
