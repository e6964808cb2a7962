//! Schemas of files, which a server registers before it serves, as if a client had put them into the cache of schemas.

use std::io::Read;
use std::path::Path;

use bytes::Bytes;
use consort_hotrod::Text;

use crate::catalog::caches::Caches;
use crate::catalog::predefined::PredefinedError;
use crate::catalog::schema_changes;
use crate::catalog::schemas::{ERRORS, is_schema};
use crate::limits::SCHEMA_BYTES_MAX;

/// A protobuf schema of a file. Each has at most 1 MiB, and the limits of all schemas of a cluster apply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SchemaFile {
    file: String,
    name: String,
    content: Bytes,
}

/// An unusable file of a schema.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{file}: {reason}")]
pub struct SchemaFileError {
    /// The file.
    pub file: String,
    /// The reason.
    pub reason: String,
}

impl SchemaFile {
    /// Reads a file. Other schemas import it by this name, by default that of the file without its directories.
    ///
    /// # Errors
    ///
    /// The file cannot be read or is too large, or the name does not end with `.proto`.
    pub fn read(path: impl AsRef<Path>, name: Option<&str>) -> Result<Self, SchemaFileError> {
        let path = path.as_ref();
        let file = path.display().to_string();
        let fail = |reason: String| SchemaFileError { file: file.clone(), reason };
        let own_name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.map(str::to_owned).or(own_name).unwrap_or_default();
        if !is_schema(name.as_bytes()) {
            return Err(fail(format!("the name of a schema has to end with .proto, and `{name}` does not")));
        }
        let mut content = Vec::new();
        let opened = std::fs::File::open(path).map_err(|error| fail(format!("cannot be read: {error}")))?;
        let read = opened.take(SCHEMA_BYTES_MAX as u64 + 1).read_to_end(&mut content);
        read.map_err(|error| fail(format!("cannot be read: {error}")))?;
        if content.len() > SCHEMA_BYTES_MAX {
            return Err(fail(format!("it has more than {SCHEMA_BYTES_MAX} bytes")));
        }
        Ok(Self { file, name, content: content.into() })
    }

    /// Returns the name by which other schemas import it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the file.
    pub fn file(&self) -> &str {
        &self.file
    }
}

/// Registers all, or replaces those with another content. Their errors count at the end, because they may import each other.
pub(crate) async fn register(caches: &Caches, schemas: &[SchemaFile]) -> Result<(), PredefinedError> {
    let failed = |schema: &SchemaFile, reason: String| PredefinedError::NotCreated {
        file: schema.file.clone(),
        what: "schema",
        name: schema.name.clone(),
        reason,
    };
    for schema in schemas {
        let (name, content) = (Text::from(schema.name.clone()), schema.content.clone());
        let put = schema_changes::create_or_update(&caches.schemas, name, content, "s", false).await;
        put.map_err(|refusal| failed(schema, refusal.into_text()))?;
    }
    for schema in schemas {
        let key = [schema.name.as_bytes(), ERRORS].concat();
        let error = caches.schemas.cache.get(&key[..]).await;
        let error = error.map_err(|error| failed(schema, error.to_string()))?;
        if let Some(error) = error {
            return Err(failed(schema, String::from_utf8_lossy(&error).into_owned()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use super::*;
    use crate::single_member::caches;

    struct Directory(PathBuf);

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    impl Directory {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("consort-{}-schemas", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn schema(&self, file: &str, name: Option<&str>, text: &str) -> SchemaFile {
            let path = self.0.join(file);
            std::fs::write(&path, text).unwrap();
            SchemaFile::read(path, name).unwrap()
        }
    }

    #[tokio::test]
    async fn schemas_that_import_each_other_are_registered_in_any_order() {
        let directory = Directory::new();
        let caches = caches("predefined schemas", Arc::default()).await;
        let cart =
            "syntax = \"proto3\"; import \"shop/item.proto\"; message Cart { repeated Item items = 1; }";
        let item = "syntax = \"proto3\"; message Item { string name = 1; }";
        let cart = directory.schema("cart.proto", None, cart);
        let item = directory.schema("item.proto", Some("shop/item.proto"), item);
        assert_eq!((cart.name(), item.name()), ("cart.proto", "shop/item.proto"));
        register(&caches, &[cart.clone(), item.clone()]).await.unwrap();
        register(&caches, &[cart, item]).await.unwrap();
        let newer = "syntax = \"proto3\"; message Item { string name = 1; int32 price = 2; }";
        register(&caches, &[directory.schema("item.proto", Some("shop/item.proto"), newer)]).await.unwrap();
        let held = caches.schemas.cache.get(b"shop/item.proto".as_slice()).await.unwrap().unwrap();
        assert_eq!(held, newer);
        let broken = directory.schema("broken.proto", None, "message {");
        let error = register(&caches, &[broken]).await.unwrap_err().to_string();
        assert!(error.contains("broken.proto: schema 'broken.proto': "), "{error}");
    }

    #[test]
    fn unusable_file_of_a_schema_is_named() {
        let directory = Directory::new();
        let error = |path: &Path, name| SchemaFile::read(path, name).unwrap_err().to_string();
        assert!(error(&directory.0.join("missing.proto"), None).contains("missing.proto: cannot be read: "));
        let path = directory.0.join("large.proto");
        std::fs::write(&path, vec![b' '; SCHEMA_BYTES_MAX + 1]).unwrap();
        assert!(error(&path, None).ends_with("large.proto: it has more than 1048576 bytes"));
        assert!(error(&path, Some("large.txt")).contains("has to end with .proto, and `large.txt` does not"));
    }
}
