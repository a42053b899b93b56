//! What people and scripts see: data on standard output, talk on standard error.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use clap::ColorChoice;

use crate::exit::Stop;

/// Writes data. A reader that has gone away (`| head`) ends the program without a word.
pub(crate) fn print(text: impl fmt::Display) -> Result<(), Stop> {
    let mut out = io::stdout().lock();
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    written.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Stop::quietly(),
        _ => Stop::from(anyhow::Error::new(error).context("cannot write to standard output")),
    })
}

/// One document a line: how this process writes JSON. Set before anything is written.
static LINES: AtomicBool = AtomicBool::new(false);

/// From now on JSON is written one document a line.
pub(crate) fn write_lines() {
    LINES.store(true, Ordering::Relaxed);
}

/// Makes room for a picture that is shown again and again: on a terminal it takes the place of the one before.
pub(crate) fn begin_picture() {
    let mut out = io::stdout();
    if out.is_terminal() {
        // Home, then clear to the end. Should it not work, the pictures follow one another.
        let _unheard = write!(out, "\u{1b}[H\u{1b}[J").is_err();
    }
}

/// Writes a document as indented JSON; or on one line, and the items of a list on one each.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<(), Stop> {
    if LINES.load(Ordering::Relaxed) {
        let value = serde_json::to_value(value).map_err(anyhow::Error::new)?;
        return match value {
            serde_json::Value::Array(items) => items.iter().try_for_each(print),
            document => print(document),
        };
    }
    let text = serde_json::to_string_pretty(value).map_err(anyhow::Error::new)?;
    print(text)
}

/// Says something about what is going on. Nobody listening is no reason to stop working.
pub(crate) fn say(text: impl fmt::Display) {
    let _unheard = writeln!(io::stderr().lock(), "{text}").is_err();
}

/// Colours, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Paint {
    on: bool,
}

/// What a piece of text means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ink {
    Good,
    Bad,
    Heading,
    Aside,
}

impl Paint {
    /// For standard error, by `--color`, `NO_COLOR` and whether it is a terminal.
    pub(crate) fn for_talk(choice: ColorChoice) -> Self {
        Self::decide(choice, no_color(), io::stderr().is_terminal())
    }

    /// For standard output.
    pub(crate) fn for_data(choice: ColorChoice) -> Self {
        Self::decide(choice, no_color(), io::stdout().is_terminal())
    }

    fn decide(choice: ColorChoice, no_color: bool, is_terminal: bool) -> Self {
        let on = match choice {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => is_terminal && !no_color,
        };
        Self { on }
    }

    #[cfg(test)]
    pub(crate) fn plain() -> Self {
        Self { on: false }
    }

    /// Whether there are any.
    pub(crate) fn is_on(self) -> bool {
        self.on
    }

    /// `text` in the colour of `ink`.
    pub(crate) fn paint(self, ink: Ink, text: impl fmt::Display) -> String {
        if !self.on {
            return text.to_string();
        }
        let code = match ink {
            Ink::Good => "32",
            Ink::Bad => "31",
            Ink::Heading => "1",
            Ink::Aside => "2",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }
}

fn no_color() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_need_a_terminal_and_no_objection_unless_they_are_forced() {
        let on = |choice, no_color, terminal| Paint::decide(choice, no_color, terminal).on;
        assert!(on(ColorChoice::Auto, false, true));
        assert!(!on(ColorChoice::Auto, true, true));
        assert!(!on(ColorChoice::Auto, false, false));
        assert!(on(ColorChoice::Always, true, false));
        assert!(!on(ColorChoice::Never, false, true));
        assert_eq!(Paint::plain().paint(Ink::Bad, 7), "7");
    }
}
