//! How clients show who they are, message by message.

use bytes::Bytes;
use consort_hotrod::ops::{auth, server};
use consort_hotrod::{RequestBody, Response, ResponseBody, Status, Text};
use consort_sasl::scram::{self, Keys};
use consort_server::{
    Hash, Mechanism, Role, SecurityError, Server, ServerBuilder, Users, UsersHandle, line_for,
};

use crate::client::{Client, Running, exec, get, put};

/// Users of a test: each role has one of its name, whose password is the name, too.
pub(crate) fn users() -> ServerBuilder {
    let mut lines = String::from("alice application,monitor password:wonderland\n");
    for role in Role::ALL {
        lines.push_str(&format!("{role} {role} password:{role}\n"));
    }
    Server::builder().users(Users::parse("users", &lines).unwrap()).allow_secrets_in_the_open()
}

fn step(mechanism: &str, message: impl Into<Bytes>) -> RequestBody {
    RequestBody::Auth(auth::Request::Step(mechanism.into(), message.into()))
}

/// What an error says.
pub(crate) fn refusal(response: &Response) -> &str {
    match &response.body {
        ResponseBody::Error(text) if response.status == Status::ServerError => text.as_str(),
        _ => panic!("{response:?}"),
    }
}

impl Client {
    pub(crate) async fn auth(&mut self, mechanism: &str, message: impl Into<Bytes>) -> Response {
        self.ask("", step(mechanism, message)).await
    }

    pub(crate) async fn plain(&mut self, name: &str, password: &str) -> Response {
        self.auth("PLAIN", format!("\0{name}\0{password}")).await
    }

    /// Both messages of SCRAM. The server has to know the user, too.
    async fn scram(&mut self, hash: Hash, name: &str, password: &str) -> Response {
        let (begun, message) = scram::client::First::begin(hash, name, "abcdefgh");
        let response = self.auth(hash.mechanism(), message).await;
        let ResponseBody::Auth(auth::Response::Challenge(challenge)) = &response.body else {
            return response;
        };
        let challenged = begun.challenged(challenge).unwrap();
        let keys = Keys::derive(hash, password, challenged.salt(), challenged.iterations());
        let (last, message) = challenged.prove(&keys);
        // As some clients do it: later messages do not name the mechanism.
        let response = self.auth("", message).await;
        if let ResponseBody::Auth(auth::Response::Challenge(signature)) = &response.body {
            assert_eq!(last.check(signature), Ok(()));
        }
        response
    }
}

fn is_done(response: &Response) -> bool {
    response.body == ResponseBody::Auth(auth::Response::Done)
}

/// The mechanisms that are offered on a connection.
async fn offered(client: &mut Client) -> Vec<Text> {
    let response = client.ask("", RequestBody::Auth(auth::Request::Mechanisms)).await;
    let ResponseBody::Auth(auth::Response::Mechanisms(names)) = response.body else { panic!() };
    names
}

#[tokio::test]
async fn mechanisms_are_told_the_strongest_first() {
    let server = Running::secured("mechanisms", users()).await;
    let names = offered(&mut server.client().await).await;
    assert_eq!(names, ["SCRAM-SHA-512", "SCRAM-SHA-384", "SCRAM-SHA-256", "PLAIN"].map(Into::into));
}

#[tokio::test]
async fn mechanisms_that_are_offered_follow_a_change_of_the_users() {
    let line = line_for("alice", &[Role::Monitor], Some("wonderland")).unwrap();
    // The same line with the verifier of one mechanism.
    let line_of = |hash: Hash| {
        let is_kept =
            |word: &&str| !word.starts_with("SCRAM-") || word.starts_with(&format!("{}$", hash.mechanism()));
        line.split(' ').filter(is_kept).collect::<Vec<_>>().join(" ")
    };
    let builder = Server::builder().users(Users::parse("users", &line_of(Hash::Sha256)).unwrap());
    let server = Running::secured("mechanisms-change", builder).await;
    let mut waiting = server.client().await;
    for (hash, other) in [(Hash::Sha256, Hash::Sha512), (Hash::Sha512, Hash::Sha256)] {
        assert_eq!(replace(server.users.as_ref().unwrap(), &line_of(hash)), Ok(0));
        let mut client = server.client().await;
        // Also on a connection from before, because its client has not logged in.
        for client in [&mut waiting, &mut client] {
            assert_eq!(offered(client).await, [hash.mechanism().into()]);
        }
        let refused = client.scram(other, "alice", "wonderland").await;
        assert!(refusal(&refused).contains("Invalid mech"), "{refused:?}");
        let admitted = client.scram(hash, "alice", "wonderland").await;
        assert_eq!(admitted.status, Status::Success, "{admitted:?}");
        drop(client);
    }
}

/// Clients send names as they are typed, and in PLAIN passwords, too.
#[tokio::test]
async fn names_and_passwords_of_clients_that_prepare_nothing_are_prepared_here() {
    let builder = Server::builder().users(Users::parse("users", "IX admin password:secret-IX").unwrap());
    let server = Running::secured("saslprep", builder.allow_secrets_in_the_open()).await;
    for name in ["\u{2168}", "I\u{ad}X"] {
        for password in ["secret-\u{2168}", "secret\u{ad}-IX"] {
            let done = server.client().await.plain(name, password).await;
            assert!(is_done(&done), "{name:?} with {password:?}: {done:?}");
        }
        let done = server.client().await.scram(Hash::Sha256, name, "secret-IX").await;
        assert_eq!(done.status, Status::Success, "{name:?}: {done:?}");
    }
}

#[tokio::test]
async fn who_has_shown_who_it_is_can_do_what_its_role_permits() {
    let server = Running::secured("shown", users()).await;
    let mut admin = server.client().await;
    assert!(is_done(&admin.plain("admin", "admin").await));
    admin.create("c").await;
    for hash in Hash::ALL {
        let mut alice = server.client().await;
        let response = alice.scram(hash, "alice", "wonderland").await;
        assert!(matches!(response.body, ResponseBody::Auth(auth::Response::Challenge(_))), "{response:?}");
        // Some clients answer to what ends it, others do not.
        if hash == Hash::Sha256 {
            assert!(is_done(&alice.auth(hash.mechanism(), "").await));
        }
        assert_eq!(alice.ask("c", put("k", "v")).await.status, Status::Success);
        assert_eq!(alice.ask("c", get("k")).await.status, Status::Success);
        let refused = alice.ask("", exec("@@cache@create", "d")).await;
        let told = refusal(&refused);
        assert!(told.contains("ISPN000287: Unauthorized access: user 'alice' lacks 'CREATE'"), "{told}");
        let again = alice.plain("admin", "admin").await;
        assert!(refusal(&again).contains("ISPN006007"), "{again:?}");
    }
}

#[tokio::test]
async fn an_unknown_user_and_a_wrong_password_are_told_the_same() {
    let server = Running::secured("unknown-user", users()).await;
    let mut told = Vec::new();
    for (name, password) in [("alice", "wrong"), ("nobody", "wonderland"), ("alice", ""), ("al\u{7}ice", "x")]
    {
        told.push(refusal(&server.client().await.plain(name, password).await).to_owned());
        for hash in Hash::ALL {
            told.push(refusal(&server.client().await.scram(hash, name, password).await).to_owned());
        }
    }
    told.dedup();
    assert_eq!(told, ["ISPN006024: Invalid credentials"]);
}

/// A name that is nobody's has a salt and iterations like the others, and the same ones the next time.
#[tokio::test]
async fn a_challenge_does_not_tell_whether_there_is_such_a_user() {
    let server = Running::secured("challenges", users()).await;
    let challenge = async |name: &str| {
        let (_, message) = scram::client::First::begin(Hash::Sha256, name, "n");
        let response = server.client().await.auth("SCRAM-SHA-256", message).await;
        let ResponseBody::Auth(auth::Response::Challenge(challenge)) = response.body else { panic!() };
        let text = String::from_utf8(challenge.to_vec()).unwrap();
        // Without the nonce.
        text.split_once(",s=").unwrap().1.to_owned()
    };
    let (known, unknown) = (challenge("alice").await, challenge("nobody").await);
    assert_eq!(challenge("nobody").await, unknown);
    assert_ne!(known, unknown);
    let form = |text: &str| (text.len(), text.rsplit_once(",i=").map(|(_, count)| count.to_owned()));
    assert_eq!(form(&known), form(&unknown));
}

/// The least time of some tries, as little disturbed as it gets.
#[tokio::test]
async fn an_unknown_user_takes_the_time_of_a_wrong_password() {
    let line = line_for("alice", &[Role::Monitor], Some("wonderland")).unwrap();
    let builder = Server::builder().users(Users::parse("users", &line).unwrap()).allow_secrets_in_the_open();
    let server = Running::secured("times", builder).await;
    let mut least = [std::time::Duration::MAX; 2];
    for _ in 0..8 {
        for (least, name) in least.iter_mut().zip(["alice", "nobody"]) {
            let mut client = server.client().await;
            let begun = std::time::Instant::now();
            refusal(&client.plain(name, "wrong").await);
            *least = begun.elapsed().min(*least);
        }
    }
    let [known, unknown] = least;
    assert!(unknown < known * 2 && known < unknown * 2, "{known:?} and {unknown:?}");
}

/// Clients with short connections do not pay for the hashing each time; others always do.
#[tokio::test]
async fn a_password_that_was_right_is_not_hashed_again_until_users_change() {
    let line = |password| line_for("alice", &[Role::Monitor], Some(password)).unwrap();
    let (before, after) = (line("wonderland"), line("looking-glass"));
    let builder =
        Server::builder().users(Users::parse("users", &before).unwrap()).allow_secrets_in_the_open();
    let server = Running::secured("remembered", builder).await;
    let mut least = [std::time::Duration::MAX; 2];
    for _ in 0..8 {
        for (least, password) in least.iter_mut().zip(["wonderland", "wrong"]) {
            let mut client = server.client().await;
            let begun = std::time::Instant::now();
            assert_eq!(is_done(&client.plain("alice", password).await), password == "wonderland");
            *least = begun.elapsed().min(*least);
        }
    }
    let [right, wrong] = least;
    assert!(right * 3 < wrong, "{right:?} and {wrong:?}");
    assert_eq!(replace(server.users.as_ref().unwrap(), &after), Ok(0));
    assert!(refusal(&server.client().await.plain("alice", "wonderland").await).contains("ISPN006024"));
    assert!(is_done(&server.client().await.plain("alice", "looking-glass").await));
}

#[tokio::test]
async fn after_some_failures_the_connection_ends() {
    let server = Running::secured("failures", users()).await;
    let mut client = server.client().await;
    for _ in 0..consort_server::bounds::AUTH_FAILURES_MAX {
        refusal(&client.plain("alice", "wrong").await);
    }
    let ping = crate::client::request(7, "", RequestBody::Server(server::Request::Ping));
    // It may be closed before or after this is written.
    let _ = tokio::io::AsyncWriteExt::write_all(&mut client.stream, b"\xa0").await;
    assert!(client.next(ping.context()).await.is_none());
    // Who mistypes a password once gets in.
    let mut client = server.client().await;
    refusal(&client.plain("alice", "wrong").await);
    assert!(is_done(&client.plain("alice", "wonderland").await));
}

#[tokio::test]
async fn what_is_no_message_of_its_mechanism_is_told_so() {
    let server = Running::secured("no-message", users()).await;
    for (mechanism, message, told) in [
        ("PLAIN", &b""[..], "Invalid credentials: invalid PLAIN message: three parts are required"),
        ("PLAIN", b"\xff\0\0", "Invalid credentials: invalid PLAIN message: not UTF-8"),
        ("PLAIN", b"admin\0alice\0wonderland", "Invalid credentials: nobody acts as another user here"),
        ("SCRAM-SHA-256", b"", "Invalid credentials: invalid SCRAM message: missing header"),
        ("SCRAM-SHA-256", b"n,,n=alice", "Invalid credentials: invalid SCRAM message: missing nonce"),
        (
            "SCRAM-SHA-512",
            b"p=tls-unique,,n=alice,r=a",
            "Invalid credentials: channel binding is not supported",
        ),
        ("SCRAM-SHA-512", b"n,a=admin,n=alice,r=a", "Invalid credentials: nobody acts as another user here"),
        ("EXTERNAL", b"", "Invalid mech 'EXTERNAL'"),
        ("DIGEST-MD5", b"", "Invalid mech 'DIGEST-MD5'"),
        ("", b"", "Invalid mech ''"),
    ] {
        let response = server.client().await.auth(mechanism, message).await;
        assert!(refusal(&response).ends_with(told), "{mechanism}: {response:?}");
    }
    // A second message that is none, and one after which it begins anew.
    let mut client = server.client().await;
    let begin = || step("SCRAM-SHA-256", &b"n,,n=alice,r=abc"[..]);
    assert_eq!(client.ask("", begin()).await.status, Status::Success);
    let response = client.auth("SCRAM-SHA-256", &b"c=biws,r=abc,p=AAAA"[..]).await;
    assert!(refusal(&response).contains("another exchange"), "{response:?}");
    assert_eq!(client.ask("", begin()).await.status, Status::Success);
    assert!(is_done(&client.plain("alice", "wonderland").await));
}

#[tokio::test]
async fn without_users_nobody_is_asked() {
    let server = Running::start("no-users").await;
    let response = server.client().await.plain("alice", "wonderland").await;
    assert!(refusal(&response).starts_with("ISPN006007"), "{response:?}");
    let mut client = server.client().await;
    client.create("c").await;
    assert_eq!(client.ask("c", put("k", "v")).await.status, Status::Success);
}

#[test]
fn mechanisms_are_named_as_they_are_registered() {
    assert_eq!(Mechanism::from_name("SCRAM-SHA-256"), Some(Mechanism::Scram(Hash::Sha256)));
}

fn replace(handle: &UsersHandle, lines: &str) -> Result<usize, SecurityError> {
    handle.replace(Users::parse("users", lines).unwrap())
}

#[tokio::test]
async fn users_can_change_while_their_connections_are_there() {
    let before = "admin admin password:admin\nalice application password:a\nbob application password:b\n";
    let users = Users::parse("users", before).unwrap();
    let builder = Server::builder().users(users).allow_secrets_in_the_open();
    let server = Running::secured("users-change", builder).await;
    let handle = server.users.clone().unwrap();
    let [mut admin, mut alice, mut bob] =
        [server.client().await, server.client().await, server.client().await];
    for (client, name, password) in
        [(&mut admin, "admin", "admin"), (&mut alice, "alice", "a"), (&mut bob, "bob", "b")]
    {
        assert!(is_done(&client.plain(name, password).await));
    }
    admin.create("c").await;
    for client in [&mut alice, &mut bob] {
        assert_eq!(client.ask("c", put("k", "v")).await.status, Status::Success);
    }
    let after = "admin admin password:admin\nalice observer password:new\ncarol application password:c\n";
    assert_eq!(replace(&handle, after), Ok(1));
    // Whose line is gone has no connection, though it has asked for nothing.
    assert!(bob.incoming(|_| None).await.is_none());
    assert!(refusal(&server.client().await.plain("bob", "b").await).contains("ISPN006024"));
    // Roles count at once; the password is asked for when somebody comes.
    assert!(refusal(&alice.ask("c", put("k", "w")).await).contains("ISPN000287"));
    assert_eq!(alice.ask("c", get("k")).await.status, Status::Success);
    assert!(refusal(&server.client().await.plain("alice", "a").await).contains("ISPN006024"));
    assert!(is_done(&server.client().await.plain("alice", "new").await));
    let mut carol = server.client().await;
    assert!(is_done(&carol.plain("carol", "c").await));
    assert_eq!(carol.ask("c", put("k", "x")).await.status, Status::Success);

    // Nobody could show who it is: that is no change.
    assert_eq!(replace(&handle, "carol admin"), Err(SecurityError::NoMechanism));
    assert_eq!(carol.ask("c", get("k")).await.status, Status::Success);
    assert_eq!(admin.ask("c", put("k", "y")).await.status, Status::Success);
}

/// Its proof is right, and comes too late.
#[tokio::test]
async fn who_is_removed_while_showing_who_it_is_is_not_admitted() {
    let builder = Server::builder()
        .users(Users::parse("users", "alice admin password:a\nbob admin password:b").unwrap());
    let server = Running::secured("users-late", builder).await;
    let mut bob = server.client().await;
    let hash = Hash::Sha256;
    let (begun, message) = scram::client::First::begin(hash, "bob", "abcdefgh");
    let response = bob.auth(hash.mechanism(), message).await;
    let ResponseBody::Auth(auth::Response::Challenge(challenge)) = &response.body else {
        panic!("{response:?}")
    };
    let challenged = begun.challenged(challenge).unwrap();
    let keys = Keys::derive(hash, "b", challenged.salt(), challenged.iterations());
    let (_, message) = challenged.prove(&keys);
    assert_eq!(replace(server.users.as_ref().unwrap(), "alice admin password:a"), Ok(0));
    assert!(refusal(&bob.auth("", message).await).contains("ISPN006024"));
    assert!(refusal(&bob.ask("c", get("k")).await).contains("ISPN006017"));
}

/// What a client is told of a name before its login, without the nonce.
async fn challenge(server: &Running, hash: Hash, name: &str) -> String {
    let (_, message) = scram::client::First::begin(hash, name, "n");
    let response = server.client().await.auth(hash.mechanism(), message).await;
    let ResponseBody::Auth(auth::Response::Challenge(challenge)) = response.body else { panic!() };
    String::from_utf8(challenge.to_vec()).unwrap().split_once(",s=").unwrap().1.to_owned()
}

/// The challenges for users and for names that are no user's, by each mechanism.
async fn challenges(server: &Running) -> Vec<String> {
    let mut all = Vec::new();
    for name in ["alice", "admin", "nobody", "nobody-else"] {
        for hash in Hash::ALL {
            all.push(challenge(server, hash, name).await);
        }
    }
    all
}

#[tokio::test]
async fn challenges_are_the_same_on_all_servers_and_after_a_change_of_the_users_file() {
    let first = Running::secured("same-challenges", users()).await;
    let before = challenges(&first).await;
    let mut distinct = before.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(
        distinct.len(),
        before.len(),
        "each name has a salt of its own for each mechanism: {before:?}"
    );
    // Another server has read a file to which a line was added, and the first one reads it a moment later.
    let file = "dave monitor password:x\nadmin admin password:admin\nalice application password:wonderland\n";
    let other = Server::builder().users(Users::parse("users", file).unwrap());
    let second = Running::joining("same-challenges", other).await;
    assert_eq!(challenges(&second).await, before);
    assert_eq!(replace(first.users.as_ref().unwrap(), file), Ok(0));
    assert_eq!(challenges(&first).await, before);
    // What the passwords in the file are held against has followed.
    for server in [&first, &second] {
        let done = server.client().await.scram(Hash::Sha384, "alice", "wonderland").await;
        assert!(matches!(done.body, ResponseBody::Auth(auth::Response::Challenge(_))), "{done:?}");
    }
}

#[tokio::test]
async fn challenges_are_the_same_when_all_servers_have_ended_and_the_file_has_changed() {
    let data = std::env::temp_dir().join(format!("consort-challenges-{}", std::process::id()));
    let mut seen = Vec::new();
    for more in ["", "# one more line\ndave monitor password:x\n"] {
        let file = format!("{more}alice application password:wonderland\nadmin admin password:admin\n");
        let builder = Server::builder().users(Users::parse("users", &file).unwrap()).data(&data);
        let server = Running::secured("challenges-kept", builder).await;
        seen.push(challenges(&server).await);
        server.end.send(()).unwrap();
        server.serving.await.unwrap();
    }
    std::fs::remove_dir_all(&data).unwrap();
    assert_eq!(seen[0], seen[1]);
}

#[tokio::test]
async fn a_right_password_of_a_user_under_attack_is_admitted() {
    let server = Running::secured("under-attack", users()).await;
    for _ in 0..consort_server::bounds::LOGIN_FAILURES_FREE + 2 {
        refusal(&server.client().await.scram(Hash::Sha256, "alice", "wrong").await);
    }
    let response = server.client().await.scram(Hash::Sha256, "alice", "wonderland").await;
    assert!(matches!(response.body, ResponseBody::Auth(auth::Response::Challenge(_))), "{response:?}");
}

/// The answer to a login waits after failures. What the client has sent with it waits for that answer, so that an address
/// has no more answers that wait than connections.
#[tokio::test]
async fn a_connection_has_one_answer_at_a_time_until_its_client_is_known() {
    let server = Running::secured("one-answer", users()).await;
    for _ in 0..consort_server::bounds::LOGIN_FAILURES_FREE + 1 {
        refusal(&server.client().await.auth("NONE", "").await);
    }
    let mut client = server.client().await;
    let requests = [(1, step("NONE", "")), (2, RequestBody::Server(server::Request::Ping))]
        .map(|(id, body)| crate::client::request(id, "", body));
    client.send(&requests).await;
    for request in &requests {
        assert_eq!(
            client.next_of(|id| requests[id as usize - 1].context()).await.unwrap().id,
            request.header.id
        );
    }
}
