//! Reliability layers for C programs: calls beyond the published header.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use sdr::layers::{ReceiveError, Receiving, Scheme, Sending, TransferError};
use sdr::udp::now;
use sdr::{Buffer, RecvQp, SendQp, Shape};

use crate::error::{Misuse, code, retry, write};
use crate::object::{self, Layer, QpState, Side, key, lock};
use crate::types::sdr_qp;
use crate::{other, text};

const NO_LAYER: Misuse = Misuse::State("without a layer: see sdr_layer_start");

/// Gives a connected queue pair to a reliability layer: "rto", "nack", "mds:K,M" or "xor:K,M".
/// The queue pair sends or receives, not both, and nothing was posted on it. The peer names the
/// same.
/// From then on it takes the calls of layers, and sdr_qp_destroy.
/// Not in the published header.
///
/// # Safety
/// `scheme` is a C string or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sdr_layer_start(qp: *mut sdr_qp, scheme: *const c_char) -> c_int {
    // SAFETY: promised by the caller.
    let scheme = unsafe { text(scheme) };
    let start = || {
        let scheme: Scheme = scheme?.parse().map_err(other)?;
        let found = object::qp(key(qp))?;
        let mut found = lock(&found);
        let timing = found.timing;
        let pair = found.state.connected()?;
        let is_used = pair.send.as_ref().is_some_and(|send| send.issued() > 0)
            || pair.receive.as_ref().is_some_and(|receive| receive.posted() > 0);
        if is_used {
            return Err(Misuse::State("in use: a layer has it from the first message on"));
        }
        let side = match (&mut pair.send, &mut pair.receive) {
            (send @ Some(_), None) => take(send, SendQp::shape, &scheme)
                .and_then(|send| Sending::new(send, scheme, timing, now()).map_err(other))
                .map(Side::Sending),
            (None, receive @ Some(_)) => take(receive, RecvQp::shape, &scheme)
                .and_then(|receive| Receiving::new(receive, scheme, timing, now()).map_err(other))
                .map(Side::Receiving),
            _ => Err(Misuse::State("connected in both directions")),
        }?;
        let QpState::Connected(pair) = std::mem::replace(&mut found.state, QpState::Failed) else {
            return Err(Misuse::State("not connected"));
        };
        found.state = QpState::Layered(Box::new(Layer { side, pair: *pair }));
        Ok(())
    };
    code(start())
}

/// Takes a side out of its queue pair. A scheme that does not fit leaves it there.
fn take<Q>(side: &mut Option<Q>, shape: fn(&Q) -> &Shape, scheme: &Scheme) -> Result<Q, Misuse> {
    if let Some(side) = side {
        scheme.check(shape(side)).map_err(other)?;
    }
    side.take().ok_or(Misuse::State("not connected"))
}

fn with_layer<T>(qp: *mut sdr_qp, change: impl FnOnce(&mut Layer) -> Result<T, Misuse>) -> Result<T, Misuse> {
    let found = object::qp(key(qp))?;
    match &mut lock(&found).state {
        QpState::Layered(layer) => change(layer),
        _ => Err(NO_LAYER),
    }
}

fn sending<T>(qp: *mut sdr_qp, change: impl FnOnce(&mut Sending) -> Result<T, Misuse>) -> Result<T, Misuse> {
    with_layer(qp, |layer| match &mut layer.side {
        Side::Sending(sending) => change(sending),
        Side::Receiving(_) => Err(Misuse::State("one that receives")),
    })
}

fn receiving<T>(
    qp: *mut sdr_qp,
    change: impl FnOnce(&mut Receiving) -> Result<T, Misuse>,
) -> Result<T, Misuse> {
    with_layer(qp, |layer| match &mut layer.side {
        Side::Receiving(receiving) => change(receiving),
        Side::Sending(_) => Err(Misuse::State("one that sends")),
    })
}

/// Reads what the peer says, and does what is due. To be called often: at least several times in a
/// round trip, also until the peer has all.
/// SDR_ERROR if the peer is gone, or a message cannot be recovered.
/// Not in the published header.
#[unsafe(no_mangle)]
pub extern "C" fn sdr_layer_poll(qp: *mut sdr_qp) -> c_int {
    code(with_layer(qp, |layer| match &mut layer.side {
        Side::Sending(sending) => sending.poll(&layer.pair.control, now()).map_err(other),
        Side::Receiving(receiving) => receiving.poll(&layer.pair.control, now()).map_err(other),
    }))
}

/// Takes a copy of a message to be sent, and tells its number.
/// SDR_RETRY if 1024 are under way, or 2^20 parts wait.
/// Not in the published header.
///
/// # Safety
/// `bytes` points to `length` bytes, or is NULL; `message` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sdr_layer_send(
    qp: *mut sdr_qp,
    bytes: *const c_void,
    length: usize,
    message: *mut u32,
) -> c_int {
    if bytes.is_null() || message.is_null() {
        return retry(Err(Misuse::Null));
    }
    retry(sending(qp, |layer| {
        if length > isize::MAX as usize {
            return Err(Misuse::Range("length"));
        }
        // SAFETY: promised by the caller.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), length) };
        match layer.send(&Arc::new(Buffer::from(bytes.to_vec()))) {
            // SAFETY: promised by the caller.
            Ok(number) => unsafe { write(message, number) }.map(|()| true),
            Err(TransferError::Retry) => Ok(false),
            Err(error) => Err(other(error)),
        }
    }))
}

/// Tells if the peer has all of a message: SDR_SUCCESS, or SDR_RETRY until then.
/// Not in the published header.
#[unsafe(no_mangle)]
pub extern "C" fn sdr_layer_done(qp: *mut sdr_qp, message: u32) -> c_int {
    retry(sending(qp, |layer| Ok(layer.is_done(message))))
}

/// Awaits a message of `length` bytes, as long as the peer sends it.
/// SDR_RETRY if 1024 are awaited, or 2^20 parts.
/// Not in the published header.
#[unsafe(no_mangle)]
pub extern "C" fn sdr_layer_expect(qp: *mut sdr_qp, length: usize) -> c_int {
    retry(receiving(qp, |layer| match layer.expect(length) {
        Ok(_) => Ok(true),
        Err(ReceiveError::Retry) => Ok(false),
        Err(error) => Err(other(error)),
    }))
}

/// Copies the next message, cut to `room` bytes, and tells its length. SDR_RETRY until all of it is
/// there.
/// Not in the published header.
///
/// # Safety
/// `bytes` has room for `room` bytes, and `length` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sdr_layer_recv(
    qp: *mut sdr_qp,
    bytes: *mut c_void,
    room: usize,
    length: *mut usize,
) -> c_int {
    if bytes.is_null() || length.is_null() {
        return retry(Err(Misuse::Null));
    }
    retry(receiving(qp, |layer| {
        let Some(found) = layer.take() else { return Ok(false) };
        // SAFETY: promised by the caller; the lengths are both bounds of the copy.
        unsafe {
            bytes.cast::<u8>().copy_from_nonoverlapping(found.as_ptr(), found.len().min(room));
            write(length, found.len())?;
        }
        Ok(true)
    }))
}
