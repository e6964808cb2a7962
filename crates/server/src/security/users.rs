//! The file of a server's users.
//!
//! A line is a user, `NAME ROLE[,ROLE…] [SECRET…]`. Empty lines and lines with `#` in front are ignored. A word with white space
//! stands in quotation marks, in which `\"` and `\\` stand for the two characters themselves.
//!
//! * Roles are admin, deployer, application, observer and monitor.
//! * A secret is a verifier, `SCRAM-SHA-256$…`, `SCRAM-SHA-384$…` or `SCRAM-SHA-512$…` (RFC 5803), at most one of each, as
//!   `consort user` makes them. For trials, a secret may be `password:TEXT`.
//! * A user without a secret authenticates by a client certificate or a token only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use consort_sasl::prepare;
use consort_sasl::scram::{Hash, ITERATIONS_MIN, Verifier, VerifierError};

use crate::security::role::{Grants, Permissions, Role};
use crate::security::secret::Secret;

/// Iterations for new verifiers' passwords; Java's clients refuse more than 32,768. The hash takes a client 10 ms, once per
/// connection.
pub const VERIFIER_ITERATIONS: u32 = 16_384;

/// For passwords in cleartext, the fewest allowed: the file's reader has them anyway, and the server hashes all of them when it
/// starts.
const OPEN_ITERATIONS: u32 = ITERATIONS_MIN;

const SALT_LEN: usize = 16;

/// An unusable file of users; nothing was started.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UsersError {
    /// The file cannot be read.
    #[error("{file}: {reason}")]
    Unreadable {
        /// The file.
        file: String,
        /// The reason.
        reason: String,
    },
    /// A line cannot be parsed.
    #[error("{file}:{line}: {error}")]
    Line {
        /// The file.
        file: String,
        /// Counted from 1.
        line: usize,
        /// The error of the line.
        error: LineError,
    },
    /// A line of a file of properties cannot be read.
    #[error("{file}:{line}: {reason}")]
    Property {
        /// The file.
        file: String,
        /// Counted from 1.
        line: usize,
        /// The reason.
        reason: String,
    },
    /// A file of properties has no users.
    #[error("{file} has no users: no client could authenticate; add some")]
    NoUsers {
        /// The file.
        file: String,
    },
    /// The file has no users.
    #[error("{file}: the file has no users; a line is NAME ROLE[,ROLE…] [SECRET…]")]
    Empty {
        /// The error of a line, without words that may be secrets.
        file: String,
    },
}

/// The error of a line. Words that may be secrets are not repeated.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// A quotation mark is not closed.
    #[error("a quotation mark is not closed")]
    Quotation,
    /// A user has no role.
    #[error("user {0} has no role; a line is NAME ROLE[,ROLE…] [SECRET…]")]
    NoRole(String),
    /// The role does not exist.
    #[error("unknown role {0:?}; roles are admin, deployer, application, observer and monitor")]
    Role(String),
    /// The server's file does not have the role.
    #[error("unknown role {0:?}; the roles of the server's file are {1}")]
    RoleOfFile(String, String),
    /// An empty name, or forbidden characters.
    #[error("{0:?} is not a valid name: it is empty or has invalid characters")]
    Name(String),
    /// The user is in the file twice.
    #[error("user {0} is also in line {1}")]
    Twice(String, usize),
    /// The word is not a secret.
    #[error(
        "word {0} is not a secret; a secret is SCRAM-SHA-256$…, SCRAM-SHA-384$… or SCRAM-SHA-512$… (see consort user --help), \
         or password:TEXT"
    )]
    Secret(usize),
    /// The verifier is invalid.
    #[error("word {0} is not a valid verifier: {1}")]
    Verifier(usize, VerifierError),
    /// An empty password, or forbidden characters.
    #[error("word {0} is not a valid password: it is empty or has invalid characters")]
    Password(usize),
    /// A second secret of the same kind.
    #[error("word {0} is a second secret for {1}")]
    SecondSecret(usize, &'static str),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct User {
    pub(crate) name: Arc<str>,
    pub(crate) permissions: Permissions,
}

#[derive(Clone)]
pub(crate) struct UserEntry {
    pub(crate) grants: Arc<Grants>,
    verifiers: [Option<Verifier>; Hash::ALL.len()],
    /// Prepared; set if the file has it in cleartext.
    password: Option<String>,
}

impl UserEntry {
    /// `None` stands for any hash.
    pub(crate) fn verifier(&self, hash: Option<Hash>) -> Option<&Verifier> {
        match hash {
            Some(hash) => self.verifiers[index_of(Some(hash))].as_ref(),
            None => self.verifiers.iter().flatten().next(),
        }
    }

    fn new(grants: Arc<Grants>) -> Self {
        Self { grants, verifiers: Default::default(), password: None }
    }

    pub(crate) fn with_verifiers(grants: Arc<Grants>, all: Vec<Verifier>) -> Self {
        let mut entry = Self::new(grants);
        for verifier in all {
            let at = index_of(Some(verifier.hash()));
            entry.verifiers[at] = Some(verifier);
        }
        entry
    }

    /// [`Users::add`] derives its verifiers.
    pub(crate) fn with_password(grants: Arc<Grants>, password: String) -> Self {
        Self { password: Some(password), ..Self::new(grants) }
    }

    /// Derives verifiers from a password in cleartext. The salts follow from the secret, so that all servers have the same,
    /// another for each mechanism.
    fn derive(&mut self, name: &str, secret: &Secret) {
        let Some(password) = &self.password else { return };
        self.verifiers = Hash::ALL.map(|hash| {
            let salt = secret.derive(&format!("salt {}", hash.mechanism()), name)[..SALT_LEN].to_vec();
            Some(Verifier::derive(hash, password, salt, OPEN_ITERATIONS))
        });
    }
}

/// A server's users.
#[derive(Clone)]
pub struct Users {
    entries: BTreeMap<String, UserEntry>,
    /// Decoys and cleartext passwords' salts follow from it; until all servers share one, it follows from the file.
    secret: Secret,
    /// The kinds for each mechanism, and for PLAIN.
    verifier_kinds: [BTreeSet<VerifierKind>; Hash::ALL.len() + 1],
}

/// The mechanism, the length of the salt, and the iterations, which clients see.
type VerifierKind = (Hash, usize, u32);

const fn index_of(hash: Option<Hash>) -> usize {
    match hash {
        Some(Hash::Sha256) => 0,
        Some(Hash::Sha384) => 1,
        Some(Hash::Sha512) => 2,
        None => 3,
    }
}

impl std::fmt::Debug for Users {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.entries.keys()).finish()
    }
}

/// The permissions of roles.
pub(crate) type GrantsOf<'a> = &'a dyn Fn(&[&str]) -> Result<Grants, LineError>;

fn predefined(roles: &[&str]) -> Result<Grants, LineError> {
    let mut permissions = Permissions::default();
    for role in roles {
        let role = Role::from_name(role).ok_or_else(|| LineError::Role((*role).to_owned()))?;
        permissions = permissions.union(role.permissions());
    }
    Ok(permissions.into())
}

impl Users {
    /// Reads a file; [`UsersError`] has the file, the line and the reason.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, UsersError> {
        Self::read_with_roles(path, &predefined)
    }

    pub(crate) fn read_with_roles(path: impl AsRef<Path>, grants: GrantsOf<'_>) -> Result<Self, UsersError> {
        let file = path.as_ref().display().to_string();
        consort_tls::secrets::warn_if_open(path.as_ref(), "the users");
        match std::fs::read_to_string(path.as_ref()) {
            Ok(text) => Self::parse_with_roles(&file, &text, grants),
            Err(error) => Err(UsersError::Unreadable { file, reason: error.to_string() }),
        }
    }

    pub(crate) fn without_entries(secret: Secret) -> Self {
        Self { entries: BTreeMap::new(), secret, verifier_kinds: Default::default() }
    }

    /// Replaces a user of this name. Hashes a password in cleartext.
    pub(crate) fn add(&mut self, name: String, mut entry: UserEntry) {
        entry.derive(&name, &self.secret);
        self.insert(name, entry);
    }

    /// Adds users with other names.
    pub(crate) fn with_others(mut self, others: Self) -> Self {
        for (name, entry) in others.entries {
            if !self.entries.contains_key(&name) {
                self.insert(name, entry);
            }
        }
        self
    }

    fn insert(&mut self, name: String, entry: UserEntry) {
        for hash in Hash::ALL.map(Some).into_iter().chain([None]) {
            let kind = |own: &Verifier| (own.hash(), own.salt().len(), own.iterations());
            self.verifier_kinds[index_of(hash)].extend(entry.verifier(hash).map(kind));
        }
        self.entries.insert(name, entry);
    }

    pub(crate) fn count(&self) -> usize {
        self.entries.len()
    }

    /// Parses the text of a file of this name, as [`Users::read`].
    pub fn parse(file: &str, text: &str) -> Result<Self, UsersError> {
        Self::parse_with_roles(file, text, &predefined)
    }

    fn parse_with_roles(file: &str, text: &str, grants: GrantsOf<'_>) -> Result<Self, UsersError> {
        let mut users = Self::without_entries(Secret::from_file_text(text));
        let mut lines = BTreeMap::new();
        for (line, text) in text.lines().enumerate().map(|(at, text)| (at + 1, text.trim())) {
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let wrong = |error| UsersError::Line { file: file.to_owned(), line, error };
            let (name, known) = users.read_line(text, grants).map_err(wrong)?;
            if let Some(earlier) = lines.insert(name.clone(), line) {
                return Err(wrong(LineError::Twice(name, earlier)));
            }
            users.insert(name, known);
        }
        if users.entries.is_empty() { Err(UsersError::Empty { file: file.to_owned() }) } else { Ok(users) }
    }

    fn read_line(&self, text: &str, grants: GrantsOf<'_>) -> Result<(String, UserEntry), LineError> {
        let mut words = words(text)?.into_iter();
        let name = words.next().unwrap_or_default();
        let name = prepare(&name).map_err(|_| LineError::Name(name.clone()))?.into_owned();
        let roles = words.next().ok_or_else(|| LineError::NoRole(name.clone()))?;
        let roles: Vec<&str> = roles.split(',').collect();
        let mut known = UserEntry::new(Arc::new(grants(&roles)?));
        for (at, word) in words.enumerate().map(|(at, word)| (at + 3, word)) {
            if let Some(password) = word.strip_prefix("password:") {
                let password = prepare(password).map_err(|_| LineError::Password(at))?.into_owned();
                if let Some(known) = known.verifier(None) {
                    return Err(LineError::SecondSecret(at, known.hash().mechanism()));
                }
                known.password = Some(password);
                known.derive(&name, &self.secret);
            } else if word.starts_with("SCRAM-") {
                let verifier: Verifier = word.parse().map_err(|error| LineError::Verifier(at, error))?;
                let hash = verifier.hash();
                if known.verifiers[index_of(Some(hash))].replace(verifier).is_some() {
                    return Err(LineError::SecondSecret(at, hash.mechanism()));
                }
            } else {
                return Err(LineError::Secret(at));
            }
        }
        Ok((name, known))
    }

    pub(crate) const fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Slow with passwords in cleartext, which are hashed again.
    pub(crate) fn with_secret(mut self, secret: &Secret) -> Self {
        if self.secret != *secret {
            self.secret = secret.clone();
            self.entries.iter_mut().for_each(|(name, known)| known.derive(name, secret));
        }
        self
    }

    pub(crate) fn get(&self, name: &str) -> Option<&UserEntry> {
        self.entries.get(name)
    }

    pub(crate) fn have_verifier(&self, hash: Option<Hash>) -> bool {
        !self.verifier_kinds[index_of(hash)].is_empty()
    }

    /// A decoy: the verifier for a user that does not exist or has no verifier of this hash. `None` if no user has a verifier.
    ///
    /// It follows from the secret, the name and the kinds of existing verifiers. Other users of the same kinds do not change it;
    /// a further kind changes only the decoys of the names that get it.
    pub(crate) fn decoy(&self, hash: Option<Hash>, name: &str) -> Option<Verifier> {
        let weight = |(_, salt_len, iterations): &&VerifierKind| {
            self.secret.derive(&format!("which {salt_len} {iterations}"), name)
        };
        let &(hash, salt_len, iterations) = self.verifier_kinds[index_of(hash)].iter().max_by_key(weight)?;
        Some(Verifier::decoy(hash, &self.secret.derive("decoy", name), name, salt_len, iterations))
    }
}

fn words(line: &str) -> Result<Vec<String>, LineError> {
    let (mut words, mut word, mut is_word) = (Vec::new(), String::new(), false);
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => {
                is_word = true;
                loop {
                    match characters.next().ok_or(LineError::Quotation)? {
                        '"' => break,
                        '\\' => word.push(characters.next().ok_or(LineError::Quotation)?),
                        other => word.push(other),
                    }
                }
            }
            space if space.is_whitespace() => {
                if std::mem::take(&mut is_word) {
                    words.push(std::mem::take(&mut word));
                }
            }
            other => {
                is_word = true;
                word.push(other);
            }
        }
    }
    if is_word {
        words.push(word);
    }
    Ok(words)
}

fn quoted(word: &str) -> String {
    let is_plain = !word.is_empty()
        && !word.starts_with('#')
        && word.chars().all(|character| !character.is_whitespace() && character != '"');
    if is_plain {
        word.to_owned()
    } else {
        format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
    }
}

/// Returns the line of a user with new verifiers of this password; without one, the user needs a certificate or a token. Hashing
/// takes time. Fails if the name or the password is not allowed, or the system has no random numbers.
pub fn line_for(name: &str, roles: &[Role], password: Option<&str>) -> Result<String, String> {
    let invalid = |part: &str| format!("the {part} is empty or has invalid characters");
    let name = prepare(name).map_err(|_| invalid("name"))?;
    if roles.is_empty() {
        return Err("a user needs a role".to_owned());
    }
    let roles: Vec<&str> = roles.iter().map(|role| role.name()).collect();
    let mut line = format!("{} {}", quoted(&name), roles.join(","));
    if let Some(password) = password {
        let password = prepare(password).map_err(|_| invalid("password"))?;
        for hash in Hash::ALL {
            let salt: ring::rand::Random<[u8; SALT_LEN]> =
                ring::rand::generate(&ring::rand::SystemRandom::new())
                    .map_err(|_| "the system has no random numbers".to_owned())?;
            let verifier = Verifier::derive(hash, &password, salt.expose().to_vec(), VERIFIER_ITERATIONS);
            line.push_str(&format!(" {verifier}"));
        }
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::role::Permission;

    fn parse_error(text: &str) -> String {
        Users::parse("users", text).unwrap_err().to_string()
    }

    #[test]
    fn a_line_is_a_user_with_roles_and_secrets() {
        let line = line_for("Order Service", &[Role::Observer, Role::Monitor], Some("pencil")).unwrap();
        assert!(line.starts_with("\"Order Service\" observer,monitor SCRAM-SHA-256$16384:"), "{line}");
        let text = format!("# who\n\nalice admin  password:\"rabbit \\\" hole\"\n{line}\ncarol monitor\n");
        let users = Users::parse("users", &text).unwrap();
        let alice = users.get("alice").unwrap();
        assert!(alice.grants.permissions.contain(Permission::Admin));
        assert!(alice.verifier(Some(Hash::Sha512)).unwrap().fits("rabbit \" hole"));
        let orders = users.get("Order Service").unwrap();
        assert!(orders.grants.permissions.contain(Permission::BulkRead));
        assert!(!orders.grants.permissions.contain(Permission::Write));
        for hash in Hash::ALL {
            assert!(orders.verifier(Some(hash)).unwrap().fits("pencil"));
        }
        assert!(users.get("carol").unwrap().verifier(None).is_none());
        assert!(users.get("nobody").is_none());
    }

    #[test]
    fn invalid_line_is_refused_with_its_number_and_the_expected_form() {
        for (text, error) in [
            ("", "users: the file has no users; a line is NAME ROLE[,ROLE…] [SECRET…]"),
            ("# none\n\nalice", "users:3: user alice has no role; a line is NAME ROLE[,ROLE…] [SECRET…]"),
            (
                "alice king",
                "users:1: unknown role \"king\"; roles are admin, deployer, application, observer and monitor",
            ),
            ("alice \"admin", "users:1: a quotation mark is not closed"),
            ("a admin\nb admin\na monitor", "users:3: user a is also in line 1"),
            (
                "a admin password:",
                "users:1: word 3 is not a valid password: it is empty or has invalid characters",
            ),
            ("a admin password:x password:y", "users:1: word 4 is a second secret for SCRAM-SHA-256"),
            (
                "a admin secret",
                "users:1: word 3 is not a secret; a secret is SCRAM-SHA-256$…, SCRAM-SHA-384$… or SCRAM-SHA-512$… \
                 (see consort user --help), or password:TEXT",
            ),
        ] {
            assert_eq!(parse_error(text), error);
        }
        let line = line_for("a", &[Role::Admin], Some("pencil")).unwrap();
        for (at, hash) in ["SCRAM-SHA-256", "SCRAM-SHA-384", "SCRAM-SHA-512"].into_iter().enumerate() {
            let again = line.split(' ').find(|word| word.starts_with(&format!("{hash}$"))).unwrap();
            let error = parse_error(&format!("{line} {again}"));
            assert_eq!(error, format!("users:1: word 6 is a second secret for {hash}"), "{at}");
        }
        assert!(
            parse_error("a admin SCRAM-SHA-256$x").starts_with("users:1: word 3 is not a valid verifier: ")
        );
        assert!(Users::read("not-there").unwrap_err().to_string().starts_with("not-there: "));
    }

    #[test]
    fn challenge_of_an_unknown_name_looks_like_one_of_a_user() {
        let line = line_for("bob", &[Role::Admin], Some("builder")).unwrap();
        let text = format!("alice admin password:wonderland\n{line}\ncarol admin");
        let users = Users::parse("users", &text).unwrap();
        let again = Users::parse("another", &text).unwrap();
        let mut counts = Vec::new();
        for name in (0..64).map(|n| format!("nobody-{n}")) {
            let decoy = users.decoy(Some(Hash::Sha512), &name).unwrap();
            assert_eq!(again.decoy(Some(Hash::Sha512), &name).as_ref(), Some(&decoy), "the same everywhere");
            assert_eq!((decoy.hash(), decoy.salt().len()), (Hash::Sha512, SALT_LEN));
            counts.push(decoy.iterations());
        }
        counts.sort_unstable();
        counts.dedup();
        assert_eq!(counts, [OPEN_ITERATIONS, VERIFIER_ITERATIONS], "like those of both");
        let nobody = Users::parse("users", "carol admin").unwrap();
        assert!(nobody.decoy(None, "nobody").is_none());
    }

    fn challenge_parameters(users: &Users, name: &str) -> Vec<(Vec<u8>, u32)> {
        let of = |hash: Hash| {
            let known = users.get(name).and_then(|known| known.verifier(Some(hash)).cloned());
            let verifier = known.or_else(|| users.decoy(Some(hash), name)).unwrap();
            (verifier.salt().to_vec(), verifier.iterations())
        };
        Hash::ALL.map(of).to_vec()
    }

    #[test]
    fn each_name_has_another_salt_for_each_mechanism() {
        let line = line_for("bob", &[Role::Admin], Some("builder")).unwrap();
        let users = Users::parse("users", &format!("alice admin password:wonderland\n{line}")).unwrap();
        for name in ["alice", "bob", "nobody"] {
            let mut salts: Vec<Vec<u8>> =
                challenge_parameters(&users, name).into_iter().map(|(salt, _)| salt).collect();
            salts.sort();
            salts.dedup();
            assert_eq!(salts.len(), Hash::ALL.len(), "{name}");
            let iterations: BTreeSet<u32> =
                challenge_parameters(&users, name).into_iter().map(|(_, count)| count).collect();
            assert_eq!(iterations.len(), 1, "{name}");
        }
    }

    #[test]
    fn change_of_the_file_changes_no_challenge_of_any_name() {
        let line = line_for("bob", &[Role::Admin], Some("builder")).unwrap();
        let secret = Secret::from_bytes(b"of all servers");
        let read = |text: &str| Users::parse("users", text).unwrap().with_secret(&secret);
        let before = read(&format!("alice admin password:wonderland\n{line}"));
        let after =
            read(&format!("# one more\ndave admin password:x\nalice observer password:wonderland\n{line}"));
        for name in
            ["alice", "bob"].map(str::to_owned).into_iter().chain((0..64).map(|n| format!("nobody-{n}")))
        {
            assert_eq!(challenge_parameters(&before, &name), challenge_parameters(&after, &name), "{name}");
        }
        assert!(after.get("alice").unwrap().verifier(None).unwrap().fits("wonderland"));
        // With the file's secret this would reveal which names exist.
        let of_file = Users::parse("users", &line).unwrap();
        let of_other = Users::parse("users", &format!("{line}\n")).unwrap();
        assert_ne!(challenge_parameters(&of_file, "nobody"), challenge_parameters(&of_other, "nobody"));
    }
}
