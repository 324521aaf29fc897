//! A server with more requests than it has room for.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn server_full_of_stages_is_busy_and_serves_readers() {
    /// A provider whose bodies never end.
    #[derive(Debug)]
    struct EndlessProvider;
    impl BlockProvider for EndlessProvider {
        fn provide<'a>(&'a self, _: &'a BlockRequest) -> BoxFuture<'a, Result<Option<Body>>> {
            async { Ok(Some(stream::pending().boxed())) }.boxed()
        }

        fn progress(&self) -> u64 {
            0
        }
    }
    let server = Arc::new(PeerServer::default());
    server.host("t", Arc::new(EndlessProvider));
    let mut held = Vec::new();
    let mut fill = async |urgency| loop {
        match server.answer(&Caller::ANONYMOUS, block_request(urgency)).await {
            BlockResponse::Frames(frames) => held.push(frames),
            BlockResponse::Busy(wait) => return (held.len(), wait),
            BlockResponse::Miss => panic!("it has everything"),
        }
    };
    let (staging, wait) = fill(Urgency::Stage).await;
    let (all, _) = fill(Urgency::Read).await;
    assert!(wait >= Duration::from_secs(1) && all >= staging + staging / 4, "{staging} of {all}");
    assert_eq!(server.busy(), all);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(listener::serve(listener, server.clone(), None));
    let peer = Member { address, ..member("b", "z") };
    let client = HttpPeerClient::plain();
    let answer = client.request(&peer, &block_request(Urgency::Read)).await.expect("an answer");
    assert!(matches!(answer, BlockResponse::Busy(told) if told == wait), "503, with retry-after");
    drop(held);
    let answer = client.request(&peer, &block_request(Urgency::Stage)).await.expect("an answer");
    assert!(matches!(answer, BlockResponse::Frames(_)));
}

#[tokio::test(start_paused = true)]
async fn busy_peer_is_retried_by_a_stage_and_skipped_by_a_reader() {
    #[derive(Debug, Default)]
    struct BusyProvider(AtomicU64);
    impl PeerClient for Arc<BusyProvider> {
        fn request<'a>(&'a self, _: &'a Member, _: &'a BlockRequest) -> BoxFuture<'a, Result<BlockResponse>> {
            self.0.fetch_add(1, Relaxed);
            async { Ok(BlockResponse::Busy(Duration::from_secs(1))) }.boxed()
        }
    }
    for (urgency, tries) in [(Urgency::Read, 1), (Urgency::Ahead, 1), (Urgency::Stage, 3)] {
        let client = Arc::new(BusyProvider::default());
        let (peers, placement) = asking([member("b", "z")], client.clone());
        let blob = MemoryBlocks::default().put(noise(BLOCK));
        let begin = Instant::now();
        let error = placement.peers()[1].fetch(&blob, 0..BLOCK, urgency).await.err().expect("busy");
        assert_eq!((error.kind(), client.0.load(Relaxed)), (Kind::Unavailable, tries), "{urgency:?}");
        // As long as the peer says, or up to twice as long.
        let told = Duration::from_secs(tries - 1);
        assert!((told..=2 * told).contains(&begin.elapsed()), "{:?}", begin.elapsed());
        assert_eq!(peers.state_of("b"), PeerState::Available, "to be busy is no fault");
    }
}
