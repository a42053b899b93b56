//! Sending a stream at its pace: frames when they are due, pings in long silences, and the end that was ordered.

use std::{collections::VecDeque, io, time::Duration};

use bytes::{Bytes, BytesMut};
use futures::Stream;
use tokio::time::Instant;

use crate::{
    answer::StopReason,
    call::Call,
    log::Ending,
    message::{Frame, OVERLOADED, PING},
    pace::Pace,
};

/// What comes after the last frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finale {
    /// The stream is whole.
    Complete(StopReason),
    /// The connection breaks.
    Cut,
    /// An error event.
    ErrorEvent,
    /// Pings until the client goes away.
    Pings,
    /// Nothing until the client goes away.
    Silence,
}

impl Finale {
    /// The frames that are sent before this end.
    pub(crate) fn keep(self, mut frames: Vec<Frame>) -> Vec<Frame> {
        match self {
            Self::Complete(_) => {}
            Self::Cut | Self::ErrorEvent => frames.truncate((frames.len() / 2).max(1)),
            Self::Pings | Self::Silence => frames.truncate(1),
        }
        frames
    }
}

#[derive(Debug)]
pub(crate) struct Playback {
    call: Call,
    frames: VecDeque<Frame>,
    pace: Pace,
    finale: Finale,
    started: Instant,
    last_sent: Instant,
    ended: bool,
}

impl Playback {
    /// `started` is when the call began; the first byte is due now.
    pub(crate) fn new(
        call: Call,
        frames: Vec<Frame>,
        pace: Pace,
        finale: Finale,
        started: Instant,
    ) -> Self {
        Self {
            call,
            frames: finale.keep(frames).into(),
            pace,
            finale,
            started,
            last_sent: Instant::now(),
            ended: false,
        }
    }

    /// The body of the response.
    pub(crate) fn into_stream(self) -> impl Stream<Item = io::Result<Bytes>> + Send {
        futures::stream::unfold(self, |mut playback| async move {
            let item = playback.next().await?;
            Some((item, playback))
        })
    }

    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if self.ended {
            return None;
        }
        loop {
            if let Some(bytes) = self.take_due() {
                self.last_sent = Instant::now();
                return Some(Ok(bytes));
            }
            if self.frames.is_empty()
                && let Some(end) = self.finish().await
            {
                return end;
            }
            let ping_due = self.last_sent + Duration::from_millis(self.call.shared.config.ping_ms);
            let frame_due = self.frames.front().map(|frame| self.when(frame));
            let Some(frame_due) = frame_due else {
                // A stream that hangs on purpose has nothing to finish: it ends with the first signal to stop.
                let wake = match self.finale {
                    Finale::Silence => far_future(),
                    _ => ping_due,
                };
                let stop = self.call.shared.stop.clone();
                tokio::select! {
                    () = tokio::time::sleep_until(wake) => return Some(Ok(self.ping())),
                    () = stop.cancelled() => return self.stopped(),
                }
            };
            tokio::time::sleep_until(frame_due.min(ping_due)).await;
            if frame_due > ping_due {
                return Some(Ok(self.ping()));
            }
        }
    }

    fn ping(&mut self) -> Bytes {
        self.last_sent = Instant::now();
        Bytes::from_static(PING.as_bytes())
    }

    fn when(&self, frame: &Frame) -> Instant {
        self.started
            .checked_add(self.pace.due(frame.tokens))
            .unwrap_or_else(far_future)
    }

    /// All frames that are due, as one chunk. The last chunk of a whole stream books the call before anybody can
    /// see it.
    fn take_due(&mut self) -> Option<Bytes> {
        let now = Instant::now();
        let mut chunk = BytesMut::new();
        let mut tokens = 0;
        while let Some(frame) = self.frames.front() {
            if !self.pace.is_instant() && self.when(frame) > now {
                break;
            }
            chunk.extend_from_slice(&frame.bytes);
            tokens = frame.tokens;
            self.frames.pop_front();
        }
        if chunk.is_empty() {
            return None;
        }
        self.call.generated(tokens);
        if self.frames.is_empty()
            && let Finale::Complete(stop) = self.finale
        {
            self.call.completed(Some(stop));
            self.ended = true;
        }
        Some(chunk.freeze())
    }

    /// The ordered end, if it is one that comes at once.
    async fn finish(&mut self) -> Option<Option<io::Result<Bytes>>> {
        match self.finale {
            Finale::Complete(_) => Some(None),
            Finale::Cut => {
                // What was sent so far has to reach the socket before the connection is dropped.
                tokio::task::yield_now().await;
                self.ended = true;
                self.call.end(Ending::Cut);
                Some(Some(Err(io::ErrorKind::ConnectionAborted.into())))
            }
            Finale::ErrorEvent => {
                self.ended = true;
                self.call.end(Ending::ErrorEvent);
                Some(Some(Ok(Bytes::from_static(OVERLOADED.as_bytes()))))
            }
            Finale::Pings | Finale::Silence => None,
        }
    }

    fn stopped(&mut self) -> Option<io::Result<Bytes>> {
        self.ended = true;
        self.call.abandoned();
        Some(Err(io::ErrorKind::ConnectionAborted.into()))
    }
}

/// Later than any call lasts.
fn far_future() -> Instant {
    Instant::now() + Duration::from_secs(86_400)
}

/// The first half of a plain body, then a broken connection. Books the call.
pub(crate) fn half(call: Call, body: &str) -> impl Stream<Item = io::Result<Bytes>> + Send + use<> {
    let half = body.floor_char_boundary(body.len() / 2);
    let first = Bytes::copy_from_slice(&body.as_bytes()[..half]);
    futures::stream::unfold((call, Some(first)), |(mut call, first)| async move {
        if let Some(bytes) = first {
            return Some((Ok(bytes), (call, None)));
        }
        tokio::task::yield_now().await;
        call.end(Ending::Cut);
        Some((Err(io::ErrorKind::ConnectionAborted.into()), (call, None)))
    })
}
