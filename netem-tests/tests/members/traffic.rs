//! Programs on the hosts of two sites: messages one after the other in both directions, and
//! counters that are added to.

use std::net::IpAddr;
use std::time::Instant;

use netem_tests::host::{
    Access, Host, Operation, QpConfig, RegionHandle, Remote, RemoteAddr, Status, fill, holds, verbs_timeout,
};
use roce::wire::{Psn, Qpn};

/// Hosts of a site. Each has a connection to the one of the other site with its number.
pub(crate) const HOSTS: usize = 4;
const RECEIVES: usize = 8;

pub(crate) fn ip(site: usize, host: usize) -> IpAddr {
    [10, 0, site as u8, host as u8 + 1].into()
}

/// One direction of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flow {
    posted: u64,
    pub(crate) completed: u64,
    pub(crate) received: u64,
    /// Additions that have completed.
    added: u64,
    pub(crate) has_failed: bool,
}

pub(crate) struct Traffic {
    pub(crate) hosts: [Vec<Host>; 2],
    /// By the sender's site and number.
    pub(crate) flows: [Vec<Flow>; 2],
    qpns: [Vec<Qpn>; 2],
    out: [Vec<RegionHandle>; 2],
    into: [Vec<RegionHandle>; 2],
    counters: [Vec<RegionHandle>; 2],
    old: [Vec<RegionHandle>; 2],
    longest: u32,
    /// Messages under way in each direction.
    depth: u64,
    /// Hosts of these sites post nothing.
    pub(crate) is_stopped: [bool; 2],
}

impl Traffic {
    /// Messages of up to so many bytes.
    pub(crate) fn new(longest: u32, depth: u64) -> Self {
        let mut traffic = Self {
            hosts: Default::default(),
            flows: [vec![Flow::default(); HOSTS], vec![Flow::default(); HOSTS]],
            qpns: Default::default(),
            out: Default::default(),
            into: Default::default(),
            counters: Default::default(),
            old: Default::default(),
            longest,
            depth,
            is_stopped: [false; 2],
        };
        for site in 0..2 {
            for number in 0..HOSTS {
                traffic.add_host(site, number);
            }
        }
        for site in 0..2 {
            for number in 0..HOSTS {
                let remote = Remote {
                    ip: ip(1 - site, number),
                    qpn: traffic.qpns[1 - site][number],
                    psn: Psn::new(7000 + 1 - site as u32),
                };
                let qpn = traffic.qpns[site][number];
                let host = &mut traffic.hosts[site][number];
                host.connect(qpn, Psn::new(7000 + site as u32), remote).unwrap();
                for slot in 0..RECEIVES {
                    let sge = traffic.into[site][number].slice(slot as u64 * u64::from(longest), longest);
                    host.post_recv(qpn, slot as u64, sge).unwrap();
                }
            }
        }
        traffic
    }

    fn add_host(&mut self, site: usize, number: usize) {
        let mut host = Host::new(ip(site, number), 0x100 * (site as u32 + 1) + number as u32);
        let room = self.longest as usize * RECEIVES;
        self.out[site].push(host.register(vec![0; room], Access::LOCAL));
        self.into[site].push(host.register(vec![0; room], Access::ALL));
        self.counters[site].push(host.register(vec![0; 8], Access::ALL));
        self.old[site].push(host.register(vec![0; 8], Access::LOCAL));
        // It gives up after eight times a second.
        let config = QpConfig { timeout: Some(verbs_timeout(18)), ..QpConfig::default() };
        self.qpns[site].push(host.create_qp(config).unwrap());
        self.hosts[site].push(host);
    }

    pub(crate) fn host(&mut self, site: usize, address: IpAddr) -> &mut Host {
        let place = (0..HOSTS).find(|number| ip(site, *number) == address).unwrap();
        &mut self.hosts[site][place]
    }

    fn length(&self, count: u64) -> u32 {
        1 + (count.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as u32 % self.longest
    }

    fn key(site: usize, number: usize, count: u64) -> u64 {
        (site as u64) << 60 | (number as u64) << 50 | count
    }

    /// Lets NICs' timers run, takes completions and posts what is next.
    pub(crate) fn run(&mut self, now: Instant) {
        for site in 0..2 {
            for number in 0..HOSTS {
                self.hosts[site][number].handle_timeout(now);
                while let Some(done) = self.hosts[site][number].poll_completion() {
                    if done.status != Status::Success {
                        // An error at one end is one of the connection.
                        self.flows[site][number].has_failed = true;
                        self.flows[1 - site][number].has_failed = true;
                        continue;
                    }
                    match done.operation {
                        Operation::Recv => self.take(site, number, done.wr_id),
                        Operation::FetchAdd => {
                            let old = self.hosts[site][number].memory(self.old[site][number].key).unwrap();
                            let old = u64::from_ne_bytes(old.try_into().unwrap());
                            let flow = &mut self.flows[site][number];
                            assert_eq!(old, flow.added, "an addition ran twice, or not at all");
                            flow.added += 1;
                            flow.completed += 1;
                        }
                        _ => self.flows[site][number].completed += 1,
                    }
                }
                while !self.is_stopped[site] && self.post(site, number) {}
            }
        }
    }

    /// A message came: it is the next one, and whole.
    fn take(&mut self, site: usize, number: usize, slot: u64) {
        let flow = &mut self.flows[1 - site][number];
        if is_addition(flow.received) {
            flow.received += 1;
        }
        let count = flow.received;
        flow.received += 1;
        let len = self.length(count);
        let handle = self.into[site][number];
        let offset = slot * u64::from(self.longest);
        let host = &mut self.hosts[site][number];
        let bytes = &host.memory(handle.key).unwrap()[offset as usize..][..len as usize];
        let key = Self::key(1 - site, number, count);
        assert!(holds(key, bytes), "message {count} from host {number} of site {}", 1 - site);
        host.post_recv(self.qpns[site][number], slot, handle.slice(offset, self.longest)).unwrap();
    }

    fn post(&mut self, site: usize, number: usize) -> bool {
        let flow = &self.flows[site][number];
        if flow.has_failed || flow.posted - flow.completed >= self.depth {
            return false;
        }
        let count = flow.posted;
        let (len, qpn) = (self.length(count), self.qpns[site][number]);
        let host = &mut self.hosts[site][number];
        let posted = if is_addition(count) {
            let counter = self.counters[1 - site][number];
            let remote = RemoteAddr { va: counter.va, rkey: counter.key };
            host.post_fetch_add(qpn, count, self.old[site][number].slice(0, 8), remote, 1)
        } else {
            let handle = self.out[site][number];
            let offset = count % RECEIVES as u64 * u64::from(self.longest);
            let bytes = &mut host.memory_mut(handle.key).unwrap()[offset as usize..][..len as usize];
            fill(Self::key(site, number, count), bytes);
            host.post_send(qpn, count, handle.slice(offset, len), None)
        };
        posted.unwrap();
        self.flows[site][number].posted += 1;
        true
    }

    /// Each message that has completed has come, and none twice.
    pub(crate) fn check(&self) {
        for site in 0..2 {
            for (number, flow) in self.flows[site].iter().enumerate() {
                assert!(
                    flow.received + u64::from(is_addition(flow.received)) >= flow.completed.min(flow.posted)
                        || flow.received >= flow.completed,
                    "{flow:?}"
                );
                let counter = self.counters[1 - site][number].key;
                let counted = self.hosts[1 - site][number].memory(counter).unwrap();
                let counted = u64::from_ne_bytes(counted.try_into().unwrap());
                assert!(counted == flow.added || counted == flow.added + 1, "{counted}: {flow:?}");
            }
        }
    }

    pub(crate) fn completed(&self) -> Vec<u64> {
        self.flows.iter().flatten().map(|flow| flow.completed).collect()
    }

    pub(crate) fn failed(&self) -> usize {
        self.flows.iter().flatten().filter(|flow| flow.has_failed).count()
    }
}

/// Every fifth operation is an addition.
fn is_addition(count: u64) -> bool {
    count % 5 == 4
}
