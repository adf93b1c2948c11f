//! Memory that outlives the process: a file in memory, mapped.
//!
//! A file of `tmpfs` stays as it was when the process that wrote it is killed. It costs no system
//! call per packet, no keeper that could die itself, and no agreement with systemd beyond
//! `RuntimeDirectoryPreserve=restart`. It does not outlive the machine.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock, statfs};
use rustix::process::geteuid;
use rustix::time::{ClockId, clock_gettime};

use crate::mapping::Mapping;

/// File systems whose files are in memory (`linux/magic.h`). On others a write may wait for a disk.
const TMPFS: i64 = 0x0102_1994;
const RAMFS: i64 = 0x8584_58f6;

/// Why nothing outlives the process.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoRetention {
    /// The directory is on a disk.
    #[error("{} is not on a file system in memory; choose one on tmpfs, such as /run/longhaul", .0.display())]
    OnDisk(PathBuf),
    /// Somebody else's.
    #[error("{} is in use by another gateway; choose another directory", .0.display())]
    InUse(PathBuf),
    /// Another user made it, or may open it, or it has another name as well.
    #[error("{} is not a file that this user made, and that nobody else may open; remove it, or choose another directory", .0.display())]
    NotOurs(PathBuf),
    /// The file system is full.
    #[error("{} has no room for {} bytes: {}; raise the size of the file system, or lower retention.size", .0.display(), .1, .2)]
    NoRoom(PathBuf, u64, io::Error),
    /// Anything else.
    #[error("{}: {}", .0.display(), .1)]
    File(PathBuf, io::Error),
}

/// The memory of one thread towards one peer.
#[derive(Debug)]
pub(crate) struct Retained {
    mapping: Mapping,
    /// Locked for as long as the mapping is in use, if the process before has ended.
    file: Arc<File>,
    is_locked: bool,
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

/// The memory of each thread towards each peer, in the order of the gateway file.
#[derive(Debug, Default)]
pub struct RetainedFiles(Vec<Vec<Option<Retained>>>);

impl RetainedFiles {
    /// Opens what there is to be, before privileges are given up. What is in the way of it is
    /// logged: flows then survive lost sessions only. `takes_over`: the process before still has
    /// it.
    #[must_use]
    pub fn open(gateway: &config::Gateway, takes_over: bool) -> Self {
        let of_threads = |view: &config::Gateway| {
            (0..view.data_plane.threads).map(|thread| open(view, thread, takes_over)).collect()
        };
        Self(gateway.views().iter().map(of_threads).collect())
    }

    pub(crate) fn take(&mut self, peer: usize, thread: u8) -> Option<Retained> {
        self.0.get_mut(peer)?.get_mut(usize::from(thread))?.take()
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

/// How often a process that took over tries to lock its files.
const LOCK_AFTER: Duration = Duration::from_millis(100);

fn open(gateway: &config::Gateway, thread: u8, takes_over: bool) -> Option<Retained> {
    let Some(directory) = gateway.retention.directory.clone().or_else(runtime_directory) else {
        if thread == 0 {
            let remedy = "set retention.directory to one on tmpfs";
            tracing::info!(peer = gateway.peer.name, remedy, "no flow outlives this process");
        }
        return None;
    };
    let size = gateway.retention_size().bytes() / u64::from(gateway.data_plane.threads.max(1));
    let name = format!("retained-{}-{}-{thread}", gateway.site.name, gateway.peer.name);
    match open_file(&directory, &name, size, takes_over) {
        Ok(retained) => Some(retained),
        Err(error) => {
            tracing::warn!(peer = gateway.peer.name, %error, "no flow outlives this process");
            None
        }
    }
}

/// Returns the directory that systemd has made for a unit with `RuntimeDirectory=`.
#[must_use]
pub fn runtime_directory() -> Option<PathBuf> {
    std::env::var_os("RUNTIME_DIRECTORY").filter(|path| !path.is_empty()).map(PathBuf::from)
}

fn open_file(directory: &Path, name: &str, size: u64, takes_over: bool) -> Result<Retained, NoRetention> {
    let path = directory.join(name);
    let wrong = |error: io::Error| NoRetention::File(path.clone(), error);
    let kind = statfs(directory).map_err(|error| wrong(error.into()))?.f_type;
    if ![TMPFS, RAMFS].contains(&kind) {
        return Err(NoRetention::OnDisk(directory.to_owned()));
    }
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::CLOEXEC).bits();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags.cast_signed());
    let file = options.open(&path).map_err(wrong)?;
    let found = file.metadata().map_err(wrong)?;
    if !is_ours(&found) {
        return Err(NoRetention::NotOurs(path));
    }
    let is_locked = flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive).is_ok();
    if !is_locked && !takes_over {
        return Err(NoRetention::InUse(path));
    }
    let size = if takes_over && found.len() > 0 {
        // The process before has all of it mapped.
        if found.len() != size {
            tracing::info!(file = %path.display(), "retention.size and data_plane.threads take effect at the next start");
        }
        found.len()
    } else {
        // Another size has another layout, so nothing in it is of use. Nobody else has it mapped.
        if found.len() != size {
            file.set_len(size).map_err(wrong)?;
        }
        size
    };
    // Without it a page that the file system has no room for would end the process. A ramfs has no
    // bound, and no reservation.
    if kind == TMPFS
        && let Err(error) = fallocate(file.as_fd(), FallocateFlags::empty(), 0, size)
    {
        let _ = std::fs::remove_file(&path);
        return Err(NoRetention::NoRoom(directory.to_owned(), size, error.into()));
    }
    let mapping = Mapping::new(file.as_fd(), usize::try_from(size).unwrap_or(0)).map_err(wrong)?;
    Ok(Retained { mapping, file: Arc::new(file), is_locked })
}

/// In a directory that others may write to, one of them may have made the file.
fn is_ours(found: &Metadata) -> bool {
    let is_private = found.uid() == geteuid().as_raw() && found.mode() & 0o077 == 0;
    found.is_file() && found.nlink() == 1 && is_private
}

/// Milliseconds since the machine started, suspended or not.
pub(crate) fn uptime() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let millis = time.tv_sec.saturating_mul(1_000).saturating_add(time.tv_nsec / 1_000_000);
    u64::try_from(millis).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").unwrap()
    }

    #[test]
    fn what_a_process_wrote_is_there_for_the_next() {
        let folder = folder();
        let open = || open_file(folder.path(), "x", 1 << 16, false);
        let mut memory = open().unwrap();
        memory.as_mut()[40_000] = 7;
        assert!(matches!(open(), Err(NoRetention::InUse(_))), "one has it");
        drop(memory);
        assert_eq!(open().unwrap().as_ref()[40_000], 7);
    }

    #[test]
    fn a_process_that_takes_over_maps_the_same() {
        let folder = folder();
        let mut before = open_file(folder.path(), "x", 1 << 16, false).unwrap();
        before.as_mut()[1] = 9;
        for size in [1 << 16, 1 << 15, 1 << 17] {
            let after = open_file(folder.path(), "x", size, true).unwrap();
            assert_eq!((after.as_ref()[1], after.as_ref().len()), (9, 1 << 16), "{size}");
        }
        drop(before);
        // Nobody has locked it. It is not cut all the same.
        let after = open_file(folder.path(), "x", 1 << 15, true).unwrap();
        assert_eq!(after.as_ref().len(), 1 << 16);
    }

    #[tokio::test]
    async fn a_process_that_took_over_locks_the_file_when_the_one_before_has_ended() {
        let folder = folder();
        let open = |takes_over| open_file(folder.path(), "x", 1 << 16, takes_over);
        let before = open(false).unwrap();
        let after = RetainedFiles(vec![vec![Some(open(true).unwrap())]]);
        let locked = tokio::spawn(after.lock());
        tokio::time::sleep(LOCK_AFTER * 3).await;
        assert!(!locked.is_finished());
        drop(before);
        locked.await.unwrap();
        assert!(matches!(open(false), Err(NoRetention::InUse(_))));
    }

    #[test]
    fn a_file_that_others_made_or_may_open_is_refused() {
        let folder = folder();
        let path = folder.path().join("x");
        let refused =
            || matches!(open_file(folder.path(), "x", 1 << 16, false), Err(NoRetention::NotOurs(_)));
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
        assert!(matches!(open_file(folder.path(), "x", 1 << 16, false), Err(NoRetention::File(..))));
    }

    #[test]
    fn a_disk_is_refused_and_so_is_more_than_there_is_room_for() {
        let on_disk = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let refused = open_file(on_disk.path(), "x", 1 << 16, false);
        assert!(matches!(refused, Err(NoRetention::OnDisk(_))));
        assert_eq!(std::fs::read_dir(on_disk.path()).unwrap().count(), 0, "nothing is left there");
        let folder = folder();
        let refused = open_file(folder.path(), "x", 1 << 60, false);
        assert!(matches!(refused, Err(NoRetention::NoRoom(..) | NoRetention::File(..))));
    }
}
