//! Return codes, the reason of the last error, and pointers of C programs.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};

use crate::types::sdr_errcode::{SDR_ERROR, SDR_RETRY, SDR_SUCCESS};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Reasons for `SDR_ERROR` that are this layer's own.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Misuse {
    #[error("the handle is stale, or of another type")]
    Handle,
    #[error("a pointer is null")]
    Null,
    #[error("the memory is not registered with this key")]
    Memory,
    #[error("the memory is in use")]
    InUse,
    #[error("the queue pair is {0}")]
    State(&'static str),
    #[error("{0} is out of range")]
    Range(&'static str),
    #[error("there is no shared secret: see sdr_context_secret_set")]
    Secret,
    #[error("{0}")]
    Other(String),
}

/// Returns why this thread's last failed call failed. The text is valid until the next failure.
/// Not in the published header.
#[unsafe(no_mangle)]
pub extern "C" fn sdr_last_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}

/// Keeps the reason of an error for `sdr_last_error`.
pub(crate) fn tell<T>(result: Result<T, Misuse>) -> Option<T> {
    result
        .map_err(|misuse| {
            // No reason has a zero byte inside.
            LAST.set(CString::new(misuse.to_string()).unwrap_or_default());
        })
        .ok()
}

pub(crate) fn code(result: Result<(), Misuse>) -> c_int {
    retry(result.map(|()| true))
}

/// Turns done, not yet, and failed into a return code.
pub(crate) fn retry(result: Result<bool, Misuse>) -> c_int {
    match tell(result) {
        Some(true) => SDR_SUCCESS as c_int,
        Some(false) => SDR_RETRY as c_int,
        None => SDR_ERROR as c_int,
    }
}

/// Reads what a program points to.
///
/// # Safety
/// `from` is null, or points to an initialised `T`.
pub(crate) unsafe fn read<T: Copy>(from: *const T) -> Result<T, Misuse> {
    if from.is_null() {
        return Err(Misuse::Null);
    }
    // SAFETY: promised by the caller; nothing is said of alignment.
    Ok(unsafe { from.read_unaligned() })
}

/// Writes where a program points to.
///
/// # Safety
/// `to` is null, or has room for a `T`.
pub(crate) unsafe fn write<T: Copy>(to: *mut T, value: T) -> Result<(), Misuse> {
    if to.is_null() {
        return Err(Misuse::Null);
    }
    // SAFETY: promised by the caller; nothing is said of alignment.
    unsafe { to.write_unaligned(value) };
    Ok(())
}
