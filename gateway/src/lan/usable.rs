//! Judges if hosts can use the LAN interface: for a gateway that runs, and for `longhaul check`.

use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_DUMP};
use rtnetlink::packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteType};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::io::Errno;

pub use super::family::Family;
use super::netlink::Netlink;

/// Why hosts cannot use the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No interface has that name.
    Gone,
    /// It is administratively down.
    Down,
    /// It has no carrier.
    NoCarrier,
    /// It has no address of the family that hosts need, and nothing leads to them by it.
    NoAddress(Family),
    /// The address of the family that hosts need is another machine's, so that the kernel does not
    /// use it (duplicate address detection, RFC 4862).
    Duplicate(Family),
}

impl Fault {
    /// Says it of this interface, in a line.
    #[must_use]
    pub fn text(self, interface: &str) -> String {
        match self {
            Self::Gone => format!("there is no interface {interface}"),
            Self::Down => format!("{interface} is down"),
            Self::NoCarrier => format!("{interface} has no carrier"),
            Self::NoAddress(family) => format!(
                "{interface} has no {family} address, and no route leads to hosts by it: they cannot reach their gateway"
            ),
            Self::Duplicate(family) => format!(
                "another machine has the {family} address of {interface}, so that hosts cannot reach their gateway"
            ),
        }
    }

    /// Says what an operator can do about it.
    #[must_use]
    pub fn remedy(self, interface: &str) -> String {
        match self {
            Self::Gone => match interface.split_once('@') {
                Some((name, _)) => {
                    format!("`ip link` shows {name} like this; its name is what stands before the @")
                }
                None => "see `ip link`; a gateway that is started waits for it".to_owned(),
            },
            Self::Down => format!("ip link set {interface} up"),
            Self::NoCarrier => "look at its cable, and at the switch's port".to_owned(),
            Self::NoAddress(_) => {
                format!("ip addr add ADDRESS/PREFIX dev {interface}: it is the hosts' way to the other site")
            }
            Self::Duplicate(_) => format!(
                "`ip addr show dev {interface}` says dadfailed beside it: take it from the other machine, and add it \
                 here again"
            ),
        }
    }
}

/// Returns the family for which hosts cannot reach this machine by the interface that has these
/// addresses.
///
/// Hosts use the families of `lan.remote`.
/// With no address of one of these, nobody answers when they look for their next hop.
/// An unnumbered interface still serves hosts that know its link-layer address.
/// Then a route leads to them by the interface: `leads` says if one does, for a prefix of
/// `lan.local`, or for any where the file names none of the family.
pub fn without_address(
    lan: &config::Lan,
    addresses: &[IpNet],
    leads: &mut dyn FnMut(Family, Option<&IpNet>) -> bool,
) -> Option<Family> {
    Family::ALL.into_iter().find(|family| {
        let of_it = |prefixes: &[IpNet]| prefixes.iter().any(|prefix| Family::of(prefix) == *family);
        if !of_it(&lan.remote) || of_it(addresses) {
            return false;
        }
        match of_it(&lan.local) {
            false => !leads(*family, None),
            true => {
                let mut local = lan.local.iter().filter(|prefix| Family::of(prefix) == *family);
                !local.any(|prefix| leads(*family, Some(prefix)))
            }
        }
    })
}

/// Asks the kernel about an interface. It may keep whoever asks waiting.
///
/// # Errors
/// The kernel does not tell.
pub fn look(lan: &config::Lan, interface: &str) -> io::Result<Option<Fault>> {
    let mut kernel = Netlink::connect()?;
    let Some(link) = link(&mut kernel, interface)? else { return Ok(Some(Fault::Gone)) };
    if !link.header.flags.contains(LinkFlags::Up) {
        return Ok(Some(Fault::Down));
    }
    if !link.header.flags.contains(LinkFlags::LowerUp) {
        return Ok(Some(Fault::NoCarrier));
    }
    let index = link.header.index;
    let asked = addresses(&mut kernel)?;
    let addresses: Vec<_> = asked.iter().filter_map(|message| address_of(message, index)).collect();
    let duplicates = duplicates(&asked, index);
    let mut failed = None;
    let mut leads = |family, prefix: Option<&IpNet>| {
        let led = match prefix {
            Some(prefix) => leads_to(&mut kernel, prefix, index, &duplicates),
            None => leads_anywhere(&mut kernel, family, index, &duplicates),
        };
        led.unwrap_or_else(|error| {
            failed = Some(error);
            true
        })
    };
    let missing = without_address(lan, &addresses, &mut leads);
    match failed {
        Some(error) => Err(error),
        None => Ok(missing.map(|family| {
            match duplicates.iter().any(|duplicate| Family::of(duplicate) == family) {
                true => Fault::Duplicate(family),
                false => Fault::NoAddress(family),
            }
        })),
    }
}

fn link(kernel: &mut Netlink, interface: &str) -> io::Result<Option<LinkMessage>> {
    let mut asked = LinkMessage::default();
    asked.attributes.push(LinkAttribute::IfName(interface.to_owned()));
    match kernel.request(RouteNetlinkMessage::GetLink(asked), NLM_F_ACK) {
        Ok(answer) => Ok(answer.into_iter().find_map(|message| match message {
            RouteNetlinkMessage::NewLink(link) => Some(link),
            _ => None,
        })),
        Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

fn addresses(kernel: &mut Netlink) -> io::Result<Vec<RouteNetlinkMessage>> {
    kernel.request(RouteNetlinkMessage::GetAddress(AddressMessage::default()), NLM_F_DUMP)
}

/// Returns the addresses of an interface that another machine was found to have.
fn duplicates(asked: &[RouteNetlinkMessage], index: u32) -> Vec<IpNet> {
    let messages = asked.iter().filter_map(|message| message_on(message, index));
    messages.filter(|message| is_duplicate(message)).filter_map(net_of).collect()
}

fn is_duplicate(message: &AddressMessage) -> bool {
    message.header.flags.contains(AddressHeaderFlags::Dadfailed)
}

/// Returns the address of a message, if it is the interface's of this number. One that another
/// machine has is none: the kernel does not use it.
pub(crate) fn address_of(message: &RouteNetlinkMessage, index: u32) -> Option<IpNet> {
    message_on(message, index).filter(|message| !is_duplicate(message)).and_then(net_of)
}

fn message_on(message: &RouteNetlinkMessage, index: u32) -> Option<&AddressMessage> {
    match message {
        RouteNetlinkMessage::NewAddress(message) if message.header.index == index => Some(message),
        _ => None,
    }
}

fn net_of(message: &AddressMessage) -> Option<IpNet> {
    // Of an interface that leads to one other machine, `Address` is that machine's.
    let own = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Address(address) => Some(*address),
        _ => None,
    });
    IpNet::new(own.or(address)?, message.header.prefix_len).ok()
}

fn family_of(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

fn route_of(message: &RouteNetlinkMessage) -> Option<&RouteMessage> {
    match message {
        RouteNetlinkMessage::NewRoute(route) => Some(route),
        _ => None,
    }
}

/// Returns true for a route by the interface. Those that the kernel has made for an address that
/// another machine has, and keeps, lead nowhere.
fn leaves_by(message: &RouteMessage, index: u32, duplicates: &[IpNet]) -> bool {
    let is_it = |attribute: &RouteAttribute| *attribute == RouteAttribute::Oif(index);
    let is_of_duplicate = |attribute: &RouteAttribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet6(to)) => {
            duplicates.iter().any(|duplicate| duplicate.contains(&IpAddr::V6(*to)))
        }
        _ => false,
    };
    let is_kernels = message.header.protocol == RouteProtocol::Kernel;
    message.header.kind == RouteType::Unicast
        && message.attributes.iter().any(is_it)
        && !(is_kernels && message.attributes.iter().any(is_of_duplicate))
}

/// Returns true if the way to the prefix's first host leaves by the interface.
fn leads_to(kernel: &mut Netlink, prefix: &IpNet, index: u32, duplicates: &[IpNet]) -> io::Result<bool> {
    let Some(host) = prefix.hosts().next() else { return Ok(false) };
    let mut asked = RouteMessage::default();
    asked.header.address_family = family_of(host);
    asked.header.destination_prefix_length = if host.is_ipv4() { 32 } else { 128 };
    asked.attributes.push(RouteAttribute::Destination(RouteAddress::from(host)));
    match kernel.request(RouteNetlinkMessage::GetRoute(asked), NLM_F_ACK) {
        Ok(answer) => Ok(answer.iter().filter_map(route_of).any(|route| leaves_by(route, index, duplicates))),
        // The kernel's way to say that there is none.
        Err(error) if error.raw_os_error() == Some(Errno::NETUNREACH.raw_os_error()) => Ok(false),
        Err(error) if error.raw_os_error() == Some(Errno::HOSTUNREACH.raw_os_error()) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns true if any route of the family leaves by the interface. Those within a link are none.
fn leads_anywhere(
    kernel: &mut Netlink,
    family: Family,
    index: u32,
    duplicates: &[IpNet],
) -> io::Result<bool> {
    let mut asked = RouteMessage::default();
    asked.header.address_family = match family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    };
    let answer = kernel.request(RouteNetlinkMessage::GetRoute(asked), NLM_F_DUMP)?;
    let is_beyond = |route: &RouteMessage| {
        !route.attributes.iter().any(|attribute| {
            matches!(attribute, RouteAttribute::Destination(RouteAddress::Inet6(prefix))
                if prefix.is_unicast_link_local() || prefix.is_multicast())
        })
    };
    let mut routes = answer.iter().filter_map(route_of);
    Ok(routes.any(|route| leaves_by(route, index, duplicates) && is_beyond(route)))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::lan::netns::{Ns, Site};

    fn lan(local: &str, remote: &str) -> config::Lan {
        let text = include_str!("../../../docs/examples/gateway-a.toml");
        let mut gateway = config::Gateway::parse(Path::new("gateway.toml"), text).unwrap();
        let prefixes = |text: &str| {
            text.split_whitespace().map(|prefix| prefix.parse().unwrap()).collect::<Vec<IpNet>>()
        };
        (gateway.lan.local, gateway.lan.remote) = (prefixes(local), prefixes(remote));
        gateway.lan
    }

    #[test]
    fn hosts_need_an_address_of_each_family_that_they_use() {
        let own: [IpNet; 1] = ["10.0.0.254/24".parse().unwrap()];
        let judge = |remote, addresses: &[IpNet], leads| {
            without_address(&lan("", remote), addresses, &mut |_, _| leads)
        };
        assert_eq!(judge("10.0.1.0/24", &own, false), None);
        assert_eq!(judge("10.0.1.0/24", &[], false), Some(Family::V4));
        assert_eq!(judge("10.0.1.0/24", &[], true), None, "unnumbered, with a route to the hosts");
        assert_eq!(judge("10.0.1.0/24 fd01::/64", &own, false), Some(Family::V6));
    }

    #[test]
    fn the_kernel_says_what_is_wrong_with_the_interface() {
        let ns = Ns::new();
        let [any, named] = [lan("", "10.0.1.0/24"), lan("10.0.0.0/24", "10.0.1.0/24")];
        let look = |lan: &config::Lan| ns.run(|| look(lan, "v0").unwrap());
        assert_eq!(look(&any), Some(Fault::Gone));
        ns.ip("link add v0 type veth peer name g0");
        assert_eq!(look(&any), Some(Fault::Down));
        ns.ip("link set v0 up");
        assert_eq!(look(&any), Some(Fault::NoCarrier));
        ns.ip("link set g0 up");
        ns.settle("v0");
        let none = Some(Fault::NoAddress(Family::V4));
        assert_eq!((look(&any), look(&named)), (none, none));
        ns.ip("addr add 10.0.0.254/24 dev v0");
        assert_eq!((look(&any), look(&named)), (None, None));
        ns.ip("addr del 10.0.0.254/24 dev v0");
        assert_eq!((look(&any), look(&named)), (none, none));
        // Another interface that leads there is no help; this one, unnumbered, is.
        ns.ip("route add 10.0.0.0/16 dev g0");
        assert_eq!((look(&any), look(&named)), (none, none));
        ns.ip("route add 10.0.0.0/24 dev v0");
        assert_eq!((look(&any), look(&named)), (None, None));
    }

    /// A rename while the gateway runs, as udev does late in a boot.
    #[test]
    fn an_interface_that_is_renamed_is_gone_until_it_has_its_name_again() {
        let ns = Ns::new();
        let lan = lan("", "10.0.1.0/24");
        let look = |interface| ns.run(|| look(&lan, interface).unwrap());
        ns.ip("link add v0 type veth peer name g0");
        ns.ip("addr add 10.0.0.254/24 dev v0");
        for interface in ["g0", "v0"] {
            ns.ip(&format!("link set {interface} up"));
        }
        ns.settle("v0");
        assert_eq!(look("v0"), None);
        for (from, to) in [("v0", "x0"), ("x0", "v0")] {
            // Older kernels rename no interface that is up.
            ns.ip(&format!("link set {from} down"));
            ns.ip(&format!("link set {from} name {to}"));
            ns.ip(&format!("link set {to} up"));
            ns.settle(to);
            assert_eq!((look(from), look(to)), (Some(Fault::Gone), None));
        }
    }

    #[test]
    fn an_address_that_another_machine_has_is_none() {
        let site = Site::new(1500);
        let lan = lan("", "fd01::/64");
        let look = || site.gateway.run(|| look(&lan, "g0").unwrap());
        site.gateway.sysctl("net/ipv6/conf/g0/addr_gen_mode", "1");
        site.gateway.sysctl("net/ipv6/conf/g0/accept_dad", "1");
        site.gateway.ip("-6 addr flush dev g0");
        assert_eq!(look(), Some(Fault::NoAddress(Family::V6)));
        site.host.ip("addr add fd00::fe/64 dev v0 nodad");
        site.gateway.ip("addr add fd00::fe/64 dev g0");
        let until = Instant::now() + Duration::from_secs(60);
        while !site.gateway.ip("-6 addr show dev g0").contains("dadfailed") {
            assert!(Instant::now() < until, "{}", site.gateway.ip("-6 addr show dev g0"));
            std::thread::sleep(Duration::from_millis(50));
        }
        let fault = look().unwrap();
        assert_eq!(fault, Fault::Duplicate(Family::V6));
        assert!(
            fault.text("g0").starts_with("another machine has the IPv6 address of g0"),
            "{}",
            fault.text("g0")
        );
        // Hosts reach a gateway by another address too, or know its link-layer address.
        site.gateway.ip("-6 route add fd05::/64 dev g0");
        assert_eq!(look(), None, "a route to hosts");
        site.gateway.ip("-6 route del fd05::/64 dev g0");
        assert_eq!(look(), Some(Fault::Duplicate(Family::V6)));
        site.gateway.ip("addr add fe80::fe/64 dev g0 nodad");
        assert_eq!(look(), None, "an address of the link");
        site.gateway.ip("addr del fe80::fe/64 dev g0");
        site.host.ip("addr del fd00::fe/64 dev v0");
        site.gateway.ip("addr del fd00::fe/64 dev g0");
        site.gateway.ip("addr add fd00::fe/64 dev g0");
        assert_eq!(look(), None, "while it is looked for, there may be none that has it");
    }
}
