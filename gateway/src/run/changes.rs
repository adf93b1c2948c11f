//! Hears from the kernel that its rules, links or addresses have changed.
//!
//! Such news is a reason to look, and no more: its text is not read.
//! Whoever looks about every second anyway finds the same without it, only later.

use std::future::{pending, poll_fn};
use std::io::{self, ErrorKind};
use std::task::{Context, Poll};
use std::time::Duration;

use rtnetlink::sys::protocols::NETLINK_ROUTE;
use rtnetlink::sys::{AsyncSocket, SocketAddr, TokioSocket};
use rustix::io::Errno;
use tokio::time::{Instant, sleep_until};
use tracing::warn;

/// Groups of news. Routes are not among them: a machine may learn them by the thousand.
const GROUPS: [u32; 5] = [
    libc::RTNLGRP_LINK,
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV4_RULE,
    libc::RTNLGRP_IPV6_RULE,
];

/// The shortest time between two looks for the sake of news.
const LEAST_GAP: Duration = Duration::from_millis(50);
/// The longest. News that never ends has as many looks as no news.
const MOST_GAP: Duration = Duration::from_secs(1);

/// Messages taken at a time; what is left is news for the next time.
const MOST_MESSAGES: usize = 4096;

/// News of the kernel's network configuration.
pub(super) struct Changes {
    /// `None`: nobody tells, and the looks of every second have to do.
    socket: Option<TokioSocket>,
    /// The moment of one more look after the last news.
    again: Option<Instant>,
    gap: Duration,
}

impl Changes {
    /// Subscribes to the news of this thread's name space. A failure is logged.
    pub(super) fn subscribe() -> Self {
        let socket = subscribe().inspect_err(tell);
        Self { socket: socket.ok(), again: None, gap: LEAST_GAP }
    }

    /// Waits until it is time to look.
    ///
    /// The first news counts at once. Then there is one more look after a gap: the kernel tells of
    /// some changes a moment before it has made them. While news goes on, the gap doubles.
    /// May be dropped at any time; nothing is lost by that.
    pub(super) async fn next(&mut self) {
        let Some(socket) = &self.socket else { return pending().await };
        let is_due = self.again.is_some();
        if let Some(again) = self.again {
            sleep_until(again).await;
        }
        let heard = poll_fn(|context| match drain(|| receive(socket, context)) {
            Ok(false) if !is_due => Poll::Pending,
            heard => Poll::Ready(heard),
        });
        match heard.await {
            Ok(is_news) => self.schedule(is_news),
            // One look more: what the socket was about to tell is lost.
            Err(error) => {
                tell(&error);
                self.socket = None;
            }
        }
    }

    /// Sets the time of the next look.
    fn schedule(&mut self, is_news: bool) {
        if self.again.is_some() && is_news {
            self.gap = MOST_GAP.min(self.gap * 2);
        } else {
            self.gap = LEAST_GAP;
        }
        self.again = is_news.then(|| Instant::now() + self.gap);
    }
}

fn subscribe() -> io::Result<TokioSocket> {
    let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
    let groups = GROUPS.iter().map(|group| 1 << (group - 1)).sum();
    socket.socket_mut().bind(&SocketAddr::new(0, groups))?;
    Ok(socket)
}

fn tell(error: &io::Error) {
    warn!(
        "the kernel does not tell of changes to rules, links and addresses, which are looked at every second: \
         {error}"
    );
}

/// Takes a message, of whose text nothing is kept.
fn receive(socket: &TokioSocket, context: &mut Context<'_>) -> Poll<io::Result<()>> {
    let mut start = [0; 16];
    socket.poll_recv(context, &mut start.as_mut_slice())
}

/// Takes what waits. Returns true if there was news, or more of it than the socket holds.
fn drain(mut receive: impl FnMut() -> Poll<io::Result<()>>) -> io::Result<bool> {
    let mut is_news = false;
    for _ in 0..MOST_MESSAGES {
        match receive() {
            Poll::Pending => break,
            Poll::Ready(Ok(())) => is_news = true,
            Poll::Ready(Err(error)) if Errno::from_io_error(&error) == Some(Errno::NOBUFS) => is_news = true,
            Poll::Ready(Err(error)) if error.kind() == ErrorKind::Interrupted => {}
            Poll::Ready(Err(error)) => return Err(error),
        }
    }
    Ok(is_news)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lan::netns::Ns;

    /// Runs this in a name space, on a runtime of its own.
    fn inside<R: Send>(ns: &Ns, work: impl AsyncFnOnce() -> R + Send) -> R {
        ns.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(work())
        })
    }

    #[test]
    fn more_news_than_the_socket_holds_is_news() {
        let failed = |error: Errno| Poll::Ready(Err(error.into()));
        let of =
            |mut answers: Vec<Poll<io::Result<()>>>| drain(move || answers.pop().unwrap_or(Poll::Pending));
        assert!(!of(vec![]).unwrap());
        assert!(!of(vec![failed(Errno::INTR)]).unwrap());
        assert!(of(vec![Poll::Ready(Ok(()))]).unwrap());
        assert!(of(vec![failed(Errno::NOBUFS)]).unwrap());
        assert!(of(vec![Poll::Ready(Ok(())), failed(Errno::NOBUFS), failed(Errno::INTR)]).unwrap());
        assert_eq!(of(vec![failed(Errno::PERM)]).unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert!(drain(|| Poll::Ready(Ok(()))).unwrap(), "what never ends is left at some time");
    }

    /// Returns a subscription whose socket holds a few messages only.
    fn narrow() -> Changes {
        let changes = Changes::subscribe();
        changes.socket.as_ref().unwrap().socket_ref().set_rx_buf_sz(1).unwrap();
        changes
    }

    #[test]
    fn an_overrun_socket_goes_on_hearing() {
        let ns = Ns::new();
        inside(&ns, async || {
            let (mut changes, witness) = (narrow(), narrow());
            for nth in 1..100 {
                ns.ip(&format!("addr add 10.0.0.{nth}/32 dev lo"));
            }
            let mut start = [0; 16];
            let witness = witness.socket.as_ref().unwrap().socket_ref();
            let overrun = (0..100).filter_map(|_| witness.recv(&mut start.as_mut_slice(), 0).err());
            assert!(overrun.into_iter().any(|error| error.raw_os_error() == Some(libc::ENOBUFS)));
            changes.next().await;
            changes.next().await;
            assert_eq!((changes.again, changes.socket.is_some()), (None, true), "one look more, and quiet");
            ns.ip("link add v0 type veth peer name g0");
            changes.next().await;
        });
    }

    #[test]
    fn each_kind_of_change_is_news() {
        let ns = Ns::new();
        ns.ip("link add v0 type veth peer name g0");
        inside(&ns, async || {
            for change in [
                "link set v0 up",
                "link set g0 up",
                "link set g0 name g1",
                "addr add 10.0.0.1/24 dev v0",
                "addr del 10.0.0.1/24 dev v0",
                "addr add fd00::1/64 dev v0 nodad",
                "rule add pref 1 to 10.0.1.0/24 blackhole",
                "rule del pref 1",
                "-6 rule add pref 1 to fd01::/64 blackhole",
                "-6 rule del pref 1",
                "link del v0",
            ] {
                let mut changes = Changes::subscribe();
                ns.ip(change);
                changes.next().await;
            }
        });
    }

    #[test]
    fn news_that_does_not_end_has_a_look_a_second() {
        let ns = Ns::new();
        inside(&ns, async || {
            let mut changes = Changes::subscribe();
            let gaps: Vec<_> = [true, true, true, true, true, true, true, false, true]
                .into_iter()
                .map(|is_news| {
                    changes.schedule(is_news);
                    changes.gap.as_millis()
                })
                .collect();
            assert_eq!(gaps, [50, 100, 200, 400, 800, 1000, 1000, 50, 50]);
        });
    }
}
