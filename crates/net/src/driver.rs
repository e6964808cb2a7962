//! The driver: one task that owns a stack, its edge and the clock.
//!
//! Each cycle reads the clock once, takes pending packets, commands and timers, runs the stack, and sends its output.
//! It runs the stack again for responses that the application or an effect produces at once, so that input which
//! arrives together is handled and sent together. Each step is bounded, so that a flood of one kind of input delays
//! no other. A cycle awaits nothing.

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

use crate::bound_edge::BoundEdge;
use crate::clock::Clock;
use crate::driver_waker::DriverWaker;
use crate::edge::Edge;
use crate::effects::EffectRunner;
use crate::signals::{Command, Key, Owner, Signals, SubmitError};
use crate::stats::EdgeStats;

/// Commands taken per cycle. They fill packets well, and delay a heartbeat by about 1 ms.
const COMMANDS_PER_CYCLE: usize = 1024;

/// Messages taken from the application per cycle, as many as commands.
const MESSAGES_PER_CYCLE: usize = COMMANDS_PER_CYCLE;

/// Runs of the stack per cycle while the application or an effect produces more input.
const ROUNDS_PER_CYCLE: usize = 8;

/// Timeout of closing, for connections to end and files to be written.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(2);

/// The user of a stack. The driver's task calls it, so it must not block; it may use the stack.
pub trait Application: Send {
    /// A message of the application enters the stack.
    fn sending(&mut self, _message: &Message) {}

    /// The stack has an indication: messages, a view, the end of joining, and so on.
    fn indication(&mut self, stack: &mut Stack, now: Time, indication: Indication);

    /// Returns the next message that the application wants to send. The driver calls it until it returns `None`,
    /// before the stack runs and after each round of indications, so that responses leave in the cycle of their
    /// requests. An application that has a message at another time calls [`DriverWaker::wake`]. A cycle takes a bounded
    /// number; the next cycle follows at once for the rest.
    fn poll_message(&mut self) -> Option<Message> {
        None
    }

    /// A cycle has ended: its input is handled, and its output is sent or queued.
    fn after_cycle(&mut self, _stack: &Stack, _now: Time, _edge: &EdgeState<'_>) {}

    /// Returns when to call [`Application::handle_timeout`]. The driver asks at the end of each cycle; an earlier
    /// deadline that arises later needs [`DriverWaker::wake`] or a command.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// The deadline has passed. The driver has indicated this cycle's input before. A cycle takes a part of the input
    /// if there is much, so a packet that is already in a socket may be indicated later. The driver asks for messages
    /// next.
    fn handle_timeout(&mut self, _now: Instant) {}

    /// The driver closes, or has ended because its runtime was shut down or because it or this application has
    /// panicked. Called once in each case; it must not panic. No indication follows; commands that were not taken are
    /// dropped.
    fn closed(&mut self) {}
}

/// The edge's observable state.
pub struct EdgeState<'a> {
    edge: &'a dyn Edge,
}

impl EdgeState<'_> {
    /// Returns the edge's counters.
    pub fn stats(&self) -> EdgeStats {
        self.edge.stats()
    }

    /// Returns counts of faults, by cause.
    pub fn warnings(&self) -> Vec<(&'static str, u64)> {
        self.edge.warnings()
    }

    /// Returns the peers with an open connection.
    pub fn peers(&self) -> Vec<PhysAddr> {
        self.edge.peers()
    }

    /// Returns whether more than half of a peer's data queue is full. A cycle follows when that ends.
    pub fn is_half_full(&self, peer: PhysAddr) -> bool {
        self.edge.is_half_full(peer)
    }

    /// Returns how many bytes of messages may be sent to a destination whose queue is less than half full before
    /// asking again: a quarter of the queue. Headers at most double small messages, which then just fit. If
    /// destinations share the queue, as multicasts and unicasts do and over UDP all do, it may fill sooner.
    pub fn burst_bytes(&self) -> u64 {
        self.edge.queue_bytes() as u64 / 4
    }
}

/// The constructor of driver tasks.
#[derive(Debug)]
pub struct Driver;

impl Driver {
    /// Starts a stack over an edge as one task of the current runtime, which must have its IO and time drivers
    /// enabled. The task calls [`Stack::start`].
    ///
    /// # Errors
    ///
    /// If the runtime refuses the sockets. They are closed then.
    pub fn spawn(stack: Stack, edge: BoundEdge, app: impl Application + 'static) -> io::Result<DriverHandle> {
        Self::spawn_with(stack, edge, |_| app)
    }

    /// Starts a driver as [`Driver::spawn`] does, with an application that submits commands itself. Its [`Submitter`]
    /// does not keep the driver running, because the application is a part of the driver.
    ///
    /// # Errors
    ///
    /// As [`Driver::spawn`].
    pub fn spawn_with<A: Application + 'static>(
        mut stack: Stack,
        edge: BoundEdge,
        app: impl FnOnce(&Submitter) -> A,
    ) -> io::Result<DriverHandle> {
        let signals = Arc::new(Signals::default());
        let effects = EffectRunner::new(signals.clone(), edge.effect_link_settings());
        let (done, is_done) = watch::channel(false);
        let clock = Clock::start();
        stack.set_clock_origin(clock.system_origin());
        let task = DriverTask {
            stack,
            edge: edge.open(&signals)?,
            effects,
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
        // The driver bounds its own work; tokio's budget would only interrupt its cycles.
        let join = tokio::spawn(tokio::task::unconstrained(task));
        let shared = Shared { signals, join: Mutex::new(Some(join)), is_done, clock };
        Ok(DriverHandle { shared: Arc::new(shared) })
    }
}

/// A handle to submit commands that does not keep the driver running.
#[derive(Clone)]
pub struct Submitter {
    signals: Arc<Signals>,
}

impl Submitter {
    /// Submits a command, as [`DriverHandle::submit`].
    ///
    /// # Errors
    ///
    /// If the driver is closed; the command is handed back.
    pub fn submit(&self, command: Command) -> Result<(), SubmitError> {
        self.signals.push(command)
    }

    /// Returns a waker of the driver.
    pub fn waker(&self) -> DriverWaker {
        DriverWaker::new(&self.signals)
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

/// A handle of the driver, cheap to clone. The driver closes when the last one is dropped.
#[derive(Clone)]
pub struct DriverHandle {
    shared: Arc<Shared>,
}

impl DriverHandle {
    /// Submits a command. It never waits, and never refuses because the queue is full: the caller bounds how much it
    /// submits (by permits for messages and by credits for received ones).
    ///
    /// # Errors
    ///
    /// If the driver is closed; the command is handed back.
    pub fn submit(&self, command: Command) -> Result<(), SubmitError> {
        self.shared.signals.push(command)
    }

    /// Submits a command if the queue is not full.
    ///
    /// # Errors
    ///
    /// If the queue is full or the driver is closed; the command is handed back.
    pub fn try_submit(&self, command: Command) -> Result<(), SubmitError> {
        self.shared.signals.try_push(command)
    }

    /// Submits several commands in order under one lock. Returns false, and leaves the commands in place, if the
    /// driver is closed.
    pub fn submit_all(&self, commands: &mut Vec<Command>) -> bool {
        self.shared.signals.push_all(commands)
    }

    /// Requests a cycle, as [`DriverWaker::wake`].
    pub fn wake(&self) {
        self.shared.signals.wake();
    }

    /// Begins to close the driver, as dropping the last handle does.
    pub fn stop(&self) {
        self.shared.signals.close();
    }

    /// Returns a handle to submit commands that does not keep the driver running.
    pub fn submitter(&self) -> Submitter {
        Submitter { signals: self.shared.signals.clone() }
    }

    /// Returns the driver's clock, for times that are measured outside of the driver.
    pub fn clock(&self) -> Clock {
        self.shared.clock
    }

    /// Stops the stack, sends the queued packets, closes all sockets, and ends the task. Returns when the task has
    /// ended. Commands that were submitted before have been carried out.
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
        // The sender never sends; it is dropped with the task.
        while is_done.changed().await.is_ok() {}
    }
}

/// The phase of the task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    New,
    Running,
    /// Stopped; queued packets are sent until this deadline.
    Closing(Time),
}

struct DriverTask {
    stack: Stack,
    edge: Box<dyn Edge>,
    effects: EffectRunner,
    app: Box<dyn Application>,
    clock: Clock,
    signals: Arc<Signals>,
    /// Empty between cycles, to swap with the mailbox' vector.
    taken: Vec<Command>,
    /// Commands not yet carried out.
    commands: VecDeque<Command>,
    /// Sources that are ready.
    ready: Vec<Key>,
    sleep: Pin<Box<Sleep>>,
    /// The time to which `sleep` is set.
    armed: Option<Time>,
    phase: Phase,
    /// The view that the edge has.
    view: Option<ViewId>,
    /// Dropped with the task, which completes [`DriverHandle::closed`].
    _done: watch::Sender<bool>,
}

impl Future for DriverTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let now = this.clock.now();
        let is_closing = this.signals.take(cx.waker(), &mut this.taken, &mut this.ready);
        if this.commands.is_empty() {
            // Nothing of the last cycle is left: the vectors are swapped and no command moves.
            let empty = std::mem::replace(&mut this.commands, std::mem::take(&mut this.taken).into());
            this.taken = empty.into();
        } else {
            this.commands.extend(this.taken.drain(..));
        }
        let has_more = match this.phase {
            Phase::New => {
                this.stack.start(now);
                this.phase = Phase::Running;
                // A request to close that arrived before the first cycle is not repeated.
                this.cycle(now) || is_closing
            }
            Phase::Running if is_closing => {
                this.close(now);
                true
            }
            Phase::Running => this.cycle(now),
            Phase::Closing(until) => {
                let has_more = this.wind_down(now);
                if now >= until || (this.edge.is_closed() && this.effects.is_closed()) {
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

impl Drop for DriverTask {
    fn drop(&mut self) {
        // Commands may hold handles of this driver; they are dropped here, outside the mailbox' lock.
        drop(self.signals.retire());
        if !matches!(self.phase, Phase::Closing(_)) {
            self.app.closed();
        }
    }
}

impl DriverTask {
    /// Runs one cycle. Returns whether input is left for the next one.
    fn cycle(&mut self, now: Time) -> bool {
        self.receive(now);
        let mut has_more = self.take_commands(now);
        self.fire_timers(now);
        self.report_lost_peers(now);
        has_more |= self.work(now);
        if self.fire_timer_of_app(now) {
            has_more |= self.work(now);
        }
        self.pass_view_to_edge(now);
        has_more |= self.transmit(now);
        has_more |= self.report_lost_peers(now);
        self.app.after_cycle(&self.stack, now, &EdgeState { edge: &*self.edge });
        has_more
    }

    /// Reads the ready sources; packets go straight into the stack.
    fn receive(&mut self, now: Time) {
        let Self { stack, edge, effects, ready, .. } = self;
        for key in ready.drain(..) {
            if key.owner == Owner::Edge {
                edge.service(now, key.index, &mut |from, packet| stack.handle_receive(now, from, packet));
            } else {
                effects.service(now, key);
            }
        }
    }

    fn take_commands(&mut self, now: Time) -> bool {
        let count = self.commands.len().min(COMMANDS_PER_CYCLE);
        for command in self.commands.drain(..count) {
            if let Command::Send(message) = &command {
                self.app.sending(message);
            }
            execute(&mut self.stack, now, command);
        }
        !self.commands.is_empty()
    }

    fn fire_timers(&mut self, now: Time) {
        let Self { stack, edge, effects, .. } = self;
        let is_due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        if is_due(edge.poll_timeout()) {
            edge.handle_timeout(now, &mut |from, packet| stack.handle_receive(now, from, packet));
        }
        if is_due(effects.poll_timeout()) {
            effects.handle_timeout(now);
        }
        if is_due(stack.poll_timeout()) {
            stack.handle_timeout(now);
        }
    }

    /// Calls the application if its deadline has passed. Returns whether it had.
    fn fire_timer_of_app(&mut self, now: Time) -> bool {
        let instant = self.clock.instant(now);
        let is_due = self.app.poll_timeout().is_some_and(|at| at <= instant);
        if is_due {
            self.app.handle_timeout(instant);
        }
        is_due
    }

    /// Runs the stack once, and again while the application or an effect produces more input.
    fn work(&mut self, now: Time) -> bool {
        let Self { stack, effects, app, .. } = self;
        let mut messages_left = MESSAGES_PER_CYCLE;
        for _ in 0..ROUNDS_PER_CYCLE {
            while let Some((token, outcome)) = effects.poll_outcome() {
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
            // Effects first, because others of this process may see them: a program that learns that this member has
            // connected may start another one, which must find it.
            while let Some((token, effect)) = stack.poll_effect() {
                effects.perform(now, token, effect, stack.shared());
            }
            let mut is_quiet = true;
            while let Some(indication) = stack.poll_indication() {
                app.indication(stack, now, indication);
                is_quiet = false;
            }
            if is_quiet && !effects.has_outcomes() {
                return messages_left == 0;
            }
        }
        true
    }

    /// Reports peers whose connections have broken to the stack. Returns whether there are any.
    fn report_lost_peers(&mut self, now: Time) -> bool {
        let mut is_any = false;
        while let Some(peer) = self.edge.poll_lost_peer() {
            self.stack.handle_peer_lost(now, peer);
            is_any = true;
        }
        is_any
    }

    /// Passes a new view to the edge, which then closes connections to peers that are not members.
    fn pass_view_to_edge(&mut self, now: Time) {
        let shared = self.stack.shared();
        let Some(view) = &shared.view else { return };
        if self.view.as_ref() == Some(view.id()) {
            return;
        }
        self.view = Some(view.id().clone());
        let peers: Vec<PhysAddr> =
            view.members().iter().filter_map(|member| shared.book.phys(member)).collect();
        // While a member's address is unknown, its connection cannot be distinguished from a non-member's.
        let is_complete = peers.len() == view.len();
        self.edge.set_members(is_complete.then_some(&peers[..]));
        if is_complete {
            self.edge.retain_peers(now, &peers);
        }
    }

    /// Hands the stack's packets to the edge and writes. Sources that were added meanwhile are polled to register
    /// their wakers; their input is for the next cycle.
    fn transmit(&mut self, now: Time) -> bool {
        let Self { stack, edge, effects, .. } = self;
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
        effects.flush(now);
        has_more |= effects.service_again(now);
        has_more || count > 0 || effects.has_outcomes()
    }

    /// Stops the stack; packets still to be sent are queued.
    fn close(&mut self, now: Time) {
        self.receive(now);
        while self.take_commands(now) {}
        self.work(now);
        self.stack.stop(now);
        while let Some((token, effect)) = self.stack.poll_effect() {
            self.effects.perform(now, token, effect, self.stack.shared());
        }
        self.transmit(now);
        self.edge.begin_close(now);
        self.effects.begin_close(now);
        self.phase = Phase::Closing(now + CLOSE_TIME_MAX);
        self.app.closed();
    }

    /// Lets the sockets finish. Packets that still arrive are ignored.
    fn wind_down(&mut self, now: Time) -> bool {
        let Self { edge, effects, ready, commands, .. } = self;
        commands.clear();
        let mut ignore = |_, _| {};
        for key in ready.drain(..) {
            if key.owner == Owner::Edge {
                edge.service(now, key.index, &mut ignore);
            } else {
                effects.service(now, key);
            }
        }
        if edge.poll_timeout().is_some_and(|at| at <= now) {
            edge.handle_timeout(now, &mut ignore);
        }
        if effects.poll_timeout().is_some_and(|at| at <= now) {
            effects.handle_timeout(now);
        }
        edge.flush(now, &mut ignore);
        effects.flush(now);
        let has_more = edge.service_again(now, &mut ignore);
        let has_more = effects.service_again(now) || has_more;
        while effects.poll_outcome().is_some() {}
        has_more
    }

    /// Sets the timer to the next deadline. Returns whether that has passed already.
    fn arm(&mut self, cx: &mut Context<'_>, now: Time) -> bool {
        let own = match self.phase {
            Phase::Closing(until) => Some(until),
            _ => {
                let app = self.app.poll_timeout().map(|at| self.clock.time(at));
                [self.stack.poll_timeout(), app].into_iter().flatten().min()
            }
        };
        let Some(next) =
            [own, self.edge.poll_timeout(), self.effects.poll_timeout()].into_iter().flatten().min()
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
        // Polled in each cycle: the task may have another waker.
        let is_over = self.sleep.as_mut().poll(cx).is_ready();
        if is_over {
            self.armed = None;
        }
        is_over
    }
}

fn execute(stack: &mut Stack, now: Time, command: Command) {
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
