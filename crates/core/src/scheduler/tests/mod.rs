mod chance;
mod edges;
mod inspect;
mod load;
mod owner;
mod refusals;
mod spare;
mod standing;
mod suspects;

use super::*;
use crate::limiter::Observed;

fn config() -> Config {
    Config {
        quantum: Cost(5_000),
        cost_weights: CostWeights::default(),
        shares: ShareRules::default(),
        limits: BTreeMap::new(),
        default_limits: Limits {
            requests: 600_000,
            input_tokens: 600_000_000,
            output_tokens: 600_000_000,
        },
        tenants: BTreeMap::new(),
        default_policy: Policy::default(),
        max_deliver: 5,
        worker_silence_max: 3_000,
        breaker: breaker::Rules::default(),
        demotion: demotion::Rules::default(),
    }
}

/// A scheduler with its stored leases: revisions are given out as the bucket would.
struct World {
    scheduler: Scheduler,
    now: Millis,
    revision: u64,
    notices: Vec<Notice>,
}

impl World {
    fn new(config: Config) -> Self {
        let mut scheduler = Scheduler::new(config, Term(1), 0);
        for priority in Priority::ALL {
            scheduler.handle(0, Event::Complete { priority });
        }
        Self {
            scheduler,
            now: 0,
            revision: 0,
            notices: Vec::new(),
        }
    }

    /// All jobs were read.
    fn complete(&mut self) {
        for priority in Priority::ALL {
            self.event(Event::Complete { priority });
        }
    }

    fn event(&mut self, event: Event) {
        self.scheduler.handle(self.now, event);
    }

    fn worker(&mut self, name: &str, slots: u32) {
        let worker = WorkerId::parse(name).unwrap();
        self.event(Event::Worker {
            worker,
            slots,
            draining: false,
        });
    }

    fn job(&mut self, seq: u64, priority: Priority, tenant: &str) {
        self.event(Event::Job(seen(seq, priority, tenant)));
    }

    /// Dispatches and stores every grant.
    fn grants(&mut self) -> Vec<Credit> {
        let effects = self.scheduler.dispatch(self.now);
        let mut credits = Vec::new();
        for effect in effects {
            match effect {
                Effect::Grant { credit, .. } => {
                    self.revision += 1;
                    self.event(Event::GrantStored {
                        seq: credit.seq,
                        revision: self.revision,
                    });
                    credits.push(credit);
                }
                Effect::Notice(notice) => self.notices.push(notice),
                Effect::PutAside { .. } => {}
            }
        }
        credits
    }

    /// Its worker begins.
    fn start(&mut self, credit: &Credit) {
        self.revision += 1;
        self.event(Event::Held {
            credit: credit.clone(),
            started: true,
            revision: self.revision,
        });
    }

    fn lease_ends(&mut self, seq: u64) {
        self.revision += 1;
        self.event(Event::LeaseEnded {
            seq: JobSeq(seq),
            revision: self.revision,
        });
    }

    /// A call that was turned away, for whatever reason; its job runs again at `until`.
    fn turned_away(
        &mut self,
        credit: &Credit,
        refused: Option<Refused>,
        pause: Option<Pause>,
        until: Millis,
    ) {
        self.revision += 1;
        let settlement = Settlement {
            credit: credit.clone(),
            outcome: Outcome::Parked { until },
            used: None,
            observed: Observation::default(),
            refused,
            pause,
            sample: (refused == Some(Refused::Overloaded)).then_some(Sample::Bad),
        };
        self.event(Event::Settled {
            settlement,
            revision: self.revision,
        });
    }

    fn done(&mut self, credit: &Credit) {
        self.settle(credit, Outcome::Finished, Some(credit.tokens));
    }

    fn settle(&mut self, credit: &Credit, outcome: Outcome, used: Option<Tokens>) {
        self.revision += 1;
        let settlement = Settlement {
            credit: credit.clone(),
            outcome,
            used,
            observed: Observation::default(),
            refused: None,
            pause: None,
            sample: used.map(|_| Sample::Good),
        };
        self.event(Event::Settled {
            settlement,
            revision: self.revision,
        });
    }
}

fn seen(seq: u64, priority: Priority, tenant: &str) -> JobSeen {
    JobSeen {
        seq: JobSeq(seq),
        priority,
        tenant: TenantId::parse(tenant).unwrap(),
        job: JobId::parse(&format!("job-{seq}")).unwrap(),
        kind: Kind::parse("tags").unwrap(),
        model: ModelId::parse("claude-haiku-4-5").unwrap(),
        pool: PoolId::parse("haiku").unwrap(),
        tokens: Tokens {
            input: 500,
            output: 100,
        },
        fallback: None,
        not_before: None,
        deadline: None,
    }
}

fn credit_of(seq: u64) -> Credit {
    let seen = seen(seq, Priority::Batch, "acme");
    Credit {
        seq: seen.seq,
        priority: seen.priority,
        tenant: seen.tenant,
        job: seen.job,
        model: seen.model,
        pool: seen.pool,
        worker: WorkerId::parse("w").unwrap(),
        delivery: 1,
        tokens: seen.tokens,
        cost: Cost(1_000),
        term: Term(0),
        granted_at: 0,
        probe: false,
    }
}

fn seqs(credits: &[Credit]) -> Vec<u64> {
    credits.iter().map(|credit| credit.seq.0).collect()
}

#[test]
fn a_job_goes_to_a_free_worker_and_ends_as_settled() {
    let mut world = World::new(config());
    world.job(1, Priority::Batch, "acme");
    assert_eq!(world.grants(), [], "nobody asked");
    world.worker("w", 1);
    let credits = world.grants();
    assert_eq!(seqs(&credits), [1]);
    assert_eq!((credits[0].delivery, credits[0].term), (1, Term(1)));
    assert_eq!(world.scheduler.live(), 1);
    world.settle(&credits[0], Outcome::Finished, Some(credits[0].tokens));
    assert_eq!((world.scheduler.live(), world.scheduler.known()), (0, 0));
}

#[test]
fn slots_are_never_oversubscribed_and_the_emptier_worker_goes_first() {
    let mut world = World::new(config());
    for seq in 1..=10 {
        world.job(seq, Priority::Batch, "acme");
    }
    world.worker("small", 1);
    world.worker("wide", 4);
    let credits = world.grants();
    let on = |name: &str| {
        credits
            .iter()
            .filter(|credit| credit.worker.as_str() == name)
            .count()
    };
    assert_eq!((on("small"), on("wide")), (1, 4));
    assert_eq!(world.grants(), []);
}

#[test]
fn an_expired_credit_is_granted_again_as_the_next_delivery() {
    let mut world = World::new(config());
    world.job(1, Priority::Batch, "acme");
    world.worker("w", 1);
    world.grants();
    world.revision += 1;
    let revision = world.revision;
    world.event(Event::LeaseEnded {
        seq: JobSeq(1),
        revision,
    });
    let effects = world.scheduler.dispatch(0);
    let [Effect::Grant { credit, expected }] = effects.as_slice() else {
        panic!("{effects:?}")
    };
    assert_eq!(
        (credit.delivery, *expected),
        (2, revision),
        "over the marker's revision"
    );
}

#[test]
fn a_job_that_kills_its_workers_is_put_aside() {
    let mut world = World::new(Config {
        max_deliver: 2,
        ..config()
    });
    world.job(1, Priority::Batch, "acme");
    world.worker("w", 1);
    // Never started, so nobody died of it.
    assert_eq!(world.grants().len(), 1);
    world.lease_ends(1);
    for _ in 0..2 {
        let credits = world.grants();
        world.start(&credits[0]);
        world.lease_ends(1);
    }
    let why = PutAside::Undeliverable { deliveries: 2 };
    assert_eq!(
        world.scheduler.dispatch(0),
        [Effect::PutAside {
            seq: JobSeq(1),
            why
        }]
    );
    assert_eq!(world.scheduler.dispatch(0), [], "asked once");
    world.event(Event::PutAsideFailed { seq: JobSeq(1) });
    assert_eq!(
        world.scheduler.dispatch(RETRY_AFTER),
        [Effect::PutAside {
            seq: JobSeq(1),
            why
        }]
    );
    world.event(Event::PutAside { seq: JobSeq(1) });
    assert_eq!(world.scheduler.known(), 0);
}

#[test]
fn a_returned_credit_burns_no_delivery() {
    let mut world = World::new(config());
    world.job(1, Priority::Batch, "acme");
    world.worker("w", 1);
    let credits = world.grants();
    world.settle(&credits[0], Outcome::Returned, None);
    let credits = world.grants();
    assert_eq!(credits[0].delivery, 1);
}

#[test]
fn a_parked_job_waits_for_its_time_without_a_new_event() {
    let mut world = World::new(config());
    world.job(1, Priority::Batch, "acme");
    world.worker("w", 1);
    let credits = world.grants();
    world.settle(&credits[0], Outcome::Parked { until: 2_000 }, None);
    assert_eq!(world.grants(), []);
    assert_eq!(world.scheduler.next_deadline(), Some(2_000));
    world.now = 2_000;
    assert_eq!(world.grants()[0].delivery, 2);
}

#[test]
fn a_job_that_only_waits_for_the_upstream_is_never_put_aside() {
    let mut world = World::new(config());
    world.job(1, Priority::Batch, "acme");
    for delivery in 1..=50 {
        world.worker("w", 1);
        let credits = world.grants();
        assert_eq!(credits[0].delivery, delivery, "each has its own number");
        world.start(&credits[0]);
        let until = world.now + 1_000;
        world.settle(&credits[0], Outcome::Parked { until }, None);
        world.now = until;
    }
}

#[test]
fn a_new_leader_goes_on_counting_the_deliveries_of_parked_jobs() {
    let mut world = World::new(config());
    world.job(1, Priority::Batch, "acme");
    world.worker("w", 1);
    let credits = world.grants();
    let mut next = World::new(config());
    next.scheduler = Scheduler::new(config(), Term(9), 0);
    next.complete();
    next.settle(&credits[0], Outcome::Parked { until: 0 }, None);
    next.job(1, Priority::Batch, "acme");
    next.worker("w", 1);
    assert_eq!(next.grants()[0].delivery, 2);
}

#[test]
fn not_before_is_honoured_to_the_millisecond() {
    let mut world = World::new(config());
    world.worker("w", 1);
    world.event(Event::Job(JobSeen {
        not_before: Some(500),
        ..seen(1, Priority::Critical, "acme")
    }));
    world.now = 499;
    assert_eq!(world.grants(), []);
    world.now = 500;
    assert_eq!(seqs(&world.grants()), [1]);
}

#[test]
fn a_job_whose_deadline_passed_is_never_granted() {
    let mut world = World::new(config());
    world.event(Event::Job(JobSeen {
        deadline: Some(100),
        ..seen(1, Priority::Critical, "acme")
    }));
    world.job(2, Priority::Critical, "acme");
    world.now = 100;
    world.worker("w", 2);
    let effects = world.scheduler.dispatch(world.now);
    let aside = Effect::PutAside {
        seq: JobSeq(1),
        why: PutAside::DeadlinePassed,
    };
    assert!(effects.contains(&aside), "{effects:?}");
    assert!(
        effects
            .iter()
            .any(|e| matches!(e, Effect::Grant { credit, .. } if credit.seq == JobSeq(2)))
    );
}

#[test]
fn a_job_misses_its_deadline_wherever_it_stands_and_though_no_worker_is_there() {
    let mut world = World::new(config());
    let with_deadline = |seq| JobSeen {
        deadline: Some(1_000),
        ..seen(seq, Priority::Batch, "acme")
    };
    world.worker("w", 1);
    world.event(Event::Job(with_deadline(1)));
    let running = world.grants();
    world.job(2, Priority::Batch, "acme");
    world.event(Event::Job(with_deadline(3)));
    assert_eq!(world.scheduler.next_deadline(), Some(1_000));
    world.now = 1_000;
    assert_eq!(
        world.scheduler.dispatch(1_000),
        [Effect::PutAside {
            seq: JobSeq(3),
            why: PutAside::DeadlinePassed
        }],
        "a worker has the first, and the second has no deadline"
    );
    world.settle(&running[0], Outcome::Parked { until: 2_000 }, None);
    world.now = 2_000;
    let why = PutAside::DeadlinePassed;
    let effects = world.scheduler.dispatch(2_000);
    assert!(effects.contains(&Effect::PutAside {
        seq: JobSeq(1),
        why
    }));
}

#[test]
fn a_job_that_is_being_put_aside_does_not_come_back_in_line_when_its_old_lease_ends() {
    let mut world = World::new(config());
    let late = JobSeen {
        deadline: Some(5_000),
        ..seen(1, Priority::Batch, "acme")
    };
    world.event(Event::Job(late));
    world.worker("w", 1);
    let credits = world.grants();
    world.settle(&credits[0], Outcome::Parked { until: 5_000 }, None);
    world.now = 5_000;
    world.worker("w", 1);
    assert_eq!(world.scheduler.dispatch(5_000).len(), 1, "put aside");
    // The server's end of the parked lease, while the letter is being written.
    world.lease_ends(1);
    world.event(Event::PutAside { seq: JobSeq(1) });
    assert_eq!(world.grants(), []);
    assert_eq!(world.scheduler.queued(), [0; 3]);
}

/// Pools of one request a second.
fn one_a_second() -> World {
    let default_limits = Limits {
        requests: 60,
        input_tokens: 600_000,
        output_tokens: 600_000,
    };
    World::new(Config {
        default_limits,
        ..config()
    })
}

#[test]
fn grants_stay_within_the_pool_and_go_on_when_it_refills() {
    let mut world = one_a_second();
    for seq in 1..=30 {
        world.job(seq, Priority::Critical, "acme");
    }
    world.worker("w", 100);
    assert_eq!(world.grants().len(), 10, "a sixth of a minute's worth");
    assert_eq!(world.scheduler.next_deadline(), Some(1_000));
    world.now = 999;
    assert_eq!(world.grants().len(), 0);
    world.now = 1_000;
    world.worker("w", 100);
    assert_eq!(world.grants().len(), 1);
}

#[test]
fn other_work_is_paced_and_what_has_gathered_stays_for_critical_work() {
    let mut world = one_a_second();
    for seq in 1..=30 {
        world.job(seq, Priority::Batch, "acme");
    }
    world.worker("w", 100);
    assert_eq!(world.grants().len(), 3, "three seconds' worth");
    assert_eq!(world.scheduler.next_deadline(), Some(1_000));
    for seq in 31..=35 {
        world.job(seq, Priority::Critical, "acme");
    }
    let credits = world.grants();
    let critical = |credit: &&Credit| credit.priority == Priority::Critical;
    assert_eq!(credits.iter().filter(critical).count(), 5, "all of them");
    world.now = 1_000;
    assert_eq!(world.grants().len(), 1);
}

#[test]
fn the_meter_sees_who_competes_and_what_they_get() {
    let pro = Policy {
        weight: Weight(3_000),
        ..Policy::default()
    };
    let mut world = World::new(Config {
        tenants: BTreeMap::from([(TenantId::parse("pro").unwrap(), pro)]),
        ..config()
    });
    for seq in 1..=4_000 {
        let tenant = ["pro", "acme", "bolt"][seq as usize % 3];
        world.job(seq, Priority::Standard, tenant);
    }
    world.job(5_000, Priority::Critical, "acme");
    for second in 0..60 {
        world.now = second * 1_000;
        world.worker("w", 20);
        for credit in world.grants() {
            let used = credit.tokens;
            world.start(&credit);
            world.settle(&credit, Outcome::Finished, Some(used));
        }
    }
    let meter = world.scheduler.fairness(60_000);
    let reading = meter.latest(Priority::Standard);
    assert_eq!(reading.flows, 3);
    assert!(reading.index > 0.999, "{reading:?}");
    assert!(reading.min_share > 0.97, "{reading:?}");
    assert!(reading.gap_ratio <= 1.0, "{reading:?}");
    assert_eq!(meter.latest(Priority::Critical).flows, 0);
    let (lane, _) = meter.history().next().unwrap().lanes[0];
    assert_eq!(world.scheduler.pool_of(lane).as_str(), "haiku");
}

#[test]
fn a_pause_stops_its_pool_and_no_other() {
    let mut world = World::new(config());
    for seq in 1..=3 {
        world.job(seq, Priority::Batch, "acme");
    }
    world.worker("w", 1);
    let credits = world.grants();
    world.revision += 1;
    let settlement = Settlement {
        credit: credits[0].clone(),
        outcome: Outcome::Parked { until: 16_000 },
        used: None,
        observed: Observation {
            requests: Some(Observed {
                limit: 50,
                remaining: 0,
            }),
            ..Observation::default()
        },
        refused: None,
        pause: Some(Pause {
            scope: Scope::Pool,
            until: 16_000,
            probe: false,
        }),
        sample: None,
    };
    let revision = world.revision;
    world.event(Event::Settled {
        settlement,
        revision,
    });
    assert_eq!(world.grants(), []);
    let sonnet = PoolId::parse("sonnet").unwrap();
    world.event(Event::Job(JobSeen {
        pool: sonnet,
        ..seen(9, Priority::Batch, "acme")
    }));
    assert_eq!(
        seqs(&world.grants()),
        [9],
        "the same tenant's job in another pool flows"
    );
}

#[test]
fn an_earlier_leaders_credit_is_not_taken_for_our_own() {
    let mut world = World::new(config());
    world.job(1, Priority::Batch, "acme");
    world.worker("w", 1);
    assert_eq!(
        world.scheduler.dispatch(0).len(),
        1,
        "ours is not stored yet"
    );
    let haiku = world.scheduler.pool(&PoolId::parse("haiku").unwrap());
    let left = |world: &mut World| world.scheduler.pools.limits(haiku).left(0)[1];
    let before = left(&mut world);
    // To the same worker, and its first delivery, too; but it set aside more.
    let mut earlier = credit_of(1);
    earlier.tokens.input = 5_500;
    world.revision += 1;
    world.event(Event::Held {
        credit: earlier,
        started: true,
        revision: world.revision,
    });
    assert_eq!(world.scheduler.live(), 1);
    assert_eq!(before - left(&mut world), 5_000);
}

#[test]
fn a_new_leader_that_reads_leases_first_does_not_grant_what_runs() {
    let mut first = World::new(config());
    for seq in 1..=4 {
        first.job(seq, Priority::Batch, "acme");
    }
    first.worker("w", 2);
    let running = first.grants();
    assert_eq!(running.len(), 2);

    let mut next = World::new(config());
    next.scheduler = Scheduler::new(config(), Term(9), 0);
    for (revision, credit) in (1..).zip(&running) {
        next.event(Event::Held {
            credit: credit.clone(),
            started: true,
            revision,
        });
    }
    for seq in 1..=4 {
        next.job(seq, Priority::Batch, "acme");
    }
    next.worker("w", 3);
    assert_eq!(next.grants(), [], "not all jobs are known");
    next.complete();
    let granted = next.grants();
    assert_eq!(granted.len(), 1, "two of three slots are known to be taken");
    assert!(!seqs(&running).contains(&granted[0].seq.0));
    assert_eq!(next.scheduler.live(), 3);
}

#[test]
fn a_grant_that_another_leader_forestalled_is_undone() {
    let mut world = World::new(config());
    world.job(1, Priority::Batch, "acme");
    world.worker("w", 1);
    let effects = world.scheduler.dispatch(0);
    let [Effect::Grant { credit, .. }] = effects.as_slice() else {
        panic!("{effects:?}")
    };
    let other = Credit {
        term: Term(2),
        worker: WorkerId::parse("v").unwrap(),
        ..credit.clone()
    };
    world.event(Event::Held {
        credit: other.clone(),
        started: true,
        revision: 5,
    });
    world.event(Event::GrantRefused { seq: JobSeq(1) });
    assert_eq!(world.scheduler.live(), 1, "only the other's credit is live");
    world.revision = 5;
    world.settle(&other, Outcome::Finished, Some(other.tokens));
    assert_eq!((world.scheduler.live(), world.scheduler.known()), (0, 0));
}

#[test]
fn a_job_that_is_put_aside_while_another_leaders_credit_runs_frees_its_slot() {
    let mut world = World::new(config());
    world.event(Event::Job(JobSeen {
        deadline: Some(100),
        ..seen(1, Priority::Batch, "acme")
    }));
    world.worker("w", 1);
    world.now = 100;
    assert_eq!(world.scheduler.dispatch(100).len(), 1, "put aside");
    let credit = Credit {
        term: Term(0),
        worker: WorkerId::parse("w").unwrap(),
        delivery: 1,
        cost: Cost(1_000),
        granted_at: 0,
        probe: false,
        ..credit_of(1)
    };
    world.revision = 1;
    world.event(Event::Held {
        credit: credit.clone(),
        started: true,
        revision: 1,
    });
    world.event(Event::PutAside { seq: JobSeq(1) });
    assert_eq!((world.scheduler.live(), world.scheduler.known()), (1, 0));
    world.settle(&credit, Outcome::Finished, None);
    assert_eq!(world.scheduler.live(), 0);
}

#[test]
fn a_lease_that_left_no_trace_ends_at_the_revision_it_was_known_by() {
    let mut world = World::new(config());
    world.job(1, Priority::Batch, "acme");
    world.job(2, Priority::Batch, "acme");
    world.worker("w", 2);
    let credits = world.grants();
    world.event(Event::Held {
        credit: credits[1].clone(),
        started: true,
        revision: 2,
    });
    let gone = Event::LeaseEnded {
        seq: JobSeq(1),
        revision: 1,
    };
    world.event(gone.clone());
    assert_eq!(world.scheduler.live(), 1);
    let [
        Effect::Grant {
            ref credit,
            expected,
        },
    ] = world.scheduler.dispatch(0)[..]
    else {
        panic!("the slot is free")
    };
    assert_eq!((credit.seq, credit.delivery, expected), (JobSeq(1), 2, 0));
    world.event(gone);
    assert_eq!(world.scheduler.live(), 2, "a replay ends nothing");
}

#[test]
fn a_grant_that_was_stored_after_all_is_charged_once() {
    let charge = |refused: bool| {
        let mut world = World::new(config());
        for seq in 1..=3 {
            world.job(seq, Priority::Batch, "acme");
        }
        world.worker("w", 1);
        let credits = match &world.scheduler.dispatch(0)[..] {
            [Effect::Grant { credit, .. }] => credit.clone(),
            other => panic!("{other:?}"),
        };
        if refused {
            world.event(Event::GrantRefused { seq: JobSeq(1) });
        }
        world.event(Event::Held {
            credit: credits,
            started: true,
            revision: 1,
        });
        world.scheduler.snapshot(0)
    };
    let (refused, stored) = (charge(true), charge(false));
    assert_eq!(refused, stored);
}

#[test]
fn a_refused_grant_is_tried_again_when_nobody_else_shows_up() {
    let mut world = World::new(config());
    world.job(1, Priority::Batch, "acme");
    world.worker("w", 1);
    assert_eq!(world.scheduler.dispatch(0).len(), 1);
    world.event(Event::GrantRefused { seq: JobSeq(1) });
    assert_eq!(world.scheduler.live(), 0);
    assert_eq!(world.scheduler.dispatch(RETRY_AFTER - 1).len(), 0);
    assert_eq!(world.scheduler.dispatch(RETRY_AFTER).len(), 1);
}

#[test]
fn a_grant_over_a_trace_that_is_gone_is_repeated_over_nothing() {
    let mut world = World::new(config());
    world.job(1, Priority::Batch, "acme");
    world.worker("w", 1);
    let credits = world.grants();
    world.settle(&credits[0], Outcome::Returned, None);
    let over = world.revision;
    let [Effect::Grant { expected, .. }] = world.scheduler.dispatch(0)[..] else {
        panic!("it waits for nobody")
    };
    assert_eq!(expected, over);
    // It waited longer than the tombstone stays: the key is empty, and nobody was told.
    world.event(Event::GrantRefused { seq: JobSeq(1) });
    let [Effect::Grant { expected, .. }] = world.scheduler.dispatch(RETRY_AFTER)[..] else {
        panic!("it is tried again")
    };
    assert_eq!(expected, 0);
}

#[test]
fn replays_and_late_messages_change_nothing() {
    let mut world = World::new(config());
    world.job(1, Priority::Batch, "acme");
    world.worker("w", 2);
    let credits = world.grants();
    let held = Event::Held {
        credit: credits[0].clone(),
        started: true,
        revision: 1,
    };
    world.settle(&credits[0], Outcome::Finished, Some(credits[0].tokens));
    world.event(held);
    assert_eq!(world.scheduler.live(), 0, "a replay opens no lease");
    world.job(1, Priority::Batch, "acme");
    // The index shows it late: it costs one credit, which its worker finds empty.
    assert!(world.scheduler.live() <= 1);
    let late = world.grants();
    for credit in late {
        world.settle(&credit, Outcome::Finished, None);
    }
    assert_eq!((world.scheduler.live(), world.scheduler.known()), (0, 0));
}

#[test]
fn a_tenant_at_its_cap_holds_up_nobody() {
    let mut world = World::new(Config {
        default_policy: Policy {
            in_flight_max: 2,
            ..Policy::default()
        },
        ..config()
    });
    for seq in 1..=50 {
        world.job(seq, Priority::Batch, "noisy");
    }
    world.job(51, Priority::Batch, "quiet");
    world.worker("w", 10);
    let credits = world.grants();
    assert_eq!(
        credits
            .iter()
            .filter(|c| c.tenant.as_str() == "noisy")
            .count(),
        2
    );
    assert_eq!(
        credits
            .iter()
            .filter(|c| c.tenant.as_str() == "quiet")
            .count(),
        1
    );
    world.settle(&credits[0], Outcome::Finished, Some(credits[0].tokens));
    assert_eq!(world.grants().len(), 1, "the cap opens by one");
}

#[test]
fn one_critical_job_passes_a_backlog_of_batch_work() {
    let mut world = World::new(config());
    for seq in 1..=100 {
        world.job(seq, Priority::Batch, "noisy");
    }
    world.worker("w", 1);
    let first = world.grants();
    world.job(101, Priority::Critical, "user");
    world.settle(&first[0], Outcome::Finished, Some(first[0].tokens));
    assert_eq!(seqs(&world.grants()), [101]);
}

#[test]
fn a_worker_that_fell_silent_or_drains_gets_nothing() {
    let mut world = World::new(config());
    world.worker("w", 4);
    world.job(1, Priority::Batch, "acme");
    world.now = 3_000;
    assert_eq!(world.grants(), []);
    let worker = WorkerId::parse("w").unwrap();
    world.event(Event::Worker {
        worker,
        slots: 4,
        draining: true,
    });
    assert_eq!(world.grants(), []);
    world.worker("w", 4);
    assert_eq!(world.grants().len(), 1);
}

#[test]
fn nothing_is_remembered_of_jobs_that_are_gone() {
    let mut world = World::new(config());
    world.worker("w", 10);
    for seq in 1..=100 {
        world.job(seq, Priority::Batch, "acme");
        let credits = world.grants();
        world.settle(&credits[0], Outcome::Finished, Some(credits[0].tokens));
        // The trace of the settlement ends too, later.
        world.revision += 1;
        let revision = world.revision;
        world.event(Event::LeaseEnded {
            seq: JobSeq(seq),
            revision,
        });
    }
    assert_eq!((world.scheduler.leases(), world.scheduler.known()), (0, 0));
}

impl World {
    /// Settles as parked for a second, after a call that said something about the upstream.
    fn sample(&mut self, credit: &Credit, sample: Sample) {
        self.revision += 1;
        let settlement = Settlement {
            credit: credit.clone(),
            outcome: Outcome::Parked {
                until: self.now + 1_000,
            },
            used: None,
            observed: Observation::default(),
            refused: None,
            pause: None,
            sample: Some(sample),
        };
        self.event(Event::Settled {
            settlement,
            revision: self.revision,
        });
    }
}

#[test]
fn an_open_breaker_holds_its_pool_and_half_open_lets_one_probe_through() {
    let mut world = World::new(config());
    world.worker("w", 100);
    for seq in 1..=20 {
        world.job(seq, Priority::Batch, "acme");
    }
    let credits = world.grants();
    assert_eq!(credits.len(), 20);
    for credit in &credits {
        world.sample(credit, Sample::Bad);
    }
    world.now = 2_000;
    assert_eq!(world.grants(), [], "open");
    let sonnet = PoolId::parse("sonnet").unwrap();
    world.event(Event::Job(JobSeen {
        pool: sonnet,
        ..seen(99, Priority::Batch, "acme")
    }));
    assert_eq!(seqs(&world.grants()), [99], "other pools run on");
    assert_eq!(world.scheduler.next_deadline(), Some(90_000));

    world.now = 90_000;
    world.worker("w", 100);
    let probe = world.grants();
    assert_eq!(probe.len(), 1, "one probe");
    assert_eq!(world.grants(), []);
    world.sample(&probe[0], Sample::Bad);
    assert_eq!(world.grants(), [], "open again");
    world.now = 180_000;
    world.worker("w", 100);
    let probe = world.grants();
    world.sample(&probe[0], Sample::Good);
    assert_eq!(world.grants().len(), 19, "closed");
}

#[test]
fn a_probe_whose_worker_dies_makes_room_for_another() {
    let mut world = World::new(config());
    world.worker("w", 100);
    for seq in 1..=20 {
        world.job(seq, Priority::Batch, "acme");
    }
    for credit in &world.grants() {
        world.sample(credit, Sample::Bad);
    }
    world.now = 90_000;
    world.worker("w", 100);
    let probe = world.grants();
    world.revision += 1;
    let revision = world.revision;
    world.event(Event::LeaseEnded {
        seq: probe[0].seq,
        revision,
    });
    assert_eq!(world.grants().len(), 1);
}

/// A world whose leader follows that of `old`, with its snapshot.
fn successor(old: &World, snapshot: Snapshot) -> World {
    let mut next = World::new(config());
    next.now = old.now;
    next.revision = old.revision;
    next.scheduler = Scheduler::new(config(), Term(old.revision + 1), old.now);
    next.scheduler.restore(snapshot);
    next
}

fn balance(scheduler: &mut Scheduler, now: Millis, tenant: &str) -> Cost {
    let accounts = scheduler.snapshot(now).accounts;
    let account = accounts
        .into_iter()
        .find(|account| account.tenant.as_str() == tenant);
    account.map_or(Cost(0), |account| account.balance)
}

#[test]
fn a_leader_change_loses_no_charge_and_refunds_none_twice() {
    // One leader runs through; another is followed by a successor at every point in between.
    let estimate = Tokens {
        input: 500,
        output: 100,
    };
    let used = Some(Tokens {
        input: 9_000,
        output: 400,
    });
    for change_after in 0..4 {
        let mut world = World::new(config());
        world.worker("w", 10);
        world.now = 10;
        world.job(1, Priority::Batch, "acme");
        world.job(2, Priority::Batch, "acme");
        let mut snapshot = world.scheduler.snapshot(world.now);
        world.now = 20;
        let credits = world.grants();
        assert_eq!(credits[0].tokens, estimate);
        world.event(Event::Held {
            credit: credits[0].clone(),
            revision: 1,
            started: true,
        });
        world.event(Event::Held {
            credit: credits[1].clone(),
            revision: 2,
            started: true,
        });
        if change_after >= 1 {
            snapshot = world.scheduler.snapshot(world.now);
        }
        world.settle(&credits[0], Outcome::Finished, used);
        let settlement = Settlement {
            credit: credits[0].clone(),
            outcome: Outcome::Finished,
            used,
            observed: Observation::default(),
            refused: None,
            pause: None,
            sample: None,
        };
        if change_after >= 2 {
            snapshot = world.scheduler.snapshot(world.now);
        }
        let want = balance(&mut world.scheduler, 20, "acme");
        let want_left = world.scheduler.pools(30)[0].left;

        let mut next = successor(&world, snapshot);
        // The bucket as a new leader reads it: the tombstone of one, the other still held.
        next.event(Event::Held {
            credit: credits[1].clone(),
            revision: 2,
            started: true,
        });
        next.event(Event::Settled {
            settlement,
            revision: 3,
        });
        next.job(2, Priority::Batch, "acme");
        next.complete();
        assert_eq!(
            balance(&mut next.scheduler, 20, "acme"),
            want,
            "after step {change_after}"
        );
        assert_eq!(next.scheduler.pools(30)[0].left, want_left);
    }
}

#[test]
fn debts_pauses_and_open_breakers_outlive_their_leader() {
    let mut world = World::new(config());
    world.worker("w", 30);
    for seq in 1..=20 {
        world.job(seq, Priority::Batch, "acme");
    }
    for credit in &world.grants() {
        world.sample(credit, Sample::Bad);
    }
    let snapshot = world.scheduler.snapshot(world.now);
    let mut next = successor(&world, snapshot);
    for seq in 1..=20 {
        next.job(seq, Priority::Batch, "acme");
    }
    next.complete();
    next.now = 89_000;
    next.worker("w", 30);
    assert_eq!(next.grants(), [], "still open");
    next.now = 90_000;
    next.worker("w", 30);
    assert_eq!(next.grants().len(), 1, "one probe");
}

#[test]
fn every_job_can_say_what_it_waits_for_and_until_when() {
    let mut world = World::new(Config {
        default_policy: Policy {
            in_flight_max: 2,
            ..Policy::default()
        },
        ..config()
    });
    let why = |world: &mut World, seq| world.scheduler.why(JobSeq(seq), world.now).why;
    assert_eq!(why(&mut world, 1), Why::NotQueued);
    world.job(1, Priority::Batch, "acme");
    world.job(2, Priority::Batch, "acme");
    assert_eq!(
        why(&mut world, 1),
        Why::NoFreeSlot {
            workers: 0,
            slots: 0
        }
    );
    assert_eq!(why(&mut world, 2), Why::BehindOwn { ahead: 1 });
    world.event(Event::Job(JobSeen {
        not_before: Some(700),
        ..seen(3, Priority::Batch, "acme")
    }));
    assert_eq!(why(&mut world, 3), Why::NotBefore { until: 700 });

    world.worker("w", 3);
    let credits = world.grants();
    let worker = WorkerId::parse("w").unwrap();
    assert_eq!(
        why(&mut world, 1),
        Why::Running {
            worker,
            delivery: 1,
            since: 0
        }
    );
    world.job(4, Priority::Batch, "acme");
    assert_eq!(
        why(&mut world, 4),
        Why::TenantAtCap {
            in_flight: 2,
            cap: 2
        }
    );
    world.settle(&credits[0], Outcome::Parked { until: 5_000 }, None);
    assert_eq!(why(&mut world, 1), Why::Parked { until: 5_000 });

    let pool = PoolId::parse("haiku").unwrap();
    let index = world.scheduler.pool(&pool);
    world.scheduler.pools.limits(index).pause(9_000);
    assert_eq!(why(&mut world, 4), Why::PoolPaused { until: 9_000 });
    for _ in 0..10 {
        world
            .scheduler
            .pools
            .breaker(index)
            .record(Sample::Bad, breaker::TenantKey(0), 0);
    }
    assert_eq!(why(&mut world, 4), Why::BreakerOpen { until: 90_000 });
}

#[test]
fn what_the_upstream_says_remains_holds_after_the_refund_too() {
    let mut world = World::new(config());
    world.worker("w", 1);
    world.job(1, Priority::Batch, "acme");
    let credits = world.grants();
    world.revision += 1;
    let settlement = Settlement {
        credit: credits[0].clone(),
        outcome: Outcome::Finished,
        used: Some(Tokens {
            input: 0,
            output: 0,
        }),
        observed: Observation {
            output_tokens: Some(Observed {
                limit: 600_000_000,
                remaining: 7,
            }),
            ..Observation::default()
        },
        refused: None,
        pause: None,
        sample: None,
    };
    let revision = world.revision;
    world.event(Event::Settled {
        settlement,
        revision,
    });
    assert_eq!(world.scheduler.snapshot(0).pools[0].left[2], 7);
}

#[test]
fn what_is_set_aside_follows_what_such_jobs_took() {
    let mut world = World::new(config());
    world.worker("w", 1);
    for seq in 1..=3 {
        world.job(seq, Priority::Batch, "acme");
    }
    let first = world.grants();
    assert_eq!(first[0].tokens.output, 100, "the producer's estimate");
    let used = Some(Tokens {
        input: 500,
        output: 4_000,
    });
    world.settle(&first[0], Outcome::Finished, used);
    // The head was estimated before; the one after it knows.
    let second = world.grants();
    world.settle(&second[0], Outcome::Finished, used);
    let third = world.grants();
    assert_eq!(third[0].tokens.output, 4_000);
    assert_eq!(third[0].cost, Cost(20_500));
}

#[test]
fn a_store_that_takes_nothing_is_not_asked_for_every_job_at_once() {
    let mut world = World::new(config());
    world.worker("w", 10);
    for seq in 1..=100 {
        world.job(seq, Priority::Batch, "acme");
    }
    assert_eq!(world.scheduler.dispatch(0).len(), 10);
    for seq in 1..=10 {
        world.event(Event::GrantFailed { seq: JobSeq(seq) });
    }
    assert_eq!(world.scheduler.live(), 0);
    assert_eq!(world.scheduler.dispatch(HOLD - 1), []);
    assert_eq!(world.scheduler.next_deadline(), Some(HOLD));
    assert_eq!(world.scheduler.dispatch(HOLD).len(), 10);
}

#[test]
fn a_pool_whose_breaker_closes_begins_slowly() {
    let limits = Limits {
        requests: 600,
        input_tokens: 6_000_000,
        output_tokens: 6_000_000,
    };
    let mut world = World::new(Config {
        default_limits: limits,
        ..config()
    });
    world.worker("w", 200);
    for seq in 1..=200 {
        world.job(seq, Priority::Batch, "acme");
    }
    for credit in &world.grants() {
        world.sample(credit, Sample::Bad);
    }
    world.now = 90_000;
    world.worker("w", 200);
    let probe = world.grants();
    assert_eq!(probe.len(), 1);
    world.sample(&probe[0], Sample::Good);
    let first = world.grants().len();
    // Half a second of ten a second, though a minute's worth had gathered.
    assert_eq!(first, 5);
}

#[test]
fn one_pools_critical_work_leaves_the_slots_shares_to_other_pools() {
    let mut world = World::new(config());
    world.worker("w", 1);
    for seq in 1..=2_000 {
        let (priority, pool) = match seq % 2 {
            0 => (Priority::Critical, "haiku"),
            _ => (Priority::Batch, "sonnet"),
        };
        let pool = PoolId::parse(pool).unwrap();
        world.event(Event::Job(JobSeen {
            pool,
            ..seen(seq, priority, "acme")
        }));
    }
    let mut batch = 0;
    for _ in 0..1_000 {
        let credit = world.grants().remove(0);
        batch += i32::from(credit.priority == Priority::Batch);
        world.settle(&credit, Outcome::Finished, Some(credit.tokens));
    }
    assert!((60..=75).contains(&batch), "{batch} of 1 000, 67 are due");
}

#[test]
fn pools_of_one_priority_take_turns_whatever_their_backlogs() {
    let mut world = World::new(config());
    world.worker("w", 1);
    for seq in 1..=500 {
        world.job(seq, Priority::Batch, "acme");
    }
    let sonnet = PoolId::parse("sonnet").unwrap();
    for seq in 501..=510 {
        let pool = sonnet.clone();
        world.event(Event::Job(JobSeen {
            pool,
            ..seen(seq, Priority::Batch, "acme")
        }));
    }
    let mut fresh = 0;
    for _ in 0..20 {
        let credit = world.grants().remove(0);
        fresh += i32::from(credit.pool == sonnet);
        world.settle(&credit, Outcome::Finished, Some(credit.tokens));
    }
    assert_eq!(fresh, 10);
}
