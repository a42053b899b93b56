//! Leaving word that a job has ended, for producers to deliver.
//!
//! Whoever takes a job out of the stream leaves word first, so that a crash in between does it again;
//! the message id makes one of both. What cannot be stored after a few tries is given up: word is worth
//! less than the job.

use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;
use fairlane_wire::names::header;
use fairlane_wire::{Callback, Ended};

use crate::client::Nats;

/// Tries at storing it, and the pause between them.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);

impl Nats {
    /// Leaves word for `to`, if anybody is to hear it. `run` tells one run of the job from the next (see
    /// [`Ended::message_id`]). Never fails: what cannot be stored is a warning.
    pub async fn call_back(&self, to: Option<&Callback>, ended: Option<Ended>, run: &str) {
        let (Some(to), Some(ended)) = (to, ended) else {
            return;
        };
        let subject = self.names.callbacks_subject(&ended.tenant);
        let body = Bytes::from(serde_json::to_vec(&ended).expect("words and numbers"));
        let id = ended.message_id(run);
        let jobs = self.jobs();
        let mut tries = 0;
        loop {
            let mut headers = HeaderMap::new();
            headers.insert(header::CALLBACK, to.to_header());
            let stored = jobs.publish(&subject, Some(&id), headers, body.clone());
            let Err(error) = stored.await else {
                return;
            };
            tries += 1;
            if tries == TRIES {
                let Ended { tenant, job, .. } = ended;
                tracing::warn!(%tenant, %job, %error, "nobody will be told that a job has ended");
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
