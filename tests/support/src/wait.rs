//! Waiting for a condition with a limit, instead of sleeping and hoping.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// A limit for things that take milliseconds on a quiet machine. It is only ever used up by a failure.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Calls `look` until it gives a value, and returns that.
///
/// # Panics
/// After `limit`, with `what` was waited for and what the last look said.
pub async fn eventually<T, E, F>(limit: Duration, what: &str, mut look: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, E>>,
    E: Display,
{
    let give_up = Instant::now() + limit;
    loop {
        match look().await {
            Ok(value) => return value,
            Err(last) => {
                assert!(
                    Instant::now() < give_up,
                    "waited {limit:?} for {what}; last look: {last}"
                );
            }
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Waits for `future`.
///
/// # Panics
/// After `limit`, with `what` was waited for.
pub async fn within<F: Future>(limit: Duration, what: &str, future: F) -> F::Output {
    match tokio::time::timeout(limit, future).await {
        Ok(output) => output,
        Err(_) => panic!("waited {limit:?} for {what}"),
    }
}
