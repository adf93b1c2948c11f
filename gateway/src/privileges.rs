//! Privileges of a gateway on its machine: no more than it needs, from its start on.
//!
//! Capabilities belong to threads, and new threads have their maker's. So they are given up before
//! the gateway starts its threads, and
//! what they need later is kept:
//!
//! | capability | kept | for |
//! |---|---|---|
//! | `CAP_NET_ADMIN` | always | rules that keep the kernel from forwarding, and socket buffers beyond the system's bound |
//! | `CAP_NET_RAW` | in packet mode, and if `wan.listen` names its interface | the LAN's sockets, opened again when its interface comes back; the link's, which follow theirs |
//! | `CAP_NET_BIND_SERVICE` | if a port is below 1024 | its socket |
//! | `CAP_DAC_READ_SEARCH` | always | the policy file when it is read again, whoever owns it |
//!
//! Nothing is kept that was not there. No program that the gateway could be made to start would
//! have more (`no_new_privs`).
//! Besides, the kernel refuses system calls that a running gateway does not make (`calls`).

mod calls;

use std::io;

use config::LanMode;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

pub use calls::filter_system_calls;

const PRIVILEGED_PORTS: u16 = 1024;

/// Gives up what a gateway with these files does not need, for the calling thread and those that it
/// starts.
///
/// # Errors
/// The system's error. Without capabilities there is nothing to give up, and no error.
pub fn give_up(gateway: &config::Gateway) -> io::Result<()> {
    set_no_new_privs(true)?;
    keep(needed(gateway))
}

/// Gives up everything, for the calling thread alone.
///
/// # Errors
/// The system's error.
pub(crate) fn give_up_all() -> io::Result<()> {
    set_no_new_privs(true)?;
    keep(CapabilitySet::empty())
}

fn needed(gateway: &config::Gateway) -> CapabilitySet {
    let mut needed = CapabilitySet::NET_ADMIN | CapabilitySet::DAC_READ_SEARCH;
    if matches!(gateway.lan.mode, LanMode::Packet { .. }) || gateway.wan.zone.is_some() {
        needed |= CapabilitySet::NET_RAW;
    }
    let admin = gateway.admin.as_ref().and_then(|admin| admin.listen).map(|listen| listen.port());
    let lan = match &gateway.lan.mode {
        LanMode::Socket { listen, .. } => Some(listen.port()),
        LanMode::Packet { .. } => None,
    };
    if [Some(gateway.wan.listen.port()), admin, lan].into_iter().flatten().any(|port| port < PRIVILEGED_PORTS)
    {
        needed |= CapabilitySet::NET_BIND_SERVICE;
    }
    needed
}

fn keep(needed: CapabilitySet) -> io::Result<()> {
    let held = capabilities(None)?;
    if held.effective.contains(CapabilitySet::SETPCAP) {
        for capability in (CapabilitySet::all() - needed).iter() {
            // One that this kernel does not know is none that it could grant.
            let _ = remove_capability_from_bounding_set(capability);
        }
    }
    clear_ambient_capability_set()?;
    let kept = held.permitted & needed;
    let sets = CapabilitySets {
        effective: held.effective & kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    Ok(set_capabilities(None, sets)?)
}
