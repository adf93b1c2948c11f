//! One transfer between two software RDMA hosts, and what is taken down of it.

use std::net::{IpAddr, SocketAddr};
use std::ops::Sub;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use serde::Deserialize;

use super::DemoError;
use super::progress::Progress;
use crate::hostio::{Bound, Endpoint, EndpointConfig, Report, Role, Workload};
use crate::{Site, Testbed, TestbedError};
use link_emulator::EmulatorStats;

const TICK: Duration = Duration::from_millis(50);
/// Counters are published ten times a second.
const SETTLE: Duration = Duration::from_millis(130);

/// The hosts of a transfer: client at site A, server at site B.
pub(super) struct Hosts {
    pub(super) bound: [Bound; 2],
    /// Where each sends its packets.
    pub(super) gateways: [SocketAddr; 2],
    pub(super) ips: [IpAddr; 2],
    pub(super) workload: Workload,
}

/// A transfer that has run.
pub(super) struct Ran {
    client: Report,
    server: Report,
    /// Payload of completed messages, those of the warm-up included.
    carried: u64,
}

impl Hosts {
    /// Runs the workload to its end.
    pub(super) fn run(self, progress: &Progress, interrupted: &dyn Fn() -> bool) -> Result<Ran, DemoError> {
        let Self { bound: [a, b], gateways: [to_a, to_b], ips: [ip_a, ip_b], workload } = self;
        let config = |bound: &Bound, gateway, ip, remote_ip, role| {
            let workload = workload.clone();
            bound.address().map(|bind| EndpointConfig { bind, gateway, ip, remote_ip, role, workload })
        };
        let at_b = config(&b, to_b, ip_b, ip_a, Role::Server)?;
        let at_a = config(&a, to_a, ip_a, ip_b, Role::Client)?;
        let server = Endpoint::start_on(b, &at_b)?;
        let client = Endpoint::start_on(a, &at_a)?;
        let seen = client.progress().clone();
        while client.is_running() {
            if interrupted() {
                return Err(DemoError::Interrupted);
            }
            std::thread::sleep(TICK);
            progress.tick(seen.messages.load(Relaxed), seen.bytes.load(Relaxed));
        }
        let client = client.join()?;
        std::thread::sleep(SETTLE);
        Ok(Ran { client, server: server.stop()?, carried: seen.bytes.load(Relaxed) })
    }
}

/// Counts of link and gateways, or how much more they have counted.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wire {
    /// Bytes of IP packets offered to the link, both ways.
    pub(super) bytes: u64,
    /// Packets that the link lost.
    pub(super) lost: u64,
    /// Packets sent again.
    pub(super) resent: u64,
    /// Packets recovered from parity.
    pub(super) decoded: u64,
}

impl Wire {
    /// Takes those of the emulator, whose datagrams are each in `headers` bytes more.
    pub(super) fn of_link(stats: &EmulatorStats, headers: u32) -> Self {
        let both = [&stats.a_to_b, &stats.b_to_a];
        Self {
            bytes: both.iter().map(|way| way.received_bytes + u64::from(headers) * way.received).sum(),
            lost: both.iter().map(|way| way.link.lost + way.link.queue_full).sum(),
            ..Self::default()
        }
    }

    /// Takes those of the emulator and both gateways.
    pub(super) fn of_gateways(testbed: &Testbed, headers: u32) -> Result<Self, TestbedError> {
        let mut wire = Self::of_link(&testbed.link_stats(), headers);
        for site in [Site::A, Site::B] {
            let status: Status = testbed.status(site)?;
            for class in status.classes {
                wire.resent += class.repairs;
                wire.decoded += class.decoded;
            }
        }
        Ok(wire)
    }
}

impl Sub for Wire {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(before.bytes),
            lost: self.lost.saturating_sub(before.lost),
            resent: self.resent.saturating_sub(before.resent),
            decoded: self.decoded.saturating_sub(before.decoded),
        }
    }
}

/// The part of a gateway's `/status` that counts what it has mended.
#[derive(Deserialize)]
struct Status {
    classes: Vec<Class>,
}

#[derive(Deserialize)]
struct Class {
    repairs: u64,
    decoded: u64,
}

/// A line of the table.
pub(super) struct Measured {
    pub(super) client: Report,
    server: Report,
    pub(super) wire: Wire,
    /// Payload that crossed the link, warm-up and the reading back at the end included.
    payload: u64,
}

impl Measured {
    /// Takes those of hosts without gateways, which repair by going back: both ends' requests and
    /// READ responses.
    pub(super) fn plain(ran: Ran, wire: Wire) -> Self {
        let resent = ran.client.host.retransmitted + ran.server.host.retransmitted;
        Self::carried(ran, Wire { resent, ..wire })
    }

    pub(super) fn carried(ran: Ran, wire: Wire) -> Self {
        let Ran { client, server, carried } = ran;
        // Buffers that nothing was written to are not read back: few messages leave many of them.
        let payload = carried + client.read_back;
        Self { client, server, wire, payload }
    }

    /// Everything arrived, in order and with the right contents, at both ends.
    pub(super) fn is_clean(&self) -> bool {
        self.client.is_clean() && self.server.is_clean() && self.client.messages > 0
    }

    /// In words, if it is not clean.
    pub(super) fn trouble(&self) -> String {
        let failed: u64 =
            self.client.failures.iter().chain(&self.server.failures).map(|(_, count)| count).sum();
        let corrupt = self.client.corrupt + self.server.corrupt;
        let stalled = if self.client.stalled { ", stalled" } else { "" };
        format!("FAILED: {failed} errors, {corrupt} wrong{stalled}")
    }

    /// Bytes of IP packets on the link beyond the payload, per byte of payload.
    pub(super) fn overhead(&self) -> f64 {
        self.wire.bytes as f64 / self.payload.max(1) as f64 - 1.0
    }

    /// Completion time in milliseconds.
    pub(super) fn completion(&self, quantile: f64) -> f64 {
        self.client.latency.value_at_quantile(quantile) as f64 / 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_ip;
    use crate::hostio::{Limit, Mix};
    use link_emulator::{Port, Relay, RelaySpec, Side};

    /// On a loaded machine few messages complete, and few buffers are written to.
    #[test]
    fn few_messages_have_no_less_than_their_payload_on_the_link() {
        let loopback = ([127, 0, 0, 1], 0).into();
        let bound = [Bound::new(loopback).unwrap(), Bound::new(loopback).unwrap()];
        let sides = bound.each_ref().map(|host| Side {
            listen: loopback,
            peer: Some(host.address().unwrap()),
            learn: false,
        });
        let [a, b] = sides;
        let link = "delay 1ms".parse().unwrap();
        let spec = RelaySpec { ports: vec![Port { a, b }], lanes: 1, a_to_b: link, b_to_a: link, seed: 1 };
        let relay = Relay::start(&spec).unwrap();
        let (for_a, for_b) = relay.addresses(0).unwrap();
        let hosts = Hosts {
            bound,
            gateways: [for_a, for_b],
            ips: [host_ip(Site::A, 1), host_ip(Site::B, 1)],
            workload: Workload {
                qps: 4,
                mix: Mix { send: 1, read: 1, ..Mix::WRITE },
                message: 65536,
                depth: 8,
                limit: Limit::Messages(4),
                warmup: Duration::ZERO,
                patience: Duration::from_secs(30),
                verify: true,
                ..Workload::default()
            },
        };
        let ran = hosts.run(&Progress::new(1), &|| false).unwrap();
        let measured = Measured::plain(ran, Wire::of_link(&relay.stop().unwrap(), 0));
        assert!(measured.is_clean(), "{}", measured.trouble());
        let written = measured.client.read_back / 65536;
        assert!((1..16).contains(&written), "{written}");
        // Headers and ACKs, and perhaps a packet that the kernel dropped.
        let overhead = measured.overhead();
        assert!((0.0..0.3).contains(&overhead), "{overhead}");
    }
}
