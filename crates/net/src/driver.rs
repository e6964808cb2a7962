//! The driver: one task that owns a stack, its edge and the clock.
//!
//! Each cycle reads the clock once, takes what has come in (packets, commands, timers), runs the stack over all of it,
//! and again for what the application or the world answers at once, and hands out what comes of it, so that whatever
//! arrives together is worked on and sent together. Every part is bounded, so that a flood of one kind starves no
//! other. Nothing is awaited within.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use consort_group::{Indication, Message, PhysAddr, Stack, Time, ViewId};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Sleep;

use crate::bell::Bell;
use crate::clock::Clock;
use crate::edge::{BoundEdge, Edge};
use crate::side::Side;
use crate::signals::{Command, Key, Owner, Signals, SubmitError};
use crate::stats::EdgeStats;

/// Commands taken per cycle. The sweep is well filled by then, and a heartbeat waits for about a millisecond.
const COMMANDS_PER_CYCLE: usize = 1024;

/// Messages of the application's own that are taken at a time, as many as commands.
const MESSAGES_PER_CYCLE: usize = COMMANDS_PER_CYCLE;

/// Times per cycle that the stack runs again because the application or an effect has answered at once.
const ROUNDS_PER_CYCLE: usize = 8;

/// How long closing may take: for connections to end and for files to be written.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(2);

/// What the stack tells goes here. Called by the driver's task, so it must not wait; it may use the stack.
pub trait Application: Send {
    /// A message of the application goes into the stack.
    fn sending(&mut self, _message: &Message) {}

    /// Messages, a view, the end of joining, and so on.
    fn indication(&mut self, stack: &mut Stack, now: Time, indication: Indication);

    /// The next message that the application itself wants to send. Asked until there is none, before the stack runs and
    /// again after each round of indications, so that answers leave in the cycle in which the requests have come. Who
    /// has one at another time rings ([`Bell`]). A cycle takes a bounded number; the rest is for the next, which
    /// follows at once.
    fn poll_message(&mut self) -> Option<Message> {
        None
    }

    /// A cycle is over: what came in has been worked on, what goes out is on its way.
    fn after_cycle(&mut self, _stack: &Stack, _now: Time, _edge: &EdgeState<'_>) {}

    /// When [`Application::handle_timeout`] wants to be called. Asked at the end of every cycle; an earlier time that
    /// comes up later needs a ring ([`Bell`]) or a command to become known.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// That time has come, and what this cycle has taken was indicated before. A cycle takes a part of what has come in
    /// if there is much, so a packet that lies in a socket by then may be indicated after. Messages are asked for next.
    fn handle_timeout(&mut self, _now: Instant) {}

    /// The driver is closing, or it has ended some other way: its runtime was shut down, or something it called has
    /// panicked, this application perhaps. Called once in any case, and it must not panic. Nothing is indicated
    /// after this; commands that were not taken are dropped.
    fn closed(&mut self) {}
}

/// What can be seen of the edge.
pub struct EdgeState<'a> {
    edge: &'a dyn Edge,
}

impl EdgeState<'_> {
    /// What it has done so far.
    pub fn stats(&self) -> EdgeStats {
        self.edge.stats()
    }

    /// What went wrong so far, by cause.
    pub fn complaints(&self) -> Vec<(&'static str, u64)> {
        self.edge.complaints()
    }

    /// Peers with a connection that stands.
    pub fn peers(&self) -> Vec<PhysAddr> {
        self.edge.peers()
    }

    /// Whether more than half of the data that may wait for a peer waits. When that is over, there is a cycle.
    pub fn is_crowded(&self, peer: PhysAddr) -> bool {
        self.edge.is_crowded(peer)
    }

    /// Bytes of messages that may be sent to one destination that is not crowded before it is asked about again: a
    /// quarter of its queue. Headers make small messages up to twice as long, and then the queue is full; where
    /// destinations share it, as multicasts and unicasts do and over UDP all, it may be full before.
    pub fn burst_bytes(&self) -> u64 {
        self.edge.queue_bytes() as u64 / 4
    }
}

/// Starts drivers.
#[derive(Debug)]
pub struct Driver;

impl Driver {
    /// Starts a stack over an edge as one task of the current runtime, which must have its IO and time drivers on.
    /// [`Stack::start`] is called by the task.
    ///
    /// # Errors
    ///
    /// If the runtime does not take the sockets. They are closed then.
    pub fn spawn(stack: Stack, edge: BoundEdge, app: impl Application + 'static) -> io::Result<DriverHandle> {
        Self::spawn_with(stack, edge, |_| app)
    }

    /// The same for an application that submits commands itself. The handle it is given does not keep the driver
    /// from closing: what it holds is part of the driver.
    ///
    /// # Errors
    ///
    /// As [`Driver::spawn`].
    pub fn spawn_with<A: Application + 'static>(
        stack: Stack,
        edge: BoundEdge,
        app: impl FnOnce(&Submitter) -> A,
    ) -> io::Result<DriverHandle> {
        let signals = Arc::new(Signals::default());
        let side = Side::new(signals.clone(), edge.side_settings());
        let (done, is_done) = watch::channel(false);
        let clock = Clock::start();
        let task = Task {
            stack,
            edge: edge.open(&signals)?,
            side,
            app: Box::new(app(&Submitter { signals: signals.clone() })),
            clock,
            signals: signals.clone(),
            taken: Vec::new(),
            commands: VecDeque::new(),
            ready: Vec::new(),
            sleep: Box::pin(tokio::time::sleep_until(clock.instant(Time::ZERO).into())),
            armed: None,
            phase: Phase::New,
            view: None,
            _done: done,
        };
        // The driver bounds its own work; tokio's budget would only cut its cycles short.
        let join = tokio::spawn(tokio::task::unconstrained(task));
        let shared = Shared { signals, join: Mutex::new(Some(join)), is_done, clock };
        Ok(DriverHandle { shared: Arc::new(shared) })
    }
}

/// A way to give a driver commands that does not keep it running.
#[derive(Clone)]
pub struct Submitter {
    signals: Arc<Signals>,
}

impl Submitter {
    /// As [`DriverHandle::submit`].
    ///
    /// # Errors
    ///
    /// If the driver is closed; the command is handed back.
    pub fn submit(&self, command: Command) -> Result<(), SubmitError> {
        self.signals.push(command)
    }

    /// A way to wake the driver without a command.
    pub fn bell(&self) -> Bell {
        Bell::new(&self.signals)
    }
}

impl std::fmt::Debug for Submitter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Submitter")
    }
}

struct Shared {
    signals: Arc<Signals>,
    join: Mutex<Option<JoinHandle<()>>>,
    is_done: watch::Receiver<bool>,
    clock: Clock,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.signals.close();
    }
}

/// A way to the driver, cheap to clone. When the last one is dropped, the driver closes.
#[derive(Clone)]
pub struct DriverHandle {
    shared: Arc<Shared>,
}

impl DriverHandle {
    /// Gives the driver something to do. Never waits and never refuses for want of room: the caller bounds how much
    /// it submits (permits for messages, credits for what it has been given).
    ///
    /// # Errors
    ///
    /// If the driver is closed; the command is handed back.
    pub fn submit(&self, command: Command) -> Result<(), SubmitError> {
        self.shared.signals.push(command)
    }

    /// Gives the driver something to do, if not too much waits already.
    ///
    /// # Errors
    ///
    /// If too much waits, or if the driver is closed; the command is handed back.
    pub fn try_submit(&self, command: Command) -> Result<(), SubmitError> {
        self.shared.signals.try_push(command)
    }

    /// Gives the driver several things to do, in order and at the price of one. Returns false, and leaves them where
    /// they are, if it is closed.
    pub fn submit_all(&self, commands: &mut Vec<Command>) -> bool {
        self.shared.signals.push_all(commands)
    }

    /// Asks for a cycle, as [`Bell::ring`] does.
    pub fn ring(&self) {
        self.shared.signals.ring();
    }

    /// Begins to close, as dropping the last handle does.
    pub fn stop(&self) {
        self.shared.signals.close();
    }

    /// A way to submit that does not keep the driver running.
    pub fn submitter(&self) -> Submitter {
        Submitter { signals: self.shared.signals.clone() }
    }

    /// The driver's clock, for what is measured outside in the stack's time.
    pub fn clock(&self) -> Clock {
        self.shared.clock
    }

    /// Stops the stack, sends what is queued, closes all sockets, and ends the task. Returns when nothing is left;
    /// commands submitted before have been carried out.
    pub async fn shutdown(&self) {
        self.shared.signals.close();
        let join = self.shared.join.lock().unwrap_or_else(PoisonError::into_inner).take();
        match join {
            Some(join) => {
                if let Err(error) = join.await
                    && error.is_panic()
                {
                    tracing::error!(%error, "the driver panicked");
                }
            }
            None => self.closed().await,
        }
    }

    /// Waits until the driver has ended, for whatever reason.
    pub async fn closed(&self) {
        let mut is_done = self.shared.is_done.clone();
        // The sender says nothing, it is dropped with the task.
        while is_done.changed().await.is_ok() {}
    }
}

/// How far the task is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    New,
    Running,
    /// Stopped; what is queued still goes out until then.
    Closing(Time),
}

struct Task {
    stack: Stack,
    edge: Box<dyn Edge>,
    side: Side,
    app: Box<dyn Application>,
    clock: Clock,
    signals: Arc<Signals>,
    /// Empty between cycles, to swap for the mailbox' vector.
    taken: Vec<Command>,
    /// Commands not yet carried out.
    commands: VecDeque<Command>,
    /// Sources that have named themselves.
    ready: Vec<Key>,
    sleep: Pin<Box<Sleep>>,
    /// What `sleep` is set to.
    armed: Option<Time>,
    phase: Phase,
    /// The view that the edge knows of.
    view: Option<ViewId>,
    /// Dropped with the task, which tells everybody who waits for its end.
    _done: watch::Sender<bool>,
}

impl Future for Task {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let now = this.clock.now();
        let is_closing = this.signals.take(cx.waker(), &mut this.taken, &mut this.ready);
        if this.commands.is_empty() {
            // Nothing of the last cycle is left: the vectors change places and no command moves.
            let empty = std::mem::replace(&mut this.commands, std::mem::take(&mut this.taken).into());
            this.taken = empty.into();
        } else {
            this.commands.extend(this.taken.drain(..));
        }
        let has_more = match this.phase {
            Phase::New => {
                this.stack.start(now);
                this.phase = Phase::Running;
                // Whoever asked to close before the first cycle will not ask again.
                this.cycle(now) || is_closing
            }
            Phase::Running if is_closing => {
                this.close(now);
                true
            }
            Phase::Running => this.cycle(now),
            Phase::Closing(until) => {
                let has_more = this.wind_down(now);
                if now >= until || (this.edge.is_closed() && this.side.is_closed()) {
                    return Poll::Ready(());
                }
                has_more
            }
        };
        if this.arm(cx, now) || has_more {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        // Commands may hold handles of this very driver; they are dropped here, outside the mailbox' lock.
        drop(self.signals.retire());
        if !matches!(self.phase, Phase::Closing(_)) {
            self.app.closed();
        }
    }
}

impl Task {
    /// One turn over everything. Returns whether something was left for the next.
    fn cycle(&mut self, now: Time) -> bool {
        self.receive(now);
        let mut has_more = self.take_commands(now);
        self.fire_timers(now);
        has_more |= self.work(now);
        if self.fire_timer_of_app(now) {
            has_more |= self.work(now);
        }
        self.tell_edge_of_view(now);
        has_more |= self.transmit(now);
        self.app.after_cycle(&self.stack, now, &EdgeState { edge: &*self.edge });
        has_more
    }

    /// Takes what the ready sources have, packets straight into the stack.
    fn receive(&mut self, now: Time) {
        let Self { stack, edge, side, ready, .. } = self;
        for key in ready.drain(..) {
            if key.owner == Owner::Edge {
                edge.service(now, key.index, &mut |from, packet| stack.handle_receive(now, from, packet));
            } else {
                side.service(now, key);
            }
        }
    }

    fn take_commands(&mut self, now: Time) -> bool {
        let count = self.commands.len().min(COMMANDS_PER_CYCLE);
        for command in self.commands.drain(..count) {
            if let Command::Send(message) = &command {
                self.app.sending(message);
            }
            carry_out(&mut self.stack, now, command);
        }
        !self.commands.is_empty()
    }

    fn fire_timers(&mut self, now: Time) {
        let Self { stack, edge, side, .. } = self;
        let is_due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        if is_due(edge.poll_timeout()) {
            edge.handle_timeout(now, &mut |from, packet| stack.handle_receive(now, from, packet));
        }
        if is_due(side.poll_timeout()) {
            side.handle_timeout(now);
        }
        if is_due(stack.poll_timeout()) {
            stack.handle_timeout(now);
        }
    }

    /// Returns whether its time had come.
    fn fire_timer_of_app(&mut self, now: Time) -> bool {
        let instant = self.clock.instant(now);
        let is_due = self.app.poll_timeout().is_some_and(|at| at <= instant);
        if is_due {
            self.app.handle_timeout(instant);
        }
        is_due
    }

    /// Runs the stack, once unless the application or an effect gives it more to do at once.
    fn work(&mut self, now: Time) -> bool {
        let Self { stack, side, app, .. } = self;
        let mut messages_left = MESSAGES_PER_CYCLE;
        for _ in 0..ROUNDS_PER_CYCLE {
            while let Some((token, outcome)) = side.poll_outcome() {
                stack.handle_done(now, token, outcome);
            }
            while messages_left > 0
                && let Some(message) = app.poll_message()
            {
                messages_left -= 1;
                app.sending(&message);
                stack.handle_send(now, message);
            }
            stack.run(now);
            // First what others of this process can see: who hears that a member has connected may start another one,
            // which has to find it.
            while let Some((token, effect)) = stack.poll_effect() {
                side.perform(now, token, effect, stack.shared());
            }
            let mut is_quiet = true;
            while let Some(indication) = stack.poll_indication() {
                app.indication(stack, now, indication);
                is_quiet = false;
            }
            if is_quiet && !side.has_outcomes() {
                return messages_left == 0;
            }
        }
        true
    }

    /// Connections to those who are no longer members end with the view.
    fn tell_edge_of_view(&mut self, now: Time) {
        let shared = self.stack.shared();
        let Some(view) = &shared.view else { return };
        if self.view.as_ref() == Some(view.id()) {
            return;
        }
        self.view = Some(view.id().clone());
        let peers: Vec<PhysAddr> =
            view.members().iter().filter_map(|member| shared.book.phys(member)).collect();
        // Of a member whose address is not known yet it cannot be said which connection is its.
        let is_complete = peers.len() == view.len();
        self.edge.set_members(is_complete.then_some(&peers[..]));
        if is_complete {
            self.edge.retain_peers(now, &peers);
        }
    }

    /// Hands the stack's packets to the edge and writes. Sources that came up meanwhile are polled, so that their
    /// wakers are known; what they bring is for the next cycle.
    fn transmit(&mut self, now: Time) -> bool {
        let Self { stack, edge, side, .. } = self;
        while let Some(transmit) = stack.poll_transmit() {
            edge.send(now, transmit);
        }
        let mut count = 0;
        let mut inbound = |from, packet| {
            count += 1;
            stack.handle_receive(now, from, packet);
        };
        edge.flush(now, &mut inbound);
        let mut has_more = edge.service_again(now, &mut inbound);
        side.flush(now);
        has_more |= side.service_again(now);
        has_more || count > 0 || side.has_outcomes()
    }

    /// Stops the stack; what it still has to send goes out.
    fn close(&mut self, now: Time) {
        self.receive(now);
        while self.take_commands(now) {}
        self.work(now);
        self.stack.stop(now);
        while let Some((token, effect)) = self.stack.poll_effect() {
            self.side.perform(now, token, effect, self.stack.shared());
        }
        self.transmit(now);
        self.edge.begin_close(now);
        self.side.begin_close(now);
        self.phase = Phase::Closing(now + CLOSE_TIME_MAX);
        self.app.closed();
    }

    /// Lets the sockets finish. What still arrives is of no interest.
    fn wind_down(&mut self, now: Time) -> bool {
        let Self { edge, side, ready, commands, .. } = self;
        commands.clear();
        let mut ignore = |_, _| {};
        for key in ready.drain(..) {
            if key.owner == Owner::Edge {
                edge.service(now, key.index, &mut ignore);
            } else {
                side.service(now, key);
            }
        }
        if edge.poll_timeout().is_some_and(|at| at <= now) {
            edge.handle_timeout(now, &mut ignore);
        }
        if side.poll_timeout().is_some_and(|at| at <= now) {
            side.handle_timeout(now);
        }
        edge.flush(now, &mut ignore);
        side.flush(now);
        let has_more = edge.service_again(now, &mut ignore);
        let has_more = side.service_again(now) || has_more;
        while side.poll_outcome().is_some() {}
        has_more
    }

    /// Sets the one timer to the next deadline. Returns whether that has passed already.
    fn arm(&mut self, cx: &mut Context<'_>, now: Time) -> bool {
        let own = match self.phase {
            Phase::Closing(until) => Some(until),
            _ => {
                let app = self.app.poll_timeout().map(|at| self.clock.time(at));
                [self.stack.poll_timeout(), app].into_iter().flatten().min()
            }
        };
        let Some(next) =
            [own, self.edge.poll_timeout(), self.side.poll_timeout()].into_iter().flatten().min()
        else {
            return false;
        };
        if next <= now {
            return true;
        }
        if self.armed != Some(next) {
            self.armed = Some(next);
            self.sleep.as_mut().reset(self.clock.instant(next).into());
        }
        // Polled in any case: the task may have been moved to another waker.
        let is_over = self.sleep.as_mut().poll(cx).is_ready();
        if is_over {
            self.armed = None;
        }
        is_over
    }
}

fn carry_out(stack: &mut Stack, now: Time, command: Command) {
    match command {
        Command::Send(message) => stack.handle_send(now, message),
        Command::Event(event) => stack.handle_event(now, event),
        Command::Connect(cluster) => stack.handle_connect(now, &cluster),
        Command::Disconnect => stack.handle_disconnect(now),
        Command::Consumed { src, is_multicast, credit } => {
            stack.handle_consumed(now, &src, is_multicast, credit);
        }
        Command::Call(call) => call(stack, now),
    }
}
