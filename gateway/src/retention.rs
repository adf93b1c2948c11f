//! Memory that outlives the process: a file in memory, mapped.
//!
//! A file of `tmpfs` stays as it was when the process that wrote it is killed. It costs no system
//! call per packet, no keeper that could die itself, and no agreement with systemd beyond
//! `RuntimeDirectoryPreserve=restart`. It does not outlive the machine.

mod aside;
mod looking;

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use config::{Policy, Survive};
use reliability::human::{self, size};
use rustix::fs::{FallocateFlags, FlockOperation, StatFs, fallocate, flock, statfs};
use rustix::io::Errno;
use rustix::process::geteuid;
use rustix::time::{ClockId, clock_gettime};

use crate::mapping::Mapping;

pub(crate) use looking::look;

/// File systems whose files are in memory (`linux/magic.h`). On others a write may wait for a disk.
const TMPFS: i64 = 0x0102_1994;
const RAMFS: i64 = 0x8584_58f6;

/// Why long messages end with the process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRetention {
    /// No directory is named.
    #[error("no directory is named for what outlives the process")]
    Nowhere,
    /// There is no such directory.
    #[error("there is no {}", .0.display())]
    Missing(PathBuf),
    /// It is a file.
    #[error("{} is no directory", .0.display())]
    NoDirectory(PathBuf),
    /// The directory is on a disk.
    #[error("{} is not on a file system in memory", .0.display())]
    OnDisk(PathBuf),
    /// Somebody else's.
    #[error("{} is in use by another gateway", .0.display())]
    InUse(PathBuf),
    /// Another user made it, or may open it, or it has another name as well.
    #[error("{} is not a file that this user made, and that nobody else may open", .0.display())]
    NotOurs(PathBuf),
    /// The file system is full.
    #[error("{} has no room for {}: {} are free", .directory.display(), size(*.needed), size(*.free))]
    NoRoom {
        /// The directory on it.
        directory: PathBuf,
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that there are.
        free: u64,
    },
    /// A process may not make a file so long.
    #[error("a file of {} in {} would be longer than a process may make it (RLIMIT_FSIZE)", human::size(*.1), .0.display())]
    TooLong(PathBuf, u64),
    /// Anything else.
    #[error("cannot use {}: {}", .0.display(), .1)]
    File(PathBuf, String),
}

impl NoRetention {
    /// Names as metrics have them, in the order of [`NoRetention::index`].
    pub const NAMES: [&str; 8] =
        ["nowhere", "missing", "no_directory", "on_disk", "in_use", "not_ours", "no_room", "file"];

    /// Returns the place of its name.
    #[must_use]
    pub fn index(&self) -> usize {
        match self {
            Self::Nowhere => 0,
            Self::Missing(_) => 1,
            Self::NoDirectory(_) => 2,
            Self::OnDisk(_) => 3,
            Self::InUse(_) => 4,
            Self::NotOurs(_) => 5,
            Self::NoRoom { .. } | Self::TooLong(..) => 6,
            Self::File(..) => 7,
        }
    }

    /// Returns the key of the gateway file that it is about.
    #[must_use]
    pub fn key(&self) -> &'static str {
        match self {
            Self::NoRoom { .. } | Self::TooLong(..) => "retention.size",
            _ => "retention.directory",
        }
    }

    /// Returns what to do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::Nowhere => {
                "name one on tmpfs, such as /dev/shm/longhaul, or give the unit RuntimeDirectory=".into()
            }
            Self::Missing(directory) => {
                format!("make it for the gateway's user: install -d -m 700 -o USER {}", directory.display())
            }
            Self::NoDirectory(_) => "name a directory on tmpfs".into(),
            Self::OnDisk(_) => "choose one of which `stat -f -c %T DIR` says tmpfs".into(),
            Self::InUse(_) => "stop that gateway, or choose another directory".into(),
            Self::NotOurs(_) => "remove it, or choose a directory where nobody else makes files".into(),
            Self::NoRoom { directory, .. } => {
                format!("a smaller retention.size, or a larger file system: `df {}`", directory.display())
            }
            Self::TooLong(..) => {
                "a smaller retention.size, or a greater limit: LimitFSIZE= of the unit, `ulimit -f`".into()
            }
            Self::File(..) => "give the gateway's user a directory on tmpfs that it may make files in".into(),
        }
    }
}

/// The memory of one thread towards one peer.
#[derive(Debug)]
pub(crate) struct Retained {
    mapping: Mapping,
    /// The name of the file, which has both sites' and the thread's.
    name: String,
    /// Locked for as long as the mapping is in use, if the process before has ended.
    file: Arc<File>,
    is_locked: bool,
    /// The process before has it, and goes on with it if this one fails.
    takes_over: bool,
}

impl Retained {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

#[expect(unsafe_code, reason = "memory that is shared with a file")]
impl AsRef<[u8]> for Retained {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: all of the mapping, which outlives the borrow. The file is as long, its pages are
        // reserved, and it is ours alone: this user's, mode 0600, locked, and never cut by a
        // process that takes over. A process of the same user that wrote or truncated it all the
        // same could do as much to this one's memory by ptrace.
        unsafe { slice::from_raw_parts(self.mapping.base.as_ptr(), self.mapping.len) }
    }
}

#[expect(unsafe_code, reason = "memory that is shared with a file")]
impl AsMut<[u8]> for Retained {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_ref`; the borrow is the only one.
        unsafe { slice::from_raw_parts_mut(self.mapping.base.as_ptr(), self.mapping.len) }
    }
}

/// Returns true if a class is to outlive the process by what is retained.
pub(crate) fn wants_retention(policy: &Policy) -> bool {
    policy.written().any(|class| class.survive == Survive::Process)
}

/// The memory of each pair of threads, by peers in the order of the gateway file.
#[derive(Debug, Default)]
pub struct RetainedFiles(Vec<Vec<Result<Retained, NoRetention>>>);

impl RetainedFiles {
    /// Opens what there is to be, before privileges are given up. What is in the way of it is
    /// logged: flows then survive lost sessions only.
    #[must_use]
    pub fn open(gateway: &config::Gateway, before: &Predecessor) -> Self {
        let of_pairs =
            |view: &config::Gateway| (0..view.thread_pairs()).map(|pair| open(view, pair, before)).collect();
        Self(gateway.views().iter().map(of_pairs).collect())
    }

    /// Returns the files that this process has.
    pub(crate) fn ids(&self) -> Vec<FileId> {
        let metadata = |retained: &Retained| retained.file.metadata().ok();
        self.0.iter().flatten().flatten().filter_map(metadata).map(|found| FileId::of(&found)).collect()
    }

    /// Hands out the memory of a pair of threads, once.
    pub(crate) fn take(&mut self, peer: usize, pair: u8) -> Result<Retained, NoRetention> {
        let of_peer = self.0.get_mut(peer);
        let file = of_peer.and_then(|pairs| pairs.get_mut(usize::from(pair)));
        file.map_or(Err(NoRetention::Nowhere), |file| std::mem::replace(file, Err(NoRetention::Nowhere)))
    }

    /// Locks the files of a process that took over, as soon as the one before has ended. Without
    /// that another gateway could take them into use.
    pub(crate) fn lock(&self) -> impl Future<Output = ()> + use<> {
        let all = self.0.iter().flatten().flatten();
        let mut waiting: Vec<_> =
            all.filter(|retained| !retained.is_locked).map(|retained| Arc::clone(&retained.file)).collect();
        async move {
            while !waiting.is_empty() {
                tokio::time::sleep(LOCK_AFTER).await;
                waiting.retain(|file| flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive).is_err());
            }
        }
    }
}

/// A file, whatever its name: device and file number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FileId(u64, u64);

impl FileId {
    fn of(found: &Metadata) -> Self {
        Self(found.dev(), found.ino())
    }
}

/// The process whose place this one takes, which has its files until then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Predecessor {
    /// There is none.
    None,
    /// It has these files. Another one that is in use is another gateway's.
    Has(Vec<FileId>),
    /// It is of a version that does not say which files it has.
    Unknown,
}

impl Predecessor {
    fn has(&self, file: &Metadata) -> bool {
        match self {
            Self::None => false,
            Self::Has(files) => files.contains(&FileId::of(file)),
            Self::Unknown => true,
        }
    }
}

/// How often a process that took over tries to lock its files.
const LOCK_AFTER: Duration = Duration::from_millis(100);

/// The consequence of a file that is not there, in the log.
const CONSEQUENCE: &str = "long messages end if this process is killed";

fn open(gateway: &config::Gateway, pair: u8, before: &Predecessor) -> Result<Retained, NoRetention> {
    let peer = &gateway.peer.name;
    let (name, size) = file_of(gateway, pair);
    let opened = match directory_of(gateway) {
        Some(directory) => aside::open(&directory, &name, size, before),
        None => Err(NoRetention::Nowhere),
    };
    opened.inspect_err(|error| match error {
        // Whoever wants none names none. Once for all threads is enough.
        NoRetention::Nowhere if pair > 0 => {}
        NoRetention::Nowhere => {
            tracing::info!(peer, key = error.key(), %error, remedy = error.remedy(), "{CONSEQUENCE}");
        }
        _ => tracing::warn!(peer, key = error.key(), %error, remedy = error.remedy(), "{CONSEQUENCE}"),
    })
}

/// Returns the name and the bytes of the file of a pair of threads.
fn file_of(gateway: &config::Gateway, pair: u8) -> (String, u64) {
    let size = gateway.retention_size().bytes() / u64::from(gateway.thread_pairs().max(1));
    (format!("retained-{}-{}-{pair}", gateway.site.name, gateway.peer.name), size)
}

fn directory_of(gateway: &config::Gateway) -> Option<PathBuf> {
    gateway.retention.directory.clone().or_else(runtime_directory)
}

/// Returns the directory that systemd has made for a unit with `RuntimeDirectory=`.
#[must_use]
pub fn runtime_directory() -> Option<PathBuf> {
    std::env::var_os("RUNTIME_DIRECTORY").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Returns the file system of a directory, if it is in memory.
fn in_memory(directory: &Path) -> Result<StatFs, NoRetention> {
    let wrong = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => NoRetention::Missing(directory.to_owned()),
        _ => NoRetention::File(directory.to_owned(), error.to_string()),
    };
    if !std::fs::metadata(directory).map_err(wrong)?.is_dir() {
        return Err(NoRetention::NoDirectory(directory.to_owned()));
    }
    let found = statfs(directory).map_err(|error| wrong(error.into()))?;
    let is_in_memory = [TMPFS, RAMFS].contains(&found.f_type);
    is_in_memory.then_some(found).ok_or_else(|| NoRetention::OnDisk(directory.to_owned()))
}

/// Returns the bytes that are free on a file system. `None`: it has no bound, and counts none.
fn free_on(system: &StatFs) -> Option<u64> {
    let free = system.f_bavail.saturating_mul(u64::try_from(system.f_bsize).unwrap_or(0));
    (system.f_blocks > 0).then_some(free)
}

fn open_file(directory: &Path, name: &str, size: u64, before: &Predecessor) -> Result<Retained, NoRetention> {
    let path = directory.join(name);
    let wrong = |error: io::Error| match Errno::from_io_error(&error) {
        Some(Errno::FBIG) => NoRetention::TooLong(directory.to_owned(), size),
        _ => NoRetention::File(path.clone(), error.to_string()),
    };
    let system = in_memory(directory)?;
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::CLOEXEC).bits();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags.cast_signed());
    let file = options.open(&path).map_err(wrong)?;
    let found = file.metadata().map_err(wrong)?;
    if !is_private(&found) || found.uid() != geteuid().as_raw() {
        return Err(NoRetention::NotOurs(path));
    }
    let is_locked = flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive).is_ok();
    let takes_over = before.has(&found);
    if !is_locked && !takes_over {
        return Err(NoRetention::InUse(path));
    }
    let made_for_nothing = |why: NoRetention| {
        if found.len() == 0 {
            let _ = std::fs::remove_file(&path);
        }
        why
    };
    let size = sized(&file, &path, found.len(), size, takes_over).map_err(wrong).map_err(made_for_nothing)?;
    // Without it a page that the file system has no room for would end the process. A ramfs has no
    // bound, and no reservation.
    if system.f_type == TMPFS
        && let Err(error) = fallocate(file.as_fd(), FallocateFlags::empty(), 0, size)
    {
        let free = free_on(&system).unwrap_or(0);
        return Err(made_for_nothing(match error {
            Errno::NOSPC => NoRetention::NoRoom { directory: directory.to_owned(), needed: size, free },
            _ => wrong(error.into()),
        }));
    }
    let mapping = Mapping::new(file.as_fd(), usize::try_from(size).unwrap_or(0)).map_err(wrong)?;
    Ok(Retained { mapping, name: name.to_owned(), file: Arc::new(file), is_locked, takes_over })
}

/// Gives the file its size, and returns that. `found`: its size so far.
fn sized(file: &File, path: &Path, found: u64, size: u64, takes_over: bool) -> io::Result<u64> {
    let name = path.display();
    match found {
        _ if found == size => Ok(size),
        // The process before has all of it mapped.
        1.. if takes_over => {
            tracing::info!(file = %name, "retention.size, limits.total_buffer and data_plane.threads take effect at the next start");
            Ok(found)
        }
        // Nobody else has it mapped. Whoever reads it next tells what the other layout costs.
        _ => {
            if found > 0 {
                let (was, is) = (human::size(found), human::size(size));
                tracing::info!(file = %name, was, is, "the file gets another size");
            }
            file.set_len(size)?;
            Ok(size)
        }
    }
}

/// Returns true if nobody but its owner may open the file, by any name. In a directory that others
/// may write to, one of them may have made it.
fn is_private(found: &Metadata) -> bool {
    found.is_file() && found.nlink() == 1 && found.mode() & 0o077 == 0
}

/// Milliseconds since the machine started, suspended or not.
pub(crate) fn uptime() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let millis = time.tv_sec.saturating_mul(1_000).saturating_add(time.tv_nsec / 1_000_000);
    u64::try_from(millis).unwrap_or(0)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    pub(super) fn folder() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").unwrap()
    }

    #[test]
    fn what_a_process_wrote_is_there_for_the_next() {
        let folder = folder();
        let open = || open_file(folder.path(), "x", 1 << 16, &Predecessor::None);
        let mut memory = open().unwrap();
        memory.as_mut()[40_000] = 7;
        assert!(matches!(open(), Err(NoRetention::InUse(_))), "one has it");
        drop(memory);
        assert_eq!(open().unwrap().as_ref()[40_000], 7);
    }

    #[test]
    fn a_process_that_takes_over_maps_the_same() {
        let folder = folder();
        let mut before = open_file(folder.path(), "x", 1 << 16, &Predecessor::None).unwrap();
        before.as_mut()[1] = 9;
        let ids = RetainedFiles(vec![vec![Err(NoRetention::Nowhere)]]).ids();
        let refused = open_file(folder.path(), "x", 1 << 16, &Predecessor::Has(ids));
        assert!(matches!(refused, Err(NoRetention::InUse(_))), "another gateway has it");
        let files = RetainedFiles(vec![vec![Ok(before)]]);
        let predecessor = Predecessor::Has(files.ids());
        for predecessor in [&predecessor, &Predecessor::Unknown] {
            for size in [1 << 16, 1 << 15, 1 << 17] {
                let after = open_file(folder.path(), "x", size, predecessor).unwrap();
                assert_eq!((after.as_ref()[1], after.as_ref().len()), (9, 1 << 16), "{size}");
            }
        }
        drop(files);
        // Nobody has locked it. It is not cut all the same.
        let after = open_file(folder.path(), "x", 1 << 15, &predecessor).unwrap();
        assert_eq!(after.as_ref().len(), 1 << 16);
    }

    #[test]
    fn a_start_with_another_size_has_that_size() {
        let folder = folder();
        for size in [1 << 16, 1 << 15, 1 << 17] {
            let opened = open_file(folder.path(), "x", size, &Predecessor::None).unwrap();
            assert_eq!((opened.as_ref().len() as u64, opened.name()), (size, "x"));
        }
    }

    #[tokio::test]
    async fn a_process_that_took_over_locks_the_file_when_the_one_before_has_ended() {
        let folder = folder();
        let open = |before| open_file(folder.path(), "x", 1 << 16, &before);
        let before = open(Predecessor::None).unwrap();
        let after = RetainedFiles(vec![vec![Ok(open(Predecessor::Unknown).unwrap())]]);
        let locked = tokio::spawn(after.lock());
        tokio::time::sleep(LOCK_AFTER * 3).await;
        assert!(!locked.is_finished());
        drop(before);
        locked.await.unwrap();
        assert!(matches!(open(Predecessor::None), Err(NoRetention::InUse(_))));
    }

    #[test]
    fn a_file_that_others_made_or_may_open_is_refused() {
        let folder = folder();
        let path = folder.path().join("x");
        let refused = || {
            matches!(open_file(folder.path(), "x", 1 << 16, &Predecessor::None), Err(NoRetention::NotOurs(_)))
        };
        std::fs::write(&path, "theirs").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(refused());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::hard_link(&path, folder.path().join("y")).unwrap();
        assert!(refused());
        assert_eq!(std::fs::read(&path).unwrap(), b"theirs");
        std::fs::remove_file(folder.path().join("y")).unwrap();
        assert!(!refused());
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(matches!(
            open_file(folder.path(), "x", 1 << 16, &Predecessor::None),
            Err(NoRetention::File(..))
        ));
    }

    #[test]
    fn a_disk_is_refused_and_so_is_more_than_there_is_room_for() {
        let on_disk = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let refused = open_file(on_disk.path(), "x", 1 << 16, &Predecessor::None);
        assert!(matches!(refused, Err(NoRetention::OnDisk(_))));
        assert_eq!(std::fs::read_dir(on_disk.path()).unwrap().count(), 0, "nothing is left there");
        let folder = folder();
        let refused = open_file(folder.path(), "x", 1 << 60, &Predecessor::None);
        assert!(matches!(refused, Err(NoRetention::NoRoom { .. } | NoRetention::File(..))));
    }
}
