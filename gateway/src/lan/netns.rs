//! Network name spaces for tests. They hang on file descriptors and threads alone, so nothing is
//! left of them, panic or not.
#![expect(
    unsafe_code,
    reason = "leaving a name space is unsafe in general, for what other threads may share"
)]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::panic;
use std::process::{self, Command};
use std::thread;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

pub(crate) struct Ns(OwnedFd);

impl Ns {
    pub(crate) fn new() -> Self {
        let make = || {
            // SAFETY: only the network name space is left, and only by this short-lived thread;
            // descriptors stay shared.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.expect("network name spaces need root");
            File::open("/proc/thread-self/ns/net").unwrap().into()
        };
        let ns = Self(thread::spawn(make).join().unwrap());
        ns.ip("link set lo up");
        // No duplicate address detection: addresses are usable at once.
        ns.sysctl("net/ipv6/conf/default/accept_dad", "0");
        ns
    }

    /// Runs `f` on a thread of its own inside the name space. Sockets made there belong to it for
    /// good.
    pub(crate) fn run<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        let inside = || {
            move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            f()
        };
        thread::scope(|scope| scope.spawn(inside).join())
            .unwrap_or_else(|panicked| panic::resume_unwind(panicked))
    }

    /// `ip ARGUMENTS`, in the name space.
    pub(crate) fn ip(&self, arguments: &str) -> String {
        self.command("ip", arguments)
    }

    /// `tc ARGUMENTS`, in the name space.
    pub(crate) fn tc(&self, arguments: &str) -> String {
        self.command("tc", arguments)
    }

    fn command(&self, program: &str, arguments: &str) -> String {
        let output =
            self.run(|| Command::new(program).args(arguments.split_whitespace()).output().expect("iproute2"));
        assert!(
            output.status.success(),
            "{program} {arguments}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn sysctl(&self, name: &str, value: &str) {
        let path = format!("/proc/sys/{name}");
        self.run(|| std::fs::write(&path, value)).unwrap_or_else(|error| panic!("{path}: {error}"));
    }

    /// Waits until an interface has a carrier.
    pub(crate) fn settle(&self, interface: &str) {
        let ready = |state: String| state.contains("state UP") && !state.contains("qdisc noop ");
        let mut attempts = 0..1000;
        while !ready(self.ip(&format!("link show dev {interface}"))) {
            assert!(attempts.next().is_some(), "{interface} has no carrier");
        }
    }

    /// A name for `ip ... netns`.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", process::id(), self.0.as_raw_fd())
    }
}

/// A host (10.0.0.1, fd00::1 on `v0`) whose default route leads to a gateway (10.0.0.254, fd00::fe
/// on `g0`).
pub(crate) struct Site {
    pub(crate) host: Ns,
    pub(crate) gateway: Ns,
}

/// The link-layer addresses of the two ends.
pub(crate) const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(crate) const GATEWAY_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

impl Site {
    pub(crate) fn new(mtu: u32) -> Self {
        let site = Self { host: Ns::new(), gateway: Ns::new() };
        site.connect(mtu);
        site
    }

    /// Joins the two; also again, after the interfaces were deleted.
    pub(crate) fn connect(&self, mtu: u32) {
        let Self { host, gateway } = self;
        let peer = gateway.path();
        host.ip(&format!(
            "link add v0 address 02:00:00:00:00:01 mtu {mtu} type veth peer name g0 address 02:00:00:00:00:02 mtu {mtu} netns {peer}"
        ));
        for (ns, interface, v4, v6) in
            [(host, "v0", "10.0.0.1", "fd00::1"), (gateway, "g0", "10.0.0.254", "fd00::fe")]
        {
            ns.ip(&format!("addr add {v4}/24 dev {interface}"));
            ns.ip(&format!("addr add {v6}/64 dev {interface} nodad"));
            ns.ip(&format!("link set {interface} up"));
        }
        // Neighbours are known: while one is looked for, the kernel keeps only so many packets for
        // it.
        for (ns, interface, mac, v4, v6) in [
            (host, "v0", "02:00:00:00:00:02", "10.0.0.254", "fd00::fe"),
            (gateway, "g0", "02:00:00:00:00:01", "10.0.0.1", "fd00::1"),
        ] {
            ns.ip(&format!("neigh add {v4} lladdr {mac} dev {interface}"));
            ns.ip(&format!("neigh add {v6} lladdr {mac} dev {interface}"));
        }
        host.ip("route add default via 10.0.0.254");
        host.ip("route add default via fd00::fe");
        self.settle();
    }

    /// Waits until packets can pass: the kernel notices a carrier some time after an interface is
    /// up, and drops what is sent before.
    pub(crate) fn settle(&self) {
        self.host.settle("v0");
        self.gateway.settle("g0");
    }
}
