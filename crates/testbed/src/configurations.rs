//! The XML configurations in the jars of JGroups and Infinispan, in `target/interop`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::jar::{Jar, JarError, JavaTree, entries, extract, fetch_once, finish, in_file, release, sources};

const PROJECT: &str = "interop/configurations";

/// Part of the names of Infinispan's files for JGroups. Its jar has XML files of other kinds.
const INFINISPAN: &str = "default-jgroups-";

/// The configurations of a release, and the JGroups that they are for.
#[derive(Clone, Debug)]
pub struct Configurations {
    /// The release, as `Infinispan 9.4`.
    pub origin: String,
    /// The release of JGroups.
    pub jgroups: String,
    /// The class path of JGroups and of the Java programs.
    pub classpath: String,
    /// All files, sorted.
    pub files: Vec<PathBuf>,
}

impl Configurations {
    /// Fetches and extracts missing files, with Maven and the JDK. JGroups' own are the last.
    pub fn prepare() -> Result<Vec<Self>, JarError> {
        let jar = Jar::prepare()?;
        let tree = JavaTree::open()?;
        let (project, to) = (tree.root.join(PROJECT), tree.directory.join("configurations"));
        fetch_once(&sources(&project, &["pom.xml"])?, &to, || {
            let mut copy = Command::new("mvn");
            copy.args(["--quiet", "--batch-mode", "dependency:copy", "--file"]).arg(project.join("pom.xml"));
            copy.arg(format!("-Dto={}", to.display()));
            finish(&mut copy, "Maven, for configurations of Infinispan")?;
            for directory in entries(&to)? {
                let jar = only_jar(&directory, "infinispan-core-")?;
                extract_some(&jar, &directory, |name| name.ends_with(".xml") && name.contains(INFINISPAN))?;
            }
            Ok(())
        })?;
        let mut all = Vec::new();
        for directory in entries(&to)?.into_iter().filter(|path| path.is_dir()) {
            let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let jgroups = only_jar(&directory, "jgroups-")?;
            all.push(Self {
                origin: name.replace("infinispan-", "Infinispan "),
                jgroups: version(&jgroups),
                classpath: format!("{}/classes:{}", tree.directory.display(), jgroups.display()),
                files: xml_files(&directory)?,
            });
        }
        let number = |one: &Self| one.origin.rsplit(' ').next().and_then(|text| text.parse::<f32>().ok());
        all.sort_by(|one, other| number(one).partial_cmp(&number(other)).expect("a number"));
        all.push(Self::of_jgroups(&tree, &jar)?);
        Ok(all)
    }

    fn of_jgroups(tree: &JavaTree, jar: &Jar) -> Result<Self, JarError> {
        let pom = tree.root.join("interop/java/pom.xml");
        let release = release(&pom, "jgroups")?;
        let to = tree.directory.join("configurations-jgroups");
        fetch_once(&release, &to, || {
            fs::create_dir_all(&to).map_err(in_file(&to))?;
            let own = tree.directory.join(format!("lib/jgroups-{release}.jar"));
            extract_some(&own, &to, |name| name.ends_with(".xml") && !name.contains('/'))
        })?;
        let jgroups = release.trim_end_matches(".Final").to_owned();
        let (origin, files) = (format!("JGroups {jgroups}"), xml_files(&to)?);
        Ok(Self { origin, jgroups, classpath: jar.classpath(), files })
    }
}

fn version(jar: &Path) -> String {
    let name = jar.file_stem().unwrap_or_default().to_string_lossy();
    name.trim_start_matches("jgroups-").trim_end_matches(".Final").to_owned()
}

fn extract_some(jar: &Path, to: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<(), JarError> {
    if extract(jar, to, is_wanted)? == 0 { Err(JarError::Release(jar.to_owned())) } else { Ok(()) }
}

fn only_jar(directory: &Path, begin: &str) -> Result<PathBuf, JarError> {
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with(begin) && name.ends_with(".jar")
    };
    entries(directory)?.into_iter().find(is_it).ok_or_else(|| JarError::Release(directory.join(begin)))
}

fn xml_files(directory: &Path) -> Result<Vec<PathBuf>, JarError> {
    let mut files = Vec::new();
    for path in entries(directory)? {
        if path.is_dir() {
            files.extend(xml_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "xml") {
            files.push(path);
        }
    }
    Ok(files)
}
