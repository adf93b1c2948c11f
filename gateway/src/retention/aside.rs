//! Files that no process can read are put aside, so that none of them ends every start.
//!
//! A page of memory may fail, and then whoever reads it is ended by a signal. Or what was retained
//! makes the reader fail. A start that reads it again each time would never come to its end.

use std::io;
use std::path::Path;

use rustix::io::Errno;
use splice::retention::{HEAD, MOST_FATAL_READS, fatal_reads};

use super::{NoRetention, Predecessor, Retained, open_file};

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
enum Unreadable {
    /// The machine cannot read it.
    #[error("a page of it cannot be read: {0}")]
    Page(Errno),
    /// Readers ended.
    #[error("{0} processes in a row ended while they read it")]
    Fatal(u32),
}

/// Opens a file like [`open_file`]. One that cannot be read is put aside, and another one takes its
/// place.
pub(super) fn open(
    directory: &Path,
    name: &str,
    size: u64,
    before: &Predecessor,
) -> Result<Retained, NoRetention> {
    let opened = open_file(directory, name, size, before)?;
    // The process before goes on if this one fails.
    let Some(why) = (!opened.takes_over).then(|| unreadable(&opened)).flatten() else { return Ok(opened) };
    let path = directory.join(name);
    let aside = directory.join(format!("{name}.unreadable"));
    let failed = |error: io::Error| NoRetention::File(path.clone(), error.to_string());
    std::fs::rename(&path, &aside).map_err(failed)?;
    drop(opened);
    tracing::error!(
        file = %path.display(),
        aside = %aside.display(),
        why = %why,
        "whatever the process before retained in this file is lost, and long messages that were under way \
         end: the file is put aside, and may be deleted"
    );
    open_file(directory, name, size, &Predecessor::None).or_else(|error| match error {
        NoRetention::NoRoom { .. } => {
            tracing::warn!(file = %aside.display(), "it is deleted, to make room for its successor");
            std::fs::remove_file(&aside).map_err(failed)?;
            open_file(directory, name, size, &Predecessor::None)
        }
        error => Err(error),
    })
}

/// Returns why a file is not to be read, if it is not.
fn unreadable(file: &Retained) -> Option<Unreadable> {
    if let Err(error) = file.mapping.populate()
        && matches!(error, Errno::HWPOISON | Errno::FAULT | Errno::IO)
    {
        return Some(Unreadable::Page(error));
    }
    let head = file.as_ref().get(..HEAD)?;
    let fatal = fatal_reads(head);
    (fatal >= MOST_FATAL_READS).then_some(Unreadable::Fatal(fatal))
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::time::{Duration, Instant};

    use rustix::process::Signal;
    use splice::retention::{Age, Retention};

    use super::*;
    use crate::retention::tests::folder;

    const SIZE: u64 = 1 << 16;
    /// Has the test be the process that dies, with the file in this folder.
    const READER: &str = "LONGHAUL_TEST_READER";

    fn cut(path: &Path, len: u64) {
        OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
    }

    fn read(file: Retained) -> Retention {
        let until = Instant::now() + Duration::from_secs(60);
        Retention::new(Box::new(file), 1000, until, |_| Age::Recent)
    }

    /// Pages that are gone end whoever reads them by the signal that a failed page does.
    #[test]
    fn a_file_whose_readers_die_is_put_aside() {
        if let Some(folder) = std::env::var_os(READER) {
            let file = open(Path::new(&folder), "x", SIZE, &Predecessor::None).unwrap();
            cut(&Path::new(&folder).join("x"), 4096);
            drop(read(file));
            unreachable!("it cannot be read");
        }
        let folder = folder();
        let path = folder.path().join("x");
        drop(read(open(folder.path(), "x", SIZE, &Predecessor::None).unwrap()));
        for reader in 0..MOST_FATAL_READS {
            let name = "retention::aside::tests::a_file_whose_readers_die_is_put_aside";
            let mut command = Command::new(std::env::current_exe().unwrap());
            let child = command.args(["--exact", name]).env(READER, folder.path()).output().unwrap();
            assert_eq!(child.status.signal(), Some(Signal::BUS.as_raw()), "{reader}: {child:?}");
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "{reader}");
            cut(&path, SIZE);
        }
        let file = open(folder.path(), "x", SIZE, &Predecessor::None).unwrap();
        let head = |bytes: &[u8]| fatal_reads(&bytes[..HEAD]);
        assert_eq!(head(file.as_ref()), 0);
        let aside = folder.path().join("x.unreadable");
        assert_eq!(head(&std::fs::read(&aside).unwrap()), MOST_FATAL_READS);
        drop(read(file));
        assert_eq!(head(&std::fs::read(&path).unwrap()), 0, "the next one lived");
    }

    #[test]
    fn a_file_that_the_machine_cannot_read_is_put_aside_at_once() {
        let folder = folder();
        let path = folder.path().join("x");
        let file = open(folder.path(), "x", SIZE, &Predecessor::None).unwrap();
        assert!(unreadable(&file).is_none());
        cut(&path, 4096);
        assert!(matches!(unreadable(&file), Some(Unreadable::Page(_))));
    }
}
