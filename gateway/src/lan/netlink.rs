//! Asking the kernel about its network configuration, and changing it.

use std::io;

use rtnetlink::packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use crate::uninterrupted::uninterrupted;

/// A routing netlink socket, one request at a time. Synchronous: not for a data-plane thread, whom
/// the kernel may keep waiting while somebody changes its network configuration.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    pub(crate) fn connect() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends a request, which asks for an acknowledgement or a dump, and collects the messages of
    /// its answer.
    pub(crate) fn request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence += 1;
        let mut message = NetlinkMessage::from(message);
        message.header.flags = NLM_F_REQUEST | flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut messages = Vec::new();
        loop {
            let (answer, _) = uninterrupted(|| self.socket.recv_from_full())?;
            if self.read(&answer, &mut messages)? {
                return Ok(messages);
            }
        }
    }

    /// Reads one datagram of messages. True when the answer is complete.
    fn read(&self, mut answer: &[u8], messages: &mut Vec<RouteNetlinkMessage>) -> io::Result<bool> {
        while let Some(length) = answer.first_chunk().map(|length| u32::from_ne_bytes(*length) as usize) {
            let Some(bytes) = answer.get(..length).filter(|_| length >= 16) else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            answer = answer.get(length.next_multiple_of(4)..).unwrap_or_default();
            // What is not known here, somebody else's rule for instance, is not what was asked for.
            let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(bytes) else {
                continue;
            };
            if message.header.sequence_number != self.sequence {
                continue;
            }
            match message.payload {
                NetlinkPayload::Done(_) => return Ok(true),
                NetlinkPayload::Error(error) if error.code.is_none() => return Ok(true),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                NetlinkPayload::InnerMessage(message) => messages.push(message),
                _ => {}
            }
        }
        Ok(false)
    }
}
