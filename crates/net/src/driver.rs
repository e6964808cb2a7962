//! The driver: one task with a stack, its edge and the clock.
//!
//! Each cycle reads the clock once, takes packets, commands and timers, runs the stack, and sends its output. It runs the stack
//! again for immediate responses, so that concurrent input is sent together. Each step is bounded, so that no flood delays other
//! input; a cycle awaits nothing.

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
use crate::tcp::links::Links;

/// They fill packets well, and delay a heartbeat by about 1 ms.
const COMMANDS_PER_CYCLE: usize = 1024;

const MESSAGES_PER_CYCLE: usize = COMMANDS_PER_CYCLE;

/// The stack runs again while an application or effect produces input.
const ROUNDS_PER_CYCLE: usize = 8;

/// Connections end and files are written within this time.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(2);

/// A stack's user, called by the driver's task, so it must not block.
pub trait Application: Send {
    /// A message enters the stack.
    fn sending(&mut self, _message: &Message) {}

    /// The stack has an indication.
    fn indication(&mut self, stack: &mut Stack, now: Time, indication: Indication);

    /// Returns the next message to send. The driver asks until `None`, before the stack runs and after each round of indications,
    /// so that responses leave in their requests' cycle. At other times the application calls [`DriverWaker::wake`]. A cycle's
    /// number is bounded; the next follows at once.
    fn poll_message(&mut self) -> Option<Message> {
        None
    }

    /// A cycle has ended; its output is sent or queued.
    fn after_cycle(&mut self, _stack: &Stack, _now: Time, _edge: &EdgeState<'_>) {}

    /// Returns when to call [`Application::handle_timeout`], asked for after each cycle. An earlier deadline needs
    /// [`DriverWaker::wake`] or a command.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// The deadline passed, after this cycle's input; a packet still in a socket may come later. Messages are asked for next.
    fn handle_timeout(&mut self, _now: Instant) {}

    /// The driver closes, or ended by its runtime's shutdown or a panic. Called once; must not panic. No indication follows;
    /// other commands are dropped.
    fn closed(&mut self) {}
}

/// The edge's state.
pub struct EdgeState<'a> {
    edge: &'a dyn Edge,
    /// TUNNEL's connections to routers.
    tunnel: Option<&'a Links>,
}

impl EdgeState<'_> {
    /// Returns the edge's counters.
    pub fn stats(&self) -> EdgeStats {
        self.tunnel.map_or_else(|| self.edge.stats(), |links| links.stats)
    }

    /// Returns the faults by cause.
    pub fn warnings(&self) -> Vec<(&'static str, u64)> {
        self.tunnel.map_or_else(|| self.edge.warnings(), |links| links.warnings.iter().collect())
    }

    /// Returns the connected peers.
    pub fn peers(&self) -> Vec<PhysAddr> {
        self.tunnel.map_or_else(|| self.edge.peers(), |links| links.peers().collect())
    }

    /// Returns whether a peer's data queue is more than half full; a cycle follows when that ends.
    pub fn is_half_full(&self, peer: PhysAddr) -> bool {
        self.tunnel.map_or_else(|| self.edge.is_half_full(peer), Links::is_any_half_full)
    }

    /// Returns the bytes of messages for a destination with a queue less than half full, before asking again: a quarter of the
    /// queue. Headers at most double small messages, which then just fit. A queue shared by destinations (multicasts and
    /// unicasts; over UDP all) may fill sooner.
    pub fn burst_bytes(&self) -> u64 {
        self.tunnel.map_or_else(|| self.edge.queue_bytes(), Links::queue_bytes) as u64 / 4
    }
}

/// Starts drivers.
#[derive(Debug)]
pub struct Driver;

impl Driver {
    /// Starts a stack over an edge as a task of the current runtime, with its IO and time drivers. The task calls
    /// [`Stack::start`]. If the runtime refuses the sockets, they are closed.
    pub fn spawn(stack: Stack, edge: BoundEdge, app: impl Application + 'static) -> io::Result<DriverHandle> {
        Self::spawn_with(stack, edge, |_| app)
    }

    /// Starts an application that submits commands, as [`Driver::spawn`]. Its [`Submitter`] does not keep the driver running,
    /// because it is a part of it.
    pub fn spawn_with<A: Application + 'static>(
        mut stack: Stack,
        edge: BoundEdge,
        app: impl FnOnce(&Submitter) -> A,
    ) -> io::Result<DriverHandle> {
        let signals = Arc::new(Signals::default());
        let effects = EffectRunner::new(signals.clone(), edge.effect_settings());
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

/// Submits commands without keeping the driver running.
#[derive(Clone)]
pub struct Submitter {
    signals: Arc<Signals>,
}

impl Submitter {
    /// Submits a command; a closed driver hands it back.
    pub fn submit(&self, command: Command) -> Result<(), SubmitError> {
        self.signals.push(command)
    }

    /// Returns the driver's waker.
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

/// A driver's handle, cheap to clone; the last drop closes the driver.
#[derive(Clone)]
pub struct DriverHandle {
    shared: Arc<Shared>,
}

impl DriverHandle {
    /// Submits a command without waiting, even to a full queue: the caller bounds its commands (by permits or credits). A closed
    /// driver hands it back.
    pub fn submit(&self, command: Command) -> Result<(), SubmitError> {
        self.shared.signals.push(command)
    }

    /// Submits a command; a closed driver or a full queue hands it back.
    pub fn try_submit(&self, command: Command) -> Result<(), SubmitError> {
        self.shared.signals.try_push(command)
    }

    /// Submits commands in order under one lock; false: the driver is closed, and they stay.
    pub fn submit_all(&self, commands: &mut Vec<Command>) -> bool {
        self.shared.signals.push_all(commands)
    }

    /// Requests a cycle, as [`DriverWaker::wake`].
    pub fn wake(&self) {
        self.shared.signals.wake();
    }

    /// Begins to close, as the last drop.
    pub fn stop(&self) {
        self.shared.signals.close();
    }

    /// Returns a handle that does not keep the driver running.
    pub fn submitter(&self) -> Submitter {
        Submitter { signals: self.shared.signals.clone() }
    }

    /// Returns the clock.
    pub fn clock(&self) -> Clock {
        self.shared.clock
    }

    /// Stops the stack, carries out earlier commands, sends queued packets, closes all sockets, and returns when the task has
    /// ended.
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

    /// Waits until the driver has ended.
    pub async fn closed(&self) {
        let mut is_done = self.shared.is_done.clone();
        // The sender never sends; it is dropped with the task.
        while is_done.changed().await.is_ok() {}
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    New,
    Running,
    /// Queued packets are sent until this time.
    Closing(Time),
}

struct DriverTask {
    stack: Stack,
    edge: Box<dyn Edge>,
    effects: EffectRunner,
    app: Box<dyn Application>,
    clock: Clock,
    signals: Arc<Signals>,
    /// Empty between cycles, to swap with the mailbox.
    taken: Vec<Command>,
    commands: VecDeque<Command>,
    ready: Vec<Key>,
    sleep: Pin<Box<Sleep>>,
    armed: Option<Time>,
    phase: Phase,
    view: Option<ViewId>,
    /// Its drop completes [`DriverHandle::closed`].
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
        self.app.after_cycle(
            &self.stack,
            now,
            &EdgeState { edge: &*self.edge, tunnel: self.effects.tunnel() },
        );
        has_more
    }

    /// Packets go straight into the stack.
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

    fn fire_timer_of_app(&mut self, now: Time) -> bool {
        let instant = self.clock.instant(now);
        let is_due = self.app.poll_timeout().is_some_and(|at| at <= instant);
        if is_due {
            self.app.handle_timeout(instant);
        }
        is_due
    }

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

    fn report_lost_peers(&mut self, now: Time) -> bool {
        let mut is_any = false;
        while let Some(lost) = self.edge.poll_lost_peer() {
            self.stack.handle_peer_lost(now, lost.peer, lost.is_end_of_stream);
            is_any = true;
        }
        is_any
    }

    /// The edge then closes connections to other peers.
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

    /// New sources are polled to register their wakers; their input is for the next cycle.
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

    /// Packets to send are queued.
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

    /// Packets that arrive are ignored.
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

    /// Returns whether the next deadline has passed.
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
