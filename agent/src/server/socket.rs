//! The agent's end of the control socket.

use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use bdnfs::error::{Error, Kind, Result as Outcome};
use rustix::fs::FlockOperation;
use tokio::net::unix::SocketAddr;
use tokio::net::{UnixListener, UnixStream};

use crate::api::Failure;
use crate::api::socket::check_length;

/// The pause after a failed accept: other processes may free descriptors meanwhile.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let code = match self.kind.as_str() {
            "invalid" => StatusCode::BAD_REQUEST,
            "notfound" => StatusCode::NOT_FOUND,
            "refused" | Self::FORBIDDEN => StatusCode::FORBIDDEN,
            "busy" | "changed" | Self::EXISTS => StatusCode::CONFLICT,
            "timeout" => StatusCode::GATEWAY_TIMEOUT,
            "corrupt" => StatusCode::BAD_GATEWAY,
            "unavailable" | Self::CLOSING => StatusCode::SERVICE_UNAVAILABLE,
            "nospace" => StatusCode::INSUFFICIENT_STORAGE,
            "unsupported" => StatusCode::NOT_IMPLEMENTED,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (code, Json(self)).into_response()
    }
}

/// A bound control socket; it accepts trusted users only. Its file is removed when it is dropped.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    /// The lock that claims the socket, where no cache's lock does.
    lock: Option<File>,
}

impl ControlSocket {
    /// Listens at `path`. The caller holds the cache's lock, so a socket that is there was left behind by a crash.
    ///
    /// # Errors
    /// [`Kind::Disk`], also where something else than a socket is at `path`.
    pub fn bind(path: &FilePath) -> Outcome<Self> {
        let bind = || {
            check_length(path)?;
            match std::fs::symlink_metadata(path) {
                Ok(found) if !found.file_type().is_socket() => {
                    return Err(io::Error::new(
                        io::ErrorKind::AlreadyExists,
                        "it is not a socket; remove it",
                    ));
                }
                Ok(_) => std::fs::remove_file(path)?,
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
            let listener = UnixListener::bind(path)?;
            std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
            Ok(listener)
        };
        let listener = bind().map_err(|e| Error::disk(format!("cannot listen at {}", path.display()), e))?;
        Ok(Self { listener, path: path.to_owned(), lock: None })
    }

    /// Listens at `path`, which belongs to no cache: a lock file beside it names its owner.
    ///
    /// # Errors
    /// [`Kind::Busy`] when another process has it, which the message names; [`Kind::Disk`].
    pub fn bind_beside(path: &FilePath) -> Outcome<Self> {
        let fault = |e| Error::disk(format!("cannot listen at {}", path.display()), e);
        check_length(path).map_err(fault)?;
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory).map_err(fault)?;
        }
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let mut lock = options.open(path.with_added_extension("lock")).map_err(fault)?;
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut owner = String::new();
            lock.read_to_string(&mut owner).map_err(fault)?;
            let (path, owner) = (path.display(), owner.trim());
            let text = format!("socket {path} is in use by process {owner}; name another one");
            return Err(Error::new(Kind::Busy, text));
        }
        lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id())).map_err(fault)?;
        let mut socket = Self::bind(path)?;
        socket.lock = Some(lock);
        Ok(socket)
    }

    /// Serves `routes` until `end` is there, then lets the requests under way finish.
    pub async fn serve(
        self,
        routes: Router,
        end: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        axum::serve(self, routes).with_graceful_shutdown(end).await
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

impl axum::serve::Listener for ControlSocket {
    type Io = UnixStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => match stream.peer_cred() {
                    Ok(peer) if crate::api::socket::is_trusted(peer.uid()) => return (stream, address),
                    Ok(peer) => tracing::warn!("rejected a connection of user {}", peer.uid()),
                    Err(error) => tracing::warn!("rejected a connection of an unknown user: {error}"),
                },
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

#[cfg(test)]
mod tests {
    use axum::extract::{Path, Query};
    use axum::routing::{delete, get};
    use serde::Deserialize;

    use super::*;
    use crate::api::client::{Client, ClientError};

    #[derive(Deserialize)]
    struct Unmount {
        lazy: bool,
    }

    #[tokio::test]
    async fn bind_beside_of_a_socket_in_use_is_refused_with_its_process() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("below/agent.sock");
        let first = ControlSocket::bind_beside(&path).expect("bound");
        let refused = ControlSocket::bind_beside(&path).expect_err("bound already");
        assert!(refused.to_string().contains(&std::process::id().to_string()), "{refused}");
        drop(first);
        assert!(!path.exists());
        ControlSocket::bind_beside(&path).expect("free again");
    }

    #[tokio::test]
    async fn control_socket_carries_answers_and_failures() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("control.sock");
        let client = Client::new(&path);
        assert!(matches!(client.await_end(1).await, Err(ClientError::NotRunning(_))));

        let echo = |Path(id): Path<u64>, Query(how): Query<Unmount>| async move {
            if how.lazy { Ok(Json(())) } else { Err(Failure::new(Kind::Busy, format!("mount {id} is held"))) }
        };
        let routes = Router::new()
            .route("/v1/mounts/{id}", delete(echo))
            .route("/v1/mounts/{id}/ended", get(|| async { Err::<(), _>(Failure::closing()) }));
        let (end, ending) = tokio::sync::oneshot::channel::<()>();
        let socket = ControlSocket::bind(&path).expect("bound");
        let server = tokio::spawn(socket.serve(routes, async { ending.await.unwrap_or(()) }));

        client.unmount(7, true).await.expect("an answer");
        match client.unmount(7, false).await {
            Err(ClientError::Failed(failure)) => {
                assert!(failure.is(Kind::Busy));
                assert_eq!(failure.message, "mount 7 is held");
            }
            other => panic!("{other:?}"),
        }
        assert!(client.await_end(7).await.expect_err("closing").is_gone());
        assert!(matches!(client.status().await, Err(ClientError::Socket(..))), "no such route");

        end.send(()).expect("serving");
        server.await.expect("joined").expect("served");
        assert!(!path.exists());
        assert!(client.await_end(7).await.expect_err("gone").is_gone());
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_was_stopped_for_a_while_gives_no_agent_up() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("control.sock");
        async fn late() -> Result<Json<()>, Failure> {
            // As when the client is stopped: nobody polls, and time goes by.
            tokio::time::advance(Duration::from_secs(30)).await;
            tokio::time::sleep(Duration::from_millis(500)).await;
            Err(Failure::new(Kind::Refused, "late"))
        }
        let routes = ["/healthz", "/readyz", "/v1/status", "/v1/cluster"];
        let routes = routes.into_iter().fold(Router::new(), |all, route| all.route(route, get(late)));
        let socket = ControlSocket::bind(&path).expect("bound");
        tokio::spawn(socket.serve(routes, std::future::pending()));
        let client = Client::new(&path);
        let answers = [
            client.status().await.map(drop),
            client.check_health(true).await,
            client.cluster().await.map(drop),
        ];
        for answer in answers {
            assert!(answer.as_ref().is_err_and(|error| error.is(Kind::Refused)), "{answer:?}");
        }
    }

    #[tokio::test]
    async fn client_of_an_agent_that_hangs_up_reports_disconnected() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("control.sock");
        let listener = UnixListener::bind(&path).expect("bound");
        tokio::spawn(async move { drop(listener.accept().await) });
        assert!(matches!(Client::new(&path).await_end(1).await, Err(ClientError::Disconnected(_))));
    }
}
