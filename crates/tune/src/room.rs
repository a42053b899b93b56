//! Room for answers: which `max_tokens` a kind of job should ask for.
//!
//! Too little, and answers are cut off: the call is paid and made again with more room. Too much, and an answer
//! that never comes to its end is paid to the last token. What a value would have wasted is reckoned from what was
//! recorded: a job that needed more than it is paid up to it and then again; one that needed less once.

use std::collections::BTreeMap;

use fairlane_core::Kind;

/// The saving, as a part of all that the kind's calls cost, below which a value is left as it is.
pub const SAVING_PERCENT: u64 = 2;

/// Jobs of a kind without which nothing is said about it.
const JOBS_MIN: usize = 50;

/// How the answer of one job came about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub kind: Kind,
    /// `max_tokens` of its first call.
    pub asked: u64,
    /// Output of its answer; None if it was cut off to the last.
    pub needed: Option<u64>,
    /// What its last call cost, in any unit that is the same for all.
    pub cost: u64,
}

impl Answer {
    /// What is paid in vain with this room.
    fn wasted(&self, room: u64) -> u64 {
        let scaled = |part: u64, whole: u64| {
            let scaled = u128::from(self.cost) * u128::from(part) / u128::from(whole.max(1));
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };
        match self.needed {
            Some(needed) if needed <= room => 0,
            Some(needed) => scaled(room, needed),
            None => scaled(room, self.asked),
        }
    }
}

/// Another `max_tokens` for a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoomAdvice {
    pub kind: Kind,
    pub jobs: usize,
    /// What most of its jobs ask for.
    pub asked: u64,
    pub better: u64,
    /// Answers that were cut off at first, and those that would have been.
    pub cut_off: usize,
    pub cut_off_with_better: usize,
    /// What was wasted, what would have been, and all that was paid, in the unit of the costs.
    pub wasted: u64,
    pub wasted_with_better: u64,
    pub paid: u64,
}

/// Kinds that should ask for another room: where it would have saved [`SAVING_PERCENT`] of what they cost.
#[must_use]
pub fn room(answers: &[Answer]) -> Vec<RoomAdvice> {
    let mut kinds: BTreeMap<&Kind, Vec<&Answer>> = BTreeMap::new();
    for answer in answers {
        kinds.entry(&answer.kind).or_default().push(answer);
    }
    let advice = kinds
        .into_iter()
        .filter_map(|(kind, answers)| of_kind(kind, &answers));
    advice.collect()
}

fn of_kind(kind: &Kind, answers: &[&Answer]) -> Option<RoomAdvice> {
    let mut needed: Vec<u64> = answers.iter().filter_map(|answer| answer.needed).collect();
    if needed.len() < JOBS_MIN {
        return None;
    }
    needed.sort_unstable();
    let wasted_today: u64 = answers
        .iter()
        .map(|answer| answer.wasted(answer.asked))
        .sum();
    let paid = answers.iter().map(|answer| answer.cost).sum::<u64>() + wasted_today;
    let last = needed.len() - 1;
    // A quarter beyond what nearly all needed: the next month is not the last one.
    let candidates = [950, 990, 999, 1_000].map(|part| roomy(needed[last * part / 1_000]));
    let wasted = |room| {
        answers
            .iter()
            .map(|answer| answer.wasted(room))
            .sum::<u64>()
    };
    let (wasted_with_better, better) = candidates
        .into_iter()
        .map(|room| (wasted(room), room))
        .min()?;
    let saved = wasted_today.checked_sub(wasted_with_better)?;
    if saved == 0 || saved < paid / 100 * SAVING_PERCENT {
        return None;
    }
    let is_cut = |answer: &Answer, room| answer.needed.is_none_or(|needed| needed > room);
    Some(RoomAdvice {
        kind: kind.clone(),
        jobs: answers.len(),
        asked: usual(answers),
        better,
        cut_off: answers
            .iter()
            .filter(|answer| is_cut(answer, answer.asked))
            .count(),
        cut_off_with_better: answers
            .iter()
            .filter(|answer| is_cut(answer, better))
            .count(),
        wasted: wasted_today,
        wasted_with_better,
        paid,
    })
}

/// A quarter more, rounded up to a multiple of 64.
fn roomy(needed: u64) -> u64 {
    (needed + needed / 4).div_ceil(64).max(1) * 64
}

/// The value most ask for.
fn usual(answers: &[&Answer]) -> u64 {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    for answer in answers {
        *counts.entry(answer.asked).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    most.map_or(0, |(asked, _)| asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(asked: u64, needed: impl Iterator<Item = Option<u64>>) -> Vec<Answer> {
        let kind = Kind::parse("tagging").unwrap();
        let answer = |needed: Option<u64>| Answer {
            kind: kind.clone(),
            asked,
            needed,
            cost: 10 * needed.unwrap_or(asked),
        };
        needed.map(answer).collect()
    }

    #[test]
    fn answers_that_are_cut_off_need_more_room() {
        // A tenth needs 400 and was asked for 256.
        let needed = (0..200).map(|n| Some(if n % 10 == 0 { 400 } else { 100 }));
        let advice = room(&answers(256, needed));
        assert_eq!(advice.len(), 1);
        let advice = &advice[0];
        assert_eq!((advice.asked, advice.better), (256, 512));
        assert_eq!((advice.cut_off, advice.cut_off_with_better), (20, 0));
        assert_eq!((advice.wasted, advice.wasted_with_better), (20 * 2_560, 0));
    }

    #[test]
    fn answers_without_an_end_need_less() {
        let needed = (0..200).map(|n| (n % 10 != 0).then_some(100));
        let advice = room(&answers(8_192, needed));
        assert_eq!(advice[0].better, 128);
        assert_eq!(advice[0].cut_off_with_better, 20, "they never end");
        assert!(advice[0].wasted_with_better * 60 < advice[0].wasted);
    }

    #[test]
    fn enough_room_is_left_as_it_is_and_few_jobs_say_nothing() {
        let enough = answers(4_096, (0..200).map(|n| Some(50 + n)));
        assert_eq!(room(&enough), []);
        let few = answers(64, (0..40).map(|_| Some(100)));
        assert_eq!(room(&few), []);
    }
}
