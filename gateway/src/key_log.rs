//! The file that `--key-log` names: keys of bulk data, for whoever looks into captures.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, TrySendError};
use std::thread;

use session::key_log::KeyLog;
use tracing::warn;

use crate::logs::lose_key;

/// Directions of sessions whose keys wait for the disk; those of more are lost.
const WAITING: usize = 64;

/// The opened file.
#[derive(Debug)]
pub struct KeyLogFile {
    file: File,
    path: PathBuf,
}

impl KeyLogFile {
    /// Opens or makes the file, to be appended to. Call it before privileges are given up.
    ///
    /// # Errors
    /// It cannot be opened, is no file, or others than its owner may read it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600);
        // A pipe would wait for whoever reads it.
        options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = options.open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file"));
        }
        if metadata.mode() & 0o077 != 0 {
            let message = "others than its owner may read it: chmod 600";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        Ok(Self { file, path: path.to_owned() })
    }

    /// Starts the thread that writes, so that no session waits for a disk. It ends with the last
    /// copy of what is returned.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn start(self) -> io::Result<KeyLog> {
        let Self { mut file, path } = self;
        warn!(file = %path.display(), "the keys of bulk data are logged: whoever reads the file reads the traffic");
        let (lines, waiting) = mpsc::sync_channel::<String>(WAITING);
        thread::Builder::new().name("key-log".to_owned()).spawn(move || {
            for lines in waiting {
                if let Err(error) = file.write_all(lines.as_bytes()) {
                    lose_key();
                    warn!(%error, file = %path.display(), "keys were not logged");
                }
            }
        })?;
        Ok(KeyLog::new(move |text| match lines.try_send(text.to_owned()) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            Err(TrySendError::Full(_)) => {
                lose_key();
                warn!("keys were not logged: the disk is too slow");
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn the_file_is_its_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        KeyLogFile::open(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        KeyLogFile::open(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(KeyLogFile::open(&path).unwrap_err().to_string().contains("chmod 600"));
        symlink(&path, folder.path().join("link")).unwrap();
        assert!(KeyLogFile::open(&folder.path().join("link")).is_err());
        assert!(KeyLogFile::open(folder.path()).is_err());
    }
}
