//! Keys of receives: which window is bound to which buffer, and what the peer knows of them.
//!
//! ```text
//! Idle -> Binding -> Bound -> Unbinding -> Settling -> Idle
//! ```
//!
//! It decides only; [`super::drive`] carries out what it asks for, and tells what has completed.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Time after unbinding until a buffer is taken to be left alone.
///
/// A device that completes an unbinding is done with the window. Soft-RoCE checks a key before it
/// writes, on another processor, so a packet that passed may still be written for a moment.
pub(super) const SETTLE: Duration = Duration::from_micros(200);

/// State of a slot's window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Window {
    Idle,
    Binding,
    Bound,
    Unbinding,
    Settling { since: Instant },
}

/// Work on a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    /// Bind it to the buffer of message `number`.
    Bind { slot: u32, number: u32 },
    /// Bind it to nothing.
    Unbind { slot: u32 },
    /// The device has left the slot.
    Leave { slot: u32 },
}

/// Where a receive stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) address: u64,
    pub(super) rkey: u32,
}

pub(super) struct Windows {
    windows: Vec<Window>,
    keys: Vec<Key>,
    /// Slots whose window is not idle.
    busy: VecDeque<u32>,
    /// Receives that windows were asked for so far, modulo 2^32.
    asked: u32,
    /// Receives below this have keys that are valid, or were.
    armed: u32,
}

impl Windows {
    /// Makes idle windows for `slots` slots, a power of two.
    pub(super) fn new(slots: u32) -> Self {
        Windows {
            windows: vec![Window::Idle; slots as usize],
            keys: vec![Key::default(); slots as usize],
            busy: VecDeque::with_capacity(slots as usize),
            asked: 0,
            armed: 0,
        }
    }

    fn slot(&self, number: u32) -> u32 {
        number & (self.windows.len() as u32 - 1)
    }

    /// Returns how many receives have keys, modulo 2^32.
    pub(super) fn armed(&self) -> u32 {
        self.armed
    }

    /// Returns where receive `number` stands.
    pub(super) fn key(&self, number: u32) -> Key {
        self.keys.get(self.slot(number) as usize).copied().unwrap_or_default()
    }

    /// Returns what is to be done next. `posted` receives were posted so far.
    pub(super) fn next(&mut self, posted: u32, is_open: impl Fn(u32) -> bool, now: Instant) -> Option<Task> {
        // Those that close come first: their buffers are waited for.
        for at in 0..self.busy.len() {
            let slot = *self.busy.get(at)?;
            let window = self.windows.get_mut(slot as usize)?;
            match *window {
                Window::Bound if !is_open(slot) => {
                    *window = Window::Unbinding;
                    return Some(Task::Unbind { slot });
                }
                Window::Settling { since } if now >= since + SETTLE => {
                    *window = Window::Idle;
                    self.busy.swap_remove_back(at);
                    return Some(Task::Leave { slot });
                }
                _ => {}
            }
        }
        if self.asked == posted {
            return None;
        }
        let (number, slot) = (self.asked, self.slot(self.asked));
        let window = self.windows.get_mut(slot as usize)?;
        // A slot is posted to again only after the device has left it.
        if *window != Window::Idle {
            return None;
        }
        *window = Window::Binding;
        self.busy.push_back(slot);
        self.asked = number.wrapping_add(1);
        Some(Task::Bind { slot, number })
    }

    /// Takes a task back that could not be carried out yet.
    pub(super) fn put_back(&mut self, task: Task) {
        match task {
            Task::Bind { slot, number } => {
                self.set(slot, Window::Idle);
                self.busy.retain(|busy| *busy != slot);
                self.asked = number;
            }
            Task::Unbind { slot } => self.set(slot, Window::Bound),
            Task::Leave { .. } => {}
        }
    }

    /// Notes the key that a binding will have.
    pub(super) fn set_key(&mut self, slot: u32, key: Key) {
        if let Some(place) = self.keys.get_mut(slot as usize) {
            *place = key;
        }
    }

    /// Notes that a binding, or an unbinding, has completed.
    pub(super) fn completed(&mut self, slot: u32, now: Instant) {
        match self.windows.get(slot as usize) {
            Some(Window::Binding) => self.set(slot, Window::Bound),
            Some(Window::Unbinding) => self.set(slot, Window::Settling { since: now }),
            _ => return,
        }
        // Bindings complete in the order in which they were asked for.
        while self.armed != self.asked {
            if self.windows.get(self.slot(self.armed) as usize) == Some(&Window::Binding) {
                return;
            }
            self.armed = self.armed.wrapping_add(1);
        }
    }

    /// Returns when something is due by time alone.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let settling = self.busy.iter().filter_map(|slot| match self.windows.get(*slot as usize)? {
            Window::Settling { since } => Some(*since + SETTLE),
            _ => None,
        });
        settling.min()
    }

    fn set(&mut self, slot: u32, state: Window) {
        if let Some(window) = self.windows.get_mut(slot as usize) {
            *window = state;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn start() -> Instant {
        #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
        Instant::now()
    }

    #[test]
    fn a_buffer_is_left_only_after_the_unbinding_has_completed_and_settled() {
        let (mut windows, now) = (Windows::new(4), start());
        let open = Cell::new(true);
        assert_eq!(windows.next(1, |_| open.get(), now), Some(Task::Bind { slot: 0, number: 0 }));
        assert_eq!((windows.next(1, |_| true, now), windows.armed()), (None, 0));
        // Closed before the binding has completed: both happen, one after the other.
        open.set(false);
        assert_eq!(windows.next(1, |_| open.get(), now), None);
        windows.completed(0, now);
        assert_eq!(windows.armed(), 1);
        assert_eq!(windows.next(1, |_| open.get(), now), Some(Task::Unbind { slot: 0 }));
        assert_eq!(windows.next(1, |_| open.get(), now + SETTLE * 9), None, "not without completion");
        windows.completed(0, now);
        assert_eq!(windows.next(1, |_| open.get(), now), None, "it settles");
        assert_eq!(windows.next_timeout(), Some(now + SETTLE));
        assert_eq!(windows.next(1, |_| open.get(), now + SETTLE), Some(Task::Leave { slot: 0 }));
        assert_eq!((windows.next(1, |_| open.get(), now), windows.next_timeout()), (None, None));
    }

    #[test]
    fn keys_are_told_in_order_and_tasks_can_be_put_back() {
        let (mut windows, now) = (Windows::new(4), start());
        let all: Vec<Task> = std::iter::from_fn(|| windows.next(3, |_| true, now)).collect();
        assert_eq!(all.len(), 3);
        windows.completed(1, now);
        assert_eq!(windows.armed(), 0, "receive 0 has no key yet");
        windows.completed(0, now);
        assert_eq!(windows.armed(), 2);
        let task = windows.next(4, |_| true, now).unwrap();
        assert_eq!(task, Task::Bind { slot: 3, number: 3 });
        windows.put_back(task);
        assert_eq!(windows.next(4, |_| true, now), Some(task));
        windows.set_key(3, Key { address: 7, rkey: 9 });
        assert_eq!(windows.key(3 + 4), Key { address: 7, rkey: 9 });
        // Slot 0 is not bound again while its window is.
        windows.completed(2, now);
        windows.completed(3, now);
        assert_eq!((windows.armed(), windows.next(5, |_| true, now)), (4, None));
        let closed = windows.next(5, |slot| slot != 0, now).unwrap();
        assert_eq!(closed, Task::Unbind { slot: 0 });
        windows.put_back(closed);
        assert_eq!(windows.next(5, |slot| slot != 0, now), Some(closed));
    }
}
