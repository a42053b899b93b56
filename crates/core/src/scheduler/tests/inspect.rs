//! What is told about the scheduler, and faults that it finds in itself.

use super::*;

#[test]
fn a_job_that_stands_nowhere_is_put_in_line() {
    let mut world = World::new(config());
    for seq in 1..=5 {
        world.job(seq, Priority::Batch, "acme");
    }
    let stranded = |world: &mut World, after| world.scheduler.find_stranded(after, 3, world.now);
    assert_eq!(stranded(&mut world, None), (0, Some(JobSeq(3))));
    assert_eq!(stranded(&mut world, Some(JobSeq(3))), (0, None));
    // As a fault would leave it.
    world.scheduler.out_of_line(JobSeq(2));
    world.worker("w", 5);
    assert_eq!(world.grants().len(), 4);
    assert_eq!(stranded(&mut world, None), (1, Some(JobSeq(3))));
    assert_eq!(world.grants()[0].seq, JobSeq(2));
    assert_eq!(stranded(&mut world, None).0, 0);
}

#[test]
fn an_overview_tells_of_lanes_pools_workers_and_the_busiest_tenants() {
    let mut world = World::new(config());
    let heavy = Policy {
        weight: Weight(3_000),
        ..Policy::default()
    };
    let tenant = TenantId::parse("b").unwrap();
    world.event(Event::Policy {
        tenant,
        policy: heavy,
    });
    world.worker("w", 3);
    for seq in 1..=4 {
        world.job(seq, Priority::Batch, "a");
    }
    world.job(5, Priority::Critical, "b");
    for seq in 6..=11 {
        world.job(seq, Priority::Standard, "c");
    }
    let credits = world.grants();
    assert_eq!(credits.len(), 3);
    let now = world.now;
    let seen = world.scheduler.overview(2, now);
    assert_eq!(seen.queued.iter().sum::<usize>(), 8);
    assert_eq!((seen.in_flight, seen.active), (3, 3));
    assert_eq!(seen.active_weight, 5_000);
    let names: Vec<_> = seen
        .tenants
        .iter()
        .map(|tenant| tenant.tenant.as_str())
        .collect();
    assert_eq!(names, ["c", "a"], "the third has the least to do");
    let cost: i64 = credits.iter().map(|credit| credit.cost.0).sum();
    assert_eq!(seen.granted, Cost(cost));
    let granted = seen.pools[0].granted.iter().map(|cost| cost.0).sum::<i64>();
    assert_eq!(granted, cost);
    let worker = &seen.workers[0];
    assert_eq!((worker.slots, worker.live, worker.draining), (3, 3, false));
    assert!(!seen.pools[0].is_heard, "those of the configuration");
    assert_eq!(world.scheduler.overview(9, now).tenants.len(), 3);
    assert_eq!(world.scheduler.overview(9, now + 70_000).granted, Cost(0));

    world.done(&credits[0]);
    assert!(!world.scheduler.overview(9, now).pools[0].is_heard);
}
