//! One connection over a long, lossy link, below whatever it carries.
//!
//! What lives here: [`Connection`], which ties the streams, the schedule among them, the pacer, the
//! lanes, the search for the path's MTU, path reports and congestion control of a session together.
//! What never may: I/O, clocks, threads, keys, and whatever the records mean. The gateway drives it
//! with real sockets, the simulator with virtual time, and anybody else as the example shows.
//!
//! # Example
//! Two connections over a link that loses every fiftieth packet. Their owner moves the packets and
//! the time.
//!
//! ```
//! use std::time::{Duration, Instant};
//!
//! use reliability::estimator::{Arrival, Ecn};
//! use transport::{Class, Config, Connection, Group, Place, Session, Urgency};
//!
//! const RECORDS: u32 = 1000;
//! let mut now = Instant::now();
//! let class = Class::new("default");
//! let session = Session { rtt: Duration::from_millis(2), max_packet: 1400, lanes: 1 };
//! let mut ends: [Connection; 2] = std::array::from_fn(|_| {
//!     let config = Config::new(1_000_000_000, session.max_packet);
//!     let mut end = Connection::new(config, vec![class.clone()], now);
//!     end.begin(&session, now);
//!     end
//! });
//!
//! // What one end has to send.
//! for number in 0..RECORDS {
//!     let record = [&number.to_be_bytes()[..], &[7; 1000]];
//!     let place = Place { source: 1, group: Group::main(0), goes_first: false };
//!     ends[0].senders().push(0, Urgency::Bulk, place, &record, now)?;
//! }
//!
//! // Each end numbers its packets; one in fifty is lost, all others arrive after a millisecond.
//! let mut numbers = [0; 2];
//! let mut link: Vec<(Instant, usize, Vec<u8>, Arrival)> = Vec::new();
//! let mut arrived = vec![0; RECORDS as usize];
//! let mut out = [0; 1400];
//! while !ends[0].is_idle() {
//!     for (index, end) in ends.iter_mut().enumerate() {
//!         if end.next_timeout(now).is_some_and(|due| due <= now) {
//!             end.handle_timeout(now);
//!         }
//!         while let Some(packet) = end.poll_transmit(now, &mut out) {
//!             let number = numbers[index];
//!             numbers[index] += 1;
//!             if number % 50 == 49 {
//!                 continue;
//!             }
//!             let bytes = end.wire_bytes(packet.len);
//!             let arrival = Arrival { lane: packet.lane, number, bytes, ecn: Ecn::NotEct };
//!             let due = now + Duration::from_millis(1);
//!             link.push((due, 1 - index, out[..packet.len].to_vec(), arrival));
//!         }
//!         while end.poll_event().is_some() {}
//!     }
//!     now += Duration::from_micros(50);
//!     for (_, to, packet, arrival) in link.extract_if(.., |(due, ..)| *due <= now) {
//!         ends[to].handle_datagram(&packet, arrival, now, &mut |record, _| {
//!             let number = u32::from_be_bytes(*record.first_chunk().unwrap());
//!             arrived[number as usize] += 1;
//!         })?;
//!     }
//! }
//! assert!(arrived.iter().all(|times| *times == 1), "each record once, whatever was lost");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bounds;
mod class;
mod connection;
mod group;
mod marker;
mod path;
mod receivers;
mod senders;
mod sizes;
mod thinning;

pub use bounds::{BASE_PACKET, Config, Congestion, MOST_LANES, auto_flush, window};
pub use class::{Allowed, Class, MAX_CLASSES, Repair, Urgency};
pub use connection::{ClassStats, Connection, Event, LanePacket, Parked, Session};
pub use group::Group;
pub use marker::Marker;
pub use path::PathStats;
pub use senders::{Place, Reservation, Senders, StreamCopying, Tuning, Undrained};
pub use sizes::{Sent, Sizes};

#[cfg(test)]
fn test_clock() -> std::time::Instant {
    #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
    std::time::Instant::now()
}
