//! `fairlane top`, in a terminal (tmux's) and without one.

use std::path::Path;

use fairlane_core::Priority;
use fairlane_support::{LIMIT, TestNats, backlog, eventually};
use tokio::process::Command;

use crate::world::World;

/// A terminal of this size in which the program runs. Gone when dropped.
struct Terminal {
    socket: String,
}

impl Terminal {
    async fn start(world: &World, server: &TestNats, size: (u32, u32), args: &str) -> Self {
        let socket = world
            .path(&format!("tmux-{}", size.0))
            .display()
            .to_string();
        let terminal = Self { socket };
        let program = env!("CARGO_BIN_EXE_fairlane");
        let state = world.path("dev.json").display().to_string();
        let line = format!(
            "env -u NO_COLOR FAIRLANE_DEV_STATE={state} FAIRLANE_NATS_URL={} {program} top {args}; echo ended $?; exec cat",
            server.url()
        );
        let (width, height) = (size.0.to_string(), size.1.to_string());
        let new = ["new-session", "-d", "-x", &width, "-y", &height, &line];
        terminal.tmux(&new).await;
        terminal
    }

    async fn tmux(&self, args: &[&str]) -> String {
        let command = Command::new("tmux")
            .args(["-f", "/dev/null", "-S", &self.socket])
            .args(args)
            .env("TERM", "xterm-256color")
            .output();
        let output = command.await;
        let output = output.expect("tmux is needed for this test: apt-get install tmux");
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    async fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"][..], keys].concat()).await;
    }

    /// The screen, as soon as it has all `parts`.
    async fn shows(&self, parts: &[&str]) -> String {
        eventually(LIMIT, &format!("{parts:?}"), || async {
            let screen = self.tmux(&["capture-pane", "-p"]).await;
            if parts.iter().all(|part| screen.contains(part)) {
                Ok(screen)
            } else {
                Err(screen)
            }
        })
        .await
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let kill = std::process::Command::new("tmux")
            .args(["-S", &self.socket, "kill-server"])
            .output();
        assert!(kill.is_ok() && !Path::new(&self.socket).is_dir());
    }
}

#[tokio::test]
async fn three_tenants_and_a_thousand_are_readable_in_terminals_of_all_widths() {
    let server = TestNats::start().await;
    let world = World::on(&server);
    backlog(&server.nats, 6, |n| {
        (Priority::Standard, format!("acme-{}", n % 3))
    })
    .await;
    let _scheduler = world.start(&["scheduler"]);

    let small = Terminal::start(&world, &server, (80, 24), "").await;
    let parts = [
        "fairlane top  term ",
        "standard 6 oldest",
        "NONE: start `fairlane worker`",
        "page 1/1, 3 tenants",
    ];
    let screen = small.shows(&parts).await;
    for tenant in ["acme-0", "acme-1", "acme-2"] {
        assert!(screen.contains(tenant), "{screen}");
    }
    assert!(
        screen.lines().all(|line| line.chars().count() <= 80),
        "{screen}"
    );
    small.press(&["q"]).await;
    small.shows(&["ended 0"]).await;

    backlog(&server.nats, 1_000, |n| {
        (Priority::Batch, format!("tenant-{n:04}"))
    })
    .await;
    let wide = Terminal::start(&world, &server, (160, 50), "--sort name").await;
    let screen = wide
        .shows(&[
            "1003 tenants",
            "TENANT by name",
            "SHARE | DUE",
            "tenant-0001",
        ])
        .await;
    assert!(
        screen
            .lines()
            .filter(|line| line.starts_with("tenant-"))
            .count()
            > 30,
        "{screen}"
    );
    wide.press(&["NPage"]).await;
    wide.shows(&["page 2/"]).await;
    wide.press(&["/", "0", "9", "9", "9", "Enter"]).await;
    wide.shows(&["tenant-0999", "1 tenants with \"0999\""])
        .await;
    wide.press(&["?"]).await;
    wide.shows(&["fairlane why --tenant NAME"]).await;
    wide.press(&["Escape"]).await;
    wide.press(&["C-c"]).await;
    wide.shows(&["ended 0"]).await;

    let narrow = Terminal::start(&world, &server, (40, 14), "").await;
    let screen = narrow.shows(&["TENANT", "LINE", "q quit"]).await;
    assert!(
        screen.contains("acme-0"),
        "those with the most work first: {screen}"
    );
}

#[tokio::test]
async fn without_a_terminal_one_picture_is_printed_or_all_numbers() {
    let server = TestNats::start().await;
    let world = World::on(&server);
    let ran = world.run(&["top"]).await;
    assert_eq!(ran.code, Some(1), "{ran:#?}");
    assert!(
        ran.talk.contains("is `fairlane scheduler` running?"),
        "{ran:#?}"
    );

    backlog(&server.nats, 2, |_| (Priority::Batch, "acme".to_owned())).await;
    let _scheduler = world.start(&["scheduler"]);
    let printed = eventually(LIMIT, "a picture", || async {
        let ran = world.run(&["top", "--once"]).await;
        if ran.out.contains("batch 2 oldest") {
            Ok(ran)
        } else {
            Err(format!("{ran:#?}"))
        }
    })
    .await;
    assert!(!printed.out.contains('\u{1b}'), "{printed:#?}");
    let fleet = world.run(&["top", "-o", "json"]).await.json();
    assert_eq!(fleet["tenants"][0]["tenant"], "acme");
    assert_eq!(fleet["lanes"][2]["queued"], 2);
}
