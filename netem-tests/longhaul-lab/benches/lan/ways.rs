//! The ways that are compared.

use std::io;

use gateway::lan::packet::{Packet, PacketConfig};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};

use crate::bpf::{Mode, Program};
use crate::ether::{Plain, Ring};
use crate::netns::GATEWAY_MAC;
use crate::{STRANGER, xdp};

const INTERFACE: &str = "g0";

#[derive(Debug, Clone, Copy)]
pub(crate) enum Receive {
    Ring,
    XdpGeneric,
    XdpNative,
    Nobody,
}

impl Receive {
    pub(crate) const ALL: [Self; 4] = [Self::Ring, Self::XdpGeneric, Self::XdpNative, Self::Nobody];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ring => "AF_PACKET ring (TPACKET_V2)",
            Self::XdpGeneric => "AF_XDP, copy, program in stack",
            Self::XdpNative => "AF_XDP, copy, in driver",
            Self::Nobody => "nobody listens",
        }
    }
}

pub(crate) enum Receiver {
    Ring(Box<Packet>),
    Xdp(Box<xdp::Receiver>, #[expect(dead_code, reason = "held")] Program),
    Nobody,
}

impl Receiver {
    pub(crate) fn open(way: Receive) -> io::Result<Self> {
        let mode = match way {
            Receive::Ring => return Ok(Self::Ring(Packet::open(&PacketConfig::new(INTERFACE))?.into())),
            Receive::XdpGeneric => Mode::Generic,
            Receive::XdpNative => Mode::Native,
            Receive::Nobody => return Ok(Self::Nobody),
        };
        let index = index(INTERFACE)?;
        let receiver = xdp::Receiver::open(index)?;
        let program = Program::attach(index, GATEWAY_MAC, mode, &receiver.socket)?;
        Ok(Self::Xdp(receiver.into(), program))
    }

    pub(crate) fn hears(&self) -> bool {
        !matches!(self, Self::Nobody)
    }

    pub(crate) fn receive(&mut self, budget: usize, f: &mut dyn FnMut(&[u8])) -> io::Result<usize> {
        match self {
            Self::Ring(packet) => packet.receive(budget, f),
            Self::Xdp(receiver, _) => Ok(receiver.receive(budget, f)),
            Self::Nobody => Ok(0),
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Send {
    Gateway,
    Raw,
    Ether,
    EtherRing,
    Xdp,
}

impl Send {
    pub(crate) const ALL: [Self; 5] = [Self::Gateway, Self::Raw, Self::Ether, Self::EtherRing, Self::Xdp];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gateway => "as the gateway does",
            Self::Raw => "raw IP (sendmmsg)",
            Self::Ether => "AF_PACKET (sendmmsg)",
            Self::EtherRing => "AF_PACKET (transmit ring)",
            Self::Xdp => "AF_XDP, copy",
        }
    }
}

pub(crate) struct Sender {
    /// The receiving socket is there whichever way is gone.
    gateway: Packet,
    way: Way,
}

enum Way {
    Gateway,
    Packets(Plain),
    Frames(Plain),
    Ring(Ring),
    Xdp(xdp::Sender),
}

impl Sender {
    pub(crate) fn open(way: Send) -> io::Result<Self> {
        let index = index(INTERFACE)?;
        let gateway = Packet::open(&PacketConfig::new(INTERFACE))?;
        let way = match way {
            Send::Gateway => Way::Gateway,
            Send::Raw => Way::Packets(Plain::packets(INTERFACE, STRANGER)?),
            Send::Ether => Way::Frames(Plain::frames(index)?),
            Send::EtherRing => Way::Ring(Ring::open(index)?),
            Send::Xdp => Way::Xdp(xdp::Sender::open(index)?),
        };
        Ok(Self { gateway, way })
    }

    /// Writes a frame, which starts with its Ethernet header, to where it is to be sent from.
    pub(crate) fn put(&mut self, frame: &[u8]) -> io::Result<()> {
        let packet = frame.get(14..).unwrap_or_default();
        let full = || io::Error::other("no room to send");
        match &mut self.way {
            Way::Gateway => {
                write(self.gateway.reserve().ok_or_else(full)?, packet);
                self.gateway.commit(packet.len());
            }
            Way::Packets(plain) => {
                write(plain.reserve(packet.len()).ok_or_else(full)?, packet);
                plain.commit(packet.len());
            }
            Way::Frames(plain) => {
                write(plain.reserve(frame.len()).ok_or_else(full)?, frame);
                plain.commit(frame.len());
            }
            Way::Ring(ring) => {
                write(ring.reserve(frame.len()).ok_or_else(full)?, frame);
                ring.commit(frame.len());
            }
            Way::Xdp(sender) => {
                write(sender.reserve(frame.len()), frame);
                sender.commit(frame.len());
            }
        }
        Ok(())
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        match &mut self.way {
            Way::Gateway => {
                self.gateway.flush()?;
                if self.gateway.backlog() > 0 {
                    Err(io::Error::other("the kernel has no room"))
                } else {
                    Ok(())
                }
            }
            Way::Packets(plain) | Way::Frames(plain) => plain.flush(),
            Way::Ring(ring) => ring.flush(),
            Way::Xdp(sender) => sender.flush(),
        }
    }
}

fn write(to: &mut [u8], from: &[u8]) {
    if let Some(to) = to.get_mut(..from.len()) {
        to.copy_from_slice(from);
    }
}

pub(crate) fn index(interface: &str) -> io::Result<u32> {
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    Ok(name_to_index(any, interface)?)
}
