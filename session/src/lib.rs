//! A session joins two sites: it proves who they are, yields keys, and seals the datagrams between
//! them.
//!
//! | module | job |
//! |---|---|
//! | [`identity`] | certificates: load them, judge the peer's, make TLS configurations of them |
//! | [`schedule`] | keys of each direction and epoch, from 32 bytes of the TLS exporter |
//! | [`seal`] | seal and open datagrams in place |
//! | [`replay`] | tell which packet numbers were taken in |
//! | [`resumption`] | prove that two processes held a session together |
//! | [`message`] | encode and decode control messages |
//! | `control` | keep a session up over QUIC; feature `quic` |
//!
//! `docs/protocol.md` specifies the wire.
//!
//! With the default feature `quic`, `control::Control` runs the QUIC connection.
//! It hands over a [`Sealer`] and an [`Opener`] for each pair of threads, one of each side.
//! Without that feature, the caller derives them from a secret that both sides share.
//! That secret serves once.
//! A second sealer of one secret, pair of threads and direction repeats nonces.
//!
//! ```
//! use std::task::Waker;
//!
//! use session::schedule::{EXPORTER_BYTES, Role, Secrets};
//! use session::seal::{most_forgeries, packets_per_epoch};
//! use session::{Cipher, HEADER, OVERHEAD, Opener, Rejected, Sealer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Over QUIC, both sides have this from the TLS exporter.
//! let exporter = [7; EXPORTER_BYTES];
//! let ours = Secrets::derive(&exporter, Role::Dialer, Cipher::Aes128Gcm)?;
//! let theirs = Secrets::derive(&exporter, Role::Listener, Cipher::Aes128Gcm)?;
//!
//! // Datagrams carry the number by which their receiver calls the session.
//! let session = 0x0102_0304;
//! let text = b"hello";
//! let mut datagram = vec![0; text.len() + OVERHEAD];
//! // What a key may seal and may be tried on depends on the cipher and the longest datagram.
//! let (packets, forgeries) = (packets_per_epoch(1500), most_forgeries(Cipher::Aes128Gcm));
//! let mut sealer = Sealer::new(session, ours.send, packets)?;
//! let lanes = 1;
//! let opener = Opener::new(session, theirs.receive, lanes)?;
//! let mut opener = opener.within(forgeries, Waker::noop().clone());
//!
//! datagram[HEADER..HEADER + text.len()].copy_from_slice(text);
//! let lane = 0;
//! assert_eq!(sealer.seal(lane, &mut datagram, text.len()), Ok(datagram.len()));
//!
//! let mut copy = datagram.clone();
//! assert_eq!(opener.open(&mut datagram)?, text);
//! assert_eq!(opener.open(&mut copy), Err(Rejected::Replay));
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "quic")]
pub mod control;
pub mod identity;
pub mod key_log;
pub mod message;
mod rejected;
pub mod replay;
pub mod resumption;
pub mod schedule;
pub mod seal;
#[cfg(test)]
mod test_certificates;
mod threads;

pub use message::{Cipher, MOST_LANES, MOST_THREADS};
pub use rejected::Rejected;
pub use schedule::TAG;
pub use seal::{HEADER, Header, OVERHEAD, Opener, Origin, SealError, Sealer};
pub use threads::{ThreadCounts, ThreadPair};
