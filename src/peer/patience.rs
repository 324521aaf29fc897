//! Patience: waiting for a peer, in time that this process has lived through.

use std::time::Duration;

use tokio::time::{Instant, timeout};

/// What counts at once. A process that gets no processor for a while hears nobody, which is nobody else's fault: however
/// long it takes until the end of a tick is noticed, it counts as one.
const TICK: Duration = Duration::from_millis(100);

/// What `work` comes to, if that is within what is `left`; that is less then by what it took.
pub async fn within<T>(left: &mut Duration, work: impl Future<Output = T>) -> Option<T> {
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
    async fn what_takes_too_long_is_given_up_and_what_is_left_is_told() {
        let (mut left, begin) = (Duration::from_secs(1), Instant::now());
        assert_eq!(within(&mut left, std::future::ready(7)).await, Some(7));
        assert_eq!(left, Duration::from_secs(1));
        within(&mut left, tokio::time::sleep(Duration::from_millis(250))).await.expect("soon");
        assert_eq!(left, Duration::from_millis(750));
        assert_eq!(within(&mut left, std::future::pending::<()>()).await, None);
        assert_eq!((left, begin.elapsed()), (Duration::ZERO, Duration::from_secs(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn time_without_a_processor_does_not_count() {
        let mut left = Duration::from_secs(1);
        let starved = async {
            // As a process that is stopped: nobody polls, and time goes by.
            tokio::time::advance(Duration::from_secs(30)).await;
            tokio::time::sleep(Duration::from_millis(500)).await;
        };
        assert!(within(&mut left, starved).await.is_some());
    }
}
