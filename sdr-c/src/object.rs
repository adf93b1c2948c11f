//! Objects behind the handles of C programs.
//!
//! A handle is a key of this table in the shape of a pointer, and nobody follows it.
//! So one that is stale, forged or of another type is an error rather than a crash.
//! So is one of the process that this one was forked from.

use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sdr::layers::Timing;
use sdr::layers::{Receiving, Sending};
use sdr::udp::SECRET_BYTES;
use sdr::{Closing, RecvHandle, SendHandle, SendStream};
use slotmap::{DefaultKey, Key, KeyData, SlotMap};

use crate::device::{Connected, Device, Unconnected};
use crate::error::Misuse;

const _: () = assert!(size_of::<usize>() >= size_of::<u64>(), "handles carry 64 bits");

/// Memory of a context.
pub(crate) struct Region {
    pub(crate) start: usize,
    pub(crate) len: usize,
    /// Receives and sends that use it.
    pub(crate) users: u32,
    /// The same for devices, which know it from its first use on.
    pub(crate) memory: Arc<sdr::Region>,
}

pub(crate) struct Context {
    pub(crate) device: Device,
    pub(crate) channels: u8,
    pub(crate) most_qps: usize,
    pub(crate) qps: usize,
    pub(crate) rtt_us: u32,
    pub(crate) secret: Option<[u8; SECRET_BYTES]>,
    /// Memory by its key.
    pub(crate) regions: Vec<Option<Region>>,
    /// Receive buffers that are posted: start and end.
    pub(crate) posted: Vec<(usize, usize)>,
}

/// A queue pair with its layer, in one direction.
pub(crate) struct Layer {
    pub(crate) side: Side,
    /// The rest of the queue pair.
    pub(crate) pair: Connected,
}

/// A reliability layer.
pub(crate) enum Side {
    Sending(Sending),
    Receiving(Receiving),
}

pub(crate) enum QpState {
    Unconnected(Box<Unconnected>),
    Connected(Box<Connected>),
    /// A reliability layer has it.
    Layered(Box<Layer>),
    Failed,
}

impl QpState {
    /// Returns the queue pair if it is connected and no layer has it.
    pub(crate) fn connected(&mut self) -> Result<&mut Connected, Misuse> {
        match self {
            QpState::Connected(pair) => Ok(pair),
            QpState::Unconnected(_) => Err(Misuse::State("not connected")),
            QpState::Layered(_) => Err(Misuse::State("a reliability layer's: it takes sdr_layer calls")),
            QpState::Failed => Err(Misuse::State("failed, and can only be destroyed")),
        }
    }
}

pub(crate) struct Qp {
    pub(crate) context: DefaultKey,
    pub(crate) state: QpState,
    /// Where the timers of a layer start.
    pub(crate) timing: Timing,
}

pub(crate) enum RecvState {
    Open(RecvHandle),
    Closing(Closing),
    Gone,
}

pub(crate) struct Recv {
    pub(crate) context: DefaultKey,
    pub(crate) state: RecvState,
    pub(crate) range: (usize, usize),
    pub(crate) lkey: u32,
}

pub(crate) enum SendState {
    Stream(SendStream),
    Handle(SendHandle),
    Gone,
}

pub(crate) struct Send {
    pub(crate) context: DefaultKey,
    pub(crate) state: SendState,
    /// Keys of memory that it uses, each once.
    pub(crate) lkeys: Vec<u32>,
}

/// Registered memory: its context and key.
#[derive(Clone, Copy)]
pub(crate) struct Mr {
    pub(crate) context: DefaultKey,
    pub(crate) lkey: u32,
}

#[derive(Clone)]
pub(crate) enum Object {
    Context(Arc<Mutex<Context>>),
    Qp(Arc<Mutex<Qp>>),
    Mr(Mr),
    Send(Arc<Mutex<Send>>),
    Recv(Arc<Mutex<Recv>>),
}

/// Objects of a process.
struct Table {
    process: u32,
    objects: Mutex<SlotMap<DefaultKey, Object>>,
}

/// The table of this process, or of the one that it was forked from. Tables are never freed.
///
/// After a fork, the threads behind the parent's objects are not there, and a lock may be held by
/// one of them. So a child begins with a table of its own, and leaves the parent's alone.
static TABLE: AtomicPtr<Table> = AtomicPtr::new(ptr::null_mut());

impl Table {
    /// Returns the table in use. It may be the parent's.
    fn current() -> Option<&'static Table> {
        // SAFETY: it is null, or was leaked.
        unsafe { TABLE.load(Acquire).as_ref() }
    }

    /// Returns the table of this process.
    fn own() -> &'static Table {
        let process = std::process::id();
        loop {
            let current = TABLE.load(Acquire);
            // SAFETY: it is null, or was leaked.
            if let Some(table) = unsafe { current.as_ref() }
                && table.process == process
            {
                return table;
            }
            let made = Box::into_raw(Box::new(Table { process, objects: Mutex::default() }));
            if TABLE.compare_exchange(current, made, AcqRel, Acquire).is_err() {
                // SAFETY: it was made just now, and nobody else saw it.
                drop(unsafe { Box::from_raw(made) });
            }
        }
    }

    /// Returns what tells its handles from those of other processes.
    fn salt(&self) -> u64 {
        // Fibonacci hashing: process numbers follow each other.
        u64::from(self.process.wrapping_mul(0x9e37_79b1) & !1) << 32
    }
}

fn with_table<T>(change: impl FnOnce(&mut SlotMap<DefaultKey, Object>) -> T) -> T {
    change(&mut lock(&Table::own().objects))
}

/// Locks; a thread that panicked leaves nothing half done here.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds an object and returns its handle.
pub(crate) fn add<T>(object: Object) -> *mut T {
    let table = Table::own();
    let key = lock(&table.objects).insert(object);
    ptr::without_provenance_mut((key.data().as_ffi() ^ table.salt()) as usize)
}

/// Returns the key in a handle.
pub(crate) fn key<T>(handle: *const T) -> DefaultKey {
    let salt = Table::current().map_or(0, Table::salt);
    KeyData::from_ffi(handle.addr() as u64 ^ salt).into()
}

/// Removes an object. False if there is none.
pub(crate) fn remove(key: DefaultKey) -> bool {
    // Dropped outside the lock: a queue pair waits for its thread.
    let object = with_table(|table| table.remove(key));
    object.is_some()
}

/// Removes a context and what stands for its memory.
pub(crate) fn remove_with_memory(context: DefaultKey) {
    with_table(|table| table.retain(|_, object| !matches!(object, Object::Mr(mr) if mr.context == context)));
    remove(context);
}

fn find(key: DefaultKey) -> Result<Object, Misuse> {
    with_table(|table| table.get(key).cloned()).ok_or(Misuse::Handle)
}

macro_rules! getter {
    ($name:ident, $variant:ident, $kind:ty) => {
        pub(crate) fn $name(key: DefaultKey) -> Result<$kind, Misuse> {
            match find(key)? {
                Object::$variant(object) => Ok(object),
                _ => Err(Misuse::Handle),
            }
        }
    };
}

getter!(context, Context, Arc<Mutex<Context>>);
getter!(qp, Qp, Arc<Mutex<Qp>>);
getter!(mr, Mr, Mr);
getter!(send, Send, Arc<Mutex<Send>>);
getter!(recv, Recv, Arc<Mutex<Recv>>);

impl Context {
    /// Returns the region that holds `len` bytes from `start` on under `lkey`.
    pub(crate) fn region(&mut self, lkey: u32, start: u64, len: u32) -> Result<&mut Region, Misuse> {
        let region = self.regions.get_mut(lkey as usize).and_then(Option::as_mut).ok_or(Misuse::Memory)?;
        let start = usize::try_from(start).map_err(|_| Misuse::Memory)?;
        let before = start.checked_sub(region.start).ok_or(Misuse::Memory)?;
        if before.checked_add(len as usize).is_none_or(|end| end > region.len) {
            return Err(Misuse::Memory);
        }
        Ok(region)
    }

    /// Gives back what used the memory of `lkey`.
    pub(crate) fn release(&mut self, lkey: u32) {
        if let Some(region) = self.regions.get_mut(lkey as usize).and_then(Option::as_mut) {
            region.users = region.users.saturating_sub(1);
        }
    }
}
