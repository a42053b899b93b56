//! `fairlane top`: the fleet, live. What is shown and how it answers to keys is `fairlane_top`; here a terminal
//! and the leading scheduler are brought together.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use fairlane_nats::Nats;
use fairlane_top::{Key, Picture, Sort, Stay, View, draw, text};
use fairlane_wire::fleet::TENANTS_MAX;
use fairlane_wire::{FleetRecord, WhyRequest};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use crate::cli::{Format, Globals, TopArgs, TopSort};
use crate::exit::{Exit, Outcome, told};
use crate::out::{Paint, print, print_json};
use crate::target::Target;
use crate::why::ask;

/// Keys that wait to be handled.
const KEYS_MAX: usize = 64;
/// How often the reader of keys looks whether it is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Size of a picture that is not for a terminal.
const PRINTED: (u16, u16) = (120, 60);

impl From<TopSort> for Sort {
    fn from(sort: TopSort) -> Self {
        match sort {
            TopSort::Work => Self::Work,
            TopSort::Share => Self::Share,
            TopSort::Behind => Self::Behind,
            TopSort::Budget => Self::Budget,
            TopSort::Name => Self::Name,
        }
    }
}

pub(crate) async fn run(globals: &Globals, args: TopArgs) -> Outcome {
    let target = Target::load(globals)?;
    let nats = target.connect("top").await?;
    let view = View {
        sort: args.sort.into(),
        filter: args.filter,
        in_colour: Paint::for_data(globals.color).is_on(),
        ..View::default()
    };
    let settings = &target.settings().nats;
    let source = format!("{} {}", settings.url, settings.namespace);
    let is_live = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    match args.output.format {
        Format::Json | Format::Jsonl => print_json(&fleet(&nats).await?)?,
        Format::Table if args.once || !is_live => {
            let fleet = fleet(&nats).await?;
            let picture = Picture {
                source: &source,
                fleet: Some(&fleet),
                age_ms: 0,
                trouble: None,
            };
            let (width, height) = PRINTED;
            print(text(&picture, &view, width, height))?;
        }
        Format::Table => watch(&nats, &source, view, Duration::from_secs(args.interval)).await?,
    }
    Ok(Exit::Ok)
}

async fn fleet(nats: &Nats) -> Result<FleetRecord, crate::exit::Stop> {
    let tenants_max = TENANTS_MAX;
    ask(nats, &WhyRequest::Fleet { tenants_max }).await
}

/// What was heard last.
#[derive(Default)]
struct Heard {
    fleet: Option<FleetRecord>,
    at: Option<Instant>,
    trouble: Option<String>,
}

impl Heard {
    fn take(&mut self, answer: Result<FleetRecord, crate::exit::Stop>) {
        match answer {
            Ok(fleet) => {
                *self = Self {
                    fleet: Some(fleet),
                    at: Some(Instant::now()),
                    trouble: None,
                };
            }
            Err(stop) => self.trouble = stop.error.as_ref().map(told),
        }
    }

    fn picture<'a>(&'a self, source: &'a str) -> Picture<'a> {
        let age = self.at.map_or(0, |at| at.elapsed().as_millis());
        Picture {
            source,
            fleet: self.fleet.as_ref(),
            age_ms: u64::try_from(age).unwrap_or(u64::MAX),
            trouble: self.trouble.as_deref(),
        }
    }
}

/// What the keyboard said.
enum Pressed {
    Key(Key),
    Resized,
    Interrupted,
}

async fn watch(nats: &Nats, source: &str, mut view: View, every: Duration) -> anyhow::Result<()> {
    let mut terminal = ratatui::try_init().context("cannot use the terminal; try --once")?;
    let (keys, reader) = keyboard();
    let ended = show(&mut terminal, nats, source, &mut view, every, keys).await;
    reader.stop();
    ratatui::try_restore().context("cannot put the terminal back as it was; try `reset`")?;
    ended
}

async fn show(
    terminal: &mut ratatui::DefaultTerminal,
    nats: &Nats,
    source: &str,
    view: &mut View,
    every: Duration,
    mut keys: mpsc::Receiver<Pressed>,
) -> anyhow::Result<()> {
    let mut heard = Heard::default();
    let mut size = (0, 0);
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Keys are answered while the leader is asked.
    let mut asking = Some(Box::pin(fleet(nats)));
    loop {
        let picture = heard.picture(source);
        terminal
            .draw(|frame| size = draw(frame, &picture, view))
            .context("cannot draw")?;
        tokio::select! {
            pressed = keys.recv() => match pressed {
                Some(Pressed::Key(key)) => {
                    if view.press(key, size.0, size.1) == Stay::No {
                        return Ok(());
                    }
                }
                Some(Pressed::Resized) => {}
                Some(Pressed::Interrupted) | None => return Ok(()),
            },
            answer = async { asking.as_mut().expect("guarded").await }, if asking.is_some() => {
                asking = None;
                if !view.is_paused {
                    heard.take(answer);
                }
            }
            _ = ticks.tick() => {
                if asking.is_none() && !view.is_paused {
                    asking = Some(Box::pin(fleet(nats)));
                }
            }
        }
    }
}

/// The thread that reads keys, until it is told to stop.
struct Reader {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

impl Reader {
    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        // It looks ten times a second; what it panicked with has been said.
        let _ended = self.thread.join().is_ok();
    }
}

fn keyboard() -> (mpsc::Receiver<Pressed>, Reader) {
    let (sender, keys) = mpsc::channel(KEYS_MAX);
    let stop = Arc::new(AtomicBool::new(false));
    let is_over = stop.clone();
    let thread = std::thread::spawn(move || {
        while !is_over.load(Ordering::Relaxed) {
            match event::poll(LOOK_EVERY) {
                Ok(false) => continue,
                Ok(true) => {}
                Err(_) => return,
            }
            let Ok(event) = event::read() else { return };
            if let Some(pressed) = pressed(&event)
                && sender.blocking_send(pressed).is_err()
            {
                return;
            }
        }
    });
    (keys, Reader { stop, thread })
}

fn pressed(event: &Event) -> Option<Pressed> {
    let key = match event {
        Event::Resize(..) => return Some(Pressed::Resized),
        Event::Key(key) if key.kind != KeyEventKind::Release => key,
        _ => return None,
    };
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return matches!(key.code, KeyCode::Char('c' | 'd')).then_some(Pressed::Interrupted);
    }
    let key = match key.code {
        KeyCode::Char(c) => Key::Char(c),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        _ => return None,
    };
    Some(Pressed::Key(key))
}
