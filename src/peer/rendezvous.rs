//! Weighted rendezvous hashing: which members own a group of blocks.
//!
//! Every node computes for every member a score from the group and the member alone; the highest owns the group. So no
//! table has to be agreed on: nodes that see the same members see the same owners, and a member that joins or leaves moves only
//! the groups that it gets or had, about one in N.
//!
//! A member's score is `-weight / ln(u)`, with `u` a number in (0, 1) that the hash of both picks: so each wins in
//! proportion to its weight (Schindelhauer and Schomaker, "Weighted distributed hash tables", SPAA 2005).

use std::cmp::Ordering;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use super::{Member, group_blocks, token};
use crate::block;
use crate::digest::Digest;

/// A group of adjacent blocks of a tenant's blob, which has one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockGroup(u64);

impl BlockGroup {
    /// The group of block `index` of the blob `digest` of `size` bytes.
    pub fn of(tenant: &str, digest: &Digest, size: u64, index: u64) -> Self {
        let number = index / group_blocks(block::count(size));
        Self(token(&[tenant.as_bytes(), &digest.0, &number.to_le_bytes()]))
    }
}

/// The first owner of `group` among `members`, and the second, which stands in for it: of another zone where there is one,
/// because nodes of a zone may fail together.
pub fn owners(group: BlockGroup, members: &[Arc<Member>]) -> [Option<&Arc<Member>>; 2] {
    let Some(first) = highest(group, members.iter()) else { return [None, None] };
    let others = || members.iter().filter(|m| m.id != first.id);
    let second =
        highest(group, others().filter(|m| m.zone != first.zone)).or_else(|| highest(group, others()));
    [Some(first), second]
}

/// Chooses the one of `holders` that the node `me` asks for `group`: of its own zone where there is one. Each node has its own
/// order, so that all holders share the work.
pub fn choose_source_peer<'a>(
    group: BlockGroup,
    me: &Member,
    holders: &[&'a Arc<Member>],
) -> Option<&'a Arc<Member>> {
    let mine = BlockGroup(mix(group.0 ^ seed(&me.id)));
    let others = || holders.iter().copied().filter(|m| m.id != me.id);
    highest(mine, others().filter(|m| m.zone == me.zone)).or_else(|| highest(mine, others()))
}

/// Returns the order in which to ask for items of these `owners`, so that all finish at the same time. At any time every owner
/// sends in proportion to its share of all; none is left with the rest when the others have finished.
pub fn interleave<O: Eq + Hash>(owners: &[O]) -> Vec<usize> {
    let mut shares: HashMap<&O, u64> = HashMap::new();
    let numbered = owners.iter().map(|owner| {
        let share = shares.entry(owner).or_default();
        *share += 1;
        *share
    });
    let numbered: Vec<u64> = numbered.collect();
    let mut order: Vec<usize> = (0..owners.len()).collect();
    // The middle of the n-th of a share of m lies at (2n - 1) / 2m of the whole; this is it in halves of 2^32nds.
    order.sort_by_key(|at| ((2 * numbered[*at] - 1) << 32) / shares[&owners[*at]]);
    order
}

fn highest<'a>(group: BlockGroup, members: impl Iterator<Item = &'a Arc<Member>>) -> Option<&'a Arc<Member>> {
    let scored = members.map(|member| (score(group, member), member));
    let best = scored.max_by(|(a, left), (b, right)| {
        // The id settles what is equal, so that the order of the members never does.
        a.partial_cmp(b).unwrap_or(Ordering::Equal).then_with(|| right.id.cmp(&left.id))
    });
    best.map(|(_, member)| member)
}

/// The score of `member` for `group`. Another processor's logarithm may differ in the last bit, which matters only between
/// two members that are equal but for that: then the mirror is read twice.
fn score(group: BlockGroup, member: &Member) -> f64 {
    // 53 bits, all that fit: at least half a step from 0 and from 1.
    let u = ((mix(group.0 ^ seed(&member.id)) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    member.capacity.max(1) as f64 / -u.ln()
}

/// A hash of an id. Not secure: a member that may announce an id may as well announce a capacity.
fn seed(id: &str) -> u64 {
    let parts = id.as_bytes().chunks(8);
    parts.fold(id.len() as u64, |seed, part| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        mix(seed.wrapping_mul(GOLDEN) ^ u64::from_le_bytes(word))
    })
}

/// 2^64 divided by the golden ratio, odd: multiples of it lie evenly.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes the bits of `x` (the finalizer of splitmix64: Steele, Lea and Flood, OOPSLA 2014).
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::tests::member;
    use proptest::prelude::*;

    const GROUPS: u64 = 4000;

    fn members(weights: &[u64]) -> Vec<Arc<Member>> {
        let named = weights.iter().enumerate();
        named.map(|(n, w)| Arc::new(Member { capacity: *w, ..member(&format!("node-{n}"), "a") })).collect()
    }

    fn groups() -> impl Iterator<Item = BlockGroup> {
        (0..GROUPS)
            .map(|n| BlockGroup::of("t", &Digest::of(&(n / 1000).to_le_bytes()), 1 << 40, n % 1000 * 16))
    }

    fn owner(group: BlockGroup, members: &[Arc<Member>]) -> String {
        owners(group, members)[0].expect("somebody").id.clone()
    }

    proptest! {
        #[test]
        fn interleave_each_owner_sends_in_proportion_to_its_share(owners in proptest::collection::vec(0u8..9, 0..300)) {
            let order = interleave(&owners);
            let mut all = order.clone();
            all.sort_unstable();
            prop_assert!(all.into_iter().eq(0..owners.len()), "each comes once");
            let count = |owner: &u8, among: &[usize]| among.iter().filter(|at| owners[**at] == *owner).count() as f64;
            for (n, _) in order.iter().enumerate() {
                for owner in 0..9 {
                    let share = count(&owner, &order) * n as f64 / owners.len() as f64;
                    // Each may be half a thing before or behind its share, and the others of nine owners half a thing each.
                    prop_assert!((count(&owner, &order[..n]) - share).abs() <= 5.0, "{owner} after {n}");
                }
            }
        }
    }

    #[test]
    fn interleave_largest_share_is_spread_from_first_to_last() {
        assert_eq!(interleave(&["a", "a", "a", "a", "b", "b"]), [0, 4, 1, 2, 5, 3]);
        assert_eq!(interleave(&["b", "a", "b", "a"]), [0, 1, 2, 3]);
        assert_eq!(interleave::<u8>(&[]), [0; 0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn owners_after_a_member_leaves_change_only_for_its_groups(weights in proptest::collection::vec(1u64..8, 2..30), gone in any::<prop::sample::Index>()) {
            let before = members(&weights);
            let gone = gone.index(before.len());
            let mut after = before.clone();
            let left = after.remove(gone);
            let mut moved = 0;
            for group in groups() {
                let [first, second] = owners(group, &before);
                let now = owner(group, &after);
                if first.is_some_and(|m| m.id == left.id) {
                    moved += 1;
                    prop_assert_eq!(&now, &second.expect("two at least").id, "the second takes over");
                } else {
                    prop_assert_eq!(first.map(|m| &m.id), Some(&now));
                }
            }
            // Its share, give or take five standard deviations.
            let share = weights[gone] as f64 / weights.iter().sum::<u64>() as f64;
            let (expected, spread) = (GROUPS as f64 * share, (GROUPS as f64 * share * (1.0 - share)).sqrt());
            prop_assert!((f64::from(moved) - expected).abs() < 5.0 * spread, "{moved} moved, not {expected}");
        }

        #[test]
        fn owners_of_members_in_any_order_are_the_same(weights in proptest::collection::vec(0u64..4, 1..20), turn in 0usize..20) {
            let one = members(&weights);
            let mut other = one.clone();
            other.reverse();
            other.rotate_left(turn % one.len());
            for group in groups().take(200) {
                let ids = |members| owners(group, members).map(|m| m.map(|m| m.id.clone()));
                prop_assert_eq!(ids(&one), ids(&other));
            }
        }
    }

    #[test]
    fn owners_in_several_zones_have_a_second_of_another_zone() {
        let zoned = |n: usize| Arc::new(member(&format!("node-{n}"), if n < 5 { "a" } else { "b" }));
        let members: Vec<_> = (0..6).map(zoned).collect();
        for group in groups().take(500) {
            let [Some(first), Some(second)] = owners(group, &members) else { panic!("six members") };
            assert_ne!(first.zone, second.zone);
        }
        let [Some(first), Some(second)] = owners(BlockGroup(1), &members[..5]) else {
            panic!("five members")
        };
        assert_ne!(first.id, second.id);
        assert!(matches!(owners(BlockGroup(1), &members[..1]), [Some(_), None]));
        assert_eq!(owners(BlockGroup(1), &[]), [None, None]);
    }

    #[test]
    fn choose_holder_prefers_its_own_zone_and_spreads_requests() {
        let zoned = |n: usize| Arc::new(member(&format!("node-{n}"), if n < 8 { "a" } else { "b" }));
        let members: Vec<_> = (0..12).map(zoned).collect();
        let holders: Vec<_> = members.iter().collect();
        let mut asked = HashMap::new();
        for me in &members {
            for group in groups().take(100) {
                let held = choose_source_peer(group, me, &holders).expect("others hold it");
                assert_ne!(held.id, me.id);
                assert_eq!(held.zone, me.zone);
                *asked.entry(held.id.clone()).or_insert(0) += 1;
            }
        }
        // A hundred each on average, seven senders or three.
        assert!(asked.len() == 12 && asked.values().all(|n| (50..160).contains(n)), "{asked:?}");
        assert!(choose_source_peer(BlockGroup(1), &members[0], &holders[..1]).is_none(), "nobody but itself");
    }
}
