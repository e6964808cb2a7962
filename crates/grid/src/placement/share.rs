//! The number of copies of each member: in proportion to its capacity, never two of one segment, spread over
//! sites, racks and machines as evenly as each segment's owners can be.

use std::collections::BTreeMap;

use crate::CacheMember;

/// Fractions of a copy go to members that already have them, then to members with the largest shares.
pub(super) fn copies(members: &[CacheMember], segments: usize, owners: usize, held: &[usize]) -> Vec<usize> {
    let mut due = vec![0; members.len()];
    let takers: Vec<usize> =
        (0..members.len()).filter(|&place| members[place].capacity.thousandths() > 0).collect();
    let split = Split { members, segments, held };
    split.among(&takers, segments * owners, Level::Site, &mut due);
    due
}

#[derive(Clone, Copy)]
enum Level {
    Site,
    Rack,
    Machine,
    Member,
}

struct Split<'a> {
    members: &'a [CacheMember],
    segments: usize,
    held: &'a [usize],
}

impl Split<'_> {
    fn among(&self, places: &[usize], copies: usize, level: Level, due: &mut [usize]) {
        let (groups, next) = match level {
            Level::Site => (self.groups(places, |member| &member.location.site), Level::Rack),
            Level::Rack => (self.groups(places, |member| &member.location.rack), Level::Machine),
            Level::Machine => (self.groups(places, |member| &member.location.machine), Level::Member),
            Level::Member => (places.iter().map(|&place| vec![place]).collect(), Level::Member),
        };
        // Some segments have one copy more among these members than the others.
        let (fewer, with_more) = (copies / self.segments, copies % self.segments);
        let (low, high) = (even_level(&groups, fewer), even_level(&groups, fewer + 1));
        let bound = |size: usize, low: usize, high: usize| {
            (self.segments - with_more) * size.min(low) + with_more * size.min(high)
        };
        let claims = groups.iter().map(|group| Claim {
            weight: group.iter().map(|&place| u64::from(self.members[place].capacity.thousandths())).sum(),
            least: bound(group.len(), low.saturating_sub(1), high.saturating_sub(1)),
            most: bound(group.len(), low, high),
            held: group.iter().map(|&place| self.held[place]).sum(),
        });
        let parts = divide(copies, &claims.collect::<Vec<_>>());
        for (group, part) in groups.iter().zip(parts) {
            match level {
                Level::Member => due[group[0]] = part,
                _ => self.among(group, part, next, due),
            }
        }
    }

    fn groups<K: Ord>(&self, places: &[usize], key: impl Fn(&CacheMember) -> &K) -> Vec<Vec<usize>> {
        let mut groups: BTreeMap<&K, Vec<usize>> = BTreeMap::new();
        for &place in places {
            groups.entry(key(&self.members[place])).or_default().push(place);
        }
        groups.into_values().collect()
    }
}

/// The maximum of one segment's owners in a group when they are spread evenly.
fn even_level(groups: &[Vec<usize>], owners: usize) -> usize {
    let room = |level: usize| groups.iter().map(|group| group.len().min(level)).sum::<usize>();
    let largest = groups.iter().map(Vec::len).max().unwrap_or(0);
    (0..=largest).find(|&level| room(level) >= owners).unwrap_or(largest)
}

struct Claim {
    weight: u64,
    least: usize,
    most: usize,
    held: usize,
}

fn divide(whole: usize, claims: &[Claim]) -> Vec<usize> {
    let mut settled: Vec<Option<usize>> = vec![None; claims.len()];
    loop {
        let open: Vec<usize> = (0..claims.len()).filter(|&at| settled[at].is_none()).collect();
        let weight: u128 = open.iter().map(|&at| u128::from(claims[at].weight)).sum();
        let left = whole.saturating_sub(settled.iter().flatten().sum()) as u128;
        if weight == 0 {
            return settled.into_iter().map(Option::unwrap_or_default).collect();
        }
        // The excess over the bounds on either side, in parts of the weight: the worse side is settled first.
        let ideal = |at: usize| left * u128::from(claims[at].weight);
        let above: u128 =
            open.iter().map(|&at| ideal(at).saturating_sub(claims[at].most as u128 * weight)).sum();
        let below: u128 =
            open.iter().map(|&at| (claims[at].least as u128 * weight).saturating_sub(ideal(at))).sum();
        if above == 0 && below == 0 {
            return whole_parts(left, weight, claims, &open, settled);
        }
        for at in open {
            if above >= below && ideal(at) > claims[at].most as u128 * weight {
                settled[at] = Some(claims[at].most);
            } else if above < below && ideal(at) < claims[at].least as u128 * weight {
                settled[at] = Some(claims[at].least);
            }
        }
    }
}

fn whole_parts(
    left: u128,
    weight: u128,
    claims: &[Claim],
    open: &[usize],
    mut settled: Vec<Option<usize>>,
) -> Vec<usize> {
    let mut rests = Vec::new();
    let mut spare = left as usize;
    for &at in open {
        let ideal = left * u128::from(claims[at].weight);
        let (part, rest) = ((ideal / weight) as usize, ideal % weight);
        settled[at] = Some(part);
        spare -= part;
        if rest > 0 {
            rests.push((claims[at].held <= part, std::cmp::Reverse(rest), at));
        }
    }
    rests.sort_unstable();
    for &(_, _, at) in rests.iter().take(spare) {
        settled[at] = settled[at].map(|part| part + 1);
    }
    settled.into_iter().map(Option::unwrap_or_default).collect()
}
