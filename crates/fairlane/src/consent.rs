//! Asking before something is done that cannot be taken back.

use std::io::{BufRead, IsTerminal};

use crate::cli::Consent;
use crate::exit::{Exit, Stop};
use crate::out::say;

impl Consent {
    /// Goes on if the user agrees: by `--yes`, or at the terminal. `what` is what would be done, as a sentence; `nothing`
    /// what is said if not, such as "nothing was deleted".
    ///
    /// # Errors
    /// [`Exit::Usage`] if nobody can be asked, [`Exit::Interrupted`] if the answer is no.
    pub(crate) fn ask(self, what: &str, nothing: &str) -> Result<(), Stop> {
        ask(self.yes, what, "--dry-run to look first", nothing)
    }
}

/// The same for commands that have nothing to show beforehand.
///
/// # Errors
/// As [`Consent::ask`].
pub(crate) fn ask(yes: bool, what: &str, or: &str, nothing: &str) -> Result<(), Stop> {
    if yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        let text = format!("{what} Nobody can answer here: add --yes, or {or}");
        return Err(Stop::saying(Exit::Usage, text));
    }
    say(format_args!("{what} Go on? [y/N]"));
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.map_err(|error| anyhow::Error::new(error).context("cannot read the answer"))?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Stop::saying(Exit::Interrupted, nothing)),
    }
}
