//! How the data-plane thread sleeps, and how others wake it.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::thread::set_current_timer_slack;
use rustix::time::Timespec;

pub use rustix::event::{PollFd, PollFlags};

/// A pair: the data-plane thread polls the [`Wakeup`], and whoever holds a clone of the [`Waker`]
/// gets it out of its sleep.
pub fn waker() -> io::Result<(Waker, Wakeup)> {
    let fd = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
    Ok((Waker(Arc::clone(&fd)), Wakeup(fd)))
}

/// Wakes the thread that polls the [`Wakeup`]; from any thread, never blocking.
#[derive(Debug, Clone)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Makes the next (or the present) poll return. Waking twice before it does is waking once.
    pub fn wake(&self) {
        // Fails only with EAGAIN, at 2^64 - 2 wakes not yet seen: it is awake.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

/// The polled end.
#[derive(Debug)]
pub struct Wakeup(Arc<OwnedFd>);

impl Wakeup {
    /// Takes note of the wakes so far, so that polling sleeps again. Look at what the waker left
    /// for you *after* this.
    pub fn clear(&self) -> bool {
        rustix::io::read(&*self.0, &mut [0; 8]).is_ok()
    }

    /// To be polled for reading.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sleeps until one of `fds` is ready or `timeout` has passed (`None`: without end), and returns
/// how many are ready. The timeout goes to `ppoll` in nanoseconds; how exactly it is met is the
/// thread's timer slack, see [`precise_timers`]. A signal ends it with `Ok(0)`.
pub fn poll(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> io::Result<usize> {
    // A duration beyond the range of time_t is no timeout.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match rustix::event::poll(fds, timeout.as_ref()) {
        Err(Errno::INTR) => Ok(0),
        result => Ok(result?),
    }
}

/// Lets the calling thread's sleeps end within a microsecond of what they were asked, instead of
/// the usual 50.
pub fn precise_timers() -> io::Result<()> {
    Ok(set_current_timer_slack(NonZeroU64::new(1_000))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_before_or_during_the_poll_ends_it() {
        let (waker, wakeup) = waker().unwrap();
        let sleep = |timeout| {
            let mut fds = [PollFd::from_borrowed_fd(wakeup.fd(), PollFlags::IN)];
            poll(&mut fds, timeout).unwrap()
        };
        assert_eq!(sleep(Some(Duration::ZERO)), 0);
        waker.wake();
        waker.clone().wake();
        assert_eq!(sleep(None), 1);
        assert!(wakeup.clear());
        assert!(!wakeup.clear());
        assert_eq!(sleep(Some(Duration::from_micros(50))), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| waker.wake());
            assert_eq!(sleep(None), 1);
        });
    }

    #[test]
    fn a_timeout_ends_it_and_one_beyond_all_clocks_is_none() {
        precise_timers().unwrap();
        assert_eq!(poll(&mut [], Some(Duration::from_micros(100))).unwrap(), 0);
        let (waker, wakeup) = waker().unwrap();
        waker.wake();
        let mut fds = [PollFd::from_borrowed_fd(wakeup.fd(), PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(Duration::MAX)).unwrap(), 1);
    }
}
