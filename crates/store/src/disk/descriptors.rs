//! Files that share a bounded number of descriptors.
//!
//! A store has a file per 64 MB. While [`DESCRIPTORS_MAX`] files are open, the least recently used one closes
//! its descriptor, and is opened again on its next use.
//!
//! * A file in use, or held ([`DiskFile::hold`](super::DiskFile::hold)), keeps its descriptor.
//! * A written file is synced first, because the system reports a failed write only to open files. The file's
//!   next sync returns the error.
//! * A file without a name cannot be opened again and keeps its descriptor.

use std::any::Any;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use super::DiskFile;

/// An eighth of a common process limit (2,048), and more files than a busy store of 16 GB has.
const DESCRIPTORS_MAX: usize = 256;

/// `EMFILE` and `ENFILE`: no descriptor left. The numbers are the same on all Unix systems.
const NO_DESCRIPTOR: [i32; 2] = [24, 23];

static ALL: LazyLock<Descriptors> = LazyLock::new(|| Descriptors::new(DESCRIPTORS_MAX));

#[derive(Debug)]
pub(super) struct Descriptors {
    max: usize,
    files: Mutex<VecDeque<Weak<PooledFile>>>,
}

impl Descriptors {
    const fn new(max: usize) -> Self {
        Self { max, files: Mutex::new(VecDeque::new()) }
    }

    pub(super) fn of_process() -> &'static Self {
        &ALL
    }

    fn admit(&self, file: Weak<PooledFile>) {
        let is_over = {
            let mut files = lock(&self.files);
            files.push_back(file);
            files.len() > self.max
        };
        if is_over {
            self.close_one();
        }
    }

    /// Prefers a file that needs no sync. Returns false if all are in use.
    fn close_one(&self) -> bool {
        for may_sync in [false, true] {
            let count = lock(&self.files).len();
            // Each is checked twice, because the first check only clears its mark.
            for _ in 0..2 * count {
                let Some(asked) = lock(&self.files).pop_front() else { return false };
                let Some(file) = asked.upgrade() else { return true };
                match file.give_up(may_sync) {
                    CloseDecision::Closed => return true,
                    CloseDecision::HasNoName => {}
                    CloseDecision::No => lock(&self.files).push_back(asked),
                }
            }
        }
        false
    }
}

enum CloseDecision {
    Closed,
    /// The file is not asked again.
    HasNoName,
    No,
}

#[derive(Debug)]
pub(super) struct PooledFile {
    pool: &'static Descriptors,
    this: Weak<Self>,
    path: PathBuf,
    is_used: AtomicBool,
    handle: Mutex<Handle>,
}

#[derive(Debug, Default)]
struct Handle {
    open: Option<Arc<File>>,
    is_dirty: bool,
    has_no_name: bool,
    failure: Option<Failure>,
}

#[derive(Clone, Debug)]
struct Failure {
    code: Option<i32>,
    kind: io::ErrorKind,
    text: String,
}

impl Failure {
    fn of(error: &io::Error) -> Self {
        Self { code: error.raw_os_error(), kind: error.kind(), text: error.to_string() }
    }

    fn error(&self) -> io::Error {
        match self.code {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(self.kind, self.text.clone()),
        }
    }
}

impl PooledFile {
    pub(super) fn open(
        pool: &'static Descriptors,
        path: PathBuf,
        options: &OpenOptions,
    ) -> io::Result<Arc<Self>> {
        let open = with_descriptor(pool, || options.open(&path))?;
        let file = Arc::new_cyclic(|this| Self {
            pool,
            this: this.clone(),
            path,
            is_used: AtomicBool::new(true),
            handle: Mutex::new(Handle { open: Some(Arc::new(open)), ..Handle::default() }),
        });
        pool.admit(file.this.clone());
        Ok(file)
    }

    pub(super) fn keep_open(&self) -> io::Result<()> {
        let file = self.file(false)?;
        lock(&self.handle).has_no_name = true;
        drop(file);
        Ok(())
    }

    fn file(&self, to_write: bool) -> io::Result<Arc<File>> {
        self.is_used.store(true, Ordering::Relaxed);
        if let Some(file) = lock(&self.handle).take(to_write) {
            return Ok(file);
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let opened = with_descriptor(self.pool, || options.open(&self.path))?;
        let file = {
            let mut handle = lock(&self.handle);
            if let Some(file) = handle.take(to_write) {
                // Another thread has opened it meanwhile.
                return Ok(file);
            }
            handle.open = Some(Arc::new(opened));
            handle.take(to_write)
        };
        self.pool.admit(self.this.clone());
        file.ok_or_else(|| io::Error::other("an open file has no descriptor"))
    }

    fn give_up(&self, may_sync: bool) -> CloseDecision {
        let mut handle = lock(&self.handle);
        if handle.has_no_name {
            return CloseDecision::HasNoName;
        }
        let was_used = self.is_used.swap(false, Ordering::Relaxed);
        let Some(open) = &handle.open else { return CloseDecision::Closed };
        // A thread that takes the file needs this lock, so the count cannot rise meanwhile.
        if was_used || Arc::strong_count(open) > 1 || (handle.is_dirty && !may_sync) {
            return CloseDecision::No;
        }
        if handle.is_dirty {
            let synced = open.sync_data();
            handle.is_dirty = false;
            handle.failure = synced.err().as_ref().map(Failure::of).or(handle.failure.take());
        }
        handle.open = None;
        CloseDecision::Closed
    }
}

impl Handle {
    fn take(&mut self, to_write: bool) -> Option<Arc<File>> {
        let open = self.open.clone()?;
        self.is_dirty |= to_write;
        Some(open)
    }
}

/// Closes another file first if no descriptor is left.
pub(super) fn with_descriptor<T>(
    pool: &Descriptors,
    mut open: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    loop {
        match open() {
            Err(error) if error.raw_os_error().is_some_and(|code| NO_DESCRIPTOR.contains(&code)) => {
                if !pool.close_one() {
                    return Err(error);
                }
            }
            opened => return opened,
        }
    }
}

impl DiskFile for PooledFile {
    fn len(&self) -> io::Result<u64> {
        self.file(false)?.metadata().map(|metadata| metadata.len())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let file = self.file(false)?;
        let mut done = 0;
        while done < bytes.len() {
            match file.read_at(&mut bytes[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file(true)?.write_all_at(bytes, offset)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.file(true)?.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        let file = self.file(false)?;
        {
            let mut handle = lock(&self.handle);
            if let Some(failure) = &handle.failure {
                return Err(failure.error());
            }
            // Later writes may not be in this sync.
            handle.is_dirty = false;
        }
        // fdatasync, which includes the length; other metadata do not matter here.
        file.sync_data()
    }

    fn hold(&self) -> io::Result<Option<Arc<dyn Any + Send + Sync>>> {
        Ok(Some(self.file(false)?))
    }
}

// After a panic with this lock held, a file at worst keeps its descriptor.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn pool(max: usize) -> &'static Descriptors {
        Box::leak(Box::new(Descriptors::new(max)))
    }

    fn directory(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("consort-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        directory
    }

    fn make(pool: &'static Descriptors, directory: &std::path::Path, nth: usize) -> Arc<PooledFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        PooledFile::open(pool, directory.join(nth.to_string()), &options).unwrap()
    }

    fn open_count(files: &[Arc<PooledFile>]) -> usize {
        files.iter().filter(|file| lock(&file.handle).open.is_some()).count()
    }

    fn content(file: &PooledFile) -> Vec<u8> {
        let mut bytes = vec![0; 16];
        let count = file.read_at(&mut bytes, 0).unwrap();
        bytes.truncate(count);
        bytes
    }

    #[test]
    fn files_beyond_the_bound_are_closed_and_read_and_written_as_before() {
        let directory = directory("descriptors");
        let files: Vec<_> = {
            let pool = pool(4);
            (0..20).map(|nth| make(pool, &directory, nth)).collect()
        };
        for round in 0..3_u8 {
            for (nth, file) in files.iter().enumerate() {
                file.write_at(&[nth as u8, round], u64::from(round) * 2).unwrap();
                assert!(open_count(&files) <= 4);
            }
        }
        for (nth, file) in files.iter().enumerate() {
            let nth = nth as u8;
            assert_eq!(content(file), [nth, 0, nth, 1, nth, 2]);
            file.sync().unwrap();
        }
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn files_that_are_held_or_have_no_name_keep_their_descriptors() {
        let directory = directory("held-descriptors");
        let pool = pool(2);
        let files: Vec<_> = (0..2).map(|nth| make(pool, &directory, nth)).collect();
        files[0].write_at(b"held", 0).unwrap();
        files[1].write_at(b"nameless", 0).unwrap();
        // Otherwise another file is preferred, which needs no sync.
        files[0].sync().unwrap();
        let held = files[0].hold().unwrap();
        files[1].keep_open().unwrap();
        fs::remove_file(directory.join("1")).unwrap();
        let others: Vec<_> = (2..10).map(|nth| make(pool, &directory, nth)).collect();
        assert_eq!(open_count(&files), 2);
        assert_eq!((content(&files[0]), content(&files[1])), (b"held".to_vec(), b"nameless".to_vec()));
        drop(held);
        drop(others);
        let others: Vec<_> = (2..10).map(|nth| make(pool, &directory, nth)).collect();
        assert!(lock(&files[0].handle).open.is_none());
        assert!(open_count(&others) <= 2);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_failed_sync_before_closing_fails_the_next_sync() {
        let directory = directory("failed-descriptors");
        let file = make(pool(2), &directory, 0);
        lock(&file.handle).failure = Some(Failure::of(&io::Error::from_raw_os_error(28)));
        for _ in 0..2 {
            assert_eq!(file.sync().unwrap_err().kind(), io::ErrorKind::StorageFull);
        }
        fs::remove_dir_all(directory).unwrap();
    }
}
