//! How the two ends of a connection choose the UDP source port.

use crate::wire::Qpn;

/// The UDP source port of a connection without a flow label, the same whichever end computes it:
/// `rdma_calc_flow_label` and `rdma_flow_label_to_udp_sport` of Linux.
pub const fn source_port(one: Qpn, other: Qpn) -> u16 {
    let mut product = one.get() as u64 * other.get() as u64;
    product ^= product >> 20;
    product ^= product >> 40;
    flow_label_port((product & 0xf_ffff) as u32)
}

/// The UDP source port for a flow label (20 bits).
pub const fn flow_label_port(label: u32) -> u16 {
    let folded = (label & 0x3fff) ^ ((label & 0xf_ffff) >> 14);
    0xc000 | folded as u16
}
