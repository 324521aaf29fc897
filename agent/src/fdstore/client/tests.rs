use rustix::net::socketpair;

use super::*;

fn connection() -> (OwnedFd, OwnedFd) {
    let (domain, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    socketpair(domain, kind, SocketFlags::CLOEXEC, None).expect("sockets")
}

#[tokio::test]
async fn connection_to_an_fdstore_that_was_lost_is_not_current() {
    let (ours, theirs) = connection();
    let (store, link) = (FdStore::empty(Path::new("/nowhere")), Arc::new(ours));
    store.link.send_replace(Some(Arc::clone(&link)));
    assert!(store.is_current(&link));
    drop(theirs);
    store.await_loss().await;
    assert!(!store.is_current(&link));
}

#[tokio::test(start_paused = true)]
async fn fdstore_that_receives_nothing_is_given_up_and_blocks_nobody() {
    let (ours, _theirs) = connection();
    let store = FdStore::new(Path::new("/nowhere"), None, Duration::from_secs(300));
    while wire::try_send(ours.as_fd(), &store.greeting()).is_ok() {}
    store.link.send_replace(Some(Arc::new(ours)));
    let (begin, real) = (tokio::time::Instant::now(), Instant::now());
    tokio::select! {
        () = store.await_loss() => {}
        () = store.send_heartbeats() => unreachable!("they never end"),
    }
    assert!(store.link.borrow().is_none());
    let limit = u64::from(REFUSED_HEARTBEATS_LIMIT) * HEARTBEAT_INTERVAL.as_secs();
    assert_eq!(begin.elapsed().as_secs(), limit);
    assert!(real.elapsed() < Duration::from_secs(10), "it waited");
}
