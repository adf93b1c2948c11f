//! Records on their way to the peer: which turn each takes in its class's stream.

use std::time::Instant;

use reliability::stream::Full;
use roce::wire::Opcode;
use transport::{Group, Place, Senders, Urgency};

use crate::record::Head;

/// Carries a record, its body in two pieces, for the host that is served.
///
/// # Errors
/// The stream has no room for it, or there is no session.
pub(crate) fn push(
    senders: &mut Senders,
    class: usize,
    urgency: Urgency,
    head: &Head,
    [front, back]: [&[u8]; 2],
    now: Instant,
) -> Result<(), Full> {
    // What is small and urgent shares packets.
    let (source, group) = match (urgency, head.source()) {
        (Urgency::Prompt, _) => (0, Group::main(0)),
        // What is no flow's is its host's.
        (Urgency::Bulk, 0) => (senders.group().number().into(), senders.group()),
        (Urgency::Bulk, source) => (source, senders.group()),
    };
    let goes_first = is_message(if front.is_empty() { back } else { front });
    let place = Place { source, group, goes_first };
    senders.push(class, urgency, place, &[head.emit().as_ref(), front, back], now)
}

/// Returns whether a packet is a whole message, or all of an answer, by its BTH.
fn is_message(transport: &[u8]) -> bool {
    Opcode::of(transport).is_some_and(|opcode| opcode.starts_message() && opcode.ends_message())
}
