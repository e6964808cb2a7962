//! Other names of caches, and templates.

use bytes::Bytes;
use consort_hotrod::ops::task;
use consort_hotrod::{RequestBody, Response, ResponseBody, Status};
use consort_server::limits::CACHES_MAX;

use crate::client::{Client, RunningServer, error, exec, get, put};

async fn run(client: &mut Client, task: &str, params: &[(&'static str, &str)]) -> Response {
    let params =
        params.iter().map(|(name, value)| ((*name).into(), Bytes::copy_from_slice(value.as_bytes())));
    client.ask("", RequestBody::Task(task::Request::Exec(task.into(), params.collect()))).await
}

/// Runs a task. Returns its result or its error.
async fn task_result(client: &mut Client, task: &str, params: &[(&'static str, &str)]) -> String {
    let response = run(client, task, params).await;
    match &response.body {
        ResponseBody::Result(result) => String::from_utf8_lossy(result).into_owned(),
        _ => error(&response).to_owned(),
    }
}

async fn assign(client: &mut Client, alias: &str, cache: &str) -> String {
    task_result(client, "@@cache@assignAlias", &[("alias", alias), ("name", cache)]).await
}

/// Returns the value of `k` in a cache, by this name.
async fn value(client: &mut Client, cache: &str) -> Option<Bytes> {
    match client.ask(cache, get("k")).await.body {
        ResponseBody::Map(consort_hotrod::ops::map::Response::Value(value)) => Some(value),
        ResponseBody::Error(why) if why.as_str().contains("CacheNotFoundException") => None,
        other => panic!("{other:?}"),
    }
}

async fn two_caches(client: &mut Client) {
    for cache in ["red", "blue"] {
        client.create(cache).await;
        assert_eq!(client.ask(cache, put("k", cache)).await.status, Status::Success);
    }
}

/// Starts a server with two caches, one of which has the alias `colour`.
async fn with_alias(cluster: &str) -> (RunningServer, Client) {
    let server = RunningServer::start(cluster).await;
    let mut client = server.client().await;
    two_caches(&mut client).await;
    assert_eq!(assign(&mut client, "colour", "red").await, "");
    (server, client)
}

/// The text of an error about a configuration, as Infinispan's clients get it.
fn configuration_error(why: &str) -> String {
    format!("org.infinispan.commons.CacheConfigurationException: {why}")
}

#[tokio::test]
async fn alias_names_one_cache_and_moves_to_another_on_all_servers() {
    let servers = RunningServer::three("aliases").await;
    let mut clients = [servers[0].client().await, servers[1].client().await, servers[2].client().await];
    two_caches(&mut clients[0]).await;
    assert_eq!(assign(&mut clients[0], "colour", "red").await, "");
    // A server that did not run the task finds the alias at once, as it finds caches.
    for client in &mut clients {
        assert_eq!(value(client, "colour").await.as_deref(), Some(&b"red"[..]));
    }
    assert_eq!(clients[1].ask("colour", put("k2", "by its alias")).await.status, Status::Success);
    assert_eq!(clients[2].ask("red", get("k2")).await.status, Status::Success);
    assert_eq!(assign(&mut clients[1], "colour", "blue").await, "");
    assert_eq!(value(&mut clients[1], "colour").await.as_deref(), Some(&b"blue"[..]));
    // Every server knows the alias once the task is answered, also after a move and a removal.
    for nth in 0..30 {
        let (by, to) = (nth % 3, if nth % 2 == 0 { "red" } else { "blue" });
        assert_eq!(assign(&mut clients[by], "colour", to).await, "");
        for client in &mut clients {
            assert_eq!(value(client, "colour").await.as_deref(), Some(to.as_bytes()), "{nth}");
        }
    }
    let none = [("name", "blue"), ("attribute", "aliases"), ("value", "")];
    assert_eq!(task_result(&mut clients[1], "@@cache@updateConfigurationAttribute", &none).await, "");
    for client in &mut clients {
        assert_eq!(value(client, "colour").await, None);
    }
    assert_eq!(
        task_result(&mut clients[0], "@@cache@names", &[]).await,
        r#"["___protobuf_metadata","blue","red"]"#
    );
    for client in &mut clients {
        assert_eq!(value(client, "red").await.as_deref(), Some(&b"red"[..]));
    }
}

#[tokio::test]
async fn aliases_are_created_changed_and_removed_with_their_cache() {
    let server = RunningServer::start("aliases-of").await;
    let mut client = server.client().await;
    client.create_with("grey", r#"{"local-cache": {"aliases": ["ash", "smoke"]}}"#).await;
    client.create_with("green", "<local-cache aliases=\"grass\"/>").await;
    client.ask("grey", put("k", "grey")).await;
    let alter = |value: &'static str| [("name", "grey"), ("attribute", "aliases"), ("value", value)];
    let task = "@@cache@updateConfigurationAttribute";
    assert_eq!(task_result(&mut client, task, &alter("dust smoke")).await, "");
    assert_eq!(value(&mut client, "ash").await, None);
    for alias in ["dust", "smoke"] {
        assert_eq!(value(&mut client, alias).await.as_deref(), Some(&b"grey"[..]), "{alias}");
    }
    // Changes of other attributes keep the aliases.
    let lifespan = [("name", "dust"), ("attribute", "expiration.lifespan"), ("value", "1h")];
    assert_eq!(task_result(&mut client, task, &lifespan).await, "");
    assert_eq!(value(&mut client, "dust").await.as_deref(), Some(&b"grey"[..]));
    assert_eq!(client.ask("", exec("@@cache@remove", "grey")).await.status, Status::Success);
    assert_eq!(value(&mut client, "dust").await, None);
    client.create("grey").await;
    assert_eq!(value(&mut client, "dust").await, None, "a cache that is made again has no aliases");
    assert_eq!(assign(&mut client, "dust", "green").await, "");
}

#[tokio::test]
async fn name_of_a_cache_or_alias_cannot_be_used_twice() {
    let (_server, mut client) = with_alias("aliases-once").await;
    for (alias, cache, why) in [
        (
            "colour",
            "green",
            "ISPN000436: Cache 'green' has been requested, but no matching cache configuration exists",
        ),
        ("blue", "red", "ISPN000438: Cache with name 'blue' is defined more than once!"),
        ("red", "red", "ISPN000438: Cache with name 'red' is defined more than once!"),
        ("___schemas", "red", "invalid alias '___schemas': an alias has no spaces"),
        ("a b", "red", "invalid alias 'a b': an alias has no spaces"),
        ("", "red", "invalid alias '': an alias has no spaces"),
        (
            "meta",
            "___protobuf_metadata",
            "ISPN000436: Cache '___protobuf_metadata' has been requested, but no matching cache configuration exists",
        ),
    ] {
        assert_eq!(assign(&mut client, alias, cache).await, configuration_error(why));
    }
    assert_eq!(
        task_result(&mut client, "@@cache@assignAlias", &[("name", "red")]).await,
        "org.infinispan.commons.CacheException: ISPN005030: Administration task invoked without required parameter 'alias'"
    );
    let create = |aliases: &'static str| [("name", "green"), ("configuration", aliases)];
    for (configuration, why) in [
        (
            "<local-cache aliases='colour'/>",
            "ISPN000702: The alias 'colour' is already being used by cache 'red'",
        ),
        ("<local-cache aliases='blue'/>", "ISPN000438: Cache with name 'blue' is defined more than once!"),
        (
            "<local-cache aliases='green'/>",
            "cache configuration: aliases of local-cache cannot be green: it is the cache's own name or a reserved name",
        ),
    ] {
        let refused = task_result(&mut client, "@@cache@create", &create(configuration)).await;
        assert_eq!(refused, configuration_error(why));
        assert_eq!(value(&mut client, "green").await, None, "{configuration}");
    }
    let taken = client.ask("", exec("@@cache@create", "colour")).await;
    assert_eq!(error(&taken), configuration_error("ISPN000507: Cache colour already exists"));
    assert_eq!(client.ask("", exec("@@cache@getorcreate", "colour")).await.status, Status::Success);
    assert_eq!(value(&mut client, "colour").await.as_deref(), Some(&b"red"[..]));
}

#[tokio::test]
async fn caches_are_created_from_templates_of_clients() {
    let servers = RunningServer::three("templates").await;
    let (mut client, mut other) = (servers[0].client().await, servers[2].client().await);
    let create = |template| [("name", "made"), ("template", template)];
    let missing = task_result(&mut client, "@@cache@create", &create("mine")).await;
    assert!(
        missing
            .starts_with(&configuration_error("ISPN000374: No such template 'mine' when declaring 'made'"))
            && missing.contains("org.infinispan.LOCAL"),
        "{missing}"
    );
    let mine = [("name", "mine"), ("configuration", "<local-cache><memory max-count='3'/></local-cache>")];
    assert_eq!(task_result(&mut client, "@@template@create", &mine).await, "");
    let again = task_result(&mut other, "@@template@create", &mine).await;
    let exists = "ISPN000453: Attempt to define configuration for cache mine which already exists";
    assert_eq!(again, configuration_error(exists));
    let names = task_result(&mut other, "@@cache@templates", &[]).await;
    assert!(names.contains("\"org.infinispan.DIST_SYNC\"") && names.ends_with(",\"mine\"]"), "{names}");
    let names = task_result(&mut other, "@@cache@names", &[]).await;
    assert_eq!(names, r#"["___protobuf_metadata"]"#, "a template is no cache");
    assert_eq!(value(&mut other, "mine").await, None);
    assert_eq!(task_result(&mut other, "@@cache@create", &create("mine")).await, "");
    assert_eq!(other.ask("made", put("k", "v")).await.status, Status::Success);
    assert_eq!(task_result(&mut client, "@@template@remove", &[("name", "mine")]).await, "");
    assert_eq!(value(&mut other, "made").await.as_deref(), Some(&b"v"[..]), "what is made of it stays");
    let gone = [("name", "another"), ("template", "mine")];
    assert!(task_result(&mut other, "@@cache@create", &gone).await.contains("ISPN000374"));
    for (task, params, why) in [
        (
            "@@template@create",
            vec![("name", "x")],
            "org.infinispan.commons.CacheException: ISPN005030: Administration task invoked without required parameter \
             'configuration'",
        ),
        (
            "@@template@remove",
            vec![],
            "org.infinispan.commons.CacheException: ISPN005030: Administration task invoked without required parameter 'name'",
        ),
        (
            "@@template@remove",
            vec![("name", "org.infinispan.LOCAL")],
            "template 'org.infinispan.LOCAL' comes with the server",
        ),
        (
            "@@template@create",
            vec![("name", "x"), ("configuration", "<local-cache owners='2'/>")],
            "ISPN000686: cache configuration: owners of local-cache cannot be 2",
        ),
        (
            "@@template@create",
            vec![("name", "x"), ("configuration", "<local-cache aliases='y'/>")],
            "cache configuration: aliases of a template: an alias names one cache",
        ),
    ] {
        let refused = task_result(&mut client, task, &params).await;
        // Without a parameter it is another exception.
        assert!(refused == configuration_error(why) || refused == why, "{refused}");
    }
}

#[tokio::test]
async fn caches_aliases_and_templates_are_bounded_together() {
    let (_server, mut client) = with_alias("caches-max").await;
    let template = async |client: &mut Client, name: &str| {
        let params = [("name", name), ("configuration", "<local-cache/>")];
        task_result(client, "@@template@create", &params).await
    };
    for nth in 3..CACHES_MAX {
        assert_eq!(template(&mut client, &format!("t{nth}")).await, "");
    }
    let full = format!("the limit of {CACHES_MAX} caches, aliases and templates is reached");
    assert_eq!(template(&mut client, "one-more").await, full);
    assert_eq!(assign(&mut client, "one-more", "red").await, full);
    assert_eq!(task_result(&mut client, "@@cache@create", &[("name", "one-more")]).await, full);
    // An existing name can still be changed, and a removed one frees its place.
    assert_eq!(assign(&mut client, "colour", "blue").await, "");
    assert_eq!(task_result(&mut client, "@@template@remove", &[("name", "t3")]).await, "");
    assert_eq!(task_result(&mut client, "@@cache@create", &[("name", "one-more")]).await, "");
}
