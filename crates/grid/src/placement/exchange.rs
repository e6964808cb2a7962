//! Copies and primaries move from members above their share to members below it, by the shortest chain.

use std::collections::VecDeque;

use super::Draft;

#[derive(Clone, Copy)]
struct Step {
    segment: usize,
    from: u16,
    to: u16,
}

impl Draft<'_> {
    /// Does not put owners of a segment closer together.
    pub(super) fn level_copies(&mut self) {
        for place in 0..self.members.len() as u16 {
            while self.surplus(place) < 0 {
                let chain = self.chain_to(
                    place,
                    |draft, segment, from, to| {
                        !draft.owners[segment].contains(&to)
                            && draft.closeness_to(to, segment, Some(from))
                                <= draft.closeness_to(from, segment, Some(from))
                    },
                    |draft, giver| draft.surplus(giver) > 0,
                );
                let Some(chain) = chain else { break };
                chain.into_iter().for_each(|step| self.hand_over(step.segment, step.from, step.to));
            }
        }
    }

    /// By capacity, as far as members own segments. No segment moves: owners change their order.
    pub(super) fn level_primaries(&mut self) {
        let mut led = vec![0_u64; self.members.len()];
        self.owners
            .iter()
            .filter_map(|owners| owners.first())
            .for_each(|&place| led[usize::from(place)] += 1);
        // The loop ends, because each exchange brings the loads closer together.
        let mut is_level = false;
        while !is_level {
            is_level = true;
            for taker in 0..self.members.len() as u16 {
                while let Some(chain) = self.chain_of_primaries(taker, &led) {
                    is_level = false;
                    for Step { segment, from, to } in chain {
                        let owners = &mut self.owners[segment];
                        if let Some(at) = owners.iter().position(|&owner| owner == to) {
                            owners.swap(0, at);
                        }
                        led[usize::from(from)] -= 1;
                        led[usize::from(to)] += 1;
                    }
                }
            }
        }
    }

    fn chain_of_primaries(&self, taker: u16, led: &[u64]) -> Option<Vec<Step>> {
        let weight = |place: u16| u64::from(self.members[usize::from(place)].capacity.thousandths());
        self.chain_to(
            taker,
            |draft, segment, from, to| {
                draft.owners[segment].first() == Some(&from) && draft.owners[segment].contains(&to)
            },
            // A giver with one segment less must have no less than the taker with one more.
            |_, giver| {
                let (has, more) = (led[usize::from(giver)], led[usize::from(taker)] + 1);
                has > 0 && (has - 1) * weight(taker) >= more * weight(giver)
            },
        )
    }

    /// The shortest chain to one more copy from a member that `can_give`: breadth first, by segments and
    /// owners in order.
    fn chain_to(
        &self,
        taker: u16,
        may_exchange: impl Fn(&Self, usize, u16, u16) -> bool,
        can_give: impl Fn(&Self, u16) -> bool,
    ) -> Option<Vec<Step>> {
        let mut givers =
            (0..self.members.len() as u16).filter(|&place| place != taker && can_give(self, place));
        givers.next()?;
        let mut found: Vec<Option<Step>> = vec![None; self.members.len()];
        let mut waiting = VecDeque::from([taker]);
        while let Some(to) = waiting.pop_front() {
            for (segment, owners) in self.owners.iter().enumerate() {
                for &from in owners {
                    let is_new = from != taker && found[usize::from(from)].is_none();
                    if !is_new || !may_exchange(self, segment, from, to) {
                        continue;
                    }
                    found[usize::from(from)] = Some(Step { segment, from, to });
                    if can_give(self, from) {
                        return Some(chain_from(from, taker, &found));
                    }
                    waiting.push_back(from);
                }
            }
        }
        None
    }
}

fn chain_from(giver: u16, taker: u16, found: &[Option<Step>]) -> Vec<Step> {
    let mut chain = Vec::new();
    let mut at = giver;
    while at != taker
        && let Some(step) = found[usize::from(at)]
    {
        chain.push(step);
        at = step.to;
    }
    chain
}
