//! System calls of a running gateway: the kernel refuses all others.
//!
//! The filter is installed before the runtime and the data-plane threads exist, for the log's
//! thread as well, and holds for all that they start.
//! A refused call fails with `EPERM` and nothing else happens, so that a call which some library
//! makes for convenience costs a feature and not every flow.
//!
//! Some calls are allowed with some arguments only:
//!
//! | call | allowed |
//! |---|---|
//! | `clone` | threads of this process, in its name spaces |
//! | `clone3` | no, by `ENOSYS`: its arguments cannot be seen, and libraries take `clone` then |
//! | `openat` | files that are there, for reading |
//! | `mmap`, `mprotect` | nothing executable |
//! | `socket` | TCP, UDP and raw IP; packet; netlink's routes and netfilter |
//! | `socketpair` | Unix streams, which wake the runtime at a signal and can be connected to nothing else |
//! | `setsockopt` | the options in use ([`OPTIONS`]) |
//! | `fcntl` | copies of a descriptor, close-on-exec, non-blocking mode, seals read: no signals to anybody |
//! | `ioctl` | reading what an interface or a terminal is, non-blocking mode, bytes that wait |
//! | `prctl` | names of threads and of memory, how punctual timers are, giving up capabilities |
//! | `prlimit64` | of this process |
//! | `tgkill` | threads of this process |

use seccompiler::{
    BackendError, BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, apply_filter_all_threads,
};

/// A call's number, and one list of conditions for each way in which it is allowed; none: always.
type Rules = (i64, Vec<SeccompRule>);

/// Allowed whatever their arguments are.
const CALLS: &[i64] = &[
    // The data path: first, though the kernel remembers what needs no arguments.
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_ppoll,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    // Sockets.
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_shutdown,
    // Descriptors and files.
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_readlinkat,
    // Names of RDMA devices.
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_getcwd,
    libc::SYS_faccessat,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_eventfd2,
    // Memory.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    // Threads and signals.
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_membarrier,
    libc::SYS_sched_getaffinity,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_geteuid,
    libc::SYS_getuid,
    libc::SYS_getegid,
    libc::SYS_getgid,
];

/// Older forms, which newer architectures lack.
#[cfg(target_arch = "x86_64")]
const OLDER_CALLS: &[i64] = &[
    libc::SYS_poll,
    libc::SYS_epoll_wait,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_dup2,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER_CALLS: &[i64] = &[];

/// A request of `ioctl`; libc gives it another type for each C library.
type Request = u64;

/// Requests of `ioctl`.
const IOCTLS: [Request; 7] = [
    libc::FIONBIO as Request,
    libc::FIONREAD as Request,
    libc::SIOCGIFINDEX as Request,
    libc::SIOCGIFFLAGS as Request,
    libc::SIOCGIFMTU as Request,
    libc::TCGETS as Request,
    libc::TIOCGWINSZ as Request,
];

/// Families of `socket` with their protocols; 0 is TCP or UDP by the type, for packets none yet,
/// and netlink's routes.
const SOCKETS: [(i32, &[i32]); 4] = [
    (libc::AF_INET, &[0, libc::IPPROTO_TCP, libc::IPPROTO_UDP, libc::IPPROTO_RAW]),
    (libc::AF_INET6, &[0, libc::IPPROTO_TCP, libc::IPPROTO_UDP, libc::IPPROTO_RAW]),
    (libc::AF_PACKET, &[0]),
    (libc::AF_NETLINK, &[libc::NETLINK_ROUTE, libc::NETLINK_NETFILTER]),
];

/// Levels of `setsockopt` with their options.
const OPTIONS: [(i32, &[i32]); 6] = [
    (
        libc::SOL_SOCKET,
        &[
            libc::SO_REUSEADDR,
            libc::SO_REUSEPORT,
            libc::SO_SNDBUF,
            libc::SO_RCVBUF,
            libc::SO_SNDBUFFORCE,
            libc::SO_RCVBUFFORCE,
            libc::SO_RCVTIMEO,
            libc::SO_SNDTIMEO,
            libc::SO_LINGER,
            libc::SO_BINDTODEVICE,
            libc::SO_ATTACH_FILTER,
            libc::SO_ATTACH_REUSEPORT_CBPF,
        ],
    ),
    (
        libc::IPPROTO_IP,
        &[
            libc::IP_HDRINCL,
            libc::IP_PKTINFO,
            libc::IP_MTU_DISCOVER,
            libc::IP_RECVTOS,
            libc::IP_MULTICAST_LOOP,
            libc::IP_ADD_MEMBERSHIP,
            libc::IP_DROP_MEMBERSHIP,
        ],
    ),
    (
        libc::IPPROTO_IPV6,
        &[
            libc::IPV6_V6ONLY,
            libc::IPV6_HDRINCL,
            libc::IPV6_RECVPKTINFO,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_RECVTCLASS,
            libc::IPV6_DONTFRAG,
            libc::IPV6_MULTICAST_LOOP,
            libc::IPV6_ADD_MEMBERSHIP,
            libc::IPV6_DROP_MEMBERSHIP,
        ],
    ),
    (libc::SOL_UDP, &[libc::UDP_SEGMENT, libc::UDP_GRO]),
    (libc::IPPROTO_TCP, &[libc::TCP_NODELAY]),
    (libc::SOL_PACKET, &[libc::PACKET_VERSION, libc::PACKET_RX_RING, libc::PACKET_IGNORE_OUTGOING]),
];

/// Commands of `fcntl` besides `F_SETFL`, which must not ask for signals.
const FCNTLS: [i32; 6] =
    [libc::F_DUPFD, libc::F_DUPFD_CLOEXEC, libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_GET_SEALS];

/// The type of a socket without `SOCK_NONBLOCK` and `SOCK_CLOEXEC`.
const TYPE: i32 = 0xf;

/// Name spaces that a thread might leave; CLONE_NEWTIME is no flag of `clone`.
const NAME_SPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// Operations of `prctl`. Nothing is regained by those about capabilities.
const PRCTLS: [i32; 7] = [
    libc::PR_SET_NAME,
    libc::PR_SET_TIMERSLACK,
    libc::PR_SET_VMA,
    libc::PR_SET_NO_NEW_PRIVS,
    libc::PR_CAP_AMBIENT,
    libc::PR_CAPBSET_READ,
    libc::PR_CAPBSET_DROP,
];

/// Installs the filter for all threads of this process and those that they start.
///
/// # Errors
/// The kernel has no filters, or this architecture none of ours.
pub fn filter_system_calls() -> Result<(), Error> {
    let [without_clone3, filter] = programs()?;
    apply_filter_all_threads(&without_clone3)?;
    apply_filter_all_threads(&filter)
}

/// The two programs, in the order in which they are to be installed. Of two that refuse, the kernel
/// takes the later one's error.
fn programs() -> Result<[BpfProgram; 2], BackendError> {
    let arch = std::env::consts::ARCH.try_into()?;
    let refuse = |error: i32| SeccompAction::Errno(error.unsigned_abs());
    let clone3 = [(libc::SYS_clone3, Vec::new())].into();
    let without_clone3 = SeccompFilter::new(clone3, SeccompAction::Allow, refuse(libc::ENOSYS), arch)?;
    let mut rules: Vec<Rules> =
        [CALLS, OLDER_CALLS].concat().into_iter().map(|call| (call, Vec::new())).collect();
    rules.push((libc::SYS_clone3, Vec::new()));
    rules.extend(conditional()?);
    let filter =
        SeccompFilter::new(rules.into_iter().collect(), refuse(libc::EPERM), SeccompAction::Allow, arch)?;
    Ok([without_clone3.try_into()?, filter.try_into()?])
}

/// Calls that are allowed with some arguments.
fn conditional() -> Result<Vec<Rules>, BackendError> {
    use SeccompCmpOp::{Eq, MaskedEq};
    const CHANGES: i32 = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC;
    let own = u64::from(std::process::id());
    let one_of = |argument, values: &[i32]| {
        values.iter().map(|value| rule(&[(argument, Eq, wide(*value))])).collect::<Result<Vec<_>, _>>()
    };
    let none_of = |argument, bits| Ok(vec![rule(&[(argument, MaskedEq(wide(bits)), 0)])?]);
    let of_each = |[first, second]: [u8; 2], allowed: &[(i32, &[i32])]| {
        let pairs = allowed.iter().flat_map(|(one, others)| others.iter().map(move |other| (*one, *other)));
        let both = |(one, other)| rule(&[(first, Eq, wide(one)), (second, Eq, wide(other))]);
        pairs.map(both).collect::<Result<Vec<_>, _>>()
    };
    let thread = (0, MaskedEq(wide(libc::CLONE_THREAD | NAME_SPACES)), wide(libc::CLONE_THREAD));
    let stream = (1, MaskedEq(wide(TYPE)), wide(libc::SOCK_STREAM));
    let ioctls = IOCTLS.iter().map(|request| rule(&[(1, Eq, *request)]));
    let mut fcntls = one_of(1, &FCNTLS)?;
    fcntls.push(rule(&[(1, Eq, wide(libc::F_SETFL)), (2, MaskedEq(wide(libc::O_ASYNC)), 0)])?);
    Ok(vec![
        (libc::SYS_clone, vec![rule(&[thread])?]),
        (libc::SYS_openat, none_of(2, CHANGES)?),
        (libc::SYS_mmap, none_of(2, libc::PROT_EXEC)?),
        (libc::SYS_mprotect, none_of(2, libc::PROT_EXEC)?),
        (libc::SYS_socket, of_each([0, 2], &SOCKETS)?),
        (libc::SYS_socketpair, vec![rule(&[(0, Eq, wide(libc::AF_UNIX)), stream])?]),
        (libc::SYS_setsockopt, of_each([1, 2], &OPTIONS)?),
        (libc::SYS_fcntl, fcntls),
        (libc::SYS_ioctl, ioctls.collect::<Result<_, _>>()?),
        (libc::SYS_prctl, one_of(0, &PRCTLS)?),
        (libc::SYS_prlimit64, vec![rule(&[(0, Eq, 0)])?, rule(&[(0, Eq, own)])?]),
        (libc::SYS_tgkill, vec![rule(&[(0, Eq, own)])?]),
    ])
}

/// Holds if the lower halves of these arguments, from 0 on, all compare so: none of them is longer.
fn rule(conditions: &[(u8, SeccompCmpOp, u64)]) -> Result<SeccompRule, BackendError> {
    let condition = |(argument, operator, value): &(u8, SeccompCmpOp, u64)| {
        SeccompCondition::new(*argument, SeccompCmpArgLen::Dword, operator.clone(), *value)
    };
    SeccompRule::new(conditions.iter().map(condition).collect::<Result<_, _>>()?)
}

fn wide(value: i32) -> u64 {
    value.unsigned_abs().into()
}

#[cfg(test)]
#[expect(unsafe_code, reason = "calls by their numbers, with arguments that are never looked at")]
mod tests {
    use std::fs::{self, File, OpenOptions};
    use std::io::ErrorKind::PermissionDenied;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
    use std::os::unix::net::UnixStream;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use rtnetlink::sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
    use rustix::process::{Pid, Signal, getppid, kill_process};
    use seccompiler::apply_filter;

    use super::*;

    /// Runs this in a thread of its own behind the filter.
    fn behind<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
        let filtered = std::thread::spawn(|| {
            for program in programs().unwrap() {
                apply_filter(&program).unwrap();
            }
            act()
        });
        filtered.join().unwrap()
    }

    #[test]
    fn no_program_is_run() {
        let refused = behind(|| {
            let error = Command::new("/bin/true").spawn().err().map(|error| error.kind());
            (error, Command::new("/bin/true").exec().kind())
        });
        assert_eq!(refused, (Some(PermissionDenied), PermissionDenied));
    }

    #[test]
    fn nothing_is_written_and_nobody_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "there").unwrap();
        let parent: Option<Pid> = getppid();
        let (read, refused) = behind(move || {
            let mut refused = vec![
                File::create(path.with_extension("new")).err().map(|error| error.kind()),
                OpenOptions::new().append(true).open(&path).err().map(|error| error.kind()),
                fs::remove_file(&path).err().map(|error| error.kind()),
                fs::rename(&path, path.with_extension("old")).err().map(|error| error.kind()),
                UnixStream::connect(&path).err().map(|error| error.kind()),
            ];
            let killed = parent.map(|parent| kill_process(parent, Signal::CONT));
            refused.push(killed.and_then(Result::err).map(|error| error.kind()));
            (fs::read_to_string(path).unwrap(), refused)
        });
        assert_eq!(read, "there");
        assert_eq!(refused, vec![Some(PermissionDenied); 6]);
    }

    #[test]
    fn threads_and_sockets_are_there() {
        let heard = behind(|| {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let to = socket.local_addr().unwrap();
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let sender = std::thread::spawn(move || {
                UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().send_to(b"word", to).unwrap()
            });
            let mut word = [0; 8];
            let len = socket.recv(&mut word).unwrap();
            (sender.join().unwrap(), len)
        });
        assert_eq!(heard, (4, 4));
    }

    /// The gateway hears of changes by such a socket, without an option of netlink's.
    #[test]
    fn the_kernels_news_can_be_had() {
        let opened = behind(|| {
            let mut socket = Socket::new(NETLINK_ROUTE).unwrap();
            socket.set_non_blocking(true).unwrap();
            socket.bind(&SocketAddr::new(0, 1 << (libc::RTNLGRP_IPV6_RULE - 1)))
        });
        assert!(opened.is_ok(), "{opened:?}");
    }

    /// QUIC opens its socket behind the filter, of either family.
    #[test]
    fn quic_may_set_its_options() {
        for any in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let opened = behind(move || {
                let socket = UdpSocket::bind((any, 0)).unwrap();
                quinn_udp::UdpSocketState::new((&socket).into()).map(drop).map_err(|error| error.kind())
            });
            assert_eq!(opened, Ok(()), "{any}");
        }
    }

    /// Returns true if the filter refuses the call: not one of these does so by itself.
    fn is_refused(call: i64, arguments: [i64; 5]) -> bool {
        behind(move || {
            let [a, b, c, d, e] = arguments;
            // SAFETY: no argument is an address that is written to, and what is let through fails
            // for a descriptor that is none, or changes nothing but a flag of one.
            let result = unsafe { libc::syscall(call, a, b, c, d, e) };
            result == -1 && std::io::Error::last_os_error().kind() == PermissionDenied
        })
    }

    /// Each serves to signal another process, to reach a service, or to get at a part of the kernel
    /// that a gateway has no use for.
    #[test]
    fn arguments_that_nothing_needs_are_refused() {
        const NONE: i64 = -1;
        let standard = 2;
        let init = 1;
        let fcntl = |command: i32, value: i64| (libc::SYS_fcntl, [standard, command.into(), value, 0, 0]);
        let socket = |family: i32, kind: i32, protocol: i32| {
            (libc::SYS_socket, [family.into(), kind.into(), protocol.into(), 0, 0])
        };
        let option = |level: i32, name: i32| (libc::SYS_setsockopt, [NONE, level.into(), name.into(), 0, 0]);
        let refused = [
            ("F_SETOWN", fcntl(libc::F_SETOWN, init)),
            ("F_SETOWN_EX", fcntl(15, 0)),
            ("F_SETSIG", fcntl(10, 9)),
            ("F_SETLEASE", fcntl(libc::F_SETLEASE, 0)),
            ("F_NOTIFY", fcntl(libc::F_NOTIFY, 0)),
            ("F_SETPIPE_SZ", fcntl(libc::F_SETPIPE_SZ, 0)),
            ("O_ASYNC", fcntl(libc::F_SETFL, libc::O_ASYNC.into())),
            ("FIOASYNC", (libc::SYS_ioctl, [standard, libc::FIOASYNC as i64, 0, 0, 0])),
            ("TIOCSTI", (libc::SYS_ioctl, [standard, libc::TIOCSTI as i64, 0, 0, 0])),
            ("SIOCSIFFLAGS", (libc::SYS_ioctl, [standard, libc::SIOCSIFFLAGS as i64, 0, 0, 0])),
            ("Unix", socket(libc::AF_UNIX, libc::SOCK_STREAM, 0)),
            ("sock_diag", socket(libc::AF_NETLINK, libc::SOCK_RAW, 4)),
            ("XFRM", socket(libc::AF_NETLINK, libc::SOCK_RAW, 6)),
            ("generic netlink", socket(libc::AF_NETLINK, libc::SOCK_RAW, 16)),
            ("SCTP", socket(libc::AF_INET, libc::SOCK_STREAM, 132)),
            ("MPTCP", socket(libc::AF_INET6, libc::SOCK_STREAM, 262)),
            ("raw ICMP", socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP)),
            ("all packets", socket(libc::AF_PACKET, libc::SOCK_RAW, 0x300)),
            ("AF_ALG", socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0)),
            ("vsock", socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0)),
            (
                "Unix datagrams",
                (libc::SYS_socketpair, [libc::AF_UNIX.into(), libc::SOCK_DGRAM.into(), 0, 0, 0]),
            ),
            ("SO_ATTACH_BPF", option(libc::SOL_SOCKET, libc::SO_ATTACH_BPF)),
            ("SO_DETACH_FILTER", option(libc::SOL_SOCKET, libc::SO_DETACH_FILTER)),
            ("SO_MARK", option(libc::SOL_SOCKET, libc::SO_MARK)),
            ("IPT_SO_SET_REPLACE", option(libc::IPPROTO_IP, 64)),
            ("TCP_ULP", option(libc::IPPROTO_TCP, libc::TCP_ULP)),
            ("TCP_REPAIR", option(libc::IPPROTO_TCP, libc::TCP_REPAIR)),
            ("PACKET_FANOUT", option(libc::SOL_PACKET, libc::PACKET_FANOUT)),
            ("PACKET_ADD_MEMBERSHIP", option(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP)),
            ("a process", (libc::SYS_clone, [libc::SIGCHLD.into(), 0, 0, 0, 0])),
            (
                "a thread elsewhere",
                (libc::SYS_clone, [i64::from(libc::CLONE_THREAD | libc::CLONE_NEWNET), 0, 0, 0, 0]),
            ),
            ("executable memory", (libc::SYS_mmap, [0, 0, libc::PROT_EXEC.into(), 0, NONE])),
            ("mprotect", (libc::SYS_mprotect, [0, 0, libc::PROT_EXEC.into(), 0, 0])),
            ("tgkill", (libc::SYS_tgkill, [init, init, 0, 0, 0])),
            ("tkill", (libc::SYS_tkill, [init, 0, 0, 0, 0])),
            ("kill", (libc::SYS_kill, [init, 0, 0, 0, 0])),
            ("pidfd_send_signal", (libc::SYS_pidfd_send_signal, [NONE, 0, 0, 0, 0])),
            ("another's limits", (libc::SYS_prlimit64, [init, 0, 0, 0, 0])),
            ("PR_SET_PDEATHSIG", (libc::SYS_prctl, [libc::PR_SET_PDEATHSIG.into(), 0, 0, 0, 0])),
            ("io_uring", (libc::SYS_io_uring_setup, [0, 0, 0, 0, 0])),
            ("bpf", (libc::SYS_bpf, [NONE, 0, 0, 0, 0])),
        ];
        for (name, (call, arguments)) in refused {
            assert!(is_refused(call, arguments), "{name}");
        }
        let allowed = [
            ("F_GETFD", fcntl(libc::F_GETFD, 0)),
            ("F_GETFL", fcntl(libc::F_GETFL, 0)),
            ("F_SETFL", (libc::SYS_fcntl, [NONE, libc::F_SETFL.into(), libc::O_NONBLOCK.into(), 0, 0])),
            ("F_DUPFD_CLOEXEC", (libc::SYS_fcntl, [NONE, libc::F_DUPFD_CLOEXEC.into(), 0, 0, 0])),
            ("SO_RCVBUF", option(libc::SOL_SOCKET, libc::SO_RCVBUF)),
            ("UDP_GRO", option(libc::SOL_UDP, libc::UDP_GRO)),
            ("IP_MULTICAST_LOOP", option(libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP)),
            ("PACKET_RX_RING", option(libc::SOL_PACKET, libc::PACKET_RX_RING)),
        ];
        for (name, (call, arguments)) in allowed {
            assert!(!is_refused(call, arguments), "{name}");
        }
    }
}
