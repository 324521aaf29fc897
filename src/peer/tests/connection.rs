//! The bytes that come over a connection from a peer, and what may come instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryStreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::{HttpPeerClient, PeerClient, block_request, member, noise};
use crate::block::BLOCK;
use crate::error::{Error, Kind, Result};
use crate::peer::Member;
use crate::peer::wire::{BlockResponse, Frame, MAX_PART_BYTES};
use crate::tier::Urgency;

/// The head of an answer with a body.
const RESPONSE_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

/// A peer that answers every request with the same bytes, some at a time, and may then close the connection.
async fn peer(answer: Vec<u8>, cut: usize, closes: bool) -> (Member, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let connections = Arc::new(AtomicUsize::new(0));
    let (answer, counted) = (Bytes::from(answer), connections.clone());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            counted.fetch_add(1, Relaxed);
            tokio::spawn(serve(stream, answer.clone(), cut, closes));
        }
    });
    (Member { address, ..member("b", "z") }, connections)
}

async fn serve(mut stream: TcpStream, answer: Bytes, cut: usize, closes: bool) {
    let mut request = Vec::new();
    while stream.read_buf(&mut request).await.is_ok_and(|got| got > 0) {
        if !request.ends_with(b"\r\n\r\n") {
            continue;
        }
        request.clear();
        for piece in answer.chunks(cut) {
            if stream.write_all(piece).await.is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
        if closes {
            return;
        }
    }
}

fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// Frames as they are sent, in chunks that are cut anywhere.
fn body(frames: Vec<Frame>, cut: usize) -> Vec<u8> {
    let sent = frames.into_iter().flat_map(Frame::encode).collect::<Vec<_>>().concat();
    let chunks = sent.chunks(cut).flat_map(chunk);
    RESPONSE_HEAD.iter().copied().chain(chunks).chain(*b"0\r\n\r\n").collect()
}

/// All frames of an answer but the notices of parts, and how many of these there were.
async fn frames(client: &HttpPeerClient, peer: &Member) -> Result<(Vec<Frame>, usize)> {
    let request = block_request(Urgency::Read);
    let all = async {
        let BlockResponse::Frames(frames) = client.request(peer, &request).await? else {
            return Err(Error::new(Kind::NotFound, "no frames"));
        };
        let (parts, frames): (Vec<_>, Vec<_>) =
            frames.try_collect::<Vec<_>>().await?.into_iter().partition(|frame| *frame == Frame::Part);
        Ok((frames, parts.len()))
    };
    timeout(Duration::from_secs(20), all).await.expect("an end")
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_cut_anywhere_arrive_as_sent_on_one_connection() {
    let sent =
        vec![Frame::Wait, Frame::Data(noise(BLOCK)), Frame::Data(noise(7)), Frame::Data(noise(300_000))];
    for (in_chunks, on_wire) in [(1 << 20, 1 << 20), (4, 1 << 16), (70_001, 1009), (1 << 22, 65_537)] {
        let (peer, connections) = peer(body(sent.clone(), in_chunks), on_wire, false).await;
        let client = HttpPeerClient::plain();
        for _ in 0..3 {
            let (frames, parts) = frames(&client, &peer).await.expect("an answer");
            assert!(frames == sent, "in chunks of {in_chunks}, by {on_wire}");
            assert_eq!(parts, BLOCK as usize / MAX_PART_BYTES - 1 + 300_000 / MAX_PART_BYTES);
        }
        assert_eq!(connections.load(Relaxed), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_closed_is_replaced() {
    let (whole, end) = (vec![Frame::Data(noise(5))], vec![Frame::Wait, Frame::End]);
    let ended = body(end.clone(), 100);
    let text = String::from_utf8_lossy(RESPONSE_HEAD).replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n");
    let said = [text.as_bytes(), &body(whole.clone(), 100)[RESPONSE_HEAD.len()..]].concat();
    let behind = [body(whole.clone(), 100), RESPONSE_HEAD.to_vec()].concat();
    // Without a word, with one, because the rest of such an answer is not waited for, and because nobody asked for what follows.
    let silent = (body(whole.clone(), 100), true, whole.clone());
    for (answer, closes, sent) in
        [silent, (said, false, whole.clone()), (ended, false, end), (behind, false, whole)]
    {
        let (peer, connections) = peer(answer, 1000, closes).await;
        let client = HttpPeerClient::plain();
        for number in 1..=3 {
            assert_eq!(frames(&client, &peer).await.expect("an answer"), (sent.clone(), 0));
            assert_eq!(connections.load(Relaxed), number);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn response_invalid_is_an_error() {
    let framed = |frames: &[u8]| [RESPONSE_HEAD, &chunk(frames), b"0\r\n\r\n"].concat();
    let answers = [
        ("no HTTP", vec![b'x'; 10_000], Kind::Unavailable),
        (
            "no end of the head",
            [RESPONSE_HEAD, &[b'x'; 10_000]].concat()[..RESPONSE_HEAD.len() - 2].to_vec(),
            Kind::Unavailable,
        ),
        ("a head without an end", b"HTTP/1.1 200 OK\r\na: b\r\n".repeat(1000), Kind::Unavailable),
        ("another body", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello".to_vec(), Kind::Unavailable),
        ("a redirection", b"HTTP/1.1 302 Found\r\ncontent-length: 0\r\n\r\n".to_vec(), Kind::Unavailable),
        ("no chunk", [RESPONSE_HEAD, b"five\r\nhello\r\n"].concat(), Kind::Unavailable),
        ("a chunk that is too long", [RESPONSE_HEAD, b"3\r\nhello\r\n"].concat(), Kind::Unavailable),
        ("a length without an end", [RESPONSE_HEAD, &[b'0'; 1000]].concat(), Kind::Unavailable),
        ("no frame", framed(b"X\0\0\0\0"), Kind::Corrupt),
        ("an empty frame", framed(b"D\0\0\0\0"), Kind::Corrupt),
        ("a frame that is too long", framed(b"D\xff\xff\xff\xff"), Kind::Corrupt),
        ("half a head of a frame", framed(b"D\x05"), Kind::Unavailable),
        ("half a frame", framed(b"D\x05\0\0\0hel"), Kind::Unavailable),
        ("half a chunk", [RESPONSE_HEAD, b"a\r\nD\x05\0\0\0"].concat(), Kind::Unavailable),
        ("nothing", Vec::new(), Kind::Unavailable),
        ("what isn't there", b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_vec(), Kind::NotFound),
    ];
    for (what, answer, kind) in answers {
        let (peer, _) = peer(answer, 1000, true).await;
        let client = HttpPeerClient::plain();
        for _ in 0..2 {
            let error = frames(&client, &peer).await.expect_err(what);
            assert_eq!(error.kind(), kind, "{what}: {error}");
        }
    }
}
