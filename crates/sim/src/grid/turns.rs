use std::time::Duration;

use super::GridWorld;

const THINK: Duration = Duration::from_millis(20);

pub(crate) enum Turn {
    Client(usize),
    Iteration(usize),
    Listener(usize),
    Store(usize),
    /// The operation on several keys.
    Clear(usize),
}

pub(super) fn think(world: &mut GridWorld, client: usize) {
    let after = world.rng.duration(Duration::ZERO, THINK * 2);
    world.schedule(world.now + after, Turn::Client(client));
}
