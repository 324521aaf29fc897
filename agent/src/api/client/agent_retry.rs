//! Calls of the agent across its restarts.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::ClientError;

/// The pause before an agent that is away is asked again: it restarts in a second.
pub const AGENT_RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Asks the agent, again while it is away, until it has answered or `until` is reached.
///
/// # Errors
/// Those of the last `ask`.
pub async fn retry_while_away<T, F: Future<Output = Result<T, ClientError>>>(
    until: Instant,
    mut ask: impl FnMut() -> F,
) -> Result<T, ClientError> {
    loop {
        match ask().await {
            Err(error) if error.is_gone() && Instant::now() + AGENT_RETRY_INTERVAL < until => {
                sleep(AGENT_RETRY_INTERVAL).await;
            }
            answer => return answer,
        }
    }
}
