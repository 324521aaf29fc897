//! Timeouts that do not count time in which this process got no processor.

use std::borrow::BorrowMut;
use std::time::Duration;

use tokio::time::{Instant, timeout};

/// The unit in which time is counted. A process that gets no processor for a while hears no peer, which is not the peer's
/// fault: however long it takes until the end of a tick is noticed, it counts as one.
pub const TICK: Duration = Duration::from_millis(100);

/// The result of `work`, or `None` when what is `left` has passed. Takes the time that passed from `left`, if that is the caller's.
pub async fn within<T>(mut left: impl BorrowMut<Duration>, work: impl Future<Output = T>) -> Option<T> {
    let left = left.borrow_mut();
    tokio::pin!(work);
    while !left.is_zero() {
        let (tick, began) = (TICK.min(*left), Instant::now());
        let done = timeout(tick, work.as_mut()).await;
        *left -= began.elapsed().min(tick);
        if let Ok(done) = done {
            return Some(done);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn within_times_out_and_returns_what_is_left() {
        let (mut left, begin) = (Duration::from_secs(1), Instant::now());
        assert_eq!(within(&mut left, std::future::ready(7)).await, Some(7));
        assert_eq!(left, Duration::from_secs(1));
        within(&mut left, tokio::time::sleep(Duration::from_millis(250))).await.expect("soon");
        assert_eq!(left, Duration::from_millis(750));
        assert_eq!(within(&mut left, std::future::pending::<()>()).await, None);
        assert_eq!((left, begin.elapsed()), (Duration::ZERO, Duration::from_secs(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn within_starved_process_does_not_time_out() {
        let mut left = Duration::from_secs(1);
        let starved = async {
            // As a process that is stopped: nobody polls, and time goes by.
            tokio::time::advance(Duration::from_secs(30)).await;
            tokio::time::sleep(Duration::from_millis(500)).await;
        };
        assert!(within(&mut left, starved).await.is_some());
    }
}
