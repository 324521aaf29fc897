//! A server on loopback that answers every request with the bytes under test.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use parking_lot::{Mutex, MutexGuard};

/// The server. It never ends.
pub struct AnswerServer {
    /// Where it listens.
    pub address: SocketAddr,
    answer: Arc<Mutex<Vec<u8>>>,
    /// Held while an answer is tried, so that no other changes it meanwhile.
    turn: Mutex<()>,
}

impl AnswerServer {
    /// Starts one. `serve` speaks to a connection, and looks for its answer when it has heard the request.
    pub fn start(serve: fn(TcpStream, &Mutex<Vec<u8>>)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let answer = Arc::new(Mutex::new(Vec::new()));
        let answered = answer.clone();
        thread::spawn(move || {
            for connection in listener.incoming() {
                let (connection, answer) = (connection.expect("a connection"), answered.clone());
                thread::spawn(move || serve(connection, &answer));
            }
        });
        Self { address, answer, turn: Mutex::new(()) }
    }

    /// Makes `bytes` its answer, until what is returned is dropped.
    pub fn answer_with(&self, bytes: &[u8]) -> MutexGuard<'_, ()> {
        let turn = self.turn.lock();
        *self.answer.lock() = bytes.to_vec();
        turn
    }
}
