//! `consort uperf --jgroups`: a member of JGroups' own UPerf, so that members in Java and of Consort measure each other.

mod invokers;
mod settings;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use consort_channel::rpc::{RequestOptions, Responder, RpcDispatcher, RpcHandler};
use consort_channel::{Address, Flags, Message, Object, Payload, Primitive};
use consort_group::wire::{
    UperfCall, UperfResults, decode_uperf_call, decode_uperf_config, encode_uperf_call, encode_uperf_config,
};
use consort_procstat::grouped;
use serde::Serialize;
use tokio::sync::{Notify, SetOnce};

use self::settings::Settings;
use super::uperf::Uperf;
use super::{Others, member, progress};
use crate::shutdown::{Signals, end_of_input};
use crate::terminal::Escaped;

/// UPerf's name of the cluster.
const CLUSTER: &str = "uperf";

/// The time for the settings of the coordinator, as in Java.
const CONFIG_TIMEOUT: Duration = Duration::from_secs(5);

/// Members need a moment to start and to send their results.
const RESULTS_TIME: Duration = Duration::from_secs(30);

struct UperfMember {
    settings: Mutex<Settings>,
    /// The value of reads.
    value: Mutex<Bytes>,
    dispatcher: SetOnce<RpcDispatcher>,
    is_running: AtomicBool,
    counted: Arc<AtomicU64>,
    failed: AtomicU64,
    /// Those of members of the view; `None`: the member's test failed.
    results: Mutex<BTreeMap<Address, Option<UperfResults>>>,
    has_results: Notify,
    quits: Notify,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn object(object: Object) -> Payload {
    Payload::Object(Box::new(object))
}

fn call(call: &UperfCall) -> Payload {
    object(encode_uperf_call(call))
}

/// Control messages overtake the load, as in Java.
fn unanswered() -> RequestOptions {
    RequestOptions::none().with_flags(Flags::OOB | Flags::DONT_BUNDLE | Flags::NO_FC)
}

struct Handler(Arc<UperfMember>);

impl RpcHandler for Handler {
    fn handle(&self, request: Message, responder: Option<Responder>) {
        let result = match decode_uperf_call(&request.payload) {
            Ok(call) => self.0.answer(call),
            Err(error) => Err(format!("not a call of UPerf: {error}")),
        };
        if let Some(responder) = responder {
            responder.reply(result);
        } else if let Err(error) = result {
            eprintln!("{}", Escaped(error));
        }
    }
}

impl UperfMember {
    fn new(settings: Settings) -> Self {
        let value = vec![0; usize::try_from(settings.size).unwrap_or(0)];
        Self {
            settings: Mutex::new(settings),
            value: Mutex::new(value.into()),
            dispatcher: SetOnce::new(),
            is_running: AtomicBool::new(false),
            counted: Arc::default(),
            failed: AtomicU64::new(0),
            results: Mutex::default(),
            has_results: Notify::new(),
            quits: Notify::new(),
        }
    }

    fn answer(self: &Arc<Self>, call: UperfCall) -> Result<Payload, String> {
        let nothing = Ok(object(Object::Null));
        match call {
            UperfCall::Get => Ok(object(Object::Primitive(Primitive::Bytes(lock(&self.value).clone())))),
            UperfCall::Put(_) => nothing,
            UperfCall::GetConfig => Ok(object(encode_uperf_config(&lock(&self.settings).list()))),
            UperfCall::Set { name, value } => {
                self.set(&name, &value)?;
                nothing
            }
            UperfCall::Start(starter) => {
                if self.is_running.swap(true, Ordering::AcqRel) {
                    return Err("a test that was started while another one runs is refused".to_owned());
                }
                tokio::spawn(self.clone().run_for(starter));
                nothing
            }
            UperfCall::AcceptResults { member, results } => {
                let view = self.dispatcher.get().and_then(|own| own.channel().view());
                if view.is_some_and(|view| view.contains(&member)) {
                    lock(&self.results).insert(member, results);
                    self.has_results.notify_one();
                }
                nothing
            }
            UperfCall::QuitAll => {
                self.quits.notify_one();
                nothing
            }
        }
    }

    fn set(&self, name: &str, value: &Primitive) -> Result<(), String> {
        let mut settings = lock(&self.settings);
        settings.set(name, value)?;
        let size = usize::try_from(settings.size).unwrap_or(0);
        drop(settings);
        let mut own = lock(&self.value);
        if own.len() != size {
            *own = vec![0; size].into();
        }
        Ok(())
    }

    /// Makes the calls, and sends the results to the member that has started the test. One test runs at a time.
    async fn run_for(self: Arc<Self>, starter: Address) {
        let dispatcher = self.dispatcher.wait().await;
        let settings = lock(&self.settings).clone();
        eprintln!("running for {} s with {} callers", settings.seconds, settings.threads);
        let run = invokers::run(dispatcher, &settings, &self.counted);
        let ran = progress::with_counter(run, || self.counted.load(Ordering::Relaxed), "calls").await;
        self.is_running.store(false, Ordering::Release);
        let results = match ran {
            Ok((results, failed)) => {
                self.failed.store(failed, Ordering::Relaxed);
                if failed > 0 {
                    eprintln!("{failed} calls have failed");
                }
                Some(results)
            }
            Err(error) => {
                eprintln!("the test has failed: {}", Escaped(error));
                None
            }
        };
        let member = dispatcher.channel().address().clone();
        let results = call(&UperfCall::AcceptResults { member, results });
        if let Err(error) = dispatcher.send(Some(&starter), results, &unanswered()).await {
            eprintln!("the results could not be sent: {}", Escaped(error));
        }
    }
}

#[derive(Serialize)]
struct Row {
    member: String,
    reqs_sec: f64,
    gets: i64,
    puts: i64,
    get_us: f64,
    put_us: f64,
}

impl Row {
    fn new(member: String, results: &UperfResults) -> Self {
        let mean_us =
            |times: &Option<consort_group::wire::UperfTimes>| times.map_or(0.0, |times| times.mean / 1e3);
        let seconds = results.milliseconds.max(1) as f64 / 1e3;
        let UperfResults { gets, puts, .. } = *results;
        let reqs_sec = gets.saturating_add(puts) as f64 / seconds;
        let (get_us, put_us) = (mean_us(&results.get_times), mean_us(&results.put_times));
        Self { member, reqs_sec, gets, puts, get_us, put_us }
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.member.clone(),
            grouped(self.reqs_sec),
            grouped(self.gets as f64),
            grouped(self.puts as f64),
            format!("{:.0}", self.get_us),
            format!("{:.0}", self.put_us),
        ]
    }
}

#[derive(Serialize)]
struct Summary {
    test: &'static str,
    members: Vec<Row>,
    reqs_sec_node: f64,
    /// Calls of this member.
    errors: u64,
}

pub(super) async fn run(mut test: Uperf) -> anyhow::Result<ExitCode> {
    let common = &mut test.common;
    let is_local = !common.join_only && !common.start_none;
    if is_local {
        common.join.on_this_host(super::cluster::FIRST_PORT, common.members)?;
        common.join.name.get_or_insert_with(|| super::member_name(0));
    }
    if common.join.cluster == crate::join::CLUSTER {
        CLUSTER.clone_into(&mut common.join.cluster);
    }
    let settings = Settings::of(&test);
    let member = Arc::new(UperfMember::new(settings));
    let mut signals = Signals::listen()?;
    let join = &test.common.join;
    let dispatcher = RpcDispatcher::connect(join.builder()?, &join.cluster, Handler(member.clone())).await;
    let dispatcher = dispatcher.with_context(|| format!("joining cluster {}", join.cluster))?;
    let _ = member.dispatcher.set(dispatcher.clone());
    let others = if is_local {
        let names = (1..test.common.members).map(super::member_name);
        super::cluster::start_others_with(CLUSTER, &["--jgroups"], join, names)?
    } else {
        Others(Vec::new())
    };
    let working = async {
        if test.common.join_only {
            fetch_settings(&member, &dispatcher).await;
            eprintln!("{}", Escaped(dispatcher.channel().view_text()));
            std::future::pending::<()>().await;
        }
        measure(&test, &member, &dispatcher).await
    };
    let is_good = tokio::select! {
        measured = working => measured,
        () = member.quits.notified() => Ok(true),
        _ = signals.next() => Ok(test.common.join_only),
        () = end_of_input(), if test.common.with_parent => Ok(true),
    };
    dispatcher.channel().clone().close().await;
    drop(others);
    Ok(if is_good? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// As Java's members, a member that joins has the settings of the coordinator.
async fn fetch_settings(member: &UperfMember, dispatcher: &RpcDispatcher) {
    let coordinator = dispatcher.channel().view().and_then(|view| view.coordinator().cloned());
    let Some(coordinator) = coordinator.filter(|first| first != dispatcher.channel().address()) else {
        return;
    };
    let options = RequestOptions::all(CONFIG_TIMEOUT);
    let fetched = dispatcher.call(&coordinator, call(&UperfCall::GetConfig), &options).await;
    let fetched = fetched.map_err(|error| error.to_string());
    let settings =
        fetched.and_then(|payload| decode_uperf_config(&payload).map_err(|error| error.to_string()));
    let applied = settings.and_then(|all| all.iter().try_for_each(|(name, value)| member.set(name, value)));
    if let Err(error) = applied {
        eprintln!("the coordinator's settings are not used: {}", Escaped(error));
    }
}

async fn measure(test: &Uperf, own: &UperfMember, dispatcher: &RpcDispatcher) -> anyhow::Result<bool> {
    let channel = dispatcher.channel();
    member::wait_for_members(channel, test.common.members).await?;
    let settings = lock(&own.settings).clone();
    for (name, value) in settings.list() {
        let set = call(&UperfCall::Set { name: name.to_owned(), value });
        for answer in dispatcher.call_all(set, &RequestOptions::all(CONFIG_TIMEOUT)).await? {
            let member = channel.name_of(&answer.member);
            answer.result.with_context(|| format!("setting {name} at {member}"))?;
        }
    }
    lock(&own.results).clear();
    eprintln!("{}", Escaped(channel.view_text()));
    let start = call(&UperfCall::Start(channel.address().clone()));
    dispatcher.send(None, start, &unanswered()).await?;
    let time = Duration::from_secs(u64::from(settings.seconds.unsigned_abs())) + RESULTS_TIME;
    let all = async {
        let is_missing = || {
            let (view, results) = (channel.view(), lock(&own.results));
            view.is_some_and(|view| view.members().iter().any(|member| !results.contains_key(member)))
        };
        while is_missing() {
            // A member may have left meanwhile.
            let _ = tokio::time::timeout(Duration::from_secs(1), own.has_results.notified()).await;
        }
    };
    let is_complete = tokio::time::timeout(time, all).await.is_ok();
    let results = lock(&own.results).clone();
    let mut rows = Vec::new();
    let view = channel.view();
    for member in view.iter().flat_map(|view| view.members()) {
        let name = channel.name_of(member);
        match results.get(member) {
            Some(Some(results)) => rows.push(Row::new(name, results)),
            Some(None) => eprintln!("{}: the test has failed there", Escaped(name)),
            None => eprintln!("{}: no results within {} s", Escaped(name), time.as_secs()),
        }
    }
    let errors = own.failed.load(Ordering::Relaxed);
    let count = rows.len();
    let reqs_sec_node = rows.iter().map(|row| row.reqs_sec).sum::<f64>() / count.max(1) as f64;
    let heads = ["member", "req/s", "reads", "writes", "read us", "write us"].map(str::to_owned);
    let mut table = vec![heads.to_vec()];
    table.extend(rows.iter().map(Row::cells));
    test.common.show(&Summary { test: "uperf", members: rows, reqs_sec_node, errors }, &table)?;
    if !test.common.json {
        println!("{} requests per second and member", grouped(reqs_sec_node));
    }
    Ok(is_complete && errors == 0 && count >= test.common.members)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use consort_group::Rng;

    use super::*;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        test: Uperf,
    }

    #[tokio::test]
    async fn tests_beyond_the_first_and_results_of_members_outside_of_the_view_are_not_kept() {
        let test = Arguments::parse_from(["consort", "--size=7"]).test;
        let own = Arc::new(UperfMember::new(Settings::of(&test)));
        let other = Address::random(&mut Rng::new(1));
        assert!(own.answer(UperfCall::Start(other.clone())).is_ok());
        for _ in 0..3 {
            let refused = own.answer(UperfCall::Start(other.clone())).unwrap_err();
            assert!(refused.contains("while another one runs"), "{refused}");
        }
        let results = Some(UperfResults::default());
        own.answer(UperfCall::AcceptResults { member: other, results }).unwrap();
        assert!(lock(&own.results).is_empty());
        let value = own.answer(UperfCall::Get).unwrap();
        assert_eq!(value, object(Object::Primitive(Primitive::Bytes(vec![0; 7].into()))));
    }
}
