//! Authentication of clients, message by message.

use bytes::Bytes;
use consort_hotrod::ops::{auth, server};
use consort_hotrod::{Intelligence, MediaType, RequestBody, Response, ResponseBody, Status, Text};
use consort_sasl::scram::{self, Keys};
use consort_server::{
    Hash, Mechanism, Role, SecurityError, Server, ServerBuilder, Users, UsersHandle, line_for,
};

use crate::client::{Client, RunningServer, exec, get, put, request};

/// Users of a test: one for each role, with the role's name as name and password.
pub(crate) fn users() -> ServerBuilder {
    let mut lines = String::from("alice application,monitor password:wonderland\n");
    for role in Role::ALL {
        lines.push_str(&format!("{role} {role} password:{role}\n"));
    }
    Server::builder().users(Users::parse("users", &lines).unwrap()).allow_cleartext()
}

fn step(mechanism: &str, message: impl Into<Bytes>) -> RequestBody {
    RequestBody::Auth(auth::Request::Step(mechanism.into(), message.into()))
}

/// Returns the text of an error.
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

    /// Sends both messages of SCRAM, and checks that the server knows the password.
    async fn scram(&mut self, hash: Hash, name: &str, password: &str) -> Response {
        let (begun, message) = scram::client::First::begin(hash, name, "abcdefgh");
        let response = self.auth(hash.mechanism(), message).await;
        let ResponseBody::Auth(auth::Response::Challenge(challenge)) = &response.body else {
            return response;
        };
        let challenged = begun.challenged(challenge).unwrap();
        let keys = Keys::derive(hash, password, challenged.salt(), challenged.iterations());
        let (last, message) = challenged.prove(&keys);
        // Like some clients: later messages do not name the mechanism.
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

/// Returns the mechanisms that are offered on a connection.
async fn offered(client: &mut Client) -> Vec<Text> {
    let response = client.ask("", RequestBody::Auth(auth::Request::Mechanisms)).await;
    let ResponseBody::Auth(auth::Response::Mechanisms(names)) = response.body else { panic!() };
    names
}

#[tokio::test]
async fn mechanisms_are_listed_strongest_first() {
    let server = RunningServer::secured("mechanisms", users()).await;
    let names = offered(&mut server.client().await).await;
    assert_eq!(names, ["SCRAM-SHA-512", "SCRAM-SHA-384", "SCRAM-SHA-256", "PLAIN"].map(Into::into));
}

#[tokio::test]
async fn offered_mechanisms_follow_a_change_of_the_users() {
    let line = line_for("alice", &[Role::Monitor], Some("wonderland")).unwrap();
    // The same line with the verifier of one mechanism.
    let line_of = |hash: Hash| {
        let is_kept =
            |word: &&str| !word.starts_with("SCRAM-") || word.starts_with(&format!("{}$", hash.mechanism()));
        line.split(' ').filter(is_kept).collect::<Vec<_>>().join(" ")
    };
    let builder = Server::builder().users(Users::parse("users", &line_of(Hash::Sha256)).unwrap());
    let server = RunningServer::secured("mechanisms-change", builder).await;
    let mut waiting = server.client().await;
    for (hash, other) in [(Hash::Sha256, Hash::Sha512), (Hash::Sha512, Hash::Sha256)] {
        assert_eq!(replace(server.users.as_ref().unwrap(), &line_of(hash)), Ok(0));
        let mut client = server.client().await;
        // Also on a connection from before the change, because its client has not authenticated.
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

/// Clients may send names, and with PLAIN passwords, as they are typed.
#[tokio::test]
async fn unprepared_names_and_passwords_are_prepared_by_the_server() {
    let builder = Server::builder().users(Users::parse("users", "IX admin password:secret-IX").unwrap());
    let server = RunningServer::secured("saslprep", builder.allow_cleartext()).await;
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
async fn authenticated_user_has_the_permissions_of_its_role() {
    let server = RunningServer::secured("shown", users()).await;
    let mut admin = server.client().await;
    assert!(is_done(&admin.plain("admin", "admin").await));
    admin.create("c").await;
    for hash in Hash::ALL {
        let mut alice = server.client().await;
        let response = alice.scram(hash, "alice", "wonderland").await;
        assert!(matches!(response.body, ResponseBody::Auth(auth::Response::Challenge(_))), "{response:?}");
        // Some clients respond to the last message, others do not.
        if hash == Hash::Sha256 {
            assert!(is_done(&alice.auth(hash.mechanism(), "").await));
        }
        assert_eq!(alice.ask("c", put("k", "v")).await.status, Status::Success);
        assert_eq!(alice.ask("c", get("k")).await.status, Status::Success);
        let refused = alice.ask("", exec("@@cache@create", "d")).await;
        let text = refusal(&refused);
        assert!(text.contains("ISPN000287: Unauthorized access: user 'alice' lacks 'CREATE'"), "{text}");
        let again = alice.plain("admin", "admin").await;
        assert!(refusal(&again).contains("ISPN006007"), "{again:?}");
    }
}

#[tokio::test]
async fn last_response_of_an_authentication_carries_the_topology() {
    let server = RunningServer::secured("auth-topology", users()).await;
    let mut admin = server.client().await;
    assert!(is_done(&admin.plain("admin", "admin").await));
    admin.create("c").await;
    // From here on there is a default cache.
    assert_eq!(admin.ask("", put("k", "v")).await.status, Status::Success);
    let aware = |cache, body| {
        let mut request = request(1, cache, body);
        request.header.intelligence = Intelligence::Hash;
        request
    };
    for cache in ["c", ""] {
        let mut client = server.client().await;
        let ping = client.send_request(aware(cache, RequestBody::Server(server::Request::Ping))).await;
        let ResponseBody::Server(server::Response::Pong(pong)) = &ping.body else { panic!("{ping:?}") };
        assert_eq!((&ping.topology, &pong.key_type), (&None, &MediaType::Unspecified));
        let wrong = client.send_request(aware(cache, step("PLAIN", "\0alice\0wrong"))).await;
        assert_eq!((wrong.status, wrong.topology), (Status::ServerError, None));
        let done = client.send_request(aware(cache, step("PLAIN", "\0alice\0wonderland"))).await;
        assert!(is_done(&done));
        let topology = done.topology.expect("a topology");
        assert_eq!(topology.servers[0].port, server.at.port());
        let mut again = aware(cache, step("", ""));
        again.header.topology_id = topology.id;
        assert_eq!(client.send_request(again).await.topology, None, "the client has it");
    }
    let mut client = server.client().await;
    let done = client.send_request(aware("missing", step("PLAIN", "\0alice\0wonderland"))).await;
    assert!(is_done(&done) && done.topology.is_none());
}

#[tokio::test]
async fn unknown_user_and_wrong_password_get_the_same_error() {
    let server = RunningServer::secured("unknown-user", users()).await;
    let mut text = Vec::new();
    for (name, password) in [("alice", "wrong"), ("nobody", "wonderland"), ("alice", ""), ("al\u{7}ice", "x")]
    {
        text.push(refusal(&server.client().await.plain(name, password).await).to_owned());
        for hash in Hash::ALL {
            text.push(refusal(&server.client().await.scram(hash, name, password).await).to_owned());
        }
    }
    text.dedup();
    assert_eq!(text, ["java.lang.SecurityException: ISPN006024: Invalid credentials"]);
}

/// An unknown name has a salt and iterations like existing names, and always the same ones.
#[tokio::test]
async fn challenge_does_not_reveal_whether_the_user_exists() {
    let server = RunningServer::secured("challenges", users()).await;
    let challenge = async |name: &str| {
        let (_, message) = scram::client::First::begin(Hash::Sha256, name, "n");
        let response = server.client().await.auth("SCRAM-SHA-256", message).await;
        let ResponseBody::Auth(auth::Response::Challenge(challenge)) = response.body else { panic!() };
        let text = String::from_utf8(challenge.to_vec()).unwrap();
        // The nonce differs each time.
        text.split_once(",s=").unwrap().1.to_owned()
    };
    let (known, unknown) = (challenge("alice").await, challenge("nobody").await);
    assert_eq!(challenge("nobody").await, unknown);
    assert_ne!(known, unknown);
    let form = |text: &str| (text.len(), text.rsplit_once(",i=").map(|(_, count)| count.to_owned()));
    assert_eq!(form(&known), form(&unknown));
}

/// Returns the shortest time of several attempts, which is the least disturbed one.
#[tokio::test]
async fn an_unknown_user_takes_the_time_of_a_wrong_password() {
    let line = line_for("alice", &[Role::Monitor], Some("wonderland")).unwrap();
    let builder = Server::builder().users(Users::parse("users", &line).unwrap()).allow_cleartext();
    let server = RunningServer::secured("times", builder).await;
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

/// Clients with short connections do not pay for hashing each time; wrong passwords and unknown users always do.
#[tokio::test]
async fn verified_password_is_not_hashed_again_until_the_users_change() {
    let line = |password| line_for("alice", &[Role::Monitor], Some(password)).unwrap();
    let (before, after) = (line("wonderland"), line("looking-glass"));
    let builder = Server::builder().users(Users::parse("users", &before).unwrap()).allow_cleartext();
    let server = RunningServer::secured("remembered", builder).await;
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
async fn connection_ends_after_repeated_failures() {
    let server = RunningServer::secured("failures", users()).await;
    let mut client = server.client().await;
    for _ in 0..consort_server::limits::AUTH_FAILURES_MAX {
        refusal(&client.plain("alice", "wrong").await);
    }
    let ping = request(7, "", RequestBody::Server(server::Request::Ping));
    // The connection may be closed before or after this write.
    let _ = tokio::io::AsyncWriteExt::write_all(&mut client.stream, b"\xa0").await;
    assert!(client.next(ping.context()).await.is_none());
    // A client may mistype its password once.
    let mut client = server.client().await;
    refusal(&client.plain("alice", "wrong").await);
    assert!(is_done(&client.plain("alice", "wonderland").await));
}

#[tokio::test]
async fn invalid_message_of_a_mechanism_is_refused_with_the_reason() {
    let server = RunningServer::secured("no-message", users()).await;
    for (mechanism, message, text) in [
        ("PLAIN", &b""[..], "Invalid credentials: invalid PLAIN message: three parts are required"),
        ("PLAIN", b"\xff\0\0", "Invalid credentials: invalid PLAIN message: not UTF-8"),
        (
            "PLAIN",
            b"admin\0alice\0wonderland",
            "Invalid credentials: acting as another user is not supported",
        ),
        ("SCRAM-SHA-256", b"", "Invalid credentials: invalid SCRAM message: missing header"),
        ("SCRAM-SHA-256", b"n,,n=alice", "Invalid credentials: invalid SCRAM message: missing nonce"),
        (
            "SCRAM-SHA-512",
            b"p=tls-unique,,n=alice,r=a",
            "Invalid credentials: channel binding is not supported",
        ),
        (
            "SCRAM-SHA-512",
            b"n,a=admin,n=alice,r=a",
            "Invalid credentials: acting as another user is not supported",
        ),
        ("EXTERNAL", b"", "Invalid mech 'EXTERNAL'"),
        ("DIGEST-MD5", b"", "Invalid mech 'DIGEST-MD5'"),
        ("", b"", "Invalid mech ''"),
    ] {
        let response = server.client().await.auth(mechanism, message).await;
        assert!(refusal(&response).ends_with(text), "{mechanism}: {response:?}");
    }
    // An invalid second message, after which the client begins a new exchange.
    let mut client = server.client().await;
    let begin = || step("SCRAM-SHA-256", &b"n,,n=alice,r=abc"[..]);
    assert_eq!(client.ask("", begin()).await.status, Status::Success);
    let response = client.auth("SCRAM-SHA-256", &b"c=biws,r=abc,p=AAAA"[..]).await;
    assert!(refusal(&response).contains("another exchange"), "{response:?}");
    assert_eq!(client.ask("", begin()).await.status, Status::Success);
    assert!(is_done(&client.plain("alice", "wonderland").await));
}

#[tokio::test]
async fn server_without_users_refuses_authentication() {
    let server = RunningServer::start("no-users").await;
    let response = server.client().await.plain("alice", "wonderland").await;
    let expected = "java.lang.UnsupportedOperationException: ISPN006007";
    assert!(refusal(&response).starts_with(expected), "{response:?}");
    let mut client = server.client().await;
    client.create("c").await;
    assert_eq!(client.ask("c", put("k", "v")).await.status, Status::Success);
}

#[test]
fn mechanisms_have_their_registered_names() {
    assert_eq!(Mechanism::from_name("SCRAM-SHA-256"), Some(Mechanism::Scram(Hash::Sha256)));
}

fn replace(handle: &UsersHandle, lines: &str) -> Result<usize, SecurityError> {
    handle.replace(Users::parse("users", lines).unwrap())
}

#[tokio::test]
async fn change_of_the_users_applies_to_open_connections() {
    let before = "admin admin password:admin\nalice application password:a\nbob application password:b\n";
    let users = Users::parse("users", before).unwrap();
    let builder = Server::builder().users(users).allow_cleartext();
    let server = RunningServer::secured("users-change", builder).await;
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
    // The connection of a removed user ends, although the client sent no request.
    assert!(bob.incoming(|_| None).await.is_none());
    assert!(refusal(&server.client().await.plain("bob", "b").await).contains("ISPN006024"));
    // New roles apply at once, new passwords at the next login.
    assert!(refusal(&alice.ask("c", put("k", "w")).await).contains("ISPN000287"));
    assert_eq!(alice.ask("c", get("k")).await.status, Status::Success);
    assert!(refusal(&server.client().await.plain("alice", "a").await).contains("ISPN006024"));
    assert!(is_done(&server.client().await.plain("alice", "new").await));
    let mut carol = server.client().await;
    assert!(is_done(&carol.plain("carol", "c").await));
    assert_eq!(carol.ask("c", put("k", "x")).await.status, Status::Success);

    // No user could authenticate: the change is refused.
    assert_eq!(replace(&handle, "carol admin"), Err(SecurityError::NoMechanism));
    assert_eq!(carol.ask("c", get("k")).await.status, Status::Success);
    assert_eq!(admin.ask("c", put("k", "y")).await.status, Status::Success);
}

/// The client's proof is correct, but arrives after the removal.
#[tokio::test]
async fn user_that_is_removed_during_authentication_is_refused() {
    let builder = Server::builder()
        .users(Users::parse("users", "alice admin password:a\nbob admin password:b").unwrap());
    let server = RunningServer::secured("users-late", builder).await;
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

/// Returns the challenge for a name, without the nonce.
async fn challenge(server: &RunningServer, hash: Hash, name: &str) -> String {
    let (_, message) = scram::client::First::begin(hash, name, "n");
    let response = server.client().await.auth(hash.mechanism(), message).await;
    let ResponseBody::Auth(auth::Response::Challenge(challenge)) = response.body else { panic!() };
    String::from_utf8(challenge.to_vec()).unwrap().split_once(",s=").unwrap().1.to_owned()
}

/// Returns the challenges for existing and unknown names, by each mechanism.
async fn challenges(server: &RunningServer) -> Vec<String> {
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
    let first = RunningServer::secured("same-challenges", users()).await;
    let before = challenges(&first).await;
    let mut distinct = before.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(
        distinct.len(),
        before.len(),
        "each name has a salt of its own for each mechanism: {before:?}"
    );
    // Another server reads a file with an additional line, and the first server reads it a moment later.
    let file = "dave monitor password:x\nadmin admin password:admin\nalice application password:wonderland\n";
    let other = Server::builder().users(Users::parse("users", file).unwrap());
    let second = RunningServer::joining("same-challenges", other).await;
    assert_eq!(challenges(&second).await, before);
    assert_eq!(replace(first.users.as_ref().unwrap(), file), Ok(0));
    assert_eq!(challenges(&first).await, before);
    // The verifiers of passwords in the file have changed with it.
    for server in [&first, &second] {
        let done = server.client().await.scram(Hash::Sha384, "alice", "wonderland").await;
        assert!(matches!(done.body, ResponseBody::Auth(auth::Response::Challenge(_))), "{done:?}");
    }
}

#[tokio::test]
async fn challenges_are_the_same_after_a_restart_with_a_changed_users_file() {
    let data = std::env::temp_dir().join(format!("consort-challenges-{}", std::process::id()));
    let mut seen = Vec::new();
    for more in ["", "# one more line\ndave monitor password:x\n"] {
        let file = format!("{more}alice application password:wonderland\nadmin admin password:admin\n");
        let builder = Server::builder().users(Users::parse("users", &file).unwrap()).data(&data);
        let server = RunningServer::secured("challenges-kept", builder).await;
        seen.push(challenges(&server).await);
        server.end.send(()).unwrap();
        server.serving.await.unwrap();
    }
    std::fs::remove_dir_all(&data).unwrap();
    assert_eq!(seen[0], seen[1]);
}

#[tokio::test]
async fn correct_password_of_a_user_under_attack_is_accepted() {
    let server = RunningServer::secured("under-attack", users()).await;
    for _ in 0..consort_server::limits::LOGIN_FAILURES_FREE + 2 {
        refusal(&server.client().await.scram(Hash::Sha256, "alice", "wrong").await);
    }
    let response = server.client().await.scram(Hash::Sha256, "alice", "wonderland").await;
    assert!(matches!(response.body, ResponseBody::Auth(auth::Response::Challenge(_))), "{response:?}");
}

/// The response to a login is delayed after failures. Further messages of the client wait for that response, so that an
/// address has at most as many delayed responses as connections.
#[tokio::test]
async fn connection_has_one_response_at_a_time_until_authentication() {
    let server = RunningServer::secured("one-answer", users()).await;
    for _ in 0..consort_server::limits::LOGIN_FAILURES_FREE + 1 {
        refusal(&server.client().await.auth("NONE", "").await);
    }
    let mut client = server.client().await;
    let requests = [(1, step("NONE", "")), (2, RequestBody::Server(server::Request::Ping))]
        .map(|(id, body)| request(id, "", body));
    client.send(&requests).await;
    for request in &requests {
        assert_eq!(
            client.next_of(|id| requests[id as usize - 1].context()).await.unwrap().id,
            request.header.id
        );
    }
}
