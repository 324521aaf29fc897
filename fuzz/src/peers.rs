//! What peers send each other: requests, and responses in frames, in chunks, over HTTP.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::LazyLock;

use bdnfs::block::BLOCK;
use bdnfs::digest::Digest;
use bdnfs::peer::client::PeerClient;
use bdnfs::peer::client::http::HttpPeerClient;
use bdnfs::peer::wire::{BlockRequest, BlockResponse, Frame, MAX_RANGE_BYTES, Role};
use bdnfs::peer::{Member, PROTOCOL};
use bdnfs::tier::Urgency;
use futures_util::StreamExt;
use parking_lot::Mutex;

use crate::server::AnswerServer;
use crate::services::block_on;

/// A request as text: its path, then a header a line.
pub(crate) fn request(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let mut lines = text.lines();
    let path = lines.next().unwrap_or_default();
    let headers: Vec<_> = lines.filter_map(|line| line.split_once(": ")).collect();
    let header = |name: &str| headers.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    let Some(request) = BlockRequest::parse(path, header) else { return };
    let range = request.range.clone();
    assert!(
        range.start < range.end && range.end <= request.size && range.end - range.start <= MAX_RANGE_BYTES
    );
    let sent = request.headers();
    let sent = |name: &str| sent.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str());
    assert_eq!(BlockRequest::parse(&request.path(), sent), Some(request.clone()));
}

static PEER: LazyLock<(AnswerServer, HttpPeerClient)> =
    LazyLock::new(|| (AnswerServer::start(serve), HttpPeerClient::plain()));

/// Answers one request with the bytes under test, and hangs up.
fn serve(mut connection: TcpStream, answer: &Mutex<Vec<u8>>) {
    let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
    while !request.ends_with(b"\r\n\r\n") {
        match connection.read(&mut buffer) {
            Ok(len) if len > 0 => request.extend_from_slice(&buffer[..len]),
            _ => return,
        }
    }
    let answer = answer.lock().clone();
    // The client may have hung up: it had enough.
    let _ = connection.write_all(&answer);
}

/// A whole response: its head, its chunks, the frames in them.
pub(crate) fn response(bytes: &[u8]) {
    let (server, client) = &*PEER;
    let _turn = server.answer_with(bytes);
    let peer = Member {
        id: "b".into(),
        address: server.address,
        zone: "z".into(),
        capacity: 1,
        protocol: PROTOCOL,
        draining: false,
        tenants: Vec::new(),
        holds: Vec::new(),
    };
    let request = BlockRequest {
        tenant: "t".into(),
        snapshot: Digest([1; 32]),
        blob: Digest([2; 32]),
        size: 4 * BLOCK,
        range: 0..2 * BLOCK,
        role: Role::Owner,
        urgency: Urgency::Read,
    };
    block_on(async {
        let Ok(BlockResponse::Frames(mut frames)) = client.request(&peer, &request).await else {
            return;
        };
        let mut received = 0;
        while let Some(Ok(frame)) = frames.next().await {
            if let Frame::Data(data) = frame {
                assert!((1..=BLOCK as usize).contains(&data.len()));
                received += data.len();
            }
        }
        assert!(received <= bytes.len(), "more than was sent");
    });
}
