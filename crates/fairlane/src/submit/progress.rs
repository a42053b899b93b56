//! How far it is: a bar on a terminal, a line every few seconds elsewhere, on standard error.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::book::Book;
use crate::out::say;

const LINE_EVERY: Duration = Duration::from_secs(5);
/// Showing is cheap, counting all tenants is not: at most this often.
const SHOW_EVERY: Duration = Duration::from_millis(100);

/// What is going on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Sending,
    Following,
}

/// The display.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    stage: Stage,
    shown: Instant,
    written: Instant,
}

impl Progress {
    /// A bar if standard error is a terminal, lines otherwise.
    pub(crate) fn start() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.set_style(style("{spinner} {msg}  {elapsed}"));
            bar.enable_steady_tick(SHOW_EVERY);
            bar
        });
        let now = Instant::now();
        Self {
            bar,
            stage: Stage::Sending,
            shown: now,
            written: now,
        }
    }

    /// All lines are sent; now the jobs are followed.
    pub(crate) fn follow(&mut self) {
        self.stage = Stage::Following;
        if let Some(bar) = &self.bar {
            bar.set_style(style("{bar:30} {pos}/{len}  {msg}  {elapsed}"));
        }
    }

    /// Shows the state of the books, if it is time to.
    pub(crate) fn show(&mut self, book: &Book) {
        let now = Instant::now();
        if now.duration_since(self.shown) < SHOW_EVERY {
            return;
        }
        self.shown = now;
        match &self.bar {
            Some(bar) => {
                let progress = book.progress();
                bar.set_length(progress.jobs);
                bar.set_position(progress.ended);
                bar.set_message(text(self.stage, book));
            }
            None if now.duration_since(self.written) >= LINE_EVERY => {
                self.written = now;
                say(text(self.stage, book));
            }
            None => {}
        }
    }

    /// Says something without disturbing the bar.
    pub(crate) fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| say(text)),
            None => say(text),
        }
    }

    /// Takes the bar away.
    pub(crate) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is one of two constants")
}

fn text(stage: Stage, book: &Book) -> String {
    let progress = book.progress();
    match stage {
        Stage::Sending => format!(
            "{} lines read, {} published, {} refused",
            book.lines,
            book.total().published,
            book.refused
        ),
        Stage::Following => format!(
            "{} of {} jobs ended: {} done, {} failed; {} generating",
            progress.ended, progress.jobs, progress.done, progress.failed, progress.generating
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stage_tells_its_own_numbers() {
        let mut book = Book::new(true, false);
        book.skip();
        assert_eq!(
            text(Stage::Sending, &book),
            "1 lines read, 0 published, 0 refused"
        );
        assert_eq!(
            text(Stage::Following, &book),
            "0 of 0 jobs ended: 0 done, 0 failed; 0 generating"
        );
    }

    #[test]
    fn the_templates_are_understood() {
        for template in [
            "{spinner} {msg}  {elapsed}",
            "{bar:30} {pos}/{len}  {msg}  {elapsed}",
        ] {
            style(template);
        }
    }
}
