//! The thread that drives an engine over a device.
#![expect(unsafe_code, reason = "memory that a device was told of is named by its registration")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::details::Details;
use super::device::{Completion, Device, Mr, Pair, Places, Queue, Registrar, WriteRequest};
use super::keys::{Keys, MOST_BINDS, Means};
use super::windows::{Key, Task, Windows};
use crate::blob::Agreed;
use crate::engine::Engine;
use crate::link::Alarm;
use crate::receive::Lander;
use crate::send::{Flying, Outgoing};
use crate::shape::Shape;
use crate::udp::{now, timespec};
use crate::wire::{CONTROL_BYTES, CONTROL_HEADER, Datagram, KEY_BYTES, key, keys_header, read_key};

/// Writes in flight on a channel at most.
pub(super) const SEND_DEPTH: u32 = 256;
/// Receives that a channel's queue is kept stocked with: each packet takes one.
pub(super) const RECEIVE_DEPTH: u32 = 2048;
/// Sends and binds in flight on the control queue pair, and receives posted there.
pub(super) const CONTROL_DEPTH: u32 = 128;
/// Work requests that are posted at once.
pub(super) const BATCH: usize = 32;

/// Receives that have to be missing before a channel is stocked up.
const RESTOCK: usize = BATCH;
/// The rest of the control queue pair's room is for binds.
const SEND_PLACES: usize = CONTROL_DEPTH as usize - MOST_BINDS;
/// Bytes of the largest control datagram.
const PLACE: usize = CONTROL_HEADER + CONTROL_BYTES;
/// Receives that one KEYS tells of.
const KEYS: u32 = ((PLACE - 8) / KEY_BYTES) as u32;
/// Packets sent between two looks at the completions.
const ROUND: usize = 128;
/// Completions taken between two looks at what is to be sent.
const MOST_COMPLETIONS: usize = 512;
/// Time that goodbyes get to leave.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// Keys are repeated no more often than this.
const SHORTEST_REPEAT: Duration = Duration::from_millis(1);

/// Counters of a queue pair on a device.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct VerbsStats {
    /// Data packets posted.
    pub sent: AtomicU64,
    /// Data packets that were not posted, because the peer has completed their receive.
    pub stale: AtomicU64,
    /// Data packets that the device put in place.
    pub received: AtomicU64,
    /// Data packets that counted.
    pub taken: AtomicU64,
    /// Data packets and control datagrams that were refused: duplicates, late ones, or such that
    /// make no sense.
    pub refused: AtomicU64,
    /// Work requests that the device refused. The first one ends the queue pair.
    pub failed: AtomicU64,
    /// Windows bound and unbound.
    pub bound: AtomicU64,
}

/// Purpose of a work request: it comes back with the completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Write { channel: usize },
    Receive { channel: usize },
    ControlSend { place: usize },
    ControlReceive { place: usize },
    Bind { slot: u32 },
}

impl Work {
    fn encode(self) -> u64 {
        let (kind, number) = match self {
            Work::Write { channel } => (0, channel as u64),
            Work::Receive { channel } => (1, channel as u64),
            Work::ControlSend { place } => (2, place as u64),
            Work::ControlReceive { place } => (3, place as u64),
            Work::Bind { slot } => (4, u64::from(slot)),
        };
        kind << 32 | number
    }

    fn decode(id: u64) -> Option<Self> {
        let number = id as u32;
        let at = number as usize;
        match id >> 32 {
            0 => Some(Work::Write { channel: at }),
            1 => Some(Work::Receive { channel: at }),
            2 => Some(Work::ControlSend { place: at }),
            3 => Some(Work::ControlReceive { place: at }),
            4 => Some(Work::Bind { slot: number }),
            _ => None,
        }
    }
}

struct Channel {
    /// Ends before the memory that its requests name.
    pair: Pair,
    flying: VecDeque<Arc<Flying>>,
    /// Writes that are not posted yet: the last ones of `flying`.
    batch: Vec<WriteRequest>,
    /// Receives that were used up.
    used: usize,
}

pub(super) struct Driver {
    engine: Engine,
    lander: Option<Lander>,
    shape: Shape,
    /// Until the queue pairs have ended.
    keys: Option<Keys>,
    plan: Windows,
    binds: usize,
    control: Option<Pair>,
    /// By channel, and within it by the generations that have queue pairs of their own.
    channels: Vec<Channel>,
    sets: usize,
    queue: Arc<Queue>,
    inbox: Places,
    outbox: Places,
    free_places: Vec<usize>,
    scratch: Box<[u8]>,
    /// Where the peer's receives stand, by slot, with their numbers.
    peer_keys: Vec<Option<(u32, Key)>>,
    /// The peer was told of receives below this, modulo 2^32.
    told: u32,
    next_keys: Instant,
    repeat: Duration,
    alarm: Arc<Alarm>,
    stats: Arc<VerbsStats>,
}

impl Driver {
    pub(super) fn new(
        (engine, lander, agreed): (Engine, Option<Lander>, Agreed),
        (device, queue, registrar): (Arc<Device>, Arc<Queue>, Arc<Registrar>),
        (control, pairs, means): (Pair, Vec<Pair>, &Means),
        (alarm, stats): (Arc<Alarm>, Arc<VerbsStats>),
    ) -> io::Result<Self> {
        let slots = agreed.shape.slots();
        let own = if lander.is_some() { slots } else { 0 };
        let channel = |pair| Channel {
            pair,
            flying: VecDeque::with_capacity(SEND_DEPTH as usize),
            batch: Vec::with_capacity(BATCH),
            used: RECEIVE_DEPTH as usize,
        };
        Ok(Driver {
            engine,
            lander,
            shape: agreed.shape,
            keys: Some(Keys::new(means, (&device, &queue), own, &agreed)?),
            plan: Windows::new(slots),
            binds: 0,
            control: Some(control),
            channels: pairs.into_iter().map(channel).collect(),
            sets: means.sets() as usize,
            queue,
            inbox: Places::new(&registrar, CONTROL_DEPTH as usize, PLACE)?,
            outbox: Places::new(&registrar, SEND_PLACES, PLACE)?,
            free_places: (0..SEND_PLACES).collect(),
            scratch: vec![0; PLACE].into(),
            peer_keys: vec![None; slots as usize],
            told: 0,
            next_keys: now(),
            repeat: (agreed.rtt / 2).max(SHORTEST_REPEAT),
            alarm,
            stats,
        })
    }

    /// Stocks the receive queues, and connects all queue pairs.
    pub(super) fn connect(&mut self, ours: &Details, theirs: &Details, mtu_log: u8) -> io::Result<()> {
        for place in 0..CONTROL_DEPTH as usize {
            self.await_control(place)?;
        }
        self.restock()?;
        if let Some(control) = &mut self.control {
            control.connect(theirs, theirs.control, ours.psn, mtu_log)?;
        }
        for (channel, number) in self.channels.iter_mut().zip(&theirs.channels) {
            channel.pair.connect(theirs, *number, ours.psn, mtu_log)?;
        }
        Ok(())
    }

    fn await_control(&mut self, place: usize) -> io::Result<()> {
        let (address, lkey) = (self.inbox.address(place), self.inbox.lkey());
        let id = Work::ControlReceive { place }.encode();
        self.control.as_mut().map_or(Ok(()), |control| control.post_receive(id, address, PLACE as u32, lkey))
    }

    /// Replaces receives that were used up, in batches.
    fn restock(&mut self) -> io::Result<()> {
        for (at, channel) in self.channels.iter_mut().enumerate() {
            while channel.used >= RESTOCK {
                let count = channel.used.min(BATCH);
                channel.pair.post_receives(Work::Receive { channel: at }.encode(), count)?;
                channel.used -= count;
            }
        }
        Ok(())
    }

    /// Runs until the queue pair has ended and said so.
    pub(super) fn run(mut self) {
        loop {
            if self.alarm.stop.load(Relaxed) {
                self.engine.close();
            }
            match self.turn() {
                Ok(0) if self.engine.has_ended() => break,
                Ok(0) => self.rest(),
                Ok(_) => {}
                Err(_) => {
                    self.stats.failed.fetch_add(1, Relaxed);
                    self.engine.close();
                    break;
                }
            }
        }
        let deadline = now() + LAST_WORDS;
        while self.free_places.len() < SEND_PLACES && now() < deadline && self.take_in().is_ok() {
            std::thread::yield_now();
        }
    }

    /// Takes in and sends what there is. Returns how much that was.
    fn turn(&mut self) -> io::Result<usize> {
        let taken = self.take_in()?;
        Ok(taken + self.work()? + self.send_round()?)
    }

    fn take_in(&mut self) -> io::Result<usize> {
        let time = now();
        let mut count = 0;
        while count < MOST_COMPLETIONS {
            let mut found = [Completion { id: 0, is_success: false, bytes: 0, imm: 0 }; 64];
            let some = self.queue.poll(&mut found)?;
            for completion in found.iter().take(some) {
                self.completed(completion, time)?;
            }
            count += some;
            if some < found.len() {
                break;
            }
        }
        self.restock()?;
        Ok(count)
    }

    fn completed(&mut self, completion: &Completion, time: Instant) -> io::Result<()> {
        if !completion.is_success {
            // An unreliable connection fails only if something was wrong with a request of ours.
            self.stats.failed.fetch_add(1, Relaxed);
            self.engine.close();
            return Ok(());
        }
        match Work::decode(completion.id) {
            Some(Work::Write { channel }) => {
                let gone = self.channels.get_mut(channel).and_then(|channel| channel.flying.pop_front());
                // The last packet of a write to be gone finishes it.
                if let Some(flying) = gone.and_then(Arc::into_inner) {
                    flying.finish(time);
                }
            }
            Some(Work::Receive { channel }) => {
                if let Some(channel) = self.channels.get_mut(channel) {
                    channel.used += 1;
                }
                self.engine.heard(time);
                self.stats.received.fetch_add(1, Relaxed);
                let generation = (self.sets > 1).then_some((channel % self.sets) as u32);
                let placed = self
                    .lander
                    .as_ref()
                    .map(|lander| lander.placed(generation, completion.imm, completion.bytes as usize));
                let counter =
                    if matches!(placed, Some(Ok(_))) { &self.stats.taken } else { &self.stats.refused };
                counter.fetch_add(1, Relaxed);
            }
            Some(Work::ControlSend { place }) => self.free_places.push(place),
            Some(Work::ControlReceive { place }) => {
                self.read(place, completion.bytes as usize, time);
                self.await_control(place)?;
            }
            Some(Work::Bind { slot }) => {
                self.binds -= 1;
                self.stats.bound.fetch_add(1, Relaxed);
                self.plan.completed(slot, time);
            }
            None => {}
        }
        Ok(())
    }

    /// Reads a control datagram.
    fn read(&mut self, place: usize, len: usize, time: Instant) {
        // SAFETY: its receive has completed, and is posted again afterwards.
        let Some(bytes) = (unsafe { self.inbox.read(place, len) }) else {
            return;
        };
        let is_taken = match Datagram::decode(bytes) {
            Ok(Datagram::Keys { first, keys }) => {
                keep_keys(&mut self.engine, &mut self.peer_keys, &self.shape, (first, keys), time)
            }
            // The engine counts what makes no sense.
            _ => self.engine.handle(bytes, time).is_ok(),
        };
        if !is_taken {
            self.stats.refused.fetch_add(1, Relaxed);
        }
    }

    /// Binds keys of receives that were posted, and unbinds those of completed ones.
    fn work(&mut self) -> io::Result<usize> {
        let (Some(lander), Some(control), Some(keys)) = (&self.lander, &mut self.control, &mut self.keys)
        else {
            return Ok(0);
        };
        let receiving = &*lander.0;
        let (posted, time) = (receiving.posted.load(Acquire), now());
        let is_open = |slot| receiving.slot(slot).is_some_and(|slot| slot.gate.is_open());
        let mut count = 0;
        while let Some(task) = self.plan.next(posted, is_open, time) {
            let (Task::Bind { slot, .. } | Task::Unbind { slot } | Task::Leave { slot }) = task;
            let Some(place) = receiving.slot(slot) else {
                continue;
            };
            if !matches!(task, Task::Leave { .. }) && self.binds >= MOST_BINDS {
                self.plan.put_back(task);
                break;
            }
            let id = Work::Bind { slot }.encode();
            count += 1;
            match task {
                Task::Leave { .. } => place.device_leaves(),
                Task::Unbind { .. } => {
                    keys.unbind(control, id, slot, self.inbox.mr())?;
                    self.binds += 1;
                }
                Task::Bind { number, .. } => {
                    let target = place.target();
                    let address = target.start.expose_provenance() as u64;
                    // SAFETY: the registrar told it when the receive was posted. The buffer, and so
                    // its registration, is held until the device has left the slot.
                    let mr = unsafe { Mr::of(place.device.load(SeqCst)) };
                    let generation = self.shape.generation(number, self.sets as u32);
                    let memory = (mr, address, target.len as u64);
                    let key = keys.bind(control, id, (slot, generation), memory)?;
                    self.binds += 1;
                    self.plan.set_key(slot, key);
                }
            }
        }
        Ok(count)
    }

    /// Sends what is due, some [`ROUND`] packets at most. Returns how many it sent.
    fn send_round(&mut self) -> io::Result<usize> {
        let time = now();
        let mut sent = self.send_keys(time)?;
        while !self.free_places.is_empty() {
            let Some(transmit) = self.engine.poll_other(time, &mut self.scratch) else {
                break;
            };
            self.send_control(transmit.len)?;
            sent += 1;
        }
        while sent < ROUND && self.channels.iter().all(|channel| channel.flying.len() < SEND_DEPTH as usize) {
            let Some((channel, packet)) = self.engine.poll_data(time) else {
                break;
            };
            let generation = self.shape.generation(packet.number, self.sets as u32) as usize;
            self.write(usize::from(channel) * self.sets + generation, packet)?;
            sent += 1;
        }
        for channel in &mut self.channels {
            channel.flush(&self.stats)?;
        }
        Ok(sent)
    }

    fn write(&mut self, channel: usize, packet: Outgoing) -> io::Result<()> {
        let Some(key) = find_key(&self.peer_keys, &self.shape, packet.number) else {
            // The receive was completed, and its slot posted to again: the packet is late already.
            self.stats.stale.fetch_add(1, Relaxed);
            if let Some(flying) = Arc::into_inner(packet.flying) {
                flying.finish(now());
            }
            return Ok(());
        };
        let place = u64::from(packet.offset) * u64::from(self.shape.mtu());
        // SAFETY: the registrar told it when the write was handed over. `flying` holds the memory.
        let lkey = unsafe { Mr::of(packet.flying.device) }.lkey();
        let request = WriteRequest {
            id: Work::Write { channel }.encode(),
            local: packet.flying.data.as_bytes().as_ptr().expose_provenance() as u64 + packet.start as u64,
            len: packet.len as u32,
            lkey,
            remote: key.address + place,
            rkey: key.rkey,
            imm: packet.imm,
        };
        let Some(channel) = self.channels.get_mut(channel) else {
            return Ok(());
        };
        channel.flying.push_back(packet.flying);
        channel.batch.push(request);
        if channel.batch.len() == BATCH { channel.flush(&self.stats) } else { Ok(()) }
    }

    /// Sends the first `len` bytes of the scratch memory.
    fn send_control(&mut self, len: usize) -> io::Result<()> {
        let (Some(place), Some(control)) = (self.free_places.pop(), &mut self.control) else {
            return Ok(());
        };
        let bytes = self.scratch.get(..len).unwrap_or_default();
        // SAFETY: a place is free when its send has completed.
        if unsafe { self.outbox.write(place, bytes) } {
            let id = Work::ControlSend { place }.encode();
            control.post_send(id, self.outbox.address(place), len as u32, self.outbox.lkey())?;
        }
        Ok(())
    }

    /// Tells the peer where receives stand that it does not know of, and repeats that.
    fn send_keys(&mut self, time: Instant) -> io::Result<usize> {
        let (armed, seen) = (self.plan.armed(), self.engine.seen_posted());
        if seen == armed || self.engine.has_ended() {
            return Ok(0);
        }
        let is_behind = seen.wrapping_sub(self.told) <= u32::MAX / 2;
        if is_behind || time >= self.next_keys {
            self.told = seen;
        }
        let mut sent = 0;
        while self.told != armed && !self.free_places.is_empty() {
            let count = armed.wrapping_sub(self.told).min(KEYS);
            let mut datagram = Vec::from(keys_header(self.told));
            for at in 0..count {
                let Key { address, rkey } = self.plan.key(self.told.wrapping_add(at));
                datagram.extend(key(address, rkey));
            }
            let len = datagram.len();
            if let Some(scratch) = self.scratch.get_mut(..len) {
                scratch.copy_from_slice(&datagram);
            }
            self.send_control(len)?;
            self.told = self.told.wrapping_add(count);
            self.next_keys = time + self.repeat;
            sent += 1;
        }
        Ok(sent)
    }

    /// Waits until something completes, is due, or is wanted.
    fn rest(&mut self) {
        self.alarm.asleep.store(true, SeqCst);
        // Whatever completes or is wanted from now on wakes. What came before is seen by looking
        // once more.
        let is_idle = self.queue.arm().is_ok() && self.turn().is_ok_and(|count| count == 0);
        if is_idle && !self.alarm.stop.load(Relaxed) {
            let time = now();
            let until = [Some(self.engine.next_timeout(time)), self.plan.next_timeout(), self.keys_timeout()];
            let wait = until.into_iter().flatten().min().unwrap_or(time).saturating_duration_since(time);
            let mut fds = [
                PollFd::from_borrowed_fd(self.alarm.event.as_fd(), PollFlags::IN),
                PollFd::new(&self.queue, PollFlags::IN),
            ];
            let _ = poll(&mut fds, Some(&timespec(wait)));
        }
        self.queue.acknowledge();
        self.alarm.asleep.store(false, SeqCst);
        let _ = rustix::io::read(&self.alarm.event, &mut [0; 8]);
    }

    fn keys_timeout(&self) -> Option<Instant> {
        (self.engine.seen_posted() != self.plan.armed()).then_some(self.next_keys)
    }
}

impl Drop for Driver {
    /// Ends the queue pairs, so that the device writes nowhere any more, and then tells the slots.
    fn drop(&mut self) {
        self.engine.close();
        self.control = None;
        self.channels.clear();
        self.keys = None;
        if let Some(lander) = &self.lander {
            lander.device_leaves();
        }
    }
}

impl Channel {
    /// Posts the writes that wait.
    fn flush(&mut self, stats: &VerbsStats) -> io::Result<()> {
        if !self.batch.is_empty() {
            self.pair.post_writes(&self.batch)?;
            stats.sent.fetch_add(self.batch.len() as u64, Relaxed);
            self.batch.clear();
        }
        Ok(())
    }
}

/// Keeps the keys of receives from `first` on. False if they are implausible, or earlier ones are
/// missing: the peer repeats them.
fn keep_keys(
    engine: &mut Engine,
    kept: &mut [Option<(u32, Key)>],
    shape: &Shape,
    (first, keys): (u32, &[[u8; KEY_BYTES]]),
    time: Instant,
) -> bool {
    let known = engine.peer_posted();
    let posted = first.wrapping_add(keys.len() as u32);
    let is_ahead = |number: u32| number.wrapping_sub(known) <= u32::MAX / 2;
    if first != known && is_ahead(first) || engine.keyed(posted, time).is_err() {
        return false;
    }
    for (at, entry) in (0..).zip(keys) {
        let number = first.wrapping_add(at);
        let place = kept.get_mut(shape.slot(number) as usize);
        // An old datagram does not overwrite what a newer one told of the same slot.
        if let Some(place) = place.filter(|_| is_ahead(number)) {
            let (address, rkey) = read_key(entry);
            *place = Some((number, Key { address, rkey }));
        }
    }
    true
}

/// Returns where receive `number` of the peer stands. `None` if its slot has another one by now,
/// whose buffer this message's packets must not touch.
fn find_key(kept: &[Option<(u32, Key)>], shape: &Shape, number: u32) -> Option<Key> {
    let (known, key) = kept.get(shape.slot(number) as usize).copied().flatten()?;
    (known == number).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob::{BackEnd, Blob};
    use crate::{QpAttr, connect};

    #[test]
    fn work_comes_back_as_it_was() {
        for work in [
            Work::Write { channel: 7 },
            Work::Receive { channel: 0 },
            Work::ControlSend { place: 63 },
            Work::ControlReceive { place: 127 },
            Work::Bind { slot: 1023 },
        ] {
            assert_eq!(Work::decode(work.encode()), Some(work));
        }
        assert_eq!(Work::decode(u64::MAX), None);
    }

    /// Keys may be lost, reordered and repeated. Credit never runs ahead of the keys.
    #[test]
    fn keys_are_kept_in_order() {
        let blob = Blob::new(QpAttr::default(), BackEnd::VerbsUc, Vec::new()).unwrap();
        let time = now();
        let mut near = connect(&blob, &blob, 0, time).unwrap();
        let shape = near.agreed.shape;
        let mut kept = vec![None; shape.slots() as usize];
        let entry = |number: u32| key(0x1000 + u64::from(number), number);
        let mut keep = |engine: &mut Engine, from: u32, to: u32| {
            let keys: Vec<_> = (from..to).map(entry).collect();
            let is_kept = keep_keys(engine, &mut kept, &shape, (from, &keys), time);
            let found = |number| find_key(&kept, &shape, number).map(|key| key.rkey);
            (is_kept, (0..20).map(found).collect::<Vec<_>>())
        };
        let engine = &mut near.engine;
        assert!(!keep(engine, 2, 4).0, "0 and 1 are missing");
        assert_eq!(engine.peer_posted(), 0);
        assert!(keep(engine, 0, 2).0);
        assert!(keep(engine, 0, 4).0);
        assert_eq!(engine.peer_posted(), 4);
        assert!(keep(engine, 0, 16).0);
        assert!(!keep(engine, 16, 17).0, "more than the slots beyond what was issued");
        assert_eq!(engine.peer_posted(), 16);
        // Four messages are issued, and four receives posted. Then the first datagram comes again.
        let send = near.send.as_mut().unwrap();
        for _ in 0..4 {
            drop(send.stream(None, time).unwrap());
        }
        let (is_kept, after) = keep(engine, 16, 20);
        // What is repeated of messages 0 to 3 finds no key: their slots have other buffers.
        assert_eq!(after[..4], [None; 4]);
        assert!(is_kept && (4..20).all(|number| after[number] == Some(number as u32)), "{after:?}");
        assert_eq!(keep(engine, 0, 2), (true, after));
        assert_eq!(engine.peer_posted(), 20);
    }
}
