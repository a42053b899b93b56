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
