//! The page of everything that says how something ended badly, `deploy/errors.md`, made from the code.

use std::fmt::Write as _;

use fairlane_core::failure::Reason;
use fairlane_wire::DeadReason;

use crate::doctor::Fault;
use crate::exit::Exit;

const HEAD: &str = "\
# Errors: every code and word

This page is made from the code; a test keeps it that way (`UPDATE=1 cargo test -p fairlane errors_page`). Codes and words are
stable: programs may decide by them. The sentences beside them may change.
";

const EXIT_CODES: &str = "\
## Exit codes of `fairlane`

Standard error has one line that begins with `error:` and says what is wrong, and one that begins with `hint:` and says what to do
next. Data alone goes to standard output.

| code | |
|---|---|
";

const DEAD_REASONS: &str = "\
## Reasons of dead letters

In `fl.dlq.<reason>.<tenant>`, in a record's `failure.reason`, in `fairlane_dead_letters`, and in `fairlane dlq ls`. How each is mended
with commands: [dead letters, in five minutes](README.md#dead-letters-in-five-minutes).

| reason | what happened | whose fault | what usually helps |
|---|---|---|---|
";

const CALLS: &str = "\
## How calls end

The word in the ledger, in `tried` of a record, in `claude_calls_total`, and in the detail of a dead letter. What follows from each
status and stop reason, exactly: [failure.md](../crates/core/src/failure.md).

| word | what to do |
|---|---|
";

const HTTP: &str = "\
## Errors of the HTTP API

The body is `{\"type\": \"error\", \"error\": {\"type\": ..., \"message\": ...}, \"request_id\": ...}`, as the Claude API has it.
`retry-after` says when the same call may do better, `x-should-retry` whether, where the status alone would say the wrong thing.

| status | type | |
|---|---|---|
";

const FAULTS: &str = "\
## Faults that `fairlane doctor` finds

`fault` of a check in `fairlane doctor -o json`; `remedy` beside it says what to do.

| fault | |
|---|---|
";

fn page() -> String {
    let mut page = format!("{HEAD}\n{EXIT_CODES}");
    for exit in Exit::ALL {
        writeln!(page, "| {} | {} |", exit.code(), exit.meaning()).unwrap();
    }
    page += &format!("\n{DEAD_REASONS}");
    for reason in DeadReason::ALL {
        let whose = if reason.is_fault_of_the_job() {
            "the job's"
        } else {
            "not the job's"
        };
        let (word, what, cure) = (reason.as_str(), reason.meaning(), reason.cure());
        writeln!(page, "| `{word}` | {what} | {whose} | {cure} |").unwrap();
    }
    page += &format!("\n{CALLS}");
    for reason in Reason::ALL {
        writeln!(page, "| `{}` | {} |", reason.as_str(), reason.advice()).unwrap();
    }
    page += &format!("\n{HTTP}");
    for (status, kind, meaning) in fairlane_api::documented_errors() {
        writeln!(page, "| {status} | `{kind}` | {meaning} |").unwrap();
    }
    page += &format!("\n{FAULTS}");
    for fault in Fault::ALL {
        writeln!(page, "| `{}` | {} |", fault.as_str(), fault.meaning()).unwrap();
    }
    page
}

#[test]
fn the_page_is_made_from_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/errors.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, page()).unwrap();
    }
    let stored = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        stored == page(),
        "deploy/errors.md is not what the code says; make it anew with: UPDATE=1 cargo test -p fairlane errors_page"
    );
}

#[test]
fn words_are_unique_and_every_one_is_explained() {
    let mut words: Vec<&str> = Fault::ALL.iter().map(|fault| fault.as_str()).collect();
    words.sort_unstable();
    words.dedup();
    assert_eq!(words.len(), Fault::ALL.len());
    for reason in DeadReason::ALL {
        assert!(reason.meaning().ends_with('.'), "{reason}");
        assert!(!reason.cure().is_empty(), "{reason}");
    }
}
