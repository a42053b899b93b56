//! The places between two durable steps of a delivery, where a process may die. Tests stop a delivery
//! there for good; otherwise they are nothing.

use super::Context;

/// A place between two steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Point {
    BeforeCall,
    /// The answer is here, and nowhere else.
    Answered,
    /// The record says what became of the job.
    Recorded,
    /// Its dead letter is stored.
    Buried,
    /// Word of its end is stored, if anybody is to hear it.
    CalledBack,
    /// The job is out of the stream.
    Deleted,
}

#[cfg(not(test))]
impl Context {
    #[expect(clippy::unused_async, reason = "it stands still in tests")]
    pub(super) async fn reached(&self, _: Point) {}
}

#[cfg(test)]
impl Context {
    pub(super) async fn reached(&self, point: Point) {
        if self.crash == Some(point) {
            self.crashed.notify_one();
            std::future::pending::<()>().await;
        }
    }
}
