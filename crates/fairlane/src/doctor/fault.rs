//! The faults that `fairlane doctor` names: stable words, for programs that read its report.

/// Declares the faults: variant, word, what it means.
macro_rules! faults {
    ($($fault:ident $word:literal $meaning:literal;)*) => {
        /// A fault.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Fault {
            $(#[doc = $meaning] $fault,)*
        }

        impl Fault {
            /// Every fault.
            #[cfg(test)]
            pub(crate) const ALL: &[Self] = &[$(Self::$fault),*];

            /// Its stable word.
            pub(crate) fn as_str(self) -> &'static str {
                match self {
                    $(Self::$fault => $word,)*
                }
            }

            /// What it means, for the page of errors.
            #[cfg(test)]
            pub(crate) fn meaning(self) -> &'static str {
                match self {
                    $(Self::$fault => $meaning,)*
                }
            }
        }
    };
}

faults! {
    NatsDown "nats_down" "No NATS answers at the address; exit code 5.";
    NatsCredentials "nats_credentials" "NATS answers and refuses the login; exit code 5.";
    ServerTooOld "server_too_old" "A nats-server is older than Fairlane needs.";
    NoJetStream "no_jetstream" "JetStream is off, or closed to this user.";
    ObjectsMissing "objects_missing" "Streams or buckets of Fairlane's are not there.";
    Drift "drift" "A stream or bucket is set otherwise than wanted: wrong where it says BROKEN, a warning elsewhere.";
    ObjectsUnreadable "objects_unreadable" "Streams and buckets cannot be read.";
    ConsumerCap "consumer_cap" "There is no room for more consumers, or (a warning) hardly any.";
    ClockSkew "clock_skew" "The clock of this machine and the server's differ by more than 2 s.";
    NoLeader "no_leader" "No scheduler leads: nothing is granted.";
    NoWorker "no_worker" "No worker was heard of that takes jobs: nothing runs.";
    LimitsUnknown "limits_unknown" "A warning: no answer has told the upstream's limits yet.";
    Refused "refused" "The upstream refuses an account, a model or a kind of job.";
    KeyRefused "key_refused" "The upstream refuses the API key that is configured here.";
    KeyUnusable "key_unusable" "The API key or what belongs to it cannot be used as configured.";
    UpstreamUnreachable "upstream_unreachable" "The upstream does not answer this machine.";
}
