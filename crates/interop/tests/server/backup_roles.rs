//! The roles that `consort backup` and `consort restore` require.

use bytes::Bytes;
use consort_client::{Client, CounterConfig, CounterKind};
use consort_interop::{Tool, in_own_network};

use super::{SERVER, done};

const ROLES: [&str; 5] = ["observer", "monitor", "application", "deployer", "admin"];

/// Returns the errors and the exit code of a command of the user with the name and the password of this role.
fn run(role: &str, command: &[&str]) -> (String, i32) {
    let at = format!("--at=hotrod://{role}:{role}@{SERVER}");
    let run = Tool::run_consort(&[command, &[&at]].concat());
    (String::from_utf8(run.stderr).expect("text"), run.status.code().expect("an exit code"))
}

/// A cache, a counter and a schema.
async fn create_all(client: &Client) {
    let definition = r#"{"distributed-cache": {"encoding": {"media-type": "text/plain"}}}"#;
    client.administration().create("shop", definition).await.unwrap();
    let text = |text: &'static str| Bytes::from_static(text.as_bytes());
    client.raw("shop").put(&text("apples"), &text("3")).await.unwrap();
    let config = CounterConfig { kind: CounterKind::Strong, is_persistent: false, initial: 1 };
    client.counter("hits").create(config).await.unwrap();
    let schema = text("syntax = \"proto3\"; message Apple { string kind = 1; }");
    client.raw("___protobuf_metadata").put(&text("apple.proto"), &schema).await.unwrap();
}

async fn remove_all(client: &Client) {
    client.administration().remove("shop").await.unwrap();
    client.counter("hits").remove().await.unwrap();
    client.raw("___protobuf_metadata").remove(&Bytes::from_static(b"apple.proto")).await.unwrap();
}

#[test]
fn observers_back_up_and_deployers_restore() {
    in_own_network("backup_roles::observers_back_up_and_deployers_restore", async {
        let directory = std::env::temp_dir().join(format!("consort-backup-roles-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let path = |name: &str| directory.join(name).display().to_string();
        let users: String = ROLES.map(|role| format!("{role} {role} password:{role}\n")).concat();
        std::fs::write(path("users"), users).expect("a file");
        let mut server = Tool::consort(&["server", "--users", &path("users")]);
        server.wait_for(&["Hot Rod"]);
        let client = Client::connect(&format!("hotrod://admin:admin@{SERVER}")).await.expect("a connection");
        create_all(&client).await;
        for role in ROLES {
            let (message, code) = run(role, &["backup", &path(&format!("{role}.zip"))]);
            if role == "monitor" {
                assert!(code == 2 && message.contains("lacks 'BULK_READ'"), "{code}: {message}");
            } else {
                assert_eq!((&message[..], code), ("", 0), "{role}");
            }
        }
        let archive = path("observer.zip");
        for role in ROLES {
            remove_all(&client).await;
            let (message, code) = run(role, &["restore", &archive]);
            if ["deployer", "admin"].contains(&role) {
                assert_eq!((&message[..], code), ("", 0), "{role}");
                assert_eq!(client.counter("hits").get().await.unwrap(), 1);
                let at = format!("--at=hotrod://admin:admin@{SERVER}");
                assert_eq!(done(&[&at, "get", "shop", "apples"]).0, "3");
            } else {
                assert!(code == 2 && message.contains("lacks 'CREATE'"), "{role}: {code}: {message}");
                let _ = client.counter("hits").remove().await;
                create_all(&client).await;
            }
        }
        client.close().await;
        let _ = std::fs::remove_dir_all(&directory);
    });
}
