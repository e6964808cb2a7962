//! A directory of the file system.

use std::any::Any;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Disk, DiskFile};

/// File whose lock says that a directory is in use. The system gives the lock back when the process ends.
const LOCK: &str = "LOCK";

/// Where Linux names the current run of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The modes of directories and files that are made: entries are for this process's user alone.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// What all users of a host may do with a file, in its mode. A group may be let in on purpose, as in Kubernetes.
const EVERYONE: u32 = 0o007;

/// A directory of the file system.
#[derive(Debug)]
pub struct RealDisk {
    directory: PathBuf,
}

impl RealDisk {
    /// The directory, which is made if it is not there, for this process's user alone. Of a directory that is there the mode
    /// stays, and the log says if everybody can read it.
    pub fn new(directory: impl Into<PathBuf>) -> io::Result<Self> {
        let directory = directory.into();
        fs::DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(&directory)?;
        let open = open_to_others(&directory)?;
        if !open.is_empty() {
            let (directory, open) = (directory.display(), open.join(", "));
            tracing::warn!(%directory, %open, "everybody on this host can read or change these data: chmod -R o-rwx closes them");
        }
        Ok(Self { directory })
    }

    fn new_file() -> OpenOptions {
        let mut options = OpenOptions::new();
        options.create(true).mode(FILE_MODE);
        options
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

impl Disk for RealDisk {
    fn name(&self) -> String {
        self.directory.display().to_string()
    }

    fn lock(&self) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        let file = Self::new_file().truncate(false).write(true).open(self.path(LOCK))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            // A name that is not UTF-8 is none of the store's.
            names.extend(entry?.file_name().into_string().ok());
        }
        Ok(names)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(OpenOptions::new().read(true).write(true).open(self.path(name))?))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(Self::new_file().read(true).write(true).truncate(true).open(self.path(name))?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path(name))
    }

    fn sync_names(&self) -> io::Result<()> {
        sync_directory(&self.directory)
    }

    fn boot(&self) -> Option<u128> {
        let text = fs::read_to_string(BOOT_ID).ok()?;
        u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()
    }
}

/// Names that a warning has at most.
const OPEN_TOLD: usize = 4;

/// The directory, and the files in it, that everybody on this host can read or change, as far as one line tells them. Files in
/// a directory that is closed are out of reach, whatever their modes are.
fn open_to_others(directory: &Path) -> io::Result<Vec<String>> {
    let mode = |path: &Path| fs::metadata(path).map(|metadata| metadata.permissions().mode() & 0o777);
    let own = mode(directory)?;
    // Who may enter it can reach the files in it.
    if own & EVERYONE == 0 {
        return Ok(Vec::new());
    }
    let mut open = vec![format!(". ({own:04o})")];
    for entry in fs::read_dir(directory)?.take(1_000) {
        let path = entry?.path();
        // One that has gone meanwhile is nobody's.
        let Some(of_file) = mode(&path).ok().filter(|of_file| of_file & EVERYONE != 0 && path.is_file())
        else {
            continue;
        };
        if open.len() > OPEN_TOLD {
            open.push("others".to_owned());
            break;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        open.push(format!("{name} ({of_file:04o})"));
    }
    Ok(open)
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

impl DiskFile for File {
    fn len(&self) -> io::Result<u64> {
        self.metadata().map(|metadata| metadata.len())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < bytes.len() {
            match FileExt::read_at(self, &mut bytes[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        // fdatasync: it also writes the length, which is what else matters here.
        self.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn directories_and_files_are_made_for_their_owner_alone_whatever_the_umask_is() {
        let root = std::env::temp_dir().join(format!("consort-modes-{}", std::process::id()));
        let directory = root.join("deep").join("cache");
        let disk = RealDisk::new(&directory).unwrap();
        let _lock = disk.lock().unwrap();
        disk.create("1.data").unwrap();
        for made in [&root, &root.join("deep"), &directory] {
            assert_eq!(mode(made), 0o700, "{}", made.display());
        }
        for file in [LOCK, "1.data"] {
            assert_eq!(mode(&directory.join(file)), 0o600, "{file}");
        }
        assert_eq!(open_to_others(&directory).unwrap(), [""; 0]);
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn data_of_before_that_everybody_can_read_are_told() {
        let directory = std::env::temp_dir().join(format!("consort-open-{}", std::process::id()));
        let disk = RealDisk::new(&directory).unwrap();
        disk.create("1.data").unwrap();
        disk.create("2.data").unwrap();
        fs::set_permissions(directory.join("1.data"), fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(open_to_others(&directory).unwrap(), [""; 0], "it is out of reach");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(open_to_others(&directory).unwrap(), [". (0755)", "1.data (0644)"]);
        for nth in 0..100 {
            let file = directory.join(format!("{nth}.old"));
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        }
        assert_eq!(open_to_others(&directory).unwrap().len(), OPEN_TOLD + 2);
        fs::remove_dir_all(&directory).unwrap();
    }
}
