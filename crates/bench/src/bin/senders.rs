//! Threads that send to one member (S003-7): two members in this process; every sender is a thread on the
//! channel of the first. Prints one line of JSON as `consort mperf --json`.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Parser;
use consort_channel::{Channel, Delivery, IgnoringReceiver, Message, Receiver};
use consort_conf::Variables;
use consort_procstat::process;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures threads that send unicasts to one member through one channel.
#[derive(Parser)]
struct Arguments {
    /// Sending threads.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Bytes per message.
    #[arg(long, default_value_t = 100)]
    size: usize,
    /// Seconds of the measurement.
    #[arg(long, default_value_t = 3.0)]
    time: f64,
    /// Seconds before the measurement.
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    /// TCP port of the first member.
    #[arg(long, default_value_t = 18_800)]
    port: u16,
}

/// Ten times longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Counter {
    count: Mutex<u64>,
    grown: Condvar,
}

impl Counter {
    fn get(&self) -> u64 {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for(&self, wanted: u64) -> u64 {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.grown.wait_timeout_while(count, PATIENCE, |count| *count < wanted);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Receiver for Counter {
    fn receive_batch(&self, mut delivery: Delivery) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += delivery.take().len() as u64;
        self.grown.notify_all();
    }
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let received = Arc::new(Counter::default());
    let sender = Member::start(&arguments, "A", IgnoringReceiver)?;
    let receiver = Member::start(&arguments, "B", received.clone())?;
    let runtime = current_thread()?;
    runtime.block_on(async {
        for member in [&sender, &receiver] {
            let mut views = member.channel.watch_view();
            let both = views.wait_for(|view| view.as_ref().is_some_and(|view| view.len() == 2));
            tokio::time::timeout(PATIENCE, both).await.context("no view of both")??;
        }
        anyhow::Ok(())
    })?;

    let is_over = Arc::new(AtomicBool::new(false));
    let senders: Vec<_> = (0..arguments.threads)
        .map(|_| {
            let (channel, is_over) = (sender.channel.clone(), is_over.clone());
            let message = Message::bytes(Some(receiver.channel.address().clone()), vec![0; arguments.size]);
            thread::spawn(move || -> anyhow::Result<u64> {
                let runtime = current_thread()?;
                let mut sent = 0;
                while !is_over.load(Relaxed) {
                    runtime.block_on(channel.send(message.clone()))?;
                    sent += 1;
                }
                Ok(sent)
            })
        })
        .collect();
    thread::sleep(Duration::from_secs_f64(arguments.warmup));
    let (begun, cpu, before) = (Instant::now(), process::cpu(), received.get());
    thread::sleep(Duration::from_secs_f64(arguments.time));
    let count = received.get() - before;
    let (seconds, cpu) = (begun.elapsed().as_secs_f64(), (process::cpu() - cpu).as_secs_f64());
    is_over.store(true, Relaxed);
    let mut sent = 0;
    for sender in senders {
        sent += sender.join().map_err(|_| anyhow::anyhow!("a sender panicked"))??;
    }
    let rss_mb = process::peak_memory_mb();
    let lost = sent.saturating_sub(received.wait_for(sent));
    sender.end()?;
    receiver.end()?;
    ensure!(count > 0, "nothing came");
    let figures = serde_json::json!({
        "test": "senders",
        "threads": arguments.threads,
        "size": arguments.size,
        "msgs_sec_node": count as f64 / seconds,
        "cpu_s_per_mmsg": cpu * 1e6 / count as f64,
        "rss_mb": rss_mb,
        "lost": lost,
    });
    println!("{figures}");
    Ok(())
}

fn current_thread() -> anyhow::Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

struct Member {
    channel: Channel,
    end: oneshot::Sender<()>,
    thread: thread::JoinHandle<anyhow::Result<()>>,
}

impl Member {
    fn start(arguments: &Arguments, name: &'static str, receiver: impl Receiver) -> anyhow::Result<Self> {
        let variables = Variables::new()
            .with("jgroups.bind_addr", "127.0.0.1")
            .with("jgroups.bind_port", arguments.port.to_string())
            .with("jgroups.tcpping.initial_hosts", format!("127.0.0.1[{}]", arguments.port));
        let builder = Channel::from_file_with("tcp.xml", &variables)?.name(name).receiver(receiver);
        let (told, connected) = mpsc::channel();
        let (end, ended) = oneshot::channel();
        let thread = thread::spawn(move || {
            current_thread()?.block_on(async {
                let channel = builder.connect("senders").await?;
                told.send(channel.clone()).context("the receiver has gone")?;
                let _ = ended.await;
                channel.close().await;
                anyhow::Ok(())
            })
        });
        match connected.recv_timeout(PATIENCE) {
            Ok(channel) => Ok(Self { channel, end, thread }),
            Err(_) if thread.is_finished() => match thread.join() {
                Ok(Err(error)) => Err(error.context(name)),
                _ => bail!("{name} panicked"),
            },
            Err(_) => bail!("{name} does not join"),
        }
    }

    fn end(self) -> anyhow::Result<()> {
        let _ = self.end.send(());
        self.thread.join().map_err(|_| anyhow::anyhow!("a member panicked"))?
    }
}
