//! Sends and receives of C programs.

use std::ffi::c_int;
use std::sync::{Arc, Mutex};

use sdr::udp::now;
use sdr::{Buffer, PostError, SendError, Slice};
use slotmap::DefaultKey;

use crate::error::{Misuse, read, retry, write};
use crate::object::{
    self, Context, Object, Recv, RecvState, Region, Send, SendState, add, key, lock, remove,
};
use crate::other;
use crate::types::{
    sdr_qp, sdr_recv_handle, sdr_recv_wr, sdr_send_continue_wr, sdr_send_handle, sdr_send_start_wr,
    sdr_send_status, sdr_send_wr,
};

/// Makes a buffer of a program's registered memory.
fn foreign(region: &Region, address: u64, len: u32) -> Result<Buffer, Misuse> {
    let start = (address as usize).checked_sub(region.start).ok_or(Misuse::Memory)?;
    // SAFETY: sdr_mr_reg was promised that the memory stays valid and is left alone.
    unsafe { Buffer::within(&region.memory, start..start + len as usize) }.ok_or(Misuse::Memory)
}

/// Returns the immediate of an operation.
fn immediate(opcode: u32, value: u32) -> Result<Option<u32>, Misuse> {
    match opcode {
        0 => Ok(None),
        1 => Ok(Some(value)),
        _ => Err(Misuse::Range("opcode")),
    }
}

/// Posts a receive. SDR_RETRY if no slot is free.
///
/// # Safety
/// `wr` and `handle` are valid or NULL. See sdr_mr_reg for the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sdr_recv_post(
    qp: *mut sdr_qp,
    wr: *mut sdr_recv_wr,
    handle: *mut *mut sdr_recv_handle,
) -> c_int {
    // SAFETY: promised by the caller.
    let wr = unsafe { read(wr) };
    let post = || {
        let wr = wr?;
        let found = object::qp(key(qp))?;
        let mut found = lock(&found);
        let context_key = found.context;
        let pair = found.state.connected()?;
        let receive = pair.receive.as_mut().ok_or(Misuse::State("not connected to receive"))?;
        let context = object::context(context_key)?;
        let mut context = lock(&context);
        let region = context.region(wr.lkey, wr.address, wr.max_length)?;
        let range = (wr.address as usize, wr.address as usize + wr.max_length as usize);
        let buffer = foreign(region, wr.address, wr.max_length)?;
        region.users += 1;
        let posted = place(&mut context, range, || match receive.post(buffer) {
            Ok(handle) => Ok(Some(handle)),
            Err(unposted) if unposted.error == PostError::Retry => Ok(None),
            Err(unposted) => Err(other(unposted.error)),
        });
        let Ok(Some(posted)) = posted else {
            context.release(wr.lkey);
            return posted.map(|_| false);
        };
        let state = RecvState::Open(posted);
        let recv = Recv { context: context_key, state, range, lkey: wr.lkey };
        let made = add(Object::Recv(Arc::new(Mutex::new(recv))));
        // SAFETY: promised by the caller.
        unsafe { write(handle, made) }?;
        Ok(true)
    };
    if handle.is_null() {
        return retry(Err(Misuse::Null));
    }
    retry(post())
}

/// Posts into memory that no other receive is posted to.
fn place<T>(
    context: &mut Context,
    range: (usize, usize),
    post: impl FnOnce() -> Result<Option<T>, Misuse>,
) -> Result<Option<T>, Misuse> {
    if context.posted.iter().any(|(start, end)| range.0 < *end && *start < range.1) {
        return Err(Misuse::InUse);
    }
    let posted = post()?;
    if posted.is_some() {
        context.posted.push(range);
    }
    Ok(posted)
}

/// Tells the live chunk bitmap: chunk i is bit i mod 8 of byte i / 8. It is valid until
/// sdr_recv_complete.
///
/// # Safety
/// Both pointers are valid or NULL. The bitmap is read atomically, with acquire ordering.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sdr_recv_bitmap_get(
    handle: *mut sdr_recv_handle,
    bitmap_bytes: *mut *mut u8,
    bitmap_num_bytes: *mut usize,
) -> c_int {
    let get = || {
        with_open(handle, |open| {
            let start = open.live_bitmap().ok_or(Misuse::Handle)?.cast_mut();
            // SAFETY: promised by the caller. The bytes live as long as the handle, which has the
            // slot.
            unsafe {
                write(bitmap_bytes, start)?;
                write(bitmap_num_bytes, open.chunks().div_ceil(8) as usize)?;
            }
            Ok(true)
        })
    };
    retry(get())
}

/// Writes which packets of a chunk are there: packet i is bit i mod 64 of word i / 64.
/// Bits of packets that the buffer does not have are 0.
///
/// # Safety
/// `bitmap` has room for a bit for each packet of a full chunk, in whole words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sdr_recv_bitmap_chunk_expand(
    handle: *mut sdr_recv_handle,
    chunk_offset: u32,
    bitmap: *mut u64,
) -> c_int {
    let expand = || {
        with_open(handle, |open| {
            if chunk_offset >= open.chunks() {
                return Err(Misuse::Range("chunk_offset"));
            }
            let mut packets = open.packets(chunk_offset);
            for at in 0..open.packets_per_chunk().div_ceil(u64::BITS) as usize {
                let there = packets.by_ref().take(u64::BITS as usize);
                let word = (0..).zip(there).fold(0, |word, (bit, there)| word | u64::from(there) << bit);
                // SAFETY: promised by the caller.
                unsafe { write(bitmap.wrapping_add(at), word) }?;
            }
            Ok(true)
        })
    };
    retry(expand())
}

fn with_open<T>(
    handle: *mut sdr_recv_handle,
    look: impl FnOnce(&sdr::RecvHandle) -> Result<T, Misuse>,
) -> Result<T, Misuse> {
    let recv = object::recv(key(handle))?;
    match &lock(&recv).state {
        RecvState::Open(open) => look(open),
        RecvState::Closing(_) | RecvState::Gone => Err(Misuse::State("completed")),
    }
}

/// Tells the immediate. SDR_RETRY until packets with all of it came; SDR_ERROR if they never will.
///
/// # Safety
/// `immediate` is valid or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sdr_recv_imm_get(handle: *mut sdr_recv_handle, immediate: *mut u32) -> c_int {
    let get = || {
        with_open(handle, |open| match open.imm() {
            // SAFETY: promised by the caller.
            Some(imm) => unsafe { write(immediate, imm) }.map(|()| true),
            None if open.has_ended() => Err(Misuse::State("at its end")),
            None => Ok(false),
        })
    };
    retry(get())
}

/// Completes a receive, at any time. SDR_RETRY while the back end is inside the buffer: call again.
/// It never is once all bits are set, except on RDMA devices.
/// After SDR_SUCCESS the buffer does not change any more, and the handle is gone.
#[unsafe(no_mangle)]
pub extern "C" fn sdr_recv_complete(handle: *mut sdr_recv_handle) -> c_int {
    let complete = || {
        let found = object::recv(key(handle))?;
        let mut recv = lock(&found);
        let closing = match std::mem::replace(&mut recv.state, RecvState::Gone) {
            RecvState::Open(open) => open.complete(),
            RecvState::Closing(closing) => closing,
            RecvState::Gone => return Err(Misuse::Handle),
        };
        match closing.poll() {
            Err(closing) => {
                recv.state = RecvState::Closing(closing);
                Ok(false)
            }
            Ok(_) => {
                if let Ok(context) = object::context(recv.context) {
                    let mut context = lock(&context);
                    context.release(recv.lkey);
                    context.posted.retain(|range| *range != recv.range);
                }
                drop(recv);
                remove(key(handle));
                Ok(true)
            }
        }
    };
    retry(complete())
}

/// Sends a message. SDR_RETRY if it has no slot or no credit yet.
///
/// # Safety
/// `wr` and `handle` are valid or NULL. See sdr_mr_reg for the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sdr_send_post(
    qp: *mut sdr_qp,
    wr: *mut sdr_send_wr,
    handle: *mut *mut sdr_send_handle,
) -> c_int {
    // SAFETY: promised by the caller.
    let wr = unsafe { read(wr) };
    let post = || {
        let wr = wr?;
        let imm = immediate(wr.opcode, wr.imm_value)?;
        let chunk = u32::try_from(wr.remote_offset).map_err(|_| Misuse::Range("remote_offset"))?;
        let found = object::qp(key(qp))?;
        let mut found = lock(&found);
        let context = found.context;
        let pair = found.state.connected()?;
        let send = pair.send.as_mut().ok_or(Misuse::State("not connected to send"))?;
        let data = slice(context, wr.lkey, wr.local_addr, wr.length)?;
        let sent = send.post(data, chunk, imm, now()).map(SendState::Handle);
        // SAFETY: promised by the caller.
        unsafe { hand_out(context, vec![wr.lkey], sent, handle) }
    };
    if handle.is_null() {
        return retry(Err(Misuse::Null));
    }
    retry(post())
}

/// Returns registered memory to send from, and counts its use.
fn slice(context: DefaultKey, lkey: u32, address: u64, len: u32) -> Result<Slice, Misuse> {
    let context = object::context(context)?;
    let mut context = lock(&context);
    let region = context.region(lkey, address, len)?;
    let memory = Arc::new(foreign(region, address, len)?);
    let slice = Slice::new(&memory, 0..len as usize).ok_or(Misuse::Memory)?;
    region.users += 1;
    Ok(slice)
}

fn release(context: DefaultKey, lkeys: &[u32]) {
    if let Ok(context) = object::context(context) {
        let mut context = lock(&context);
        lkeys.iter().for_each(|lkey| context.release(*lkey));
    }
}

/// Makes a handle of a send that was taken, or gives its memory back.
///
/// # Safety
/// `handle` has room for a pointer.
unsafe fn hand_out(
    context: DefaultKey,
    lkeys: Vec<u32>,
    sent: Result<SendState, SendError>,
    handle: *mut *mut sdr_send_handle,
) -> Result<bool, Misuse> {
    match sent {
        Ok(state) => {
            let made = add(Object::Send(Arc::new(Mutex::new(Send { context, state, lkeys }))));
            // SAFETY: promised by the caller.
            unsafe { write(handle, made) }.map(|()| true)
        }
        Err(error) => {
            release(context, &lkeys);
            if error == SendError::Retry { Ok(false) } else { Err(other(error)) }
        }
    }
}

/// Opens a message without data. SDR_RETRY if it has no slot or no credit yet.
///
/// # Safety
/// `wr` and `handle` are valid or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sdr_streaming_send_start(
    qp: *mut sdr_qp,
    wr: *mut sdr_send_start_wr,
    handle: *mut *mut sdr_send_handle,
) -> c_int {
    // SAFETY: promised by the caller.
    let wr = unsafe { read(wr) };
    let start = || {
        let wr = wr?;
        let imm = immediate(wr.opcode, wr.imm_value)?;
        let found = object::qp(key(qp))?;
        let mut found = lock(&found);
        let context = found.context;
        let pair = found.state.connected()?;
        let send = pair.send.as_mut().ok_or(Misuse::State("not connected to send"))?;
        let sent = send.stream(imm, now()).map(SendState::Stream);
        // SAFETY: promised by the caller.
        unsafe { hand_out(context, Vec::new(), sent, handle) }
    };
    if handle.is_null() {
        return retry(Err(Misuse::Null));
    }
    retry(start())
}

/// Writes chunks of a message, the first time or again. SDR_RETRY if too many writes wait.
///
/// # Safety
/// `wr` is valid or NULL. See sdr_mr_reg for the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sdr_streaming_send_continue(
    handle: *mut sdr_send_handle,
    wr: *mut sdr_send_continue_wr,
) -> c_int {
    // SAFETY: promised by the caller.
    let wr = unsafe { read(wr) };
    let write = || {
        let wr = wr?;
        let chunk = u32::try_from(wr.remote_offset).map_err(|_| Misuse::Range("remote_offset"))?;
        let found = object::send(key(handle))?;
        let mut found = lock(&found);
        let context = found.context;
        let SendState::Stream(stream) = &mut found.state else {
            return Err(Misuse::State("not streaming"));
        };
        match stream.write(chunk, slice(context, wr.lkey, wr.local_addr, wr.length)?) {
            // Each key is counted once: repairs use the same memory again and again.
            Ok(()) if found.lkeys.contains(&wr.lkey) => {
                release(context, &[wr.lkey]);
                Ok(true)
            }
            Ok(()) => {
                found.lkeys.push(wr.lkey);
                Ok(true)
            }
            Err(error) => {
                release(context, &[wr.lkey]);
                if error == SendError::Retry { Ok(false) } else { Err(other(error)) }
            }
        }
    };
    retry(write())
}

/// Ends a message. SDR_ERROR if its immediate was not carried whole; it has ended all the same.
/// Its memory is in use until sdr_send_poll tells that all has left.
#[unsafe(no_mangle)]
pub extern "C" fn sdr_streaming_send_end(handle: *mut sdr_send_handle) -> c_int {
    let end = || {
        let found = object::send(key(handle))?;
        let mut found = lock(&found);
        match std::mem::replace(&mut found.state, SendState::Gone) {
            SendState::Stream(stream) => {
                found.state = SendState::Handle(stream.handle());
                stream.end().map(|_| true).map_err(other)
            }
            state => {
                found.state = state;
                Err(Misuse::State("not streaming"))
            }
        }
    };
    retry(end())
}

/// Tells if all of a message has left, which is not to say that it arrived.
/// SDR_RETRY and a flag of 0 until then; a streaming send has to be ended first.
/// With a flag of 1, or SDR_ERROR after the peer is gone, the handle is gone.
///
/// # Safety
/// `completed_flag` is valid; `status` is valid or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sdr_send_poll(
    handle: *mut sdr_send_handle,
    completed_flag: *mut c_int,
    status: *mut sdr_send_status,
) -> c_int {
    let poll = || {
        let found = object::send(key(handle))?;
        let mut found = lock(&found);
        let result = match &found.state {
            SendState::Stream(stream) if stream.has_ended() => Err(Misuse::State("at its end")),
            SendState::Stream(_) => Ok(false),
            SendState::Handle(sent) => sent.poll().map_err(other),
            SendState::Gone => Err(Misuse::Handle),
        };
        // SAFETY: promised by the caller.
        unsafe {
            write(completed_flag, c_int::from(matches!(result, Ok(true))))?;
            if !status.is_null() {
                write(status, sdr_send_status { flags: 0 })?;
            }
        }
        if !matches!(result, Ok(false)) {
            found.state = SendState::Gone;
            let lkeys = std::mem::take(&mut found.lkeys);
            release(found.context, &lkeys);
            drop(found);
            remove(key(handle));
        }
        result
    };
    retry(poll())
}
