//! Thin adapters over the NATS client: what Fairlane needs from JetStream, and nothing more.
//!
//! The client library is good at the wire protocol. This crate holds what has to be done by hand
//! on top of it, each piece with tests against a real server:
//!
//! | module | what it gives | what it avoids |
//! |---|---|---|
//! | [`client`] | [`connect`] -> [`Nats`] (cheap to clone) | giving up after a restart; silent permission errors |
//! | [`objects`] | [`objects::ensure`]: streams, buckets, consumer; drift as a list | configuration that an old server dropped silently |
//! | [`lease`] | [`Bucket`]: compare-and-set with TTL, tombstones with a body | leases that lose their TTL and live for ever |
//! | [`watch`] | [`Watch`]: whole state, then every change, in order | watches blind for 10 s, replays, lost deletes |
//! | [`index`] | [`Index`]: headers of a whole stream in sequence order | gaps after a reconnect, a recreated stream |
//! | [`jobs`] | [`Jobs`]: pipelined publish, read by sequence, fast delete | secure erase, stale replicas |
//! | [`pull`] | [`Puller`] -> [`Delivery`]: bounded work, checked acks | acks nobody took, cancelled fetches, early redelivery |
//! | [`payloads`] | [`Payloads`]: bodies too large for a message | unverified or endless reads |
//! | [`callbacks`] | [`Nats::call_back`]: word that a job has ended | holding a job up for it |
//! | [`embedded`] | [`EmbeddedServer`]: find, fetch and run a nats-server | a server that is too old, port races |
//!
//! # In short
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use fairlane_nats::{Content, NatsOptions, Revision, WriteError, connect, objects};
//! use fairlane_nats::watch::Event;
//!
//! let nats = connect(&NatsOptions::new("nats://127.0.0.1:4222")).await?;
//! let report = objects::ensure(&nats, &objects::ObjectOptions::default()).await?;
//! assert!(!report.is_broken(), "{report}");
//!
//! // A lease: acquire, renew, give back. Every write names the revision it replaces.
//! let credits = nats.bucket(&nats.names.credits_bucket());
//! let ttl = Some(Duration::from_secs(15));
//! let first = credits.put_if("17", "holder".into(), Revision::ABSENT, ttl).await?;
//! let second = match credits.put_if("17", "holder".into(), first, ttl).await {
//!     Ok(revision) => revision,
//!     Err(WriteError::Conflict { current, .. }) => panic!("somebody else wrote {current:?}"),
//!     Err(WriteError::Unknown { .. }) => panic!("ask credits.confirm(..)"),
//!     Err(other) => return Err(other.into()),
//! };
//! credits.tombstone_if("17", second, r#"{"settled":true}"#.into(), Duration::from_secs(60)).await?;
//!
//! // The same, many at once: send now, wait later.
//! let pending = credits.send_put_if("18", "holder".into(), Revision::ABSENT, ttl).await?;
//! let _revision = pending.wait().await?;
//!
//! // Everything in the bucket, then every change.
//! let mut watch = credits.watch();
//! while let Some(event) = watch.next().await {
//!     match event {
//!         Event::Change(entry) => match &entry.content {
//!             Content::Live(value) => println!("{} is {value:?}", entry.key),
//!             Content::Deleted(body) => println!("{} was released with {body:?}", entry.key),
//!             Content::Expired => println!("{} expired", entry.key),
//!         },
//!         Event::Current => println!("nothing older is missing"),
//!         Event::Stale => println!("blind until the next Current"),
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What each piece asks of the server
//!
//! For writing permissions. `<s>` is a stream (`KV_<bucket>` for a bucket); replies come to the
//! inbox prefix of the user.
//!
//! | piece | publishes to |
//! |---|---|
//! | [`Bucket`] writes | `$KV.<bucket>.<key>` |
//! | [`Bucket::get`], [`Bucket::confirm`], [`Bucket::create`] | `$JS.API.STREAM.MSG.GET.<s>` |
//! | [`Bucket::get_direct`] | `$JS.API.DIRECT.GET.<s>.$KV.<bucket>.<key>` |
//! | [`Watch`], [`Index`] | `$JS.API.STREAM.INFO.<s>`, `$JS.API.CONSUMER.CREATE.<s>.*.<filter>`, `$JS.API.CONSUMER.MSG.NEXT.<s>.*`, `$JS.API.CONSUMER.DELETE.<s>.*` |
//! | [`Jobs::publish`] | the subject |
//! | [`Jobs::get`] | `$JS.API.DIRECT.GET.<s>`, `$JS.API.STREAM.MSG.GET.<s>` |
//! | [`Jobs::count`], [`Jobs::counts`], [`Jobs::size`] | `$JS.API.STREAM.INFO.<s>` |
//! | [`Jobs::storage`] | `$JS.API.INFO` |
//! | [`Jobs::delete`] | `$JS.API.STREAM.MSG.DELETE.<s>` |
//! | [`Puller`] | `$JS.API.CONSUMER.MSG.NEXT.<s>.<consumer>`, `$JS.ACK.<s>.<consumer>.>` and `$JS.ACK.*.*.<s>.<consumer>.>` |
//! | [`Payloads::get`] | `$JS.API.STREAM.MSG.GET.OBJ_<store>` |
//! | [`Payloads`] put, delete | that, `$JS.API.STREAM.INFO.OBJ_<store>`, `$JS.API.DIRECT.GET.OBJ_<store>.>`, `$JS.API.STREAM.PURGE.OBJ_<store>`, `$O.<store>.>` |
//! | [`objects::ensure`] | `$JS.API.INFO`, `$JS.API.STREAM.INFO.*`, `$JS.API.STREAM.CREATE.*`, `$JS.API.CONSUMER.INFO.*.*`, `$JS.API.CONSUMER.CREATE.>` |

mod api;
pub mod auth;
pub mod callbacks;
pub mod client;
mod counts;
pub mod embedded;
pub mod index;
pub mod jobs;
pub mod lease;
pub mod ledger;
pub mod letters;
pub mod objects;
mod ordered;
pub mod owner;
pub mod payloads;
pub mod publish;
pub mod pull;
pub mod records;
mod requests;
pub mod watch;

pub use api::ApiError;
pub use client::{ConnectError, Nats, NatsOptions, connect};
pub use embedded::EmbeddedServer;
pub use index::{Index, IndexEvent, IndexItem};
pub use jobs::{Jobs, StoredMessage};
pub use lease::{Bucket, Confirmed, Content, Entry, Revision};
pub use letters::{BuryError, LetterError, Original, StoredLetter};
pub use payloads::Payloads;
pub use publish::{PendingWrite, Stored, WriteError};
pub use pull::{AckError, Delivery, PullOptions, Puller};
pub use records::{RecordError, Records, Slot};
pub use watch::Watch;

/// Headers of a message, as the client library has them.
pub use async_nats::HeaderMap;
