//! The archives of Infinispan's backups (the layout of release 12 and later): a ZIP file with `manifest.properties` and a
//! directory for each cache manager. That has `container.properties`, which lists the names of caches, counters and schemas, and
//!
//! * `caches/NAME/NAME.xml`, the definition, and `caches/NAME/NAME.dat`, the entries;
//! * `counters/counters.dat`, all counters;
//! * `proto-schemas/NAME`, one schema each.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use consort_conf::{read_properties, write_property};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::ERRORS;

/// The name of the cache manager: that of Infinispan's server by default.
const CONTAINER: &str = "default";
const MANIFEST: &str = "manifest.properties";
const PROPERTIES: &str = "container.properties";
const COUNTERS: &str = "counters/counters.dat";

const CONTAINERS: &str = "containers";
const VERSION: &str = "version";

/// The version that archives of this command name: Infinispan's release with which they are tested.
const INFINISPAN: &str = "16.0.7";
/// The first release with this layout. Infinispan refuses archives that name an older one.
const OLDEST: u32 = 12;

/// The limit of each file of properties, definition and schema. A server's limit of definitions is 1 MiB.
const TEXT_BYTES_MAX: u64 = 16 << 20;
const PROPERTIES_MAX: usize = 1_000;
/// The limit of an entry with its metadata. A server's limits of keys and values together are less.
const ENTRY_BYTES_MAX: u32 = 192 << 20;

/// The names that an archive lists.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Contents {
    pub(super) caches: Vec<String>,
    pub(super) counters: Vec<String>,
    pub(super) schemas: Vec<String>,
    /// Kinds of resources that are not restored, with their names.
    pub(super) others: Vec<(String, Vec<String>)>,
}

const CACHES: &str = "caches";
const COUNTER_NAMES: &str = "counters";
const SCHEMAS: &str = "proto-schemas";
const OTHERS: [&str; 2] = ["templates", "tasks"];

/// Checks that an archive can list the name.
pub(super) fn check_name(name: &str) -> anyhow::Result<()> {
    ensure!(!name.is_empty(), "a name is empty, which Infinispan's archives cannot list");
    ensure!(
        !name.contains(','),
        "the name {name:?} has a comma, which separates names in Infinispan's archives"
    );
    Ok(())
}

fn join_names(names: &[String]) -> anyhow::Result<String> {
    names.iter().try_for_each(|name| check_name(name))?;
    Ok(names.join(","))
}

fn split_names(list: &str) -> Vec<String> {
    list.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn path_in(container: &str, path: &str) -> String {
    format!("{CONTAINERS}/{container}/{path}")
}

fn path_of_cache(name: &str, extension: &str) -> String {
    format!("{CACHES}/{name}/{name}.{extension}")
}

/// An archive that is being written beside its place. Without [`finish`](Self::finish) it is removed.
pub(super) struct Writer {
    zip: Option<ZipWriter<BufWriter<File>>>,
    /// Of the schemas: a server may send any number of them.
    names_bytes: u64,
    partial: PathBuf,
    path: PathBuf,
}

impl Writer {
    /// Only the owner may read the file: it has the data of all caches.
    pub(super) fn begin(path: &Path) -> anyhow::Result<Self> {
        ensure!(!path.exists(), "{} exists; remove it or choose another name", path.display());
        let name = path.file_name().context("the archive has no name")?;
        let mut partial = name.to_owned();
        partial.push(".partial");
        let partial = path.with_file_name(partial);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial);
        if matches!(&file, Err(error) if error.kind() == ErrorKind::AlreadyExists) {
            bail!(
                "{} exists: a backup is running, or one was killed; remove the file if none is running",
                partial.display()
            );
        }
        let file = file.with_context(|| format!("creating {}", partial.display()))?;
        let mut writer = Self {
            zip: Some(ZipWriter::new(BufWriter::new(file))),
            names_bytes: 0,
            partial,
            path: path.to_owned(),
        };
        let manifest = write_property(CONTAINERS, CONTAINER) + &write_property(VERSION, INFINISPAN);
        writer.write_text(MANIFEST, manifest.as_bytes())?;
        Ok(writer)
    }

    fn zip(&mut self) -> &mut ZipWriter<BufWriter<File>> {
        self.zip.as_mut().expect("the archive has not ended")
    }

    fn failed(&self) -> String {
        format!("writing {}", self.partial.display())
    }

    fn start_file(&mut self, name: &str) -> anyhow::Result<()> {
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
        // Entries may have more than 4 GiB.
        let started = self.zip().start_file(name, options.large_file(true));
        started.with_context(|| self.failed())
    }

    fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let written = self.zip().write_all(bytes);
        written.with_context(|| self.failed())
    }

    /// Only as much as [`Reader`] reads.
    fn write_text(&mut self, name: &str, text: &[u8]) -> anyhow::Result<()> {
        ensure!(
            text.len() as u64 <= TEXT_BYTES_MAX,
            "{name} would have {} bytes, and its limit is {TEXT_BYTES_MAX}; choose caches with --cache",
            text.len()
        );
        self.start_file(name)?;
        self.write(text)
    }

    /// Begins a cache; its entries follow with [`write_entry`](Self::write_entry).
    pub(super) fn begin_cache(&mut self, name: &str, definition: &str) -> anyhow::Result<()> {
        self.write_text(
            &path_in(CONTAINER, &path_of_cache(name, "xml")),
            to_document(definition).as_bytes(),
        )?;
        self.start_file(&path_in(CONTAINER, &path_of_cache(name, "dat")))
    }

    /// Begins the counters; they follow with [`write_entry`](Self::write_entry).
    pub(super) fn begin_counters(&mut self) -> anyhow::Result<()> {
        self.start_file(&path_in(CONTAINER, COUNTERS))
    }

    pub(super) fn write_entry(&mut self, message: &[u8]) -> anyhow::Result<()> {
        let length = u32::try_from(message.len()).ok().filter(|length| *length <= ENTRY_BYTES_MAX);
        let length = length.with_context(|| format!("an entry has {} bytes", message.len()))?;
        self.write(&length.to_be_bytes())?;
        self.write(message)
    }

    pub(super) fn write_schema(&mut self, name: &str, text: &[u8]) -> anyhow::Result<()> {
        self.names_bytes += name.len() as u64 + 1;
        ensure!(
            self.names_bytes <= TEXT_BYTES_MAX,
            "the names of schemas have more than {TEXT_BYTES_MAX} bytes"
        );
        self.write_text(&path_in(CONTAINER, &format!("{SCHEMAS}/{name}")), text)
    }

    /// Lists the contents, and gives the file its name once the disk has it.
    pub(super) fn finish(mut self, contents: &Contents) -> anyhow::Result<()> {
        let mut text = String::new();
        for (kind, names) in
            [(CACHES, &contents.caches), (COUNTER_NAMES, &contents.counters), (SCHEMAS, &contents.schemas)]
        {
            text += &write_property(kind, &join_names(names)?);
        }
        self.write_text(&path_in(CONTAINER, PROPERTIES), text.as_bytes())?;
        let zip = self.zip.take().expect("the archive has not ended");
        let file = zip.finish()?.into_inner().map_err(|error| error.into_error());
        file.and_then(|file| file.sync_all()).with_context(|| self.failed())?;
        ensure!(!self.path.exists(), "{} has been created meanwhile", self.path.display());
        let named = std::fs::rename(&self.partial, &self.path);
        named.with_context(|| format!("naming {}", self.path.display()))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Writes the end of the archive, which may fail as the writes before it: then `zip` prints the error, too.
        drop(self.zip.take());
        let _ = std::fs::remove_file(&self.partial);
    }
}

/// Infinispan reads whole documents only.
fn to_document(definition: &str) -> String {
    let definition = definition.trim();
    let definition = match definition.strip_prefix("<?xml") {
        Some(rest) => rest.split_once("?>").map_or(rest, |(_, rest)| rest.trim_start()),
        None => definition,
    };
    if definition.starts_with("<infinispan") {
        return format!("{definition}\n");
    }
    format!(
        "<?xml version=\"1.0\"?>\n<infinispan>\n<cache-container>\n<caches>\n{definition}\n</caches>\n</cache-container>\n</infinispan>\n"
    )
}

/// An archive that is being read.
pub(super) struct Reader {
    zip: ZipArchive<BufReader<File>>,
    path: PathBuf,
    container: String,
    pub(super) contents: Contents,
}

impl Reader {
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let file = File::open(path).with_context(|| path.display().to_string())?;
        let zip = ZipArchive::new(BufReader::new(file));
        let zip = zip.with_context(|| format!("{} is no complete ZIP file", path.display()))?;
        let (container, contents) = (String::new(), Contents::default());
        let mut reader = Self { zip, path: path.to_owned(), container, contents };
        let manifest = reader.read_properties(MANIFEST)?;
        let of =
            |name: &str| manifest.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        let version =
            of(VERSION).with_context(|| format!("{}: {MANIFEST} has no version", path.display()))?;
        let major = version.split(['.', '-']).next().and_then(|major| major.parse::<u32>().ok());
        if major.is_none_or(|major| major < OLDEST) {
            bail!("{} was written by Infinispan {version}; {OLDEST}.0 is the oldest", path.display());
        }
        let containers = split_names(&of(CONTAINERS).unwrap_or_default());
        let [container] = &containers[..] else {
            bail!(
                "{} has {} cache managers, not one: {}",
                path.display(),
                containers.len(),
                containers.join(", ")
            );
        };
        reader.container = container.clone();
        for (kind, list) in reader.read_properties(&path_in(container, PROPERTIES))? {
            let all = split_names(&list);
            match &*kind {
                CACHES => reader.contents.caches = all,
                COUNTER_NAMES => reader.contents.counters = all,
                // Servers make the errors of schemas anew.
                SCHEMAS => {
                    reader.contents.schemas =
                        all.into_iter().filter(|name| !name.ends_with(ERRORS)).collect();
                }
                _ if OTHERS.contains(&&*kind) && !all.is_empty() => reader.contents.others.push((kind, all)),
                _ => {}
            }
        }
        Ok(reader)
    }

    fn read_text(&mut self, name: &str) -> anyhow::Result<String> {
        let place = format!("{name} of {}", self.path.display());
        let mut text = String::new();
        let file = self.zip.by_name(name).with_context(|| place.clone())?;
        file.take(TEXT_BYTES_MAX + 1).read_to_string(&mut text).with_context(|| place.clone())?;
        ensure!(text.len() as u64 <= TEXT_BYTES_MAX, "{place} has more than {TEXT_BYTES_MAX} bytes");
        Ok(text)
    }

    fn read_properties(&mut self, name: &str) -> anyhow::Result<Vec<(String, String)>> {
        let text = self.read_text(name)?;
        let all = read_properties(&text, PROPERTIES_MAX);
        let all = all.with_context(|| format!("{name} of {}", self.path.display()))?;
        Ok(all.into_iter().map(|one| (one.name, one.value)).collect())
    }

    pub(super) fn read_definition(&mut self, cache: &str) -> anyhow::Result<String> {
        self.read_text(&path_in(&self.container.clone(), &path_of_cache(cache, "xml")))
    }

    pub(super) fn read_schema(&mut self, name: &str) -> anyhow::Result<String> {
        self.read_text(&path_in(&self.container.clone(), &format!("{SCHEMAS}/{name}")))
    }

    /// The entries of a cache, without their lengths.
    pub(super) fn open_entries(&mut self, cache: &str) -> anyhow::Result<Messages<impl Read>> {
        self.open_messages(path_of_cache(cache, "dat"))
    }

    pub(super) fn open_counters(&mut self) -> anyhow::Result<Messages<impl Read>> {
        self.open_messages(COUNTERS.to_owned())
    }

    fn open_messages(&mut self, path: String) -> anyhow::Result<Messages<impl Read>> {
        let name = path_in(&self.container, &path);
        let place = format!("{name} of {}", self.path.display());
        let file = self.zip.by_name(&name).with_context(|| place.clone())?;
        Ok(Messages { file: BufReader::with_capacity(256 << 10, file), place })
    }
}

/// Messages behind their lengths.
pub(super) struct Messages<R> {
    file: BufReader<R>,
    place: String,
}

impl<R: Read> Messages<R> {
    pub(super) fn next(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        let mut length = [0; 4];
        match self.file.read(&mut length[..1]) {
            Ok(0) => return Ok(None),
            first => first.with_context(|| self.place.clone())?,
        };
        self.file.read_exact(&mut length[1..]).with_context(|| self.place.clone())?;
        let length = u32::from_be_bytes(length);
        ensure!(length <= ENTRY_BYTES_MAX, "{}: an entry has {length} bytes", self.place);
        // A length that the archive does not have allocates nothing.
        let mut message = Vec::new();
        (&mut self.file).take(length.into()).read_to_end(&mut message).with_context(|| self.place.clone())?;
        ensure!(message.len() == length as usize, "{}: the last entry is not complete", self.place);
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that is removed with its files.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("consort-archive-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn file(&self) -> PathBuf {
            self.0.join("a.zip")
        }

        fn files(&self) -> usize {
            std::fs::read_dir(&self.0).unwrap().count()
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn contents(caches: &[&str]) -> Contents {
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect();
        Contents {
            caches: names(caches),
            counters: names(&["c:1"]),
            schemas: names(&["a/b.proto"]),
            others: Vec::new(),
        }
    }

    fn write(path: &Path, caches: &[&str]) -> anyhow::Result<()> {
        let mut writer = Writer::begin(path)?;
        for cache in caches {
            writer.begin_cache(cache, "<?xml version=\"1.0\"?>\n<local-cache/>")?;
            writer.write_entry(cache.as_bytes())?;
            writer.write_entry(&[b'x'; 300_000])?;
        }
        writer.begin_counters()?;
        writer.write_entry(b"one")?;
        writer.write_schema("a/b.proto", b"syntax")?;
        writer.finish(&contents(caches))
    }

    fn error(result: anyhow::Result<impl Sized>) -> String {
        format!("{:#}", result.err().expect("an error"))
    }

    #[test]
    fn archive_is_read_as_it_was_written() {
        let directory = Directory::new("read");
        write(&directory.file(), &["shop", "übér"]).unwrap();
        assert_eq!(directory.files(), 1);
        let mut reader = Reader::open(&directory.file()).unwrap();
        assert_eq!(reader.contents, contents(&["shop", "übér"]));
        let definition = reader.read_definition("übér").unwrap();
        assert!(
            definition.starts_with("<?xml") && definition.contains("<caches>\n<local-cache/>\n"),
            "{definition}"
        );
        assert_eq!(definition.matches("<?xml").count(), 1);
        let mut entries = reader.open_entries("übér").unwrap();
        assert_eq!(entries.next().unwrap().as_deref(), Some("übér".as_bytes()));
        assert_eq!(entries.next().unwrap().map(|entry| entry.len()), Some(300_000));
        assert_eq!(entries.next().unwrap(), None);
        drop(entries);
        assert_eq!(reader.open_counters().unwrap().next().unwrap().as_deref(), Some(&b"one"[..]));
        assert_eq!(reader.read_schema("a/b.proto").unwrap(), "syntax");
        assert!(
            error(reader.open_entries("none").map(drop)).contains("containers/default/caches/none/none.dat")
        );
    }

    #[test]
    fn file_is_complete_or_absent() {
        let directory = Directory::new("absent");
        let mut writer = Writer::begin(&directory.file()).unwrap();
        writer.begin_cache("shop", "<local-cache/>").unwrap();
        assert!(
            error(Writer::begin(&directory.file()).map(drop))
                .contains("a.zip.partial exists: a backup is running, or one was killed; remove the file")
        );
        drop(writer);
        assert_eq!(directory.files(), 0);
        assert!(error(write(&directory.file(), &["a,b"])).contains("\"a,b\" has a comma"));
        assert!(error(write(&directory.file(), &[""])).contains("a name is empty"));
        assert_eq!(directory.files(), 0);
        write(&directory.file(), &["shop"]).unwrap();
        let before = std::fs::read(directory.file()).unwrap();
        assert!(error(write(&directory.file(), &["other"])).contains("exists"));
        assert_eq!(std::fs::read(directory.file()).unwrap(), before);
    }

    #[test]
    fn text_that_no_reader_accepts_is_not_written() {
        let directory = Directory::new("texts");
        let mut writer = Writer::begin(&directory.file()).unwrap();
        let long = vec![b' '; TEXT_BYTES_MAX as usize + 1];
        assert!(error(writer.write_schema("a.proto", &long)).contains("a.proto would have 16777217 bytes"));
        let name = "n".repeat(5 << 20);
        for n in 0..3 {
            writer.write_schema(&format!("{name}{n}"), b"").unwrap_err();
        }
        let last = error(writer.write_schema(&name, b""));
        assert!(last.contains("the names of schemas have more than 16777216 bytes"), "{last}");
    }

    #[test]
    fn changed_bytes_are_an_error() {
        let directory = Directory::new("changed");
        write(&directory.file(), &["shop"]).unwrap();
        let whole = std::fs::read(directory.file()).unwrap();
        std::fs::write(directory.file(), &whole[..whole.len() / 2]).unwrap();
        assert!(error(Reader::open(&directory.file()).map(drop)).contains("no complete ZIP file"));
        let name = b"shop.dat";
        let at = whole.windows(name.len()).position(|window| window == name).unwrap() + name.len() + 40;
        let mut changed = whole;
        changed[at] ^= 0x55;
        std::fs::write(directory.file(), changed).unwrap();
        let mut reader = Reader::open(&directory.file()).unwrap();
        let mut entries = reader.open_entries("shop").unwrap();
        let wrong =
            std::iter::from_fn(|| entries.next().transpose()).find_map(Result::err).expect("an error");
        assert!(format!("{wrong:#}").contains("shop.dat of "), "{wrong:#}");
    }

    fn with(directory: &Directory, manifest: &str, data: &[u8]) -> PathBuf {
        let path = directory.file();
        let mut zip = ZipWriter::new(File::create(&path).unwrap());
        for (name, bytes) in [
            (MANIFEST.to_owned(), manifest.as_bytes()),
            (
                path_in(CONTAINER, PROPERTIES),
                b"caches=shop\ntasks=a,b\ntemplates=\nproto-schemas=a.proto,a.proto.errors\n",
            ),
            (path_in(CONTAINER, &path_of_cache("shop", "dat")), data),
        ] {
            zip.start_file(name, SimpleFileOptions::default()).unwrap();
            zip.write_all(bytes).unwrap();
        }
        zip.finish().unwrap();
        path
    }

    #[test]
    fn other_archives_are_refused_with_a_reason() {
        let directory = Directory::new("others");
        for (manifest, expected) in [
            ("containers=default\n", "has no version"),
            (
                "containers=default\nversion=11.0.9.Final\n",
                "written by Infinispan 11.0.9.Final; 12.0 is the oldest",
            ),
            ("containers=a,b\nversion=15.0.0.Dev01\n", "has 2 cache managers, not one: a, b"),
            ("version=\\u00\n", "manifest.properties of"),
        ] {
            let path = with(&directory, manifest, b"");
            assert!(error(Reader::open(&path).map(drop)).contains(expected), "{manifest}");
        }
        let path = with(&directory, "containers=default\nversion=15.0.0.Dev01\n", b"");
        let reader = Reader::open(&path).unwrap();
        assert_eq!(reader.contents.others, [("tasks".to_owned(), vec!["a".to_owned(), "b".to_owned()])]);
        assert_eq!(reader.contents.schemas, ["a.proto"], "servers make errors of schemas");
    }

    #[test]
    fn broken_lengths_are_errors_and_allocate_nothing() {
        let directory = Directory::new("lengths");
        for (data, expected) in [
            (&[0, 0][..], "shop.dat"),
            (&[0, 0, 0, 9, 1], "the last entry is not complete"),
            (&[0x0b, 0, 0, 0], "the last entry is not complete"),
            (&[0xff; 4], "an entry has 4294967295 bytes"),
        ] {
            let path = with(&directory, "containers=default\nversion=16.0\n", data);
            let mut reader = Reader::open(&path).unwrap();
            let wrong = error(reader.open_entries("shop").unwrap().next());
            assert!(wrong.contains(expected), "{data:?}: {wrong}");
        }
    }
}
