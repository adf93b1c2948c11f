//! The SDR SDK for C programs: `longhaul-sdr.h`.
//!
//! Names, structures and return codes are those of the published header of SDR-RDMA.
//! Functions beyond it say so. The device is the address of this host that the peer sends to.
//! `unsafe` stands only here, where pointers of C programs are read and written.
//! What a program promises stands at each call; what can be checked is checked.
//! A handle is never followed: one that is stale or of another type is `SDR_ERROR`.

#![expect(unsafe_code, reason = "a C interface: each block says what the caller promised")]

mod device;
mod error;
mod layer;
mod message;
mod object;
mod types;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sdr::blob::BLOB_BYTES;
use sdr::layers::Timing;
use sdr::udp::SECRET_BYTES;
use sdr::{ControlError, Mtu, QpAttr};

pub use error::sdr_last_error;
pub use layer::*;
pub use message::*;
pub use types::*;

use crate::device::Device;
use crate::error::{Misuse, code, read, tell, write};
use crate::object::{Context, Mr, Object, Qp, QpState, Region, add, key, lock, remove};

const DEFAULT_RTT_US: u32 = 25_000;
const DEFAULT_RATE_MBIT: u32 = 1000;

/// Opens a device: the IPv4 or IPv6 address that the peer sends to, or the name of an RDMA device.
/// The latter takes libraries that were built with the feature verbs.
/// Returns NULL on failure. The shared secret comes from the file that SDR_SECRET_FILE names, if it
/// is set.
///
/// # Safety
/// `dev_name` is a C string, and `dev_attr` is valid or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sdr_context_create(
    dev_name: *const c_char,
    dev_attr: *mut sdr_dev_attr,
) -> *mut sdr_context {
    // SAFETY: promised by the caller.
    let (name, attr) = unsafe { (text(dev_name), read(dev_attr)) };
    let make = || {
        let device = Device::named(name?)?;
        let attr = attr?;
        let channels = u8::try_from(attr.num_channels).map_err(|_| Misuse::Range("num_channels"))?;
        if attr.log_max_qps > 16 {
            return Err(Misuse::Range("log_max_qps"));
        }
        let secret = match std::env::var_os("SDR_SECRET_FILE") {
            None => None,
            Some(file) => {
                let bytes = std::fs::read(file).map_err(|error| Misuse::Other(error.to_string()))?;
                Some(bytes.try_into().map_err(|_| Misuse::Range("the secret's length"))?)
            }
        };
        Ok(add(Object::Context(Arc::new(Mutex::new(Context {
            device,
            channels,
            most_qps: 1 << attr.log_max_qps,
            qps: 0,
            rtt_us: DEFAULT_RTT_US,
            secret,
            regions: Vec::new(),
            posted: Vec::new(),
        })))))
    };
    tell(make()).unwrap_or(std::ptr::null_mut())
}

/// Returns a C string.
///
/// # Safety
/// `text` is a C string or null.
unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, Misuse> {
    if text.is_null() {
        return Err(Misuse::Null);
    }
    // SAFETY: promised by the caller.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| Misuse::Range("a name"))
}

/// Closes a device, and deregisters its memory. SDR_ERROR if it has queue pairs, or memory in use.
#[unsafe(no_mangle)]
pub extern "C" fn sdr_context_destroy(context: *mut sdr_context) -> c_int {
    let close = || {
        let found = object::context(key(context))?;
        let state = lock(&found);
        if state.qps > 0 || state.regions.iter().flatten().any(|region| region.users > 0) {
            return Err(Misuse::InUse);
        }
        drop(state);
        object::remove_with_memory(key(context));
        Ok(())
    };
    code(close())
}

/// Sets the secret of 32 bytes that both sides share. Not in the published header.
///
/// # Safety
/// `secret` points to 32 bytes, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sdr_context_secret_set(context: *mut sdr_context, secret: *const u8) -> c_int {
    // SAFETY: promised by the caller.
    let secret = unsafe { read(secret.cast::<[u8; SECRET_BYTES]>()) };
    let set = || {
        lock(&*object::context(key(context))?).secret = Some(secret?);
        Ok(())
    };
    code(set())
}

/// Sets the round-trip time of paths of queue pairs to be made, in microseconds.
/// The default is 25000.
/// Not in the published header.
#[unsafe(no_mangle)]
pub extern "C" fn sdr_context_rtt_set(context: *mut sdr_context, rtt_us: u32) -> c_int {
    let set = || {
        lock(&*object::context(key(context))?).rtt_us = rtt_us;
        Ok(())
    };
    code(set())
}

/// Makes a queue pair, and binds its sockets. Returns NULL on failure.
///
/// # Safety
/// `qp_attr` is valid or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sdr_qp_create(ctx: *mut sdr_context, qp_attr: *mut sdr_qp_attr) -> *mut sdr_qp {
    // SAFETY: promised by the caller.
    let attr = unsafe { read(qp_attr) };
    let make = || {
        let attr = attr?;
        let context = object::context(key(ctx))?;
        let mut context = lock(&context);
        if context.qps >= context.most_qps {
            return Err(Misuse::Range("the number of queue pairs"));
        }
        let mtu = *Mtu::ALL.get(attr.mtu as usize).ok_or(Misuse::Range("mtu"))?;
        let in_flight = u32::try_from(attr.max_in_flight_log_bytes);
        let rate = if attr.rate_limit == 0 { DEFAULT_RATE_MBIT } else { attr.rate_limit };
        let attr = QpAttr {
            chunk_log: attr.bitmap_chunk_size_log_bytes,
            in_flight_log: in_flight.map_err(|_| Misuse::Range("max_in_flight_log_bytes"))?,
            messages_log: attr.max_log_num_msgs,
            mtu,
            channels: context.channels,
            send: attr.send_enable != 0,
            receive: attr.recv_enable != 0,
            rate: u64::from(rate) * 1_000_000,
            rtt: Duration::from_micros(context.rtt_us.into()),
            ..QpAttr::default()
        };
        let unconnected = context.device.open(attr)?;
        context.qps += 1;
        let state = QpState::Unconnected(Box::new(unconnected));
        let timing = Timing::new(attr.rtt, attr.rate);
        Ok(add(Object::Qp(Arc::new(Mutex::new(Qp { context: key(ctx), state, timing })))))
    };
    tell(make()).unwrap_or(std::ptr::null_mut())
}

pub(crate) fn other(error: impl std::fmt::Display) -> Misuse {
    Misuse::Other(error.to_string())
}

/// Says goodbye to the peer, and destroys a queue pair.
/// Its open handles end in SDR_ERROR, and are still to be completed.
#[unsafe(no_mangle)]
pub extern "C" fn sdr_qp_destroy(qp: *mut sdr_qp) -> c_int {
    let destroy = || {
        let found = object::qp(key(qp))?;
        // One of several threads takes it.
        if !remove(key(qp)) {
            return Err(Misuse::Handle);
        }
        let mut state = lock(&found);
        if let Ok(context) = object::context(state.context) {
            let mut context = lock(&context);
            context.qps = context.qps.saturating_sub(1);
        }
        state.state = QpState::Failed;
        Ok(())
    };
    code(destroy())
}

/// Tells how many bytes sdr_qp_info_get writes.
///
/// # Safety
/// `info_size` is valid or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sdr_qp_info_size_get(qp: *mut sdr_qp, info_size: *mut usize) -> c_int {
    let result = object::qp(key(qp)).and_then(|_| {
        // SAFETY: promised by the caller.
        unsafe { write(info_size, BLOB_BYTES) }
    });
    code(result)
}

/// Writes what the peer needs to connect.
///
/// # Safety
/// `info` has room for as many bytes as sdr_qp_info_size_get told, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sdr_qp_info_get(qp: *mut sdr_qp, info: *mut c_void) -> c_int {
    let get = || {
        let qp = object::qp(key(qp))?;
        match &lock(&qp).state {
            // SAFETY: promised by the caller.
            QpState::Unconnected(unconnected) => unsafe {
                write(info.cast::<[u8; BLOB_BYTES]>(), unconnected.blob())
            },
            _ => Err(Misuse::State("connected")),
        }
    };
    code(get())
}

/// Connects to the queue pair whose info this is.
/// If infos do not fit, the queue pair is only to be destroyed.
///
/// # Safety
/// `remote_qp_info` points to as many bytes as sdr_qp_info_size_get tells, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sdr_qp_connect(qp: *mut sdr_qp, remote_qp_info: *mut c_void) -> c_int {
    // SAFETY: promised by the caller.
    let peer = unsafe { read(remote_qp_info.cast::<[u8; BLOB_BYTES]>()) };
    let connect = || {
        let peer = peer?;
        let qp = object::qp(key(qp))?;
        let mut qp = lock(&qp);
        let secret = lock(&*object::context(qp.context)?).secret;
        if secret.is_none() && matches!(&qp.state, QpState::Unconnected(it) if it.needs_secret()) {
            return Err(Misuse::Secret);
        }
        match std::mem::replace(&mut qp.state, QpState::Failed) {
            QpState::Unconnected(unconnected) => {
                let pair = unconnected.connect(&peer, secret.as_ref())?;
                qp.state = QpState::Connected(Box::new(pair));
                Ok(())
            }
            state => {
                qp.state = state;
                Err(Misuse::State("connected, or failed"))
            }
        }
    };
    code(connect())
}

/// Registers memory. Returns NULL on failure. `access` is SDR_ACCESS_REMOTE_WRITE.
///
/// # Safety
/// `length` bytes from `addr` on stay valid until sdr_mr_dereg.
/// From posting to completion, nobody accesses a receive buffer except for chunks whose bits are
/// set.
/// From posting to completion, nobody changes what is being sent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sdr_mr_reg(
    sdr_ctx: *mut sdr_context,
    addr: *mut c_void,
    length: usize,
    access: AnyAccess,
) -> *mut sdr_mr {
    let register = || {
        if addr.is_null() {
            return Err(Misuse::Null);
        }
        if access != 0 {
            return Err(Misuse::Range("access"));
        }
        if length == 0 || addr.addr().checked_add(length).is_none_or(|end| end > isize::MAX as usize) {
            return Err(Misuse::Range("length"));
        }
        let context = object::context(key(sdr_ctx))?;
        let address = std::ptr::NonNull::new(addr.cast::<u8>()).ok_or(Misuse::Null)?;
        // SAFETY: promised by the caller; the region is dropped at the latest by sdr_mr_dereg, or
        // with the last use.
        let memory = unsafe { sdr::Region::foreign(address, length) };
        let region = Region { start: addr.expose_provenance(), len: length, users: 0, memory };
        let mut context = lock(&context);
        let free = context.regions.iter().position(Option::is_none);
        let lkey = free.unwrap_or(context.regions.len());
        match context.regions.get_mut(lkey) {
            Some(place) => *place = Some(region),
            None => context.regions.push(Some(region)),
        }
        let lkey = u32::try_from(lkey).map_err(|_| Misuse::Range("the number of regions"))?;
        Ok(add(Object::Mr(Mr { context: key(sdr_ctx), lkey })))
    };
    tell(register()).unwrap_or(std::ptr::null_mut())
}

/// Deregisters memory. SDR_ERROR while a receive or a send uses it.
#[unsafe(no_mangle)]
pub extern "C" fn sdr_mr_dereg(mr: *mut sdr_mr) -> c_int {
    let deregister = || {
        let found = object::mr(key(mr))?;
        let context = object::context(found.context)?;
        let mut context = lock(&context);
        let place = context.regions.get_mut(found.lkey as usize).ok_or(Misuse::Memory)?;
        if place.as_ref().is_some_and(|region| region.users > 0) {
            return Err(Misuse::InUse);
        }
        // Another thread may have been first, and the key be another region's by now.
        if !remove(key(mr)) {
            return Err(Misuse::Handle);
        }
        *place = None;
        Ok(())
    };
    code(deregister())
}

/// Tells the key of memory.
///
/// # Safety
/// `lkey` is valid or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sdr_mr_lkey_get(mr: *mut sdr_mr, lkey: *mut u32) -> c_int {
    let result = object::mr(key(mr)).and_then(|mr| {
        // SAFETY: promised by the caller.
        unsafe { write(lkey, mr.lkey) }
    });
    code(result)
}

/// Tells the same key as sdr_mr_lkey_get: the peer needs none.
///
/// # Safety
/// `rkey` is valid or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sdr_mr_rkey_get(mr: *mut sdr_mr, rkey: *mut u32) -> c_int {
    // SAFETY: promised by the caller.
    unsafe { sdr_mr_lkey_get(mr, rkey) }
}

/// Sends up to 1024 bytes to the peer beside the messages. They may be lost, reordered or repeated.
/// SDR_RETRY if 1024 wait to leave.
/// Not in the published header.
///
/// # Safety
/// `bytes` points to `length` bytes, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sdr_ctrl_send(qp: *mut sdr_qp, bytes: *const c_void, length: usize) -> c_int {
    let send = || {
        if bytes.is_null() || length > sdr::wire::CONTROL_BYTES {
            return Err(Misuse::Range("a control datagram"));
        }
        // SAFETY: promised by the caller.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), length) };
        let qp = object::qp(key(qp))?;
        match lock(&qp).state.connected()?.control.send(bytes) {
            Ok(()) => Ok(true),
            Err(ControlError::Retry) => Ok(false),
            Err(error) => Err(other(error)),
        }
    };
    error::retry(send())
}

/// Copies the next control datagram of the peer, cut to `room` bytes, and tells its length.
/// SDR_RETRY if there is none, and SDR_ERROR if there is none and the peer is gone.
/// Not in the published header.
///
/// # Safety
/// `bytes` has room for `room` bytes, and `length` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sdr_ctrl_recv(
    qp: *mut sdr_qp,
    bytes: *mut c_void,
    room: usize,
    length: *mut usize,
) -> c_int {
    let receive = || {
        if bytes.is_null() || length.is_null() {
            return Err(Misuse::Null);
        }
        let qp = object::qp(key(qp))?;
        let mut guard = lock(&qp);
        let control = &guard.state.connected()?.control;
        let Some(found) = control.receive() else {
            return if control.has_ended() { Err(Misuse::State("at its end")) } else { Ok(false) };
        };
        // SAFETY: promised by the caller; the lengths are both bounds of the copy.
        unsafe {
            bytes.cast::<u8>().copy_from_nonoverlapping(found.as_ptr(), found.len().min(room));
            write(length, found.len())?;
        }
        Ok(true)
    };
    error::retry(receive())
}
