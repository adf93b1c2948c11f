//! Two queue pairs on sealed UDP, and an emulated link between them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use link_emulator::{Port, Relay, RelaySpec, Side};
use linksim::impair::{LinkSpec, Loss};
use sdr::QpAttr;
use sdr::udp::{QueuePair, Unconnected};

use crate::Result;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Connects two queue pairs over a link of their own, which loses `drop` of the packets each way.
pub(crate) fn connected(attr: QpAttr, drop: f64, seed: u64) -> Result<(QueuePair, QueuePair, Relay)> {
    let (near, far) = (Unconnected::bind(attr, HERE)?, Unconnected::bind(attr, HERE)?);
    let side = |ports: &[u16]| Side {
        listen: SocketAddr::new(HERE, 0),
        peer: ports.first().map(|port| SocketAddr::new(HERE, *port)),
        learn: false,
    };
    let way = LinkSpec { delay: attr.rtt / 2, loss: Loss::Random(drop), ..LinkSpec::default() };
    let relay = Relay::start(&RelaySpec {
        ports: vec![Port { a: side(near.ports()), b: side(far.ports()) }],
        lanes: 1,
        a_to_b: way,
        b_to_a: way,
        seed,
    })?;
    let (to_far, to_near) = relay.addresses(0).ok_or("no relay")?;
    let far_blob = far.blob_by_way_of(to_far.ip(), &[to_far.port()])?;
    let near_blob = near.blob_by_way_of(to_near.ip(), &[to_near.port()])?;
    let secret = [3; 32];
    Ok((near.connect(&far_blob, &secret)?, far.connect(&near_blob, &secret)?, relay))
}
