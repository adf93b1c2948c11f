//! RoCEv2 wire formats, ICRC, and the two halves of a terminated RC flow.
//!
//! - [`ip`]: one IP packet to and from its transport bytes, with the [`icrc`] checked and made.
//! - [`wire`]: those bytes, BTH to padding, to and from typed headers.
//! - [`cm`]: the connection management messages among them.
//! - [`pairing`]: which two queue pairs belong together, since a BTH names only one.
//! - [`flow`]: the responder that faces a requester's NIC, and the requester that faces a target's.
//!
//! No I/O, no clock and no randomness live here, nor anything of the wide-area link: time is a
//! parameter, and what comes in is bytes of a LAN that anyone may have sent. No input panics, and
//! every table is bounded.
//!
//! ```
//! use roce::ip::{self, Addressing, Datagram};
//! use roce::wire::{Aeth, Bth, Ext, Opcode, Packet, Psn, Qpn, Repr, Syndrome};
//!
//! // An ACK of everything up to PSN 7, from 10.0.1.1 to queue pair 0x11 at 10.0.0.1.
//! let ack = Repr {
//!     bth: Bth::new(Opcode::Acknowledge, Qpn::new(0x11), Psn::new(7)),
//!     ext: Ext::Aeth(Aeth { syndrome: Syndrome::ACK, msn: 3 }),
//!     payload: &[],
//! };
//! let addressing = Addressing {
//!     src: [10, 0, 1, 1].into(),
//!     dst: [10, 0, 0, 1].into(),
//!     src_port: 0xc123,
//!     tclass: 0,
//!     ttl: 64,
//! };
//! let (mut transport, mut out) = ([0; 16], [0; 64]);
//! let length = ack.emit(&mut transport)?;
//! let length = ip::emit(&addressing, 1, &transport[..length], &mut out)?;
//!
//! // And back.
//! let datagram = Datagram::parse(&out[..length])?;
//! assert_eq!(datagram.addressing, addressing);
//! assert_eq!(Packet::parse(datagram.transport)?.repr(), ack);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod cm;
pub mod flow;
pub mod hosts;
pub mod icrc;
pub mod ip;
pub mod pairing;
mod port;
pub mod unheard;
pub mod wire;
