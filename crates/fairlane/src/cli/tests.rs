use clap::CommandFactory;

use super::*;

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn both_helps_tell_the_same_exit_codes() {
    assert!(long_help().ends_with(&exit::help()));
}

/// The command lines in the examples of a command, without what stands before and behind them in a shell.
fn examples(help: &str) -> Vec<Vec<String>> {
    let (_, examples) = help.split_once("Example").unwrap_or_default();
    let lines = examples
        .lines()
        .skip(1)
        .filter(|line| line.starts_with("  "));
    let mut found = Vec::new();
    for line in lines {
        let words = shlex::split(line).unwrap_or_else(|| panic!("not a command line: {line}"));
        let words = words.into_iter().skip_while(|word| {
            // Variables, a pipe that feeds it, a process substitution.
            word != "fairlane" && word != "<(fairlane"
        });
        let words = words.take_while(|word| word != "|" && word != ">");
        found.push(
            words
                .map(|word| word.replace(['(', ')', '<'], ""))
                .collect(),
        );
    }
    found
}

#[test]
fn every_command_has_examples_and_they_are_right() {
    fn check(command: &clap::Command, path: &[&str]) {
        let help = command.get_after_help().map(ToString::to_string);
        let name = path.join(" ");
        let examples = examples(&help.unwrap_or_default());
        assert!(
            path.len() == 1 || !examples.is_empty(),
            "{name} has no example"
        );
        for words in examples {
            let is_of_it = words.iter().zip(path).all(|(word, part)| word == part);
            assert!(is_of_it && words.len() >= path.len(), "{name}: {words:?}");
            if let Err(error) = Cli::try_parse_from(&words) {
                panic!("{name}: {words:?}: {error}");
            }
        }
        for inner in command.get_subcommands() {
            check(inner, &[path, &[inner.get_name()]].concat());
        }
    }
    check(&Cli::command(), &["fairlane"]);
}

#[test]
fn whatever_cannot_be_taken_back_can_be_shown_first_and_asks() {
    for path in [
        &["cancel"][..],
        &["context", "rm"],
        &["tenant", "unset"],
        &["tenant", "key", "revoke"],
        &["dlq", "repair"],
        &["dlq", "redrive"],
        &["dlq", "purge"],
    ] {
        let mut command = Cli::command();
        for name in path {
            command = command.find_subcommand(name).unwrap().clone();
        }
        let has = |name: &str| {
            command
                .get_arguments()
                .any(|arg| arg.get_long() == Some(name))
        };
        assert!(has("yes") && has("dry-run"), "{path:?}");
    }
}

#[test]
fn whatever_prints_data_prints_it_in_each_format() {
    // They print what another program reads, follow to the end, or run until they are ended.
    const WITHOUT: [&str; 12] = [
        "add",
        "auth",
        "completions",
        "dev",
        "export",
        "producer",
        "rm",
        "scheduler",
        "sim",
        "use",
        "worker",
        "fairlane",
    ];
    fn check(command: &clap::Command) {
        let name = command.get_name();
        let mut arguments = command.get_arguments();
        let has =
            arguments.any(|arg| arg.get_long() == Some("output") && arg.get_short() == Some('o'));
        if !command.has_subcommands() {
            assert_ne!(has, WITHOUT.contains(&name), "{name}");
        }
        command.get_subcommands().for_each(check);
    }
    check(&Cli::command());
}

#[test]
fn global_options_may_stand_after_the_command() {
    let cli = Cli::try_parse_from([
        "fairlane",
        "init",
        "--nats-url",
        "nats://n:1",
        "--set",
        "worker.slots=3",
        "--set=claude.base_url=http://a/?b=c",
    ])
    .unwrap();
    assert_eq!(cli.globals.nats_url.as_deref(), Some("nats://n:1"));
    assert_eq!(
        cli.globals.set,
        [
            ("worker.slots".to_owned(), "3".to_owned()),
            ("claude.base_url".to_owned(), "http://a/?b=c".to_owned())
        ]
    );
}

#[test]
fn wrong_usage_ends_with_code_2() {
    for line in [
        &["fairlane", "submit"][..],
        &["fairlane", "no-such-command"],
        &["fairlane", "init", "--set", "worker.slots"],
        &["fairlane", "submit", "-", "--tenant", "../x"],
        &["fairlane", "submit", "-", "--timeout", "5"],
        &["fairlane", "status", "j", "-o", "yaml"],
        &["fairlane", "dev", "--workers", "0"],
        &["fairlane", "why"],
        &["fairlane", "tenant", "demote", "acme"],
        &["fairlane", "tenant", "demote", "acme", "--for", "10"],
        &["fairlane", "tenant", "demote", "acme", "--for", "721h"],
        &["fairlane", "tenant", "show", "a.b"],
        &["fairlane", "context", "use", "a b"],
        &["fairlane", "cancel"],
        &[
            "fairlane",
            "init",
            "--context",
            "a",
            "--nats-url",
            "nats://n:1",
        ],
        &["fairlane", "tenant", "ls", "--watch=0"],
        &["fairlane", "completions", "tcsh"],
    ] {
        let error = Cli::try_parse_from(line).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{line:?}");
    }
}
