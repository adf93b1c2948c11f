//! The captured frames.

use roce::ip::{Addressing, Datagram};
use roce::wire::{Opcode, Packet};

/// One program's frames.
pub(crate) struct Capture {
    pub(crate) name: &'static str,
    frames: Vec<Vec<u8>>,
}

macro_rules! captures {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../golden/", $name, ".txt")))),*]
    };
}

const FILES: &[(&str, &str)] = captures![
    "cmtime",
    "ib_atomic_bw_cmp_and_swap",
    "ib_atomic_bw_fetch_and_add",
    "ib_read_bw",
    "ib_send_bw",
    "ib_send_bw_rnr",
    "ib_send_bw_ud",
    "ib_write_bw",
    "ib_write_bw_loss",
    "ib_write_bw_uc",
    "ibv_rc_pingpong",
    "ibv_uc_pingpong",
    "ibv_ud_pingpong",
    "rping",
    "rping_rejected",
    "udaddy",
    "verbs",
    "verbs_ipv6",
];

pub(crate) fn all() -> Vec<Capture> {
    FILES.iter().map(|(name, text)| Capture { name, frames: read(text) }).collect()
}

pub(crate) fn of(name: &str) -> Capture {
    all().into_iter().find(|capture| capture.name == name).expect("a capture of that name")
}

fn read(text: &str) -> Vec<Vec<u8>> {
    text.lines().filter(|line| !line.starts_with('#')).map(unhex).collect()
}

fn unhex(line: &str) -> Vec<u8> {
    let digits = line.as_bytes().chunks(2);
    digits.map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

impl Capture {
    /// The IP packets.
    pub(crate) fn frames(&self) -> impl Iterator<Item = &[u8]> {
        self.frames.iter().map(Vec::as_slice)
    }

    /// The IP packet with this number, as numbered in the file.
    pub(crate) fn frame(&self, number: usize) -> &[u8] {
        &self.frames[number - 1]
    }

    /// The same, parsed.
    pub(crate) fn packet(&self, number: usize) -> Packet<'_> {
        Packet::parse(Datagram::parse(self.frame(number)).unwrap().transport).unwrap()
    }

    /// All of them, parsed.
    pub(crate) fn packets(&self) -> impl Iterator<Item = (Addressing, Packet<'_>)> {
        self.frames().map(|frame| {
            let datagram = Datagram::parse(frame).unwrap();
            (datagram.addressing, Packet::parse(datagram.transport).unwrap())
        })
    }

    /// Their opcodes.
    pub(crate) fn opcodes(&self) -> Vec<Opcode> {
        self.packets().map(|(_, packet)| packet.bth.opcode).collect()
    }
}
