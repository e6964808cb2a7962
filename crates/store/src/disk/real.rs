use std::any::Any;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::descriptors::{Descriptors, PooledFile, with_descriptor};
use super::{Disk, DiskFile};
use crate::error::StoreError;

const LOCK: &str = "LOCK";

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Only this process's user has access to entries.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// A group may have access on purpose, as in Kubernetes.
const EVERYONE: u32 = 0o007;

/// A directory of the file system.
#[derive(Debug)]
pub struct RealDisk {
    directory: PathBuf,
    files: Mutex<HashMap<String, Weak<PooledFile>>>,
    above: Option<Arc<DirectoryLock>>,
}

/// A directory locked for this process. Stores within it can share the lock, which saves descriptors
/// ([`FileStore::open_within`](crate::FileStore::open_within)).
#[derive(Debug)]
pub struct DirectoryLock {
    directory: PathBuf,
    _file: File,
}

impl DirectoryLock {
    /// Locks the directory, created if necessary.
    ///
    /// # Errors
    ///
    /// If another process, or another lock of this one, has it.
    pub fn take(directory: impl Into<PathBuf>) -> Result<Arc<Self>, StoreError> {
        let directory = directory.into();
        let name = directory.display().to_string();
        make_directory(&directory).map_err(|error| StoreError::io("make", &name, error))?;
        match lock_file(&directory).map_err(|error| StoreError::io("lock", &name, error))? {
            Some(file) => Ok(Arc::new(Self { directory, _file: file })),
            None => Err(StoreError::Locked { directory: name }),
        }
    }

    fn is_above(&self, directory: &Path) -> bool {
        directory != self.directory && directory.starts_with(&self.directory)
    }
}

fn make_directory(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory)
}

fn lock_file(directory: &Path) -> io::Result<Option<File>> {
    let mut options = RealDisk::new_file();
    options.truncate(false).write(true);
    let file = with_descriptor(Descriptors::of_process(), || options.open(directory.join(LOCK)))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

impl RealDisk {
    /// Opens the directory, or creates it with access for this process's user only. Logs a warning if other
    /// users can read an existing one.
    pub fn new(directory: impl Into<PathBuf>) -> io::Result<Self> {
        let directory = directory.into();
        make_directory(&directory)?;
        let open = open_to_others(&directory)?;
        if !open.is_empty() {
            let (directory, open) = (directory.display(), open.join(", "));
            tracing::warn!(%directory, %open, "all users of this host can access the data; run chmod -R o-rwx");
        }
        Ok(Self { directory, files: Mutex::default(), above: None })
    }

    pub(crate) fn within(directory: impl Into<PathBuf>, lock: Arc<DirectoryLock>) -> io::Result<Self> {
        let disk = Self::new(directory)?;
        let above = lock.is_above(&disk.directory).then_some(lock);
        Ok(Self { above, ..disk })
    }

    fn new_file() -> OpenOptions {
        let mut options = OpenOptions::new();
        options.create(true).mode(FILE_MODE);
        options
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn opened(&self, name: &str, options: &OpenOptions) -> io::Result<Arc<dyn DiskFile>> {
        let file = PooledFile::open(Descriptors::of_process(), self.path(name), options)?;
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if files.len() == files.capacity() {
            files.retain(|_, file| file.strong_count() > 0);
        }
        files.insert(name.to_owned(), Arc::downgrade(&file));
        Ok(file)
    }

    /// Readers keep an open descriptor.
    fn part_from_name(&self, name: &str) -> io::Result<()> {
        let file = self.files.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        file.and_then(|file| file.upgrade()).map_or(Ok(()), |file| file.keep_open())
    }
}

impl Disk for RealDisk {
    fn name(&self) -> String {
        self.directory.display().to_string()
    }

    fn lock(&self) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        // Needed also within a locked directory, because another process may ignore that lock.
        let Some(file) = lock_file(&self.directory)? else { return Ok(None) };
        Ok(Some(match &self.above {
            Some(above) => Box::new(above.clone()),
            None => Box::new(file),
        }))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in with_descriptor(Descriptors::of_process(), || fs::read_dir(&self.directory))? {
            // A name that is not UTF-8 belongs to no store.
            names.extend(entry?.file_name().into_string().ok());
        }
        Ok(names)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.opened(name, OpenOptions::new().read(true).write(true))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.opened(name, Self::new_file().read(true).write(true).truncate(true))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.part_from_name(from)?;
        self.part_from_name(to)?;
        fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.part_from_name(name)?;
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

const OPEN_LISTED: usize = 4;

/// As many as one line holds. Files in a closed directory are inaccessible.
fn open_to_others(directory: &Path) -> io::Result<Vec<String>> {
    let mode = |path: &Path| fs::metadata(path).map(|metadata| metadata.permissions().mode() & 0o777);
    let own = mode(directory)?;
    // Files are reachable only through the directory.
    if own & EVERYONE == 0 {
        return Ok(Vec::new());
    }
    let mut open = vec![format!(". ({own:04o})")];
    for entry in fs::read_dir(directory)?.take(1_000) {
        let path = entry?.path();
        // Ignores a file removed meanwhile.
        let Some(of_file) = mode(&path).ok().filter(|of_file| of_file & EVERYONE != 0 && path.is_file())
        else {
            continue;
        };
        if open.len() > OPEN_LISTED {
            open.push("others".to_owned());
            break;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        open.push(format!("{name} ({of_file:04o})"));
    }
    Ok(open)
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    with_descriptor(Descriptors::of_process(), || File::open(directory))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn directories_and_files_are_created_for_their_owner_only_with_any_umask() {
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
    fn world_readable_data_is_reported() {
        let directory = std::env::temp_dir().join(format!("consort-open-{}", std::process::id()));
        let disk = RealDisk::new(&directory).unwrap();
        disk.create("1.data").unwrap();
        disk.create("2.data").unwrap();
        fs::set_permissions(directory.join("1.data"), fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(open_to_others(&directory).unwrap(), [""; 0], "it is inaccessible");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(open_to_others(&directory).unwrap(), [". (0755)", "1.data (0644)"]);
        for nth in 0..100 {
            let file = directory.join(format!("{nth}.old"));
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        }
        assert_eq!(open_to_others(&directory).unwrap().len(), OPEN_LISTED + 2);
        fs::remove_dir_all(&directory).unwrap();
    }
}
