use std::future::poll_fn;
use std::panic::resume_unwind;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Instant;

use consort_group::{
    Address, Flags, HeaderBody, Message, MessageBatch, Object, Payload, ProtocolId, RpcHeader, RpcKind,
    RpcMultiHeader, View,
};
use tokio::sync::oneshot;

use super::correlator::{Correlator, RoundTrip, Wait};
use super::request::{RequestOptions, Response, ResponseMode, Responses};
use super::stats::{CallKind, RpcStats};
use crate::builder::ChannelBuilder;
use crate::catch_panic::catch_panic;
use crate::channel::Channel;
use crate::error::{ConnectError, RpcError, SendError};
use crate::receiver::{Delivery, Receiver};
use crate::up_handler::UpHandler;
use crate::weak_channel::WeakChannel;

/// A handler of requests: a closure from message to result, or an implementation that responds later.
///
/// A panic ends its request alone; a closure's text goes to the caller.
pub trait RpcHandler: Send + Sync + 'static {
    /// Handles a request; `responder` is absent if none is expected.
    fn handle(&self, request: Message, responder: Option<Responder>);
}

impl<F> RpcHandler for F
where
    F: Fn(&Message) -> Result<Payload, String> + Send + Sync + 'static,
{
    fn handle(&self, request: Message, responder: Option<Responder>) {
        let result = catch_panic("handle", request.src.as_ref(), || self(&request));
        if let Some(responder) = responder {
            responder.reply(result.unwrap_or_else(|panicked| Err(panicked.to_string())));
        }
    }
}

/// A request's responder; a drop leaves the caller to its timeout.
#[derive(Debug)]
pub struct Responder {
    channel: WeakChannel,
    dest: Address,
    header: RpcHeader,
    flags: Flags,
    is_empty: bool,
}

impl Responder {
    /// Sends the result or a failure.
    pub fn reply(self, result: Result<Payload, String>) {
        let (kind, payload) = match result {
            Ok(_) if self.is_empty => (RpcKind::Response, Payload::Empty),
            Ok(payload) => (RpcKind::Response, payload),
            Err(text) => (RpcKind::Exception, crate::rpc::failure_payload(&text)),
        };
        let mut flags = self.flags.without(Flags::RSVP | Flags::SERIALIZED);
        let is_wrapped = matches!(&payload, Payload::Object(object)
            if matches!(**object, Object::Primitive(_) | Object::Serialized(_)));
        if is_wrapped || kind == RpcKind::Exception {
            flags |= Flags::SERIALIZED;
        }
        let header = RpcHeader { kind, ..self.header };
        let message = Message::new(Some(self.dest), payload)
            .with_flags(flags)
            .with_header(ProtocolId(header.corr_id), HeaderBody::Rpc(header));
        self.channel.submit(message);
    }
}

struct Inner {
    id: ProtocolId,
    correlator: Correlator,
    stats: RpcStats,
    handler: Box<dyn RpcHandler>,
    receiver: Arc<dyn Receiver>,
    channel: OnceLock<WeakChannel>,
}

/// Remote procedure calls on a channel, cheap to clone.
#[derive(Clone)]
pub struct RpcDispatcher {
    inner: Arc<Inner>,
    channel: Channel,
}

impl RpcDispatcher {
    /// Connects with a request `handler`; the builder's receiver gets other messages.
    pub async fn connect(
        mut builder: ChannelBuilder,
        cluster: &str,
        handler: impl RpcHandler,
    ) -> Result<Self, ConnectError> {
        let inner = Arc::new(Inner {
            id: ProtocolId::REQUEST_CORRELATOR,
            correlator: Correlator::default(),
            stats: RpcStats::default(),
            handler: Box::new(handler),
            receiver: builder.take_receiver(),
            channel: OnceLock::new(),
        });
        let channel = builder.receiver(inner.clone()).up_handler(inner.clone()).connect(cluster).await?;
        Ok(Self { inner, channel })
    }

    /// Returns the channel.
    pub const fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Returns counters and times.
    pub fn stats(&self) -> &RpcStats {
        &self.inner.stats
    }

    /// Returns the number of pending calls.
    pub fn pending(&self) -> usize {
        self.inner.correlator.len()
    }

    /// Calls one member; outside the view it is suspected at once ([`RpcError`]). With RELAY2 or RELAY3 it may be a member of another
    /// site ([`Address::in_site`]), or a site's master ([`Address::site_master`]), until that site cannot be reached.
    pub async fn call(
        &self,
        dest: &Address,
        request: Payload,
        options: &RequestOptions,
    ) -> Result<Payload, RpcError> {
        if options.mode == ResponseMode::None {
            self.send(Some(dest), request, options).await?;
            return Ok(Payload::Empty);
        }
        self.inner.stats.count(CallKind::Unicast, true);
        let Inner { correlator, stats, .. } = &*self.inner;
        let wait = |done| Wait::One { member: dest.clone(), done };
        let open = correlator.open(options.timeout, stats.has_details(), None, wait);
        let (id, wait) = open.ok_or(RpcError::Closed)?;
        let _pending = Pending { correlator, id };
        let sending = self.transmit(Some(dest.clone()), request, id, options);
        self.outcome(wait, sending).await?.map_err(|error| self.with_names(error))
    }

    /// Calls all members, this one too, except exclusions. Fails if the request could not be sent; a member's failure, or
    /// [`RpcError::Closed`] before its response, is in its row. With RELAY2 or RELAY3, members of other sites carry it out as well,
    /// without a row; [`Flags::NO_RELAY`] keeps it in the site.
    pub async fn call_all(&self, request: Payload, options: &RequestOptions) -> Result<Responses, RpcError> {
        let view = self.channel.view().ok_or(RpcError::Closed)?;
        self.call_members(view.members(), request, options).await
    }

    /// Calls several members, as [`Self::call_all`]: by one multicast that others ignore, or with [`RequestOptions::anycast`] by
    /// unicasts that share the bytes (S000-64). If some are of other sites, all get unicasts.
    pub async fn call_members(
        &self,
        members: &[Address],
        request: Payload,
        options: &RequestOptions,
    ) -> Result<Responses, RpcError> {
        let view = self.channel.view().ok_or(RpcError::Closed)?;
        let wanted: Vec<Address> = members
            .iter()
            .filter(|member| member.is_beyond(&view) || view.contains(member))
            .filter(|member| !options.exclusion.contains(member))
            .cloned()
            .collect();
        let is_anycast = options.anycast || wanted.iter().any(|member| member.is_beyond(&view));
        let kind = if is_anycast { CallKind::Anycast } else { CallKind::Multicast };
        let is_sync = options.mode != ResponseMode::None;
        self.inner.stats.count(kind, is_sync);
        if wanted.is_empty() {
            return Err(RpcError::NoMembers);
        }
        let Inner { correlator, stats, .. } = &*self.inner;
        let mut open = None;
        if is_sync {
            let wait = |done| Wait::group(wanted.clone(), options, done);
            let opened = correlator.open(options.timeout, stats.has_details(), Some(view.id()), wait);
            open = Some(opened.ok_or(RpcError::Closed)?);
        }
        let id = open.as_ref().map_or(0, |(id, _)| *id);
        let _pending = Pending { correlator, id };
        let sending = async {
            if is_anycast {
                let request = self.request(request, id, &[], options.flags);
                let sent = self.channel.send_each(wanted.into_iter().map(Some).collect(), request).await;
                return sent.map_err(|error| failed(error, options));
            }
            let mut options = options.clone();
            options.exclusion =
                view.members().iter().filter(|member| !wanted.contains(member)).cloned().collect();
            self.transmit(None, request, id, &options).await
        };
        match open {
            Some((_, wait)) => match self.outcome(wait, sending).await? {
                Ok(responses) => {
                    let named = |Response { member, result }| Response {
                        member,
                        result: result.map_err(|error| self.with_names(error)),
                    };
                    Ok(responses.into_iter().map(named).collect())
                }
                Err(panic) => resume_unwind(panic),
            },
            None => sending.await.map(|()| Vec::new()),
        }
    }

    /// Sends a request without response (`None`: to all); fails if the channel is closed.
    pub async fn send(
        &self,
        dest: Option<&Address>,
        request: Payload,
        options: &RequestOptions,
    ) -> Result<(), RpcError> {
        let kind = if dest.is_some() { CallKind::Unicast } else { CallKind::Multicast };
        self.inner.stats.count(kind, false);
        self.transmit(dest.cloned(), request, 0, options).await
    }

    /// After the call's end nothing is sent, not even a waiting request.
    async fn outcome<T>(
        &self,
        mut wait: oneshot::Receiver<T>,
        sending: impl Future<Output = Result<(), RpcError>>,
    ) -> Result<T, RpcError> {
        let mut sending = pin!(sending);
        let mut has_waited = false;
        let over = poll_fn(|cx| {
            if let Poll::Ready(outcome) = Pin::new(&mut wait).poll(cx) {
                return Poll::Ready(outcome.map(Some).map_err(|_| RpcError::Closed));
            }
            let sent = sending.as_mut().poll(cx);
            if sent.is_pending() && !std::mem::replace(&mut has_waited, true) {
                // No sent message has woken the driver for the call's deadline.
                self.channel.wake_driver();
            }
            sent.map_ok(|()| None)
        });
        match over.await? {
            Some(outcome) => Ok(outcome),
            None => wait.await.map_err(|_| RpcError::Closed),
        }
    }

    fn with_names(&self, mut error: RpcError) -> RpcError {
        if let RpcError::Suspected(member) | RpcError::Remote { member, .. } = &mut error {
            *member = self.channel.member(&member.address);
        }
        error
    }

    async fn transmit(
        &self,
        dest: Option<Address>,
        request: Payload,
        id: u64,
        options: &RequestOptions,
    ) -> Result<(), RpcError> {
        let exclusion = if dest.is_none() { &*options.exclusion } else { &[] };
        let mut message = self.request(request, id, exclusion, options.flags);
        message.dest = dest;
        self.channel.send(message).await.map_err(|error| failed(error, options))
    }

    fn request(&self, request: Payload, id: u64, exclusion: &[Address], flags: Flags) -> Message {
        let corr_id = self.inner.id.0;
        let rpc = RpcHeader { kind: RpcKind::Request, request_id: id, corr_id };
        let header = if exclusion.is_empty() {
            HeaderBody::Rpc(rpc)
        } else {
            HeaderBody::RpcMulti(Box::new(RpcMultiHeader { rpc, exclusion: Some(exclusion.to_vec()) }))
        };
        let is_wrapped = matches!(&request, Payload::Object(object)
            if matches!(**object, Object::Primitive(_) | Object::Serialized(_)));
        let mut message = Message::new(None, request).with_flags(flags).with_header(self.inner.id, header);
        if is_wrapped {
            message.flags |= Flags::SERIALIZED;
        }
        message
    }
}

fn failed(error: SendError, options: &RequestOptions) -> RpcError {
    match error {
        SendError::NotAcknowledged => RpcError::TimedOut(options.timeout),
        _ => RpcError::Closed,
    }
}

/// A drop removes the call.
struct Pending<'a> {
    correlator: &'a Correlator,
    id: u64,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if self.id != 0 {
            self.correlator.forget(self.id);
        }
    }
}

impl Inner {
    fn rpc_of<'a>(&self, message: &'a Message) -> Option<(&'a RpcHeader, Option<&'a [Address]>)> {
        match message.headers.get(self.id)? {
            HeaderBody::Rpc(rpc) => Some((rpc, None)),
            HeaderBody::RpcMulti(multi) => Some((&multi.rpc, multi.exclusion.as_deref())),
            _ => None,
        }
    }

    fn request(&self, message: Message) {
        let Some(channel) = self.channel.get() else { return };
        let Some((rpc, exclusion)) = self.rpc_of(&message) else { return };
        if exclusion.is_some_and(|members| members.contains(channel.address())) {
            return;
        }
        let responder = match (&message.src, rpc.request_id) {
            (Some(src), id) if id != 0 => Some(Responder {
                channel: channel.clone(),
                dest: src.clone(),
                header: *rpc,
                flags: message.flags,
                is_empty: matches!(message.payload, Payload::Empty),
            }),
            _ => None,
        };
        let src = message.src.clone();
        let _ = catch_panic("handle", src.as_ref(), || self.handler.handle(message, responder));
    }
}

impl Inner {
    fn details(&self) -> String {
        let rows = self.stats.rtts();
        if rows.is_empty() {
            return if self.stats.has_details() { "none yet" } else { "off; see rpcs-enable-details" }
                .to_owned();
        }
        let channel = self.channel.get();
        let lines = rows.iter().map(|(dest, rtt)| {
            let dest = match dest {
                Some(dest) => channel.map_or_else(|| dest.to_string(), |channel| channel.name_of(dest)),
                None => "all".to_owned(),
            };
            let micros = |time: std::time::Duration| time.as_secs_f64() * 1e6;
            format!(
                "{dest}: count={}, min={:.1}us, avg={:.1}us, max={:.1}us",
                rtt.count,
                micros(rtt.min),
                micros(rtt.mean()),
                micros(rtt.max)
            )
        });
        format!("\n{}", lines.collect::<Vec<_>>().join("\n"))
    }
}

impl Receiver for Inner {
    fn receive_batch(&self, mut delivery: Delivery) {
        let requests = delivery.take_if(|message| self.rpc_of(message).is_some());
        for request in requests {
            self.request(request);
        }
        if !delivery.messages().is_empty() {
            self.receiver.receive_batch(delivery);
        }
    }

    fn view_accepted(&self, view: &View) {
        self.receiver.view_accepted(view);
    }

    fn suspected(&self, member: &Address) {
        self.receiver.suspected(member);
    }

    fn state(&self) -> Result<Option<bytes::Bytes>, String> {
        self.receiver.state()
    }

    fn set_state(&self, state: Option<bytes::Bytes>) {
        self.receiver.set_state(state);
    }
}

/// The driver's task handles responses; the receiver gets requests.
impl UpHandler for Inner {
    fn opened(&self, channel: WeakChannel) {
        let _ = self.channel.set(channel);
    }

    fn takes(&self, message: &Message) -> bool {
        self.rpc_of(message).is_some_and(|(rpc, _)| rpc.kind != RpcKind::Request)
    }

    fn handle_batch(&self, batch: MessageBatch) {
        for message in batch.messages {
            let Some((&rpc, _)) = self.rpc_of(&message) else { continue };
            let Some(src) = message.src else { continue };
            let result = match rpc.kind {
                RpcKind::Exception => Err(RpcError::Remote {
                    member: src.clone().into(),
                    message: crate::rpc::failure_text(&message.payload),
                }),
                _ => Ok(message.payload),
            };
            if let Some(RoundTrip { sent, is_group }) = self.correlator.answer(rpc.request_id, &src, result) {
                self.stats.add_rtt((!is_group).then_some(&src), sent.elapsed());
            }
        }
    }

    fn view(&self, view: &View) {
        self.correlator.view(view);
    }

    fn suspected(&self, members: &[Address]) {
        self.correlator.lose(|member| members.contains(member));
    }

    fn sites_lost(&self, sites: &[Arc<str>]) {
        self.correlator.lose_sites(sites);
    }

    fn probe(&self, key: &str) -> Option<String> {
        match key {
            "rpcs" => {
                let counters = self.stats.counters();
                Some(counters.map(|(name, count)| format!("{name}={count}")).join(", "))
            }
            "rpcs-details" | "rtt" => Some(self.details()),
            "stats" => {
                let counters = self.stats.counters().map(|(name, count)| format!("{name}={count}"));
                Some(format!("{}; round trips: {}", counters.join(", "), self.details()))
            }
            "rpcs-enable-details" | "enable-rpcstats" => {
                self.stats.set_details(true);
                Some("details are on".to_owned())
            }
            "rpcs-disable-details" | "disable-rpcstats" => {
                self.stats.set_details(false);
                Some("details are off".to_owned())
            }
            "rpcs-reset" | "rtt-reset" => {
                self.stats.reset();
                Some("forgotten".to_owned())
            }
            "requests" | "reqtable-info" => Some(self.correlator.len().to_string()),
            _ => None,
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.correlator.next_deadline()
    }

    fn handle_timeout(&self, now: Instant) {
        self.correlator.expire(now);
    }

    fn closed(&self) {
        self.correlator.close();
    }
}

/// Returns the successful rows; without any, the first error, or [`RpcError::NoMembers`] without rows.
pub fn successes(responses: Responses) -> Result<Vec<(Address, Payload)>, RpcError> {
    let mut good = Vec::new();
    let mut failure = RpcError::NoMembers;
    for Response { member, result } in responses {
        match result {
            Ok(payload) => good.push((member, payload)),
            Err(error) => failure = error,
        }
    }
    if good.is_empty() { Err(failure) } else { Ok(good) }
}
