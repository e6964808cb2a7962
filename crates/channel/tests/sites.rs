//! Tests of sites on channels of one process.

mod cluster;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cluster::{PATIENCE, join, join_rpc, members};
use consort_channel::relay::SiteListener;
use consort_channel::rpc::{RequestOptions, Responder, RpcDispatcher, RpcHandler};
use consort_channel::{Address, Channel, ChannelBuilder, Flags, Message, Payload, Receiver, RpcError};
use consort_conf::{Variables, parse_stack};
use tokio::sync::watch;
use tokio::time::timeout;

const LOOPBACK: &str = "<SHARED_LOOPBACK/><SHARED_LOOPBACK_PING/><MERGE3 min_interval=\"200\" max_interval=\"500\"/>\
                        <FD_ALL3 timeout=\"3000\" interval=\"500\"/><VERIFY_SUSPECT2/><NAKACK2/><UNICAST3/><STABLE/>\
                        <GMS join_timeout=\"200\"/><UFC max_credits=\"100000\"/><MFC max_credits=\"100000\"/><FRAG2/>";

/// Two sites with one bridge; a drop removes the files.
struct Files(PathBuf);

impl Files {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("consort-sites-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let site = |name: &str| {
            format!(
                "<site name=\"{name}\"><bridges><bridge name=\"{test}-global\" config=\"bridge.xml\"/></bridges></site>"
            )
        };
        let sites =
            format!("<RelayConfiguration><sites>{}{}</sites></RelayConfiguration>", site("lon"), site("nyc"));
        std::fs::write(path.join("relay.xml"), sites).unwrap();
        std::fs::write(path.join("bridge.xml"), format!("<config>{LOOPBACK}</config>")).unwrap();
        Self(path)
    }

    fn builder(&self, name: &str, site: &str, masters: usize) -> ChannelBuilder {
        self.builder_with(name, site, &format!("max_site_masters=\"{masters}\""))
    }

    fn builder_with(&self, name: &str, site: &str, attributes: &str) -> ChannelBuilder {
        let source = self.0.join("stack.xml").display().to_string();
        let text = format!(
            "<config>{LOOPBACK}<RSVP timeout=\"5000\"/>\
             <relay.RELAY2 site=\"{site}\" config=\"relay.xml\" {attributes}/></config>"
        );
        let stack = parse_stack(&source, &text, &Variables::new()).unwrap_or_else(|e| panic!("{e}"));
        Channel::from_config(stack.config).name(name)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Records `text from sender`, and the events of sites.
#[derive(Clone, Default)]
struct Recorder(Arc<watch::Sender<Vec<String>>>);

impl Recorder {
    fn push(&self, line: String) {
        self.0.send_modify(|all| all.push(line));
    }

    async fn wait_until(&self, is_done: impl FnMut(&Vec<String>) -> bool) {
        let mut lines = self.0.subscribe();
        let waiting = timeout(PATIENCE, lines.wait_for(is_done)).await;
        assert!(waiting.is_ok(), "{:?}", self.0.borrow().iter().rev().take(20).collect::<Vec<_>>());
    }

    async fn has(&self, line: &str) {
        self.wait_until(|all| all.iter().any(|one| one == line)).await;
    }
}

impl Receiver for Recorder {
    fn receive(&self, message: Message) {
        let bytes = message.payload_bytes().unwrap();
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(100)]).into_owned();
        self.push(format!("{text} from {}", message.src.unwrap()));
    }
}

impl SiteListener for Recorder {
    fn sites_up(&self, sites: &[Arc<str>]) {
        self.push(format!("up {}", sites.join(" ")));
    }
    fn sites_down(&self, sites: &[Arc<str>]) {
        self.push(format!("down {}", sites.join(" ")));
    }
    fn site_unreachable(&self, site: &str) {
        self.push(format!("unreachable {site}"));
    }
    fn member_unreachable(&self, member: &Address) {
        self.push(format!("unreachable {member}"));
    }
}

struct Site {
    channels: Vec<Channel>,
    logs: Vec<Recorder>,
}

async fn site(files: &Files, test: &str, site: &str, names: &[&str], masters: usize) -> Site {
    let mut all = Site { channels: Vec::new(), logs: Vec::new() };
    for name in names {
        let log = Recorder::default();
        let builder = files.builder(name, site, masters).receiver(log.clone()).site_listener(log.clone());
        all.channels.push(join(&format!("{test}-{site}"), builder).await);
        all.logs.push(log);
    }
    members(&all.channels[0], names.len()).await;
    all
}

async fn reach(site: &Site, other: &str) {
    for channel in &site.channels {
        let sites = channel.sites().expect("the stack has RELAY2");
        timeout(PATIENCE, sites.wait_for(other)).await.expect("in time").unwrap();
    }
}

async fn close(site: Site) {
    for channel in site.channels {
        channel.close().await;
    }
}

fn text(dest: Option<Address>, text: &str) -> Message {
    Message::bytes(dest, text.as_bytes().to_vec())
}

#[tokio::test]
async fn member_that_cannot_become_site_master_leaves_it_to_the_next_one() {
    let files = Files::new("tags");
    let mut channels = Vec::new();
    for (name, can) in [("A", false), ("B", true)] {
        let tags = format!("enable_address_tagging=\"true\" can_become_site_master=\"{can}\"");
        channels.push(join("tags-lon", files.builder_with(name, "lon", &tags)).await);
    }
    members(&channels[0], 2).await;
    members(&channels[1], 2).await;
    let is_master = |channel: &Channel| channel.sites().unwrap().status().is_site_master;
    let settled = async {
        while is_master(&channels[0]) || !is_master(&channels[1]) {
            tokio::task::yield_now().await;
        }
    };
    assert!(timeout(PATIENCE, settled).await.is_ok());
    for channel in channels {
        channel.close().await;
    }
}

#[tokio::test]
async fn messages_reach_other_sites_and_answers_come_back() {
    let files = Files::new("answers");
    let lon = site(&files, "answers", "lon", &["A", "B"], 1).await;
    let nyc = site(&files, "answers", "nyc", &["X", "Y"], 1).await;
    reach(&lon, "nyc").await;
    reach(&nyc, "lon").await;
    let status = nyc.channels[0].sites().unwrap().status();
    assert!(status.is_site_master && nyc.channels[0].sites().unwrap().own() == "nyc");
    assert!(!nyc.channels[1].sites().unwrap().status().is_site_master);

    let local = lon.channels[1].address().clone();
    lon.channels[1].send(text(None, "to all")).await.unwrap();
    for log in &nyc.logs {
        log.has("to all from B:lon").await;
    }
    lon.logs[0].has(&format!("to all from {local}")).await;
    lon.channels[1].send(text(Some(Address::site_master("nyc")), "to the master")).await.unwrap();
    nyc.logs[0].has("to the master from B:lon").await;
    // Each member answers to the sender's address of its site.
    let b = local.in_site("lon", Some("B"));
    let answer = text(Some(b), "answer").with_flags(Flags::RSVP);
    nyc.channels[1].send(answer).await.expect("the site master acknowledges");
    lon.logs[1].has("answer from Y:nyc").await;
    lon.channels[0].send(text(Some(Address::site_master("lon")), "to itself")).await.unwrap();
    lon.logs[0].has("to itself from A:lon").await;
    close(lon).await;
    close(nyc).await;
}

#[tokio::test]
async fn senders_hear_that_a_site_is_away_and_is_there_again() {
    let files = Files::new("away");
    let lon = site(&files, "away", "lon", &["A", "B"], 1).await;
    lon.channels[1].send(text(Some(Address::site_master("nyc")), "lost")).await.unwrap();
    lon.logs[1].has("unreachable nyc").await;
    let nyc = site(&files, "away", "nyc", &["X"], 1).await;
    lon.logs[1].has("up nyc").await;
    close(nyc).await;
    lon.logs[0].has("down nyc").await;
    lon.logs[1].has("down nyc").await;
    assert_eq!(lon.channels[1].sites().unwrap().status().reachable, []);
    close(lon).await;
}

/// S000-61
#[tokio::test]
async fn messages_keep_their_order_over_several_site_masters() {
    const COUNT: usize = 300;
    let files = Files::new("order");
    let lon = site(&files, "order", "lon", &["A", "B", "C"], 2).await;
    let nyc = site(&files, "order", "nyc", &["X", "Y", "Z"], 2).await;
    reach(&lon, "nyc").await;
    reach(&nyc, "lon").await;
    let z = nyc.channels[2].address().in_site("nyc", None);
    let sending = lon.channels.iter().map(|channel| {
        let (channel, z) = (channel.clone(), z.clone());
        tokio::spawn(async move {
            for nth in 0..COUNT {
                channel.send(text(Some(z.clone()), &format!("u {nth}"))).await.unwrap();
                channel.send(text(None, &format!("m {nth}"))).await.unwrap();
            }
        })
    });
    for sending in sending.collect::<Vec<_>>() {
        timeout(PATIENCE, sending).await.expect("in time").unwrap();
    }
    let log = &nyc.logs[2];
    log.wait_until(|all| all.iter().filter(|one| one.contains(" from ")).count() >= 6 * COUNT).await;
    let all = log.0.borrow().clone();
    for (kind, name) in [("u", "A"), ("u", "B"), ("u", "C"), ("m", "A"), ("m", "B"), ("m", "C")] {
        let end = format!(" from {name}:lon");
        let numbers: Vec<usize> = all
            .iter()
            .filter_map(|one| one.strip_suffix(&end)?.strip_prefix(kind)?.trim().parse().ok())
            .collect();
        assert_eq!(numbers, (0..COUNT).collect::<Vec<_>>(), "{kind} of {name}");
    }
    close(lon).await;
    close(nyc).await;
}

#[tokio::test]
async fn site_masters_that_flood_each_other_do_not_stop() {
    const COUNT: usize = 200;
    let files = Files::new("flood");
    let lon = site(&files, "flood", "lon", &["A", "B"], 1).await;
    let nyc = site(&files, "flood", "nyc", &["X", "Y"], 1).await;
    reach(&lon, "nyc").await;
    reach(&nyc, "lon").await;
    let all: Vec<Channel> = lon.channels.iter().chain(&nyc.channels).cloned().collect();
    let sending = all.into_iter().map(|channel| {
        tokio::spawn(async move {
            for _ in 0..COUNT {
                channel.send(Message::bytes(None, vec![b'x'; 10_000])).await.unwrap();
            }
        })
    });
    for sending in sending.collect::<Vec<_>>() {
        timeout(Duration::from_secs(60), sending).await.expect("no site waits for the other").unwrap();
    }
    for log in lon.logs.iter().chain(&nyc.logs) {
        log.wait_until(|all| all.iter().filter(|one| one.contains(" from ")).count() == 4 * COUNT).await;
    }
    assert_eq!(lon.channels[0].sites().unwrap().dropped(), 0);
    close(lon).await;
    close(nyc).await;
}

/// Answers with its name, fails, or keeps the caller waiting.
struct Named(&'static str);

impl RpcHandler for Named {
    fn handle(&self, request: Message, responder: Option<Responder>) {
        let Some(responder) = responder else { return };
        match request.payload_bytes().map(|bytes| &bytes[..]) {
            Some(b"fail") => responder.reply(Err("requested".to_owned())),
            Some(b"wait") => {}
            _ => responder.reply(Ok(Payload::Bytes(Some(self.0.into())))),
        }
    }
}

async fn callee(files: &Files, site: &str, name: &'static str) -> RpcDispatcher {
    join_rpc(&format!("calls-{site}"), files.builder(name, site, 1), Named(name)).await
}

#[tokio::test]
async fn calls_reach_members_of_other_sites_and_fail_with_the_site() {
    let files = Files::new("calls");
    let lon = callee(&files, "lon", "A").await;
    let b = callee(&files, "lon", "B").await;
    let nyc = callee(&files, "nyc", "X").await;
    let y = callee(&files, "nyc", "Y").await;
    for (dispatcher, other) in [(&lon, "nyc"), (&b, "nyc"), (&nyc, "lon"), (&y, "lon")] {
        members(dispatcher.channel(), 2).await;
        let sites = dispatcher.channel().sites().expect("RELAY2");
        timeout(PATIENCE, sites.wait_for(other)).await.expect("in time").unwrap();
    }
    let options = RequestOptions::all(PATIENCE);
    let request = |text: &'static str| Payload::Bytes(Some(text.into()));
    let named = |name: &'static str| Payload::Bytes(Some(name.into()));
    let master = Address::site_master("nyc");
    let to_y = y.channel().address().in_site("nyc", None);
    for caller in [&lon, &b] {
        assert_eq!(caller.call(&master, request("who"), &options).await, Ok(named("X")));
        assert_eq!(caller.call(&to_y, request("who"), &options).await, Ok(named("Y")));
        let failed = caller.call(&to_y, request("fail"), &options).await.unwrap_err().to_string();
        assert!(failed.contains("requested"), "{failed}");
    }
    let called = [b.channel().address().clone(), to_y.clone(), Address::site_master("nyc")];
    let rows = lon.call_members(&called, request("who"), &options).await.unwrap();
    let mut rows: Vec<_> = rows.into_iter().map(|row| row.result.unwrap()).collect();
    rows.sort_by_key(|payload| format!("{payload:?}"));
    assert_eq!(rows, [named("B"), named("X"), named("Y")]);
    let nowhere = lon.call(&Address::site_master("sfo"), request("who"), &options).await;
    assert_eq!(nowhere, Err(RpcError::SiteUnreachable("sfo".into())));

    // A call that is not answered ends with the site, and not before.
    let waiting = {
        let (b, to_y) = (b.clone(), to_y.clone());
        tokio::spawn(async move { b.call(&to_y, request("wait"), &RequestOptions::all(PATIENCE)).await })
    };
    while b.pending() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(b.call(&master, request("who"), &options).await, Ok(named("X")));
    assert!(!waiting.is_finished());
    y.channel().clone().close().await;
    nyc.channel().clone().close().await;
    let lost = timeout(PATIENCE, waiting).await.expect("in time").unwrap();
    assert_eq!(lost, Err(RpcError::SiteUnreachable("nyc".into())));
    b.channel().clone().close().await;
    lon.channel().clone().close().await;
}

#[tokio::test]
async fn member_without_its_site_in_the_file_does_not_connect() {
    let files = Files::new("unknown");
    let error = files.builder("A", "sfo", 1).connect("unknown").await.unwrap_err().to_string();
    assert!(error.contains("there is no site `sfo`; there are: `lon`, `nyc`"), "{error}");
}

/// Three sites with RELAY3, of which the outer ones have no common bridge. The sites are in the stacks themselves.
struct Chain(Files);

impl Chain {
    fn new(test: &str) -> Self {
        Self(Files::new(test))
    }

    async fn join(
        &self,
        test: &str,
        name: &str,
        site: &str,
        (bridges, forwards): (&[&str], &[(&str, &str)]),
    ) -> Site {
        let bridge = |name: &&str| format!("<bridge name=\"{test}-{name}\" config=\"bridge.xml\"/>");
        let forward = |(to, gateway): &(&str, &str)| format!("<forward to=\"{to}\" gateway=\"{gateway}\"/>");
        let text = format!(
            "<config>{LOOPBACK}<relay.RELAY3 site=\"{site}\"><RelayConfiguration><sites><site name=\"{site}\"><bridges>{}</bridges>\
             <forwards>{}</forwards></site></sites></RelayConfiguration></relay.RELAY3></config>",
            bridges.iter().map(bridge).collect::<String>(),
            forwards.iter().map(forward).collect::<String>(),
        );
        let file = self.0.0.join(format!("{site}.xml")).display().to_string();
        std::fs::write(&file, text).unwrap();
        let log = Recorder::default();
        let builder = Channel::from_file(&file).unwrap_or_else(|error| panic!("{error}")).name(name);
        let builder = builder.receiver(log.clone()).site_listener(log.clone());
        Site { channels: vec![join(&format!("{test}-{site}"), builder).await], logs: vec![log] }
    }
}

#[tokio::test]
async fn relay3_reaches_sites_over_another_site() {
    let test = "chain";
    let files = Chain::new(test);
    let lon = files.join(test, "A", "lon", (&["west"], &[("sfo", "nyc"), ("x.*", "nyc")])).await;
    let nyc = files.join(test, "B", "nyc", (&["west", "east"], &[])).await;
    let sfo = files.join(test, "C", "sfo", (&["east"], &[(".*", "nyc")])).await;
    for (site, others) in [(&lon, ["nyc", "sfo"]), (&nyc, ["lon", "sfo"]), (&sfo, ["lon", "nyc"])] {
        for other in others {
            reach(site, other).await;
        }
    }
    for (site, name) in [(&lon, "A:lon"), (&nyc, "B:nyc"), (&sfo, "C:sfo")] {
        site.channels[0].send(text(None, "to all")).await.unwrap();
        for receiver in [&lon, &nyc, &sfo] {
            receiver.logs[0].has(&format!("to all from {name}")).await;
        }
    }
    lon.channels[0].send(text(Some(Address::site_master("sfo")), "to C")).await.unwrap();
    sfo.logs[0].has("to C from A:lon").await;
    let back = lon.channels[0].address().clone();
    sfo.channels[0].send(text(Some(back.clone()), "to A")).await.unwrap();
    lon.logs[0].has("to A from C:sfo").await;
    // nyc has no route to xyz, and sfo has no member D.
    lon.channels[0].send(text(Some(Address::site_master("xyz")), "lost")).await.unwrap();
    lon.logs[0].has("unreachable xyz").await;
    let absent = Address::random(&mut consort_group::Rng::new(1)).in_site("sfo", Some("D"));
    lon.channels[0].send(text(Some(absent), "lost")).await.unwrap();
    lon.logs[0].has("unreachable D:sfo").await;
    // Each multicast has come once.
    let all = lon.logs[0].0.borrow().iter().filter(|line| line.starts_with("to all")).count();
    assert_eq!(all, 3);
    close(sfo).await;
    lon.logs[0].has("down sfo").await;
    close(lon).await;
    close(nyc).await;
}
