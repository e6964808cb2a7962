//! Writing and reading messages, alone and in lists, beside JGroups (S000-68).
//!
//! They are multicasts with the headers of NAKACK2 and of the transport. Both programs reuse memory, and have
//! to produce the same number of bytes.

use std::hint::black_box;
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::{Bytes, BytesMut};
use consort_group::wire::{
    Bulk, append_to_list, begin_list, decode_packet, encode_tp, finish_list, write_single,
};
use consort_group::{Address, HeaderBody, Message, NakAckHeader, ProtocolId, Uuid, Version};
use consort_testbed::Jar;

use super::timing::nanos;
use crate::java::{self, Jvm, Jvms};
use crate::options::Options;
use crate::progress::Progress;
use crate::sample::Runs;
use crate::targets::{NANOS_PER_MESSAGE, Rival, Row, Target};

const CLUSTER: &str = "bench";
const SIZES: [usize; 2] = [0, 1_000];

/// Messages in a packet; one is written without a list.
const COUNTS: [usize; 3] = [1, 10, 100];

/// A JVM runs all cases this often before the measurement.
const WARMUP_ROUNDS: u32 = 2;

#[derive(Clone, Copy)]
struct Case {
    is_read: bool,
    size: usize,
    count: usize,
}

impl Case {
    fn all() -> Vec<Self> {
        let mut cases = Vec::new();
        for is_read in [false, true] {
            for size in SIZES {
                cases.extend(COUNTS.map(|count| Self { is_read, size, count }));
            }
        }
        cases
    }

    fn name(self) -> String {
        let verb = if self.is_read { "read" } else { "write" };
        match self.count {
            1 => format!("{verb} a message of {} B", self.size),
            count => format!("{verb} a list of {count}, {} B each", self.size),
        }
    }

    fn line(self, time: Duration) -> String {
        let verb = if self.is_read { "read" } else { "write" };
        format!("{verb} size={} count={} time_ms={}", self.size, self.count, time.as_millis())
    }
}

pub(super) fn measure(options: &Options, jar: Option<&Jar>) -> anyhow::Result<Vec<Row>> {
    let cases = Case::all();
    // There are many slices of a case: each takes a tenth of a cluster's measurement.
    let time = options.time() / 10;
    let mut progress = Progress::new(time * (cases.len() * options.runs() * 2) as u32);
    let mut jvm = jar.map(|jar| start(options, jar)).transpose()?;
    if let Some(jvm) = &mut jvm {
        progress.step("messages: JGroups warms up");
        let most = Duration::from_secs_f64(options.java_warmup.max(0.0));
        let warmup = (most / (cases.len() as u32 * WARMUP_ROUNDS)).min(Duration::from_secs(1));
        let warmup = if options.quick { Duration::from_millis(10) } else { warmup };
        for _ in 0..WARMUP_ROUNDS {
            for case in &cases {
                java(jvm, *case, warmup)?;
            }
        }
    }
    let (mut ours, mut theirs) = (vec![Runs::default(); cases.len()], vec![Runs::default(); cases.len()]);
    for run in 1..=options.runs() {
        progress.step(&format!("messages: run {run} of {}", options.runs()));
        for (nth, case) in cases.iter().enumerate() {
            let packet = Written::of(*case);
            ours[nth].0.push(packet.measure(*case, time)? / case.count as f64);
            progress.finish(time);
            if let Some(jvm) = &mut jvm {
                let (nanos, bytes) = java(jvm, *case, time)?;
                ensure!(
                    bytes == packet.bytes.len(),
                    "{}: {} bytes, and {bytes} of JGroups",
                    case.name(),
                    packet.bytes.len()
                );
                theirs[nth].0.push(nanos / case.count as f64);
            }
            progress.finish(time);
        }
    }
    Ok(cases
        .iter()
        .zip(ours.iter().zip(&theirs))
        .map(|(case, (ours, theirs))| {
            let of = (case.name(), NANOS_PER_MESSAGE);
            Row::beside(Rival::Jgroups, of, ours, jvm.is_some().then_some(theirs), Some(Target::AtMost(1.0)))
        })
        .collect())
}

fn start(options: &Options, jar: &Jar) -> anyhow::Result<Jvm> {
    let jdk = java::find()?;
    let jvms = Jvms { jdk: &jdk, jar, classpath: jar.classpath(), heap: &options.java_heap, members: 1 };
    Jvm::start(&jvms, &[], &["consort.bench.Marshal"], "bench-marshal.log")
}

fn java(jvm: &mut Jvm, case: Case, time: Duration) -> anyhow::Result<(f64, usize)> {
    jvm.say(&case.line(time))?;
    let answer = jvm.answer()?;
    let nanos = answer["nanos"].as_f64().context("nanos")?;
    Ok((nanos, answer["bytes"].as_u64().context("bytes")? as usize))
}

struct Written {
    messages: Vec<Message>,
    tp: Bytes,
    bytes: Bytes,
}

impl Written {
    fn of(case: Case) -> Self {
        let src = Address::Uuid(Uuid { most: 1, least: 2 });
        // One payload for all, as in the Java program.
        let payload = Bytes::from(vec![7; case.size]);
        let messages = (1..=case.count as u64).map(|seqno| {
            let mut message = Message::bytes(None, payload.clone());
            message.src = Some(src.clone());
            message.headers.put(ProtocolId::NAKACK2, HeaderBody::NakAck2(NakAckHeader::Msg { seqno }));
            message
        });
        let mut written = Self { messages: messages.collect(), tp: encode_tp(CLUSTER), bytes: Bytes::new() };
        let mut out = BytesMut::new();
        written.write(&mut out);
        written.bytes = out.freeze();
        written
    }

    fn write(&self, out: &mut BytesMut) {
        match &self.messages[..] {
            [message] => write_single(out, Version::V5_5_7, message, &self.tp, Bulk::Copied),
            messages => {
                let src = messages.first().and_then(|message| message.src.as_ref());
                let start = begin_list(out, Version::V5_5_7, None, src, CLUSTER);
                for message in messages {
                    append_to_list(out, message, src, &self.tp, Bulk::Copied);
                }
                finish_list(out, start, messages.len() as u32);
            }
        }
    }

    fn measure(&self, case: Case, time: Duration) -> anyhow::Result<f64> {
        if case.is_read {
            decode_packet(&self.bytes, &self.tp).context("the written message")?;
            return Ok(nanos(time, || {
                let _ = black_box(decode_packet(black_box(&self.bytes), &self.tp));
            }));
        }
        let mut out = BytesMut::with_capacity(self.bytes.len());
        Ok(nanos(time, || {
            out.clear();
            black_box(self).write(&mut out);
            black_box(&out);
        }))
    }
}
