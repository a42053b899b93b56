//! `fairlane top`, in a terminal and without one.

use std::io::{Read as _, Write as _};
use std::num::NonZero;
use std::sync::{Arc, Mutex};

use fairlane_core::Priority;
use fairlane_support::{LIMIT, TestNats, backlog, eventually};
use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};
use vt100::Parser;

use crate::world::World;

// As a terminal sends them.
const PAGE_DOWN: &str = "\x1b[6~";
const ESCAPE: &str = "\x1b";
const CONTROL_C: &str = "\x03";

/// A terminal of this size in which the program runs. Gone when dropped, and the program with it.
struct Terminal {
    /// What the program has drawn so far.
    screen: Arc<Mutex<Parser>>,
    keys: Box<dyn std::io::Write + Send>,
    program: Box<dyn Child + Send + Sync>,
    /// Held open: without it the program is hung up.
    _pty: Box<dyn MasterPty + Send>,
}

impl Terminal {
    fn start(world: &World, server: &TestNats, (cols, rows): (u16, u16), args: &[&str]) -> Self {
        let size = PtySize {
            rows,
            cols,
            ..PtySize::default()
        };
        let pty = native_pty_system().openpty(size).unwrap();
        let mut command = CommandBuilder::new(env!("CARGO_BIN_EXE_fairlane"));
        command.arg("top");
        command.args(args);
        command.env_remove("NO_COLOR");
        command.env("TERM", "xterm-256color");
        command.env("FAIRLANE_DEV_STATE", world.path("dev.json"));
        command.env("FAIRLANE_NATS_URL", server.url());
        let program = pty.slave.spawn_command(command).unwrap();
        let screen = Arc::new(Mutex::new(Parser::new(
            NonZero::new(rows).unwrap(),
            NonZero::new(cols).unwrap(),
            0,
        )));
        let (mut drawn, drawing) = (pty.master.try_clone_reader().unwrap(), screen.clone());
        // Ends when the program has closed its side.
        std::thread::spawn(move || {
            let mut bytes = [0; 4_096];
            while let Ok(count @ 1..) = drawn.read(&mut bytes) {
                drawing.lock().unwrap().process(&bytes[..count]);
            }
        });
        Self {
            screen,
            keys: pty.master.take_writer().unwrap(),
            program,
            _pty: pty.master,
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// The screen, as soon as it has all `parts`.
    async fn shows(&self, parts: &[&str]) -> String {
        eventually(LIMIT, &format!("{parts:?}"), || async {
            let screen = self.screen.lock().unwrap().screen().contents();
            if parts.iter().all(|part| screen.contains(part)) {
                Ok(screen)
            } else {
                Err(screen)
            }
        })
        .await
    }

    /// Ends in order, and leaves the terminal as it was.
    async fn ends(&mut self) {
        let code = eventually(LIMIT, "the end", || {
            let ended = self.program.try_wait();
            async move {
                match ended {
                    Ok(Some(status)) => Ok(status.exit_code()),
                    other => Err(format!("{other:?}")),
                }
            }
        })
        .await;
        assert_eq!(code, 0);
        eventually(LIMIT, "the terminal as it was", async || {
            let parser = self.screen.lock().unwrap();
            match parser.screen().alternate_screen() || parser.screen().hide_cursor() {
                true => Err(parser.screen().contents()),
                false => Ok(()),
            }
        })
        .await;
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended.
        self.program.kill().ok();
        self.program.wait().ok();
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

    let mut small = Terminal::start(&world, &server, (80, 24), &[]);
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
    small.press("q");
    small.ends().await;

    backlog(&server.nats, 1_000, |n| {
        (Priority::Batch, format!("tenant-{n:04}"))
    })
    .await;
    let mut wide = Terminal::start(&world, &server, (160, 50), &["--sort", "name"]);
    let screen = wide
        .shows(&[
            "1003 tenants",
            "TENANT by name",
            "SHARE | DUE",
            "tenant-0001",
            // It is drawn from the top down, and may be seen half drawn.
            "tenant-0030",
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
    wide.press(PAGE_DOWN);
    wide.shows(&["page 2/"]).await;
    wide.press("/0999\r");
    wide.shows(&["tenant-0999", "1 tenants with \"0999\""])
        .await;
    wide.press("?");
    wide.shows(&["fairlane why --tenant NAME"]).await;
    wide.press(ESCAPE);
    wide.press(CONTROL_C);
    wide.ends().await;

    let narrow = Terminal::start(&world, &server, (40, 14), &[]);
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
