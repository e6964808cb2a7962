//! Passwords of files: as an attribute, masked, or in a credential store.

use std::collections::BTreeMap;
use std::path::PathBuf;

use consort_tls::StorePassword;
use zeroize::Zeroizing;

use super::document::Node;
use super::locations::{CONFIG_PATH, Locations};
use super::problem::Problems;
use super::section::{Reasons, Section};

const COMMAND: Reasons = &[(
    "command-credential",
    "no command is run; write the password as ${env.NAME}, into a credential store, or as <masked-credential>",
)];

struct CredentialStore {
    path: PathBuf,
    password: StorePassword,
}

/// `<credential-stores>` by name.
#[derive(Default)]
pub(super) struct CredentialStores {
    /// `None`: its element has been refused.
    all: BTreeMap<String, Option<CredentialStore>>,
}

impl CredentialStores {
    /// A store that nothing refers to is not opened, as in Infinispan.
    pub(super) fn read(node: &Node, locations: Locations<'_>, problems: &mut Problems) -> Self {
        let mut section = Section::new(node);
        let listed = section.children("credential-store").chain(section.children("credential-stores"));
        let stores: Vec<&Node> = listed.collect();
        section.finish(problems);
        let mut all = BTreeMap::new();
        for store in stores {
            let mut section = Section::new(store);
            let Some(name) = section.required("name", problems) else { continue };
            // The content decides.
            section.text("type");
            let path = locations.path(store, &mut section, CONFIG_PATH, problems);
            let password = Self::default().password(store, &mut section, &[], problems);
            if password.is_none() {
                let text = format!(
                    "credential store `{name}` has no password; write <clear-text-credential clear-text=\"${{env.NAME}}\"/>"
                );
                problems.refuse(store.place, text);
            }
            section.finish(problems);
            let read = path.zip(password).map(|(path, password)| CredentialStore { path, password });
            all.insert(name.to_owned(), read);
        }
        Self { all }
    }

    /// Reads the password of an element: one of these attributes, or a child.
    pub(super) fn password(
        &self,
        node: &Node,
        section: &mut Section<'_>,
        attributes: &[&str],
        problems: &mut Problems,
    ) -> Option<StorePassword> {
        let of_attribute = attributes.iter().filter_map(|name| section.attribute(name)).next();
        let mut found: Vec<Option<StorePassword>> =
            of_attribute.map(|password| Some((&*password.value).into())).into_iter().collect();
        if let Some(clear) = section.child("clear-text-credential", problems) {
            found.push(of_child(clear, "clear-text", problems).map(Into::into));
        }
        if let Some(masked) = section.child("masked-credential", problems) {
            let masked = of_child(masked, "masked", problems);
            found.push(masked.map(|masked| StorePassword::Masked(Zeroizing::new(masked.to_owned()))));
        }
        if let Some(reference) = section.child("credential-reference", problems) {
            found.push(self.reference(reference, problems));
        }
        section.refuse(COMMAND, problems);
        if found.len() > 1 {
            problems.refuse(node.place, format!("<{}> has more than one password; write one", node.name));
        }
        found.into_iter().next()?
    }

    fn reference(&self, node: &Node, problems: &mut Problems) -> Option<StorePassword> {
        let mut section = Section::new(node);
        let name = section.required("store", problems);
        let alias = section.text("alias").map(str::to_owned);
        section.finish(problems);
        match self.all.get(name?) {
            Some(Some(CredentialStore { path, password })) => {
                let (store, password) = (path.clone(), Box::new(password.clone()));
                Some(StorePassword::Credential { store, password, alias })
            }
            Some(None) => None,
            None => {
                let known: Vec<&str> = self.all.keys().map(String::as_str).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                problems.refuse(node.place, format!("no credential store `{}`; stores: {known}", name?));
                None
            }
        }
    }
}

fn of_child<'n>(node: &'n Node, attribute: &str, problems: &mut Problems) -> Option<&'n str> {
    let mut section = Section::new(node);
    let value = section.required(attribute, problems);
    section.finish(problems);
    value
}
