//! Small requests that stall: another one is sent beside, and the first response counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, timeout_at};

use super::{INITIAL_RESPONSE_TIMEOUT, MAX_RESPONSE_TIMEOUT};

/// The number of bytes that a request has to bring in a window of time in order not to be slow.
pub(super) const MIN_WINDOW_BYTES: u64 = 128 << 10;

/// Sends `request`, and again in parallel while too few bytes arrive. It counts the bytes that arrive into its argument. Returns
/// the first response; `None` after [`MAX_RESPONSE_TIMEOUT`] in which all were too slow.
pub(crate) async fn send_hedged<T, E, F>(request: impl Fn(Arc<AtomicU64>) -> F) -> Option<Result<T, E>>
where
    F: Future<Output = Result<T, E>>,
{
    let received = Arc::new(AtomicU64::new(0));
    let mut requests = FuturesUnordered::new();
    requests.push(request(received.clone()));
    let (mut window, mut stalled) = (INITIAL_RESPONSE_TIMEOUT, Duration::ZERO);
    let (mut before, mut end) = (0, Instant::now() + window);
    loop {
        match timeout_at(end, requests.next()).await {
            // The window goes on for the others.
            Ok(Some(Err(_))) if !requests.is_empty() => continue,
            Ok(done) => return done,
            Err(_) if received.load(Relaxed) - before >= MIN_WINDOW_BYTES => {}
            Err(_) => {
                stalled += window;
                if stalled >= MAX_RESPONSE_TIMEOUT {
                    return None;
                }
                window += INITIAL_RESPONSE_TIMEOUT;
                requests.push(request(received.clone()));
            }
        }
        (before, end) = (received.load(Relaxed), Instant::now() + window);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    /// Sends requests that each bring so many bytes a second for so many seconds; how many, how long it took, and whether
    /// there was a response.
    async fn sent(requests: &[(u64, u64)]) -> (u64, u64, bool) {
        let (began, count) = (Instant::now(), AtomicU64::new(0));
        let response = send_hedged(|received| {
            let (rate, seconds) = requests[(count.fetch_add(1, Relaxed) as usize).min(requests.len() - 1)];
            async move {
                for _ in 0..seconds {
                    sleep(Duration::from_secs(1)).await;
                    received.fetch_add(rate, Relaxed);
                }
                Ok::<_, ()>(())
            }
        });
        let response = response.await.is_some();
        (count.into_inner(), began.elapsed().as_secs(), response)
    }

    #[tokio::test(start_paused = true)]
    async fn small_request_that_stalls_is_sent_again_beside_and_given_up_after_30_s() {
        assert_eq!(sent(&[(0, 4)]).await, (1, 4, true), "prompt");
        assert_eq!(sent(&[(5, 1000), (9, 1)]).await, (2, 6, true), "one drips");
        assert_eq!(sent(&[(0, 22)]).await, (3, 22, true), "late");
        assert_eq!(sent(&[(100_000, 200)]).await, (1, 200, true), "long");
        assert_eq!(sent(&[(0, 1000)]).await, (3, 30, false), "frozen");
        assert_eq!(sent(&[(5, 1000)]).await, (3, 30, false), "all drip");
    }

    #[tokio::test(start_paused = true)]
    async fn small_request_of_which_some_fail_late_is_given_up_after_30_s() {
        let (began, count) = (Instant::now(), AtomicU64::new(0));
        let response = send_hedged(|_| {
            // Each but the last fails shortly before the next would be sent.
            let seconds = [14, 24, 1000][count.fetch_add(1, Relaxed) as usize];
            async move {
                sleep(Duration::from_secs(seconds)).await;
                Err::<(), _>(())
            }
        });
        assert_eq!(response.await, None);
        assert_eq!((count.into_inner(), began.elapsed().as_secs()), (3, 30));
    }
}
