//! Objects behind the handles of C programs.
//!
//! A handle is a key of this table in the shape of a pointer, and nobody follows it.
//! So one that is stale, forged or of another type is an error rather than a crash.

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
    /// Keys of memory that it uses, one for each write.
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

static TABLE: Mutex<Option<SlotMap<DefaultKey, Object>>> = Mutex::new(None);

fn with_table<T>(change: impl FnOnce(&mut SlotMap<DefaultKey, Object>) -> T) -> T {
    let mut table = lock(&TABLE);
    change(table.get_or_insert_with(SlotMap::new))
}

/// Locks; a thread that panicked leaves nothing half done here.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds an object and returns its handle.
pub(crate) fn add<T>(object: Object) -> *mut T {
    let key = with_table(|table| table.insert(object));
    std::ptr::without_provenance_mut(key.data().as_ffi() as usize)
}

/// Returns the key in a handle.
pub(crate) fn key<T>(handle: *const T) -> DefaultKey {
    KeyData::from_ffi(handle.addr() as u64).into()
}

pub(crate) fn remove(key: DefaultKey) {
    // Dropped outside the lock: a queue pair waits for its thread.
    let object = with_table(|table| table.remove(key));
    drop(object);
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
