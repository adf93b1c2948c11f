//! Parity is made of packets that the sender need not keep any more when it is sent.

use std::time::Duration;

use crate::world::{MS, STREAM, origin};
use reliability::stream::{Receiver, ReceiverConfig, Scheme, Sender, SenderConfig, TransmitKind};

const MAX_PACKET: usize = 400;

/// Packets of a block that arrive are acknowledged before the next one is sent; yet the parity
/// gives the one that was lost.
#[test]
fn parity_covers_what_was_acknowledged_before_the_block_was_full() {
    for lost in 0..4_u8 {
        let mut now = origin();
        let config = SenderConfig { scheme: Scheme::mds(4, 2), ..SenderConfig::new(STREAM, MAX_PACKET) };
        let mut sender = Sender::new(config, now);
        sender.set_flush(Duration::from_secs(1));
        let mut receiver = Receiver::new(ReceiverConfig::new(STREAM, MAX_PACKET), now);
        let mut delivered: Vec<u8> = Vec::new();
        let mut out = [0; MAX_PACKET];
        for i in 0..4_u8 {
            sender.push(&[&[i; 300]], now).unwrap();
            while let Some(transmit) = sender.poll_transmit(now, &mut out) {
                // Repairs are lost, too: the parity must do.
                let arrives = match transmit.kind {
                    TransmitKind::Data => i != lost,
                    kind => kind == TransmitKind::Parity,
                };
                if arrives {
                    let deliver = &mut |record: &[u8]| {
                        assert_eq!(record.len(), 300);
                        assert!(record.iter().all(|byte| *byte == *record.first().unwrap()));
                        delivered.push(*record.first().unwrap());
                    };
                    receiver.handle_packet(out.get(..transmit.len).unwrap(), now, deliver).unwrap();
                }
            }
            now += 20 * MS;
            receiver.handle_timeout(now);
            while let Some(len) = receiver.poll_report(now, &mut out) {
                sender.handle_report(out.get(..len).unwrap(), now).unwrap();
            }
            assert!(sender.in_flight() < MAX_PACKET, "what arrived is not acknowledged");
        }
        delivered.sort_unstable();
        assert_eq!(delivered, [0, 1, 2, 3], "{lost} lost");
    }
}
