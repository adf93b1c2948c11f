//! Registered memory: what work requests and the remote side may touch.

use super::types::{Access, Sge};

/// One registered region. Its key serves as lkey and rkey alike.
#[derive(Debug)]
struct Region {
    key: u32,
    va: u64,
    bytes: Vec<u8>,
    access: Access,
}

/// All regions of one host, found by key in constant time.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Slot `i` holds a region whose key is `(i + 1) << 8 | generation`.
    slots: Vec<Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u8,
    region: Option<Region>,
}

/// The region handed out by [`super::Host::register`]: what a program tells its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionHandle {
    /// lkey and rkey.
    pub key: u32,
    /// Virtual address of the first byte; 4096-aligned.
    pub va: u64,
    /// Length in bytes.
    pub len: u64,
}

impl RegionHandle {
    /// Returns what registration number `index` (from 0) of a fresh host returns, for programs that
    /// agree without exchanging handles.
    pub fn of_fresh_host(index: u32, len: u64) -> RegionHandle {
        RegionHandle::new(u64::from(index) + 1, 1, len)
    }

    fn new(number: u64, generation: u8, len: u64) -> RegionHandle {
        let key = (u32::try_from(number).unwrap_or(u32::MAX) << 8) | u32::from(generation);
        // Regions are 1 TiB apart, so that running off one never lands in another.
        RegionHandle { key, va: number << 40, len }
    }

    /// The part of this region that starts `offset` bytes in and is `len` bytes long (checked when
    /// posted).
    pub fn slice(&self, offset: u64, len: u32) -> Sge {
        Sge { key: self.key, va: self.va.wrapping_add(offset), len }
    }
}

/// The kind of a remote access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    Read,
    Write,
    Atomic,
}

impl Memory {
    pub(super) fn register(&mut self, bytes: Vec<u8>, access: Access) -> RegionHandle {
        let index = self.slots.iter().position(|slot| slot.region.is_none()).unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let number = u64::try_from(index).unwrap_or(u64::MAX) + 1;
        let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let mut handle = RegionHandle::new(number, 0, len);
        if let Some(slot) = self.slots.get_mut(index) {
            slot.generation = slot.generation.wrapping_add(1);
            handle = RegionHandle::new(number, slot.generation, len);
            slot.region = Some(Region { key: handle.key, va: handle.va, bytes, access });
        }
        handle
    }

    pub(super) fn deregister(&mut self, key: u32) -> Option<Vec<u8>> {
        self.region(key)?;
        let slot = self.slots.get_mut(slot_of(key)?)?;
        slot.region.take().map(|region| region.bytes)
    }

    pub(super) fn access(&self, key: u32) -> Option<Access> {
        self.region(key).map(|region| region.access)
    }

    /// Ends what the remote side may do with a region; false if it may do nothing as it is.
    pub(super) fn revoke(&mut self, key: u32) -> bool {
        let Some(region) = self.region_mut(key) else { return false };
        std::mem::replace(&mut region.access, Access::LOCAL) != Access::LOCAL
    }

    pub(super) fn bytes(&self, key: u32) -> Option<&[u8]> {
        self.region(key).map(|region| region.bytes.as_slice())
    }

    pub(super) fn bytes_mut(&mut self, key: u32) -> Option<&mut [u8]> {
        self.region_mut(key).map(|region| region.bytes.as_mut_slice())
    }

    /// `len` bytes at `va`, if the key is valid and the range lies within its region.
    pub(super) fn local(&self, key: u32, va: u64, len: usize) -> Option<&[u8]> {
        let region = self.region(key)?;
        region.bytes.get(range(region, va, len)?)
    }

    /// As [`Memory::local`], writable.
    pub(super) fn local_mut(&mut self, key: u32, va: u64, len: usize) -> Option<&mut [u8]> {
        let region = self.region_mut(key)?;
        let range = range(region, va, len)?;
        region.bytes.get_mut(range)
    }

    /// Returns true if a local buffer is within its region; an empty one needs no region.
    pub(super) fn covers(&self, sge: &Sge) -> bool {
        sge.len == 0 || usize::try_from(sge.len).is_ok_and(|len| self.local(sge.key, sge.va, len).is_some())
    }

    /// Returns true if the remote side may do this; an empty access is always allowed (its rkey is
    /// not checked).
    pub(super) fn allows(&self, key: u32, va: u64, len: u64, want: Want) -> bool {
        if len == 0 {
            return true;
        }
        let (Some(region), Ok(len)) = (self.region(key), usize::try_from(len)) else {
            return false;
        };
        let allowed = match want {
            Want::Read => region.access.remote_read,
            Want::Write => region.access.remote_write,
            Want::Atomic => region.access.remote_atomic,
        };
        allowed && range(region, va, len).is_some()
    }

    /// Returns true if the remote side may flush this range, or the whole region, to global
    /// visibility. An empty range has a key, too.
    pub(super) fn flushes(&self, key: u32, va: u64, len: u32, whole: bool) -> bool {
        let (Some(region), Ok(len)) = (self.region(key), usize::try_from(len)) else {
            return false;
        };
        region.access.remote_flush && (whole || range(region, va, len).is_some())
    }

    fn region(&self, key: u32) -> Option<&Region> {
        self.slots.get(slot_of(key)?)?.region.as_ref().filter(|region| region.key == key)
    }

    fn region_mut(&mut self, key: u32) -> Option<&mut Region> {
        self.slots.get_mut(slot_of(key)?)?.region.as_mut().filter(|region| region.key == key)
    }
}

fn slot_of(key: u32) -> Option<usize> {
    usize::try_from(key >> 8).ok()?.checked_sub(1)
}

fn range(region: &Region, va: u64, len: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(va.checked_sub(region.va)?).ok()?;
    let end = start.checked_add(len)?;
    (end <= region.bytes.len()).then_some(start..end)
}
