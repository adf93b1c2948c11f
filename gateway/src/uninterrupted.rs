//! System calls that a signal interrupts.

use std::io;

/// Calls again when a signal has come meanwhile, which is no answer.
///
/// Sockets with a timeout fail then, whatever the signal's handler asks for. So they do after a
/// stop.
pub(crate) fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_signal_has_it_called_again() {
        let mut results = vec![Ok(1), Err(io::ErrorKind::Interrupted), Err(io::ErrorKind::Interrupted)];
        let mut next = || results.pop().unwrap_or(Ok(2)).map_err(io::Error::from);
        assert_eq!(uninterrupted(&mut next).unwrap(), 1);
        let mut calls = 0;
        let refused = uninterrupted(|| -> io::Result<()> {
            calls += 1;
            Err(io::ErrorKind::WouldBlock.into())
        });
        assert_eq!((refused.unwrap_err().kind(), calls), (io::ErrorKind::WouldBlock, 1));
    }
}
