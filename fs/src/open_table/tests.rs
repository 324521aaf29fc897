use std::sync::{Arc, Weak};

use proptest::prelude::*;

use super::*;

const FILE: u32 = 4;

fn open(table: &mut OpenTable<u32, ()>, node: u64, whole: bool) -> OpenMode<u32> {
    table.open(node, || whole.then_some(9), || None).expect("nothing is damaged")
}

#[test]
fn lookup_file_became_whole_while_open_answers_with_its_twin() {
    let mut table = OpenTable::new(false);
    let node = table.lookup_node(FILE);
    assert_eq!(node, tree::base(FILE));
    assert_eq!(open(&mut table, node, false), OpenMode::Cached);
    assert!(table.mark_whole(node));
    assert_eq!(open(&mut table, node, true), OpenMode::Cached);
    assert_eq!(table.lookup_node(FILE), tree::twin(FILE));
    assert_eq!(open(&mut table, tree::twin(FILE), true), OpenMode::Passthrough(9));
    table.close(node, Instant::now());
    assert_eq!(table.lookup_node(FILE), tree::twin(FILE));
    table.close(node, Instant::now());
    assert_eq!(table.lookup_node(FILE), node);
    assert_eq!(open(&mut table, node, true), OpenMode::Passthrough(9));
    assert!(!table.mark_whole(node));
}

#[test]
fn renew_with_open_backing_file_moves_lookups_to_new_nodes() {
    let mut table = OpenTable::new(false);
    let old = table.lookup_node(FILE);
    open(&mut table, old, true);
    assert!(!table.has_damaged_backing(old));
    let renewed = table.renew(FILE);
    assert!(renewed.nodes.contains(&old) && renewed.backings.is_empty() && renewed.is_name_outdated);
    assert!(table.has_damaged_backing(old));
    let new = table.lookup_node(FILE);
    assert!(new != old && renewed.moved_to == Some(new));
    assert_eq!(open(&mut table, new, false), OpenMode::Cached);
    table.close(new, Instant::now());
    assert_eq!(table.open(new, || Some(10), || None), Some(OpenMode::Passthrough(10)));
    table.close(new, Instant::now());
    let renewed = table.renew(FILE);
    assert_eq!((renewed.moved_to, renewed.backings), (None, vec![10]), "nobody has it open");
    assert_eq!(table.close(old, Instant::now()), Some(9), "what is not right is not kept");
    let mut next: OpenTable<u32, ()> = OpenTable::new(false);
    next.restore_generation(new);
    next.restore(old, OpenMode::Passthrough(9), || None);
    assert_eq!(next.lookup_node(FILE), new, "the next process goes on from there");
    assert!(next.has_damaged_backing(old) && !next.has_damaged_backing(new));
    let renewed = next.renew(FILE);
    assert_eq!(renewed.moved_to, None, "it has moved");
    assert!(renewed.is_name_outdated, "the process before may have ended before the kernel had heard of it");
    assert_eq!(next.close(old, Instant::now()), Some(9));
    assert!(!next.has_damaged_backing(old), "nobody has it open");
    // As by a bind of this one file, which keeps its node.
    assert_eq!(open(&mut next, old, true), OpenMode::Passthrough(9));
    assert_eq!(next.reopen(old), Some(9), "a right file is shared");
}

#[test]
fn renew_of_steady_file_with_open_backing_file_refuses_opens_until_it_is_closed() {
    let mut table = OpenTable::new(true);
    let node = table.lookup_node(FILE);
    assert_eq!(open(&mut table, node, true), OpenMode::Passthrough(9));
    let renewed = table.renew(FILE);
    assert_eq!((renewed.moved_to, renewed.damaged), (None, Some((node, 9))));
    assert!(table.renew(FILE).damaged.is_none(), "that is known");
    assert_eq!(table.lookup_node(FILE), node);
    assert_eq!(table.reopen(node), None);
    assert_eq!(table.open(node, || Some(10), || None), None);
    assert_eq!(table.close(node, Instant::now()), Some(9), "it is not kept");
    assert_eq!(table.open(node, || Some(10), || None), Some(OpenMode::Passthrough(10)));
}

#[test]
fn backing_file_closed_stays_until_its_timeout() {
    let (mut table, now) = (OpenTable::new(false), Instant::now());
    assert_eq!(table.reopen(5), None);
    open(&mut table, 5, true);
    assert_eq!(table.close(5, now), None);
    assert_eq!(table.reopen(5), Some(9));
    assert!(table.expire(now + BACKING_IDLE_TIMEOUT).is_empty());
    table.close(5, now);
    assert_eq!(table.expire(now + BACKING_IDLE_TIMEOUT), [9]);
    assert_eq!(table.reopen(5), None);
}

#[test]
fn watch_last_cached_handle_closed_is_dropped() {
    let watch = Arc::new(());
    let mut table: OpenTable<u32, _> = OpenTable::new(false);
    for _ in 0..2 {
        table.open(5, || None, || Some(watch.clone()));
    }
    table.close(5, Instant::now());
    assert_eq!(Arc::strong_count(&watch), 2);
    table.close(5, Instant::now());
    assert_eq!(Arc::strong_count(&watch), 1);
}

/// A step in the life of one file.
#[derive(Clone, Debug)]
enum TableStep {
    Lookup,
    Open,
    OpenTwin,
    Close(prop::sample::Index),
    Whole,
    Evict,
    DentryInvalidator,
    Takeover,
    /// On a steady mount: elsewhere the file has other nodes afterwards.
    Damage,
}

fn steps() -> impl Strategy<Value = Vec<TableStep>> {
    let step = prop_oneof![
        2 => Just(TableStep::Lookup),
        4 => Just(TableStep::Open),
        1 => Just(TableStep::OpenTwin),
        4 => any::<prop::sample::Index>().prop_map(TableStep::Close),
        2 => Just(TableStep::Whole),
        1 => Just(TableStep::Evict),
        1 => Just(TableStep::DentryInvalidator),
        1 => Just(TableStep::Takeover),
        1 => Just(TableStep::Damage),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    /// The kernel's own rule, held against every sequence: all handles of a node are of one mode and of
    /// one backing file, which is still registered.
    #[test]
    fn open_table_any_sequence_never_mixes_modes(steady: bool, steps in steps()) {
        let mut table: OpenTable<Arc<u32>, ()> = OpenTable::new(steady);
        let (mut whole, mut dentry, mut registered, now) = (false, tree::base(FILE), 0, Instant::now());
        let mut handles: Vec<(u64, OpenMode<u32>)> = Vec::new();
        let mut backings: HashMap<u32, Weak<u32>> = HashMap::new();
        let mut damaged = 0;
        for step in steps {
            match step {
                TableStep::Lookup => dentry = table.lookup_node(FILE),
                TableStep::Open | TableStep::OpenTwin => {
                    let other = matches!(step, TableStep::OpenTwin) && !steady;
                    let node = if other { tree::twin(FILE) } else { dentry };
                    let back = || whole.then(|| { registered += 1; Arc::new(registered) });
                    let mode = match table.open(node, back, || None) {
                        Some(OpenMode::Cached) => OpenMode::Cached,
                        Some(OpenMode::Passthrough(backing)) => {
                            prop_assert!(Arc::strong_count(&backing) > 1);
                            prop_assert!(*backing > damaged, "a damaged file gets no more handles");
                            backings.insert(*backing, Arc::downgrade(&backing));
                            OpenMode::Passthrough(*backing)
                        }
                        None => {
                            let beside = |(n, mode): &(u64, OpenMode<u32>)| {
                                *n == node && matches!(mode, OpenMode::Passthrough(id) if *id <= damaged)
                            };
                            prop_assert!(steady && handles.iter().any(beside));
                            continue;
                        }
                    };
                    prop_assert!(handles.iter().all(|(n, m)| *n != node || *m == mode));
                    handles.push((node, mode));
                }
                TableStep::Close(which) if !handles.is_empty() => {
                    let (node, _) = handles.swap_remove(which.index(handles.len()));
                    table.close(node, now);
                }
                // Of a steady mount nobody watches that.
                TableStep::Whole => {
                    whole = true;
                    if !steady {
                        table.mark_whole(tree::base(FILE));
                        table.mark_whole(tree::twin(FILE));
                    }
                }
                TableStep::Evict => whole &= !handles.is_empty(),
                TableStep::DentryInvalidator => drop(table.expire(now + BACKING_IDLE_TIMEOUT)),
                TableStep::Takeover => {
                    // From the ledger; nothing else is handed over.
                    let adopted: Vec<_> = backings.values().filter_map(Weak::upgrade).collect();
                    table = OpenTable::new(steady);
                    for (node, mode) in &handles {
                        let mode = match mode {
                            OpenMode::Passthrough(id) => {
                                let adopted = adopted.iter().find(|backing| ***backing == *id);
                                OpenMode::Passthrough(adopted.expect("registered while it is open").clone())
                            }
                            OpenMode::Cached => OpenMode::Cached,
                        };
                        table.restore(*node, mode, || None);
                    }
                    for (node, _) in handles.iter().filter(|(_, m)| matches!(m, OpenMode::Passthrough(id) if *id <= damaged)) {
                        table.mark_damaged(*node);
                    }
                    if whole && !steady {
                        table.mark_whole(tree::base(FILE));
                        table.mark_whole(tree::twin(FILE));
                    }
                }
                TableStep::Damage if steady => {
                    let renewed = table.renew(FILE);
                    prop_assert_eq!(renewed.moved_to, None);
                    damaged = registered;
                }
                TableStep::Damage | TableStep::Close(_) => {}
            }
            if steady || (handles.is_empty() && whole) {
                prop_assert_eq!(table.lookup_node(FILE), tree::base(FILE));
            }
        }
    }
}
