use crossbeam::channel;
use rustix::net::{AddressFamily, SocketType, socketpair};

use super::*;

/// A store with one mount, and both ends of its link.
fn store() -> (HeldMounts, OwnedFd, OwnedFd) {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("sockets");
    set_socket_timeout(&theirs, Timeout::Recv, Some(Duration::from_millis(1))).expect("a socket");
    let descriptors = [ours.try_clone().expect("a descriptor"), ours.try_clone().expect("a descriptor")];
    let entry = HeldMount {
        request: "{}".to_owned(),
        descriptors: MountDescriptors::new(descriptors).expect("descriptors"),
    };
    let (invalidations, _) = channel::bounded(1);
    (HeldMounts { mounts: BTreeMap::from([(7, entry)]), hold: None, invalidations }, ours, theirs)
}

#[test]
fn fdstore_with_an_agent_of_any_version_keeps_its_mounts() {
    for version in [0, VERSION, VERSION + 1] {
        let (mut store, ours, theirs) = store();
        store
            .handle(&ours, Message::Hello { version, hold: 9, beats: false }, Vec::new())
            .expect("understood");
        assert_eq!((store.mounts.len(), store.hold), (1, Some(Duration::from_secs(9))), "{version}");
        let answer = wire::receive(theirs.as_fd()).ok().flatten().map(|(message, _)| message);
        // Only a newer agent expects an answer.
        let expected = (version > VERSION).then_some(VERSION);
        let reply = answer.map(|answer| match answer {
            Message::Hello { version, .. } => version,
            other => panic!("{other:?}"),
        });
        assert_eq!(reply, expected, "{version}");
    }
}

#[test]
fn fdstore_with_a_full_invalidation_queue_loses_none() {
    let (store, ours, theirs) = store();
    let (invalidations, queue) = channel::bounded(1);
    let now = Instant::now();
    let store = HeldMounts { invalidations, ..store };
    let mut process = FdStoreProcess {
        store,
        agent: Some(ours),
        heartbeats: Heartbeats::new(now),
        alone_since: now,
        stays: false,
    };
    for parent in 0..5 {
        let message = Message::Expire { parent, name: Vec::new() };
        wire::send(theirs.as_fd(), &message, &[theirs.as_fd()]).expect("sent");
    }
    let mut invalidated = Vec::new();
    while invalidated.len() < 5 {
        for _ in 0..3 {
            if process.wait(Duration::ZERO).expect("polled").agent {
                process.receive();
            }
        }
        invalidated.push(queue.try_recv().expect("one is there, the others wait").node);
    }
    assert_eq!(invalidated, [0, 1, 2, 3, 4]);
}

#[test]
fn fdstore_with_an_unknown_message_answers_and_keeps_its_mounts() {
    let (mut store, ours, theirs) = store();
    store.handle(&ours, Message::Unknown, Vec::new()).expect("answered");
    assert_eq!(store.mounts.len(), 1);
    let (answer, _) = wire::receive(theirs.as_fd()).expect("received").expect("an answer");
    assert!(matches!(answer, Message::Unknown));
}

#[test]
fn fdstore_whose_next_agents_die_at_once_waits_no_longer_for_the_next() {
    for (heartbeats, prolongs) in [(0, false), (1, true)] {
        let (store, ours, theirs) = store();
        let began = Instant::now();
        let mut process = FdStoreProcess {
            store,
            agent: Some(ours),
            heartbeats: Heartbeats::new(began),
            alone_since: began,
            stays: false,
        };
        for _ in 0..1 + heartbeats {
            let greeting = Message::Hello { version: VERSION, hold: 9, beats: true };
            wire::send(theirs.as_fd(), &greeting, &[]).expect("sent");
        }
        drop(theirs);
        while process.agent.is_some() {
            process.receive();
        }
        assert_eq!(process.alone_since > began, prolongs, "{heartbeats} heartbeats after the greeting");
    }
}
