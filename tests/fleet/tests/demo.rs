//! The README's first command, line by line; and again while processes are killed under it.

use std::path::PathBuf;
use std::process::{Output, Stdio};

use fairlane_fleet_tests::PATIENCE;
use fairlane_support::eventually;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");

/// What the file of 800 lines must come to. Lines that say how long it took are left out.
const SUMMARY: &str = "\
lines 800
skipped 1
refused 2
published 797
same-job 1
done 783
failed 13
failed invalid_job 3
failed invalid_request 1
failed max_tokens 1
failed oversize 1
failed refusal 1
failed schema 1
failed undecodable 4
failed unknown_model 1
cancelled 0
waiting 0";

/// What each odd line must be told: its number, id and tenant, then the reason and the gist.
const ODD_LINES: [(&str, &str); 16] = [
    ("line 18  -  -", "undecodable: not JSON"),
    (
        "line 112  wp-0111  wallpaper-lite",
        "undecodable: invalid UTF-8 at byte 385",
    ),
    (
        "line 205  wp-0204  calm-screens",
        "oversize: about 338368 input tokens",
    ),
    (
        "line 301  wp-0300  calm-screens",
        "refusal: the model refused",
    ),
    (
        "line 302  wp-0301  wallpaper-lite",
        "max_tokens: the answer was cut off at max_tokens",
    ),
    (
        "line 343  wp-0342  pixel-walls",
        "invalid_job: request.messages is missing",
    ),
    (
        "line 378  wp-0377  wallpaper-lite",
        "unknown_model: model \"claude-haiku-9\" is not known",
    ),
    (
        "line 402  wp-0401  calm-screens",
        "schema: the answer is not JSON",
    ),
    (
        "line 403  wp-0402  calm-screens",
        "invalid_job: priority is not the caller's to set",
    ),
    (
        "line 456  wp-0455  calm-screens",
        "invalid_job: origin \"user-action\" is not known",
    ),
    (
        "line 501  wp-0500  pixel-walls",
        "undecodable: unexpected end of JSON",
    ),
    ("line 556  wp-0100  wallpaper-lite", "same job as line 101"),
    (
        "line 601  wp-0600  wallpaper-lite",
        "invalid_request: the API refused the request as invalid (HTTP 400)",
    ),
    (
        "line 621  wp-0620  pixel-walls",
        "undecodable: not JSON: unexpected end of hex escape",
    ),
    (
        "line 651  wp-0650  wallpaper-pro",
        "undecodable: nested too deeply",
    ),
    (
        "line 721  wp-0720  -",
        "invalid_tenant: tenant \"Wallpaper Pro/../*>\" contains ' '",
    ),
];

/// A demo in a place of its own.
struct Demo {
    dir: tempfile::TempDir,
    child: tokio::process::Child,
}

impl Demo {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let child = tokio::process::Command::new(PROGRAM)
            .arg("demo")
            .env("FAIRLANE_DEV_STATE", dir.path().join("dev.json"))
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        Self {
            dir,
            child: child.expect("the program starts"),
        }
    }

    async fn end(self) -> Output {
        let output = tokio::time::timeout(PATIENCE * 2, self.child.wait_with_output()).await;
        output.expect("the demo ends").expect("its output")
    }

    /// The note that the running fleet leaves for other commands.
    async fn note(&self) -> Value {
        let path = self.dir.path().join("dev.json");
        eventually(PATIENCE, "the demo's note", || async {
            let text = std::fs::read(&path).map_err(|error| error.to_string())?;
            serde_json::from_slice(&text).map_err(|error| error.to_string())
        })
        .await
    }

    /// What the upstream counted so far.
    async fn calls(&self, note: &Value) -> u64 {
        let url = format!("{}/sim/stats", note["claude_url"].as_str().expect("a URL"));
        let response = fairlane_fleet_tests::get(&url).await;
        let stats: Value = serde_json::from_str(&response).expect("JSON");
        stats["calls"].as_u64().expect("a number of calls")
    }
}

/// Asserts the summary, and returns it without the lines about time.
fn check(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}\n{talk}", output.status);
    for (number, (got, want)) in text.lines().zip(SUMMARY.lines()).enumerate() {
        assert_eq!(got, want, "line {number} of\n{text}\n{talk}");
    }
    for (start, gist) in ODD_LINES {
        let told = text
            .lines()
            .find(|line| line.starts_with(&format!("{start}  ")));
        let told = told.unwrap_or_else(|| panic!("nothing about {start:?} in\n{text}"));
        assert!(told[start.len()..].trim_start().starts_with(gist), "{told}");
    }
    let odd = text
        .lines()
        .filter(|line| line.starts_with("line "))
        .count();
    assert_eq!(
        odd,
        ODD_LINES.len(),
        "a line is told about that should not be:\n{text}"
    );
    text.lines()
        .filter(|line| !line.starts_with("time "))
        .collect::<Vec<_>>()
        .join("\n")
}

fn is_leading(log: &PathBuf) -> bool {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let last = text
        .lines()
        .rfind(|line| line.contains("leading") || line.contains("standing by"));
    last.is_some_and(|line| line.contains("leading"))
}

#[tokio::test]
async fn the_demo_ends_as_the_file_demands_whoever_dies_in_its_middle() {
    let quiet = check(&Demo::start().end().await);

    let demo = Demo::start();
    let note = demo.note().await;
    eventually(PATIENCE, "the middle of the demo", || async {
        let calls = demo.calls(&note).await;
        if calls > 100 {
            Ok(())
        } else {
            Err(format!("{calls} calls"))
        }
    })
    .await;
    let logs = PathBuf::from(note["logs"].as_str().expect("a directory"));
    let members = note["members"].as_array().expect("members");
    let pid = |name: &str| {
        let member = members.iter().find(|member| member["name"] == name);
        let pid = member
            .and_then(|member| member["pid"].as_i64())
            .expect("a pid");
        Pid::from_raw(i32::try_from(pid).expect("a pid"))
    };
    let schedulers = ["scheduler-1", "scheduler-2"];
    let leader = schedulers
        .iter()
        .find(|name| is_leading(&logs.join(format!("{name}.log"))));
    kill(pid("worker-1"), Signal::SIGKILL).expect("worker-1 was running");
    kill(pid(leader.expect("one leads")), Signal::SIGKILL).expect("the leader was running");

    let output = demo.end().await;
    let talk = String::from_utf8_lossy(&output.stderr).into_owned();
    let killed = check(&output);
    assert!(
        talk.contains("worker-1") && talk.contains("scheduler-"),
        "both died: {talk}"
    );
    assert_eq!(killed, quiet);
}
