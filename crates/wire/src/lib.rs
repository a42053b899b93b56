//! Formats and names: what Fairlane's parts and its users say to each other.
//!
//! Every format has a golden test beside it: what is written there is what travels. Whatever
//! arrives is checked here and nowhere else; the types of `core` cannot hold anything wrong.

pub mod ask;
pub mod autoscale;
pub mod callback;
pub mod count;
pub mod cut;
pub mod failure;
pub mod fallback;
pub mod fingerprint;
pub mod fleet;
pub mod job;
pub mod lease;
pub mod ledger;
pub mod letter;
pub mod lineage;
pub mod names;
pub mod notice;
pub mod parts;
pub mod record;
pub mod snapshot;
pub mod strict;
pub mod submission;
pub mod tenant;
mod text;
pub mod why;

pub use ask::{AskOutcome, AskReply};
pub use autoscale::AutoscaleRecord;
pub use callback::{Callback, Ended};
pub use count::CountReply;
pub use cut::Truncation;
pub use fingerprint::fingerprint;
pub use fleet::FleetRecord;
pub use job::{JobHeaders, assigned_id, key_hash};
pub use lease::{Credit, DeliveryOutcome, Grant, Lease, Parked, Pause, Ready, Settlement};
pub use ledger::{LedgerEntry, LimitKind};
pub use letter::{DeadReason, Failure, Letter};
pub use lineage::{Ancestor, Redrive};
pub use names::{Ask, Namespace, header};
pub use notice::Notice;
pub use parts::{Part, Plan as PartsPlan};
pub use record::{
    Answer, Descent, JobRecord, KeyOwner, Link, Parts, Phase, Question, Standing, UsageRecord,
};
pub use snapshot::SnapshotRecord;
pub use submission::{Submission, measure, peek};
pub use tenant::{Plan, TenantKey, TenantRecord, TenantRecordError};
pub use why::{Demoted, Line, PlaceRecord, TenantWhy, WhyAnswer, WhyRequest};
