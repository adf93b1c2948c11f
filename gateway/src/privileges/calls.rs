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
//! | `clone` | threads of this process |
//! | `clone3` | no, by `ENOSYS`: its arguments cannot be seen, and libraries take `clone` then |
//! | `openat` | files that are there, for reading |
//! | `mmap`, `mprotect` | nothing executable |
//! | `socket` | IPv4, IPv6, packet, netlink |
//! | `socketpair` | Unix, which wakes the runtime at a signal |
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
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    // Descriptors and files.
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_readlinkat,
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
    libc::SYS_arch_prctl,
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

/// Families of `socket`.
const FAMILIES: [i32; 4] = [libc::AF_INET, libc::AF_INET6, libc::AF_PACKET, libc::AF_NETLINK];

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
    const CHANGES: i32 = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC;
    let own = u64::from(std::process::id());
    let wide = |value: i32| value.unsigned_abs().into();
    let one_of = |argument, values: &[i32]| {
        values.iter().map(|value| rule(argument, SeccompCmpOp::Eq, wide(*value))).collect::<Result<_, _>>()
    };
    let none_of = |argument, bits: i32| Ok(vec![rule(argument, SeccompCmpOp::MaskedEq(wide(bits)), 0)?]);
    let all_of = |argument, bits: i32| {
        Ok::<_, BackendError>(vec![rule(argument, SeccompCmpOp::MaskedEq(wide(bits)), wide(bits))?])
    };
    let ioctls = IOCTLS.iter().map(|request| rule(1, SeccompCmpOp::Eq, *request));
    Ok(vec![
        (libc::SYS_clone, all_of(0, libc::CLONE_THREAD)?),
        (libc::SYS_openat, none_of(2, CHANGES)?),
        (libc::SYS_mmap, none_of(2, libc::PROT_EXEC)?),
        (libc::SYS_mprotect, none_of(2, libc::PROT_EXEC)?),
        (libc::SYS_socket, one_of(0, &FAMILIES)?),
        (libc::SYS_socketpair, one_of(0, &[libc::AF_UNIX])?),
        (libc::SYS_ioctl, ioctls.collect::<Result<_, _>>()?),
        (libc::SYS_prctl, one_of(0, &PRCTLS)?),
        (libc::SYS_prlimit64, vec![rule(0, SeccompCmpOp::Eq, 0)?, rule(0, SeccompCmpOp::Eq, own)?]),
        (libc::SYS_tgkill, vec![rule(0, SeccompCmpOp::Eq, own)?]),
    ])
}

/// Holds if the lower half of an argument, from 0 on, compares so: none of these is longer.
fn rule(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?])
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, OpenOptions};
    use std::io::ErrorKind::PermissionDenied;
    use std::net::{Ipv4Addr, TcpListener, UdpSocket};
    use std::os::unix::net::UnixStream;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

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
}
