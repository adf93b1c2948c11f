//! Records cut across packets: a piece has no length of its own, it goes on to its packet's end.

use crate::world::{STREAM, origin};
use reliability::stream::{Receiver, ReceiverConfig, Scheme, Sender, SenderConfig};

const MAX_PACKET: usize = 400;

/// Packets get shorter within a block. Parity is as long as the longest one, yet what it gives back
/// ends where the sender's packet ended.
#[test]
fn a_decoded_packet_is_as_long_as_it_was_sent() {
    for scheme in [Scheme::mds(4, 2), Scheme::xor(4, 2)] {
        for lost in [[1, 2], [2, 3], [1, 9]] {
            let now = origin();
            let mut sender =
                Sender::new(SenderConfig { scheme, ..SenderConfig::new(STREAM, MAX_PACKET) }, now);
            let mut receiver = Receiver::new(ReceiverConfig::new(STREAM, MAX_PACKET), now);
            let long = [7; 370];
            let cut: Vec<u8> = (0..700_u32).map(|at| at as u8 | 1).collect();
            let (mut out, mut lengths, mut records) = ([0; MAX_PACKET], Vec::new(), Vec::new());
            for (record, longest) in [(&long[..], MAX_PACKET), (&cut, 300)] {
                sender.set_max_packet(longest);
                sender.push(&[record], now).unwrap();
                while let Some(transmit) = sender.poll_transmit(now, &mut out) {
                    let deliver = &mut |record: &[u8]| records.push(record.to_vec());
                    if !lost.contains(&lengths.len()) {
                        receiver.handle_packet(&out[..transmit.len], now, deliver).unwrap();
                    }
                    lengths.push(transmit.len);
                }
            }
            assert!(lengths.len() == 6 && lengths[..3] == [391, 300, 300] && lengths[4..] == [391; 2]);
            assert_eq!(records, [&long[..], &cut], "{scheme:?} without {lost:?}");
            assert_eq!(receiver.stats().decoded, lost.iter().filter(|lost| **lost < 4).count() as u64);
        }
    }
}
