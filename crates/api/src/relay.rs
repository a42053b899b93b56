//! The parts of an answer, as they come from a worker, on their way to a caller. No IO.
//!
//! Nothing is passed on before the answer's content has begun: until then an attempt may fail and another
//! one take its place without the caller seeing it. The end, `message_stop`, is kept back until the job's
//! record says that this is the answer.

/// What a message with parts says about them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Label {
    attempt: String,
    first: u64,
    count: u64,
}

impl Label {
    /// Reads the header. None if it is not one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let label = Self {
            attempt: words.next()?.to_owned(),
            first: words.next()?.parse().ok()?,
            count: words.next()?.parse().ok()?,
        };
        words.next().is_none().then_some(label)
    }
}

/// What to do after some parts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing yet.
    Wait,
    /// Send this.
    Send(String),
    /// The caller has seen the beginning of an answer that will not be finished.
    Broken,
}

/// Where one caller's stream is.
#[derive(Debug, Default)]
pub(crate) struct Relay {
    attempt: Option<String>,
    /// Number of the part that has to come next.
    next: u64,
    held: String,
    has_begun: bool,
    has_stopped: bool,
    /// Something is missing, and nothing was passed on yet: only a new attempt, or the whole answer, helps.
    is_lost: bool,
}

const STOP: &str = "event: message_stop\n";
const BLOCK: &str = "event: content_block_start\n";

impl Relay {
    /// Whether the caller has seen a part.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Whether all parts but the end were passed on.
    pub(crate) fn has_stopped(&self) -> bool {
        self.has_stopped
    }

    /// Takes the next parts.
    pub(crate) fn take(&mut self, label: &Label, text: &str) -> Step {
        if self.attempt.as_deref() != Some(&label.attempt) {
            if self.has_begun {
                return Step::Broken;
            }
            *self = Self {
                attempt: Some(label.attempt.clone()),
                ..Self::default()
            };
        }
        if label.first != self.next {
            self.is_lost = true;
        }
        self.next = label.first.saturating_add(label.count);
        if self.is_lost {
            return if self.has_begun {
                Step::Broken
            } else {
                Step::Wait
            };
        }
        let text = match text.find(STOP) {
            Some(at) => {
                self.has_stopped = true;
                &text[..at]
            }
            None => text,
        };
        self.held += text;
        if !self.has_begun && !self.held.contains(BLOCK) {
            return Step::Wait;
        }
        self.has_begun = true;
        match std::mem::take(&mut self.held) {
            nothing if nothing.is_empty() => Step::Wait,
            text => Step::Send(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: &str = "event: message_start\ndata: {}\n\n";
    const BEGIN: &str = "event: content_block_start\ndata: {}\n\n";
    const DELTA: &str = "event: content_block_delta\ndata: {}\n\n";
    const END: &str = "event: message_stop\ndata: {}\n\n";

    fn label(attempt: &str, first: u64, count: u64) -> Label {
        Label::parse(&format!("{attempt} {first} {count}")).unwrap()
    }

    #[test]
    fn parts_are_passed_on_from_where_content_begins_and_without_the_end() {
        let mut relay = Relay::default();
        assert_eq!(relay.take(&label("a", 0, 1), START), Step::Wait);
        let begun = relay.take(&label("a", 1, 1), BEGIN);
        assert_eq!(begun, Step::Send(format!("{START}{BEGIN}")));
        let more = relay.take(&label("a", 2, 2), &format!("{DELTA}{END}"));
        assert_eq!(more, Step::Send(DELTA.to_owned()));
        assert!(relay.has_stopped());
    }

    #[test]
    fn an_attempt_that_fails_unseen_is_replaced_and_one_that_was_seen_is_not() {
        let mut relay = Relay::default();
        relay.take(&label("a", 0, 1), START);
        assert_eq!(relay.take(&label("b", 0, 1), START), Step::Wait);
        let begun = relay.take(&label("b", 1, 1), BEGIN);
        assert_eq!(begun, Step::Send(format!("{START}{BEGIN}")));
        assert_eq!(relay.take(&label("c", 0, 1), START), Step::Broken);
    }

    #[test]
    fn a_gap_breaks_what_was_seen_and_silences_what_was_not() {
        let mut relay = Relay::default();
        relay.take(&label("a", 0, 2), &format!("{START}{BEGIN}"));
        assert_eq!(relay.take(&label("a", 3, 1), DELTA), Step::Broken);
        // Who comes late hears nothing, until there is a new attempt.
        let mut late = Relay::default();
        assert_eq!(late.take(&label("a", 5, 1), BEGIN), Step::Wait);
        assert_eq!(late.take(&label("a", 6, 1), DELTA), Step::Wait);
        assert!(!late.has_begun());
        assert_ne!(
            late.take(&label("b", 0, 2), &format!("{START}{BEGIN}")),
            Step::Wait
        );
    }

    #[test]
    fn a_label_is_three_words() {
        for wrong in ["", "a", "a 0", "a x 1", "a 0 1 2"] {
            assert_eq!(Label::parse(wrong), None, "{wrong:?}");
        }
    }
}
