//! Peers that fail in each way.

use super::*;

/// The misbehaviour of a peer.
#[derive(Clone, Copy, Debug)]
enum PeerFault {
    Silence,
    SilenceWithin,
    Trickle,
    WaitForever,
    Dawdle,
    Garbage,
    Endless,
    Overlong,
    Swap,
    Cut,
    Refuse,
    GiveUp,
}

#[derive(Debug)]
struct FaultyPeer {
    fault: PeerFault,
    content: Bytes,
}

impl PeerClient for FaultyPeer {
    fn request<'a>(
        &'a self,
        _: &'a Member,
        request: &'a BlockRequest,
    ) -> BoxFuture<'a, Result<BlockResponse>> {
        let Range { start, end } = request.range.clone();
        let right = self.content.slice(start as usize..end as usize);
        let frames = |frames: Vec<Frame>| stream::iter(frames.into_iter().map(Ok));
        let some = |bytes: Bytes| frames(vec![Frame::Data(bytes)]);
        let every = |millis, frame| {
            stream::unfold(frame, move |frame: Frame| async move {
                tokio::time::sleep(Duration::from_millis(millis)).await;
                Some((Ok(frame.clone()), frame))
            })
        };
        let endless = || stream::repeat_with(|| Ok(Frame::Data(noise(BLOCK))));
        let swapped = || right.iter().map(|byte| byte ^ 1).collect::<Bytes>();
        let frames = match self.fault {
            PeerFault::Silence => return std::future::pending().boxed(),
            PeerFault::Refuse => return async { Err(Error::new(Kind::Unavailable, "refused")) }.boxed(),
            PeerFault::SilenceWithin => some(right.slice(..100)).chain(stream::pending()).boxed(),
            PeerFault::Trickle => every(100, Frame::Data(right.slice(..1000))).boxed(),
            PeerFault::WaitForever => every(250, Frame::Wait).boxed(),
            PeerFault::Dawdle => every(250, Frame::Wait)
                .flat_map(move |wait| stream::iter([wait, Ok(Frame::Data(right.slice(..1)))]))
                .boxed(),
            PeerFault::Garbage => {
                stream::once(async { Err(Error::new(Kind::Corrupt, "sends what is no frame")) }).boxed()
            }
            PeerFault::Endless => endless().boxed(),
            PeerFault::Overlong => some(right).chain(endless()).boxed(),
            PeerFault::Swap => some(swapped()).boxed(),
            PeerFault::Cut => some(right.slice(..right.len() / 2)).boxed(),
            PeerFault::GiveUp => frames(vec![Frame::Wait, Frame::End]).boxed(),
        };
        async { Ok(BlockResponse::Frames(frames)) }.boxed()
    }
}

/// The mirror, which has it.
#[derive(Debug)]
struct MemoryMirror(Bytes);

impl Tier for MemoryMirror {
    fn kind(&self) -> TierKind {
        TierKind::Mirror
    }

    fn fetch<'a>(
        &'a self,
        _: &'a Blob,
        range: Range<u64>,
        _: Urgency,
    ) -> BoxFuture<'a, Result<Option<Body>>> {
        let bytes = self.0.slice(range.start as usize..range.end as usize);
        async { Ok(Some(stream::iter([Ok(bytes)]).boxed())) }.boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn fetch_from_a_faulty_peer_is_right_and_bounded_in_time() {
    use PeerFault::*;
    // The fault, how many seconds it may cost, and whether the peer is banned.
    let faults = [
        (Silence, 1, false),
        (SilenceWithin, 1, false),
        (Trickle, 1, false),
        (WaitForever, 11, false),
        (Dawdle, 11, false),
        (Garbage, 0, true),
        (Endless, 0, true),
        (Overlong, 0, true),
        (Swap, 0, true),
        (Cut, 0, false),
        (Refuse, 0, false),
        (GiveUp, 0, false),
    ];
    let sizes = [BLOCK, BLOCK + 5, 2 * BLOCK + 5];
    for ((fault, seconds, banned), size) in
        faults.into_iter().flat_map(|fault| sizes.map(|size| (fault, size)))
    {
        let content = noise(size);
        let blob = MemoryBlocks::default().put(content.clone());
        let (peers, placement) = asking([member("b", "z")], FaultyPeer { fault, content: content.clone() });
        let ladder = Ladder::new(vec![Arc::new(MemoryMirror(content))], Arc::default(), Arc::default());
        let ladder = ladder.with_placement(Some(placement));
        assert_eq!(ladder.scope(&blob, 0), FetchScope::All);
        let fetch = async || {
            let checks = blob.checks.as_ref().expect("known");
            let accept = async |arrival: Arrival| {
                let index = arrival.index;
                arrival.verify(Some(&checks[index as usize])).map(|_| index)
            };
            let begin = Instant::now();
            let fetch = async |scope| {
                let stall_limit = Duration::from_secs(30);
                ladder
                    .fetch(
                        &blob,
                        (0..block::count(size)).collect::<Vec<_>>(),
                        (scope, &|| Urgency::Read),
                        stall_limit,
                        accept,
                    )
                    .await
            };
            match fetch(FetchScope::All).await {
                // With no other node left, this one is the owner.
                Ok(FetchOutcome::BecameOwner) => fetch(FetchScope::Direct).await,
                fetched => fetched,
            }
            .expect("the mirror has it");
            begin.elapsed()
        };
        let took = fetch().await;
        // Bytes behind the last one are noticed only when no reader waits any more.
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(
            took <= Duration::from_secs(seconds) + Duration::from_millis(1),
            "{fault:?} cost {took:?} of {size}"
        );
        assert_eq!(peers.banned().is_empty(), !banned, "{fault:?} of {size}");
        let asked = peers.stats().asked;
        let took = fetch().await;
        if !matches!(fault, GiveUp | WaitForever | Dawdle) {
            assert_eq!(peers.stats().asked, asked, "after {fault:?} it is left alone");
            assert_eq!(took, Duration::ZERO);
        }
        tokio::time::advance(CORRUPTION_BAN).await;
        fetch().await;
        assert!(peers.stats().asked > asked, "it may do better now");
        assert!(peers.requests_in_flight() == 0, "{fault:?} leaves nothing behind");
    }
}
