use fairlane_core::demotion::Cause;
use fairlane_core::{PoolId, Priority, TenantId, WorkerId};
use fairlane_wire::Demoted;
use fairlane_wire::fleet::{FleetTenant, FleetWorker, LaneRecord};
use fairlane_wire::snapshot::GateRecord;

use super::*;
use crate::view::{Key, Sort};

fn pool(name: &str) -> FleetPool {
    FleetPool {
        pool: PoolId::parse(name).unwrap(),
        left: [500, 1_900_000, 40_000],
        per_minute: [1_000, 2_000_000, 400_000],
        heard: true,
        missing: [0; 3],
        paused_until_ms: None,
        breaker: BreakerRecord::Closed,
        open_until_ms: None,
        granted: [0; 3],
    }
}

/// A fleet of so many tenants; the work of tenant `n` is `n` jobs.
fn fleet(tenants: u32) -> FleetRecord {
    let tenant = |n: u32| FleetTenant {
        tenant: TenantId::parse(&format!("tenant-{n:04}")).unwrap(),
        weight: 1_000,
        queued: [0, u64::from(n), 0],
        in_flight: 1,
        in_flight_max: 1_000,
        demoted: None,
        input_tokens_today: 12_000,
        daily_input_tokens: Some(100_000),
        granted: 1_000,
    };
    let lane = |priority, queued| LaneRecord {
        priority,
        queued,
        oldest_ms: 61_000,
    };
    FleetRecord {
        term: 7,
        at_ms: 1_000_000,
        version: "0.1.0".to_owned(),
        lanes: [
            lane(Priority::Critical, 0),
            lane(Priority::Standard, 12_345),
            lane(Priority::Batch, 9),
        ],
        in_flight: 100,
        pools: vec![pool("haiku-4.5"), pool("sonnet-4.6")],
        gates: Vec::new(),
        calls_max: None,
        workers: (0..2)
            .map(|n| FleetWorker {
                worker: WorkerId::parse(&format!("w{n}")).unwrap(),
                slots: 64,
                live: 50,
                draining: n == 1,
                silent_ms: 300,
            })
            .collect(),
        tenants: (1..=tenants).map(tenant).collect(),
        active_tenants: u64::from(tenants),
        active_weight: 1_000 * u64::from(tenants),
        granted: 1_000 * i64::from(tenants),
    }
}

fn picture(fleet: &FleetRecord) -> Picture<'_> {
    Picture {
        source: "nats://127.0.0.1:4222 fl",
        fleet: Some(fleet),
        age_ms: 200,
        trouble: None,
    }
}

fn shown(fleet: &FleetRecord, view: &View, width: u16, height: u16) -> String {
    text(&picture(fleet), view, width, height)
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
}

#[test]
fn three_tenants_on_a_common_terminal() {
    let view = View::default();
    let text = shown(&fleet(3), &view, 80, 24);
    has(
        &text,
        &[
            "fairlane top  term 7  100/128 slots  3 tenants active",
            "in line  critical 0   standard 12.3k oldest 1m01s   batch 9 oldest 1m01s",
            "haiku-4.5   req  50 %  in   5 %  out  90 %  ok",
            "workers  2  100/128 slots [===========   ]  1 draining",
            "TENANT by work",
            "tenant-0003",
            "33 %",
            "page 1/1, 3 tenants   q quit  ? help",
        ],
    );
    let order: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("tenant-"))
        .collect();
    assert!(order[0].starts_with("tenant-0003") && order[2].starts_with("tenant-0001"));
}

#[test]
fn a_thousand_tenants_are_paged_filtered_and_sorted() {
    let fleet = fleet(1_000);
    let mut view = View::default();
    let first = shown(&fleet, &view, 140, 40);
    has(
        &first,
        &["tenant-1000", "page 1/", "1000 tenants", "SHARE | DUE"],
    );
    assert!(!first.contains("tenant-0500"));

    let mut terminal = Terminal::new(TestBackend::new(140, 40)).unwrap();
    let mut size = (0, 0);
    terminal
        .draw(|frame| size = draw(frame, &picture(&fleet), &view))
        .unwrap();
    assert_eq!(size.0, 1_000);
    assert!((25..40).contains(&size.1), "{size:?}");
    view.press(Key::PageDown, size.0, size.1);
    let second = shown(&fleet, &view, 140, 40);
    let name = format!("tenant-{:04}", 1_000 - size.1);
    has(&second, &[&name, "page 2/"]);
    assert!(!second.contains("tenant-1000"));
    view.press(Key::End, size.0, size.1);
    has(&shown(&fleet, &view, 140, 40), &["tenant-0001"]);

    for key in ['/', '0', '4', '2'] {
        view.press(Key::Char(key), size.0, size.1);
    }
    has(
        &shown(&fleet, &view, 140, 40),
        &["filter: 042_", "tenant-0042", "tenant-0429"],
    );
    view.press(Key::Enter, 11, size.1);
    has(&shown(&fleet, &view, 140, 40), &["11 tenants with \"042\""]);
    view.sort = Sort::Name;
    let by_name = shown(&fleet, &view, 140, 40);
    let at = |name: &str| by_name.find(name).unwrap();
    assert!(at("tenant-0042") < at("tenant-0420"));
}

#[test]
fn what_is_out_of_the_common_is_said_in_words() {
    let mut fleet = fleet(4);
    let demoted = Demoted {
        cause: Cause::Throttles,
        until_ms: fleet.at_ms + 65_000,
    };
    fleet.tenants[0].demoted = Some(demoted);
    fleet.tenants[1].in_flight_max = 1;
    fleet.tenants[2].input_tokens_today = 120_000;
    fleet.tenants[3].granted = 0;
    fleet.pools[0].paused_until_ms = Some(fleet.at_ms + 12_000);
    fleet.pools[1].breaker = BreakerRecord::Open;
    fleet.pools[1].open_until_ms = Some(fleet.at_ms + 90_000);
    fleet.gates.push(GateRecord {
        concerns: ConcernsRecord::Account,
        until_ms: fleet.at_ms + 3_600_000,
    });
    fleet.calls_max = Some(12);
    let text = shown(&fleet, &View::default(), 130, 30);
    has(
        &text,
        &[
            "demoted 1m05s (429s)",
            "at its cap of 1",
            "over budget",
            "behind",
            "PAUSED 12.0s",
            "BREAKER OPEN 1m30s",
            "REFUSED  the whole account",
            "at most 12 calls at once",
        ],
    );
    fleet.workers.clear();
    has(
        &shown(&fleet, &View::default(), 130, 30),
        &["NONE: start `fairlane worker`"],
    );
}

#[test]
fn every_size_shows_tenants_and_nothing_is_drawn_beyond_it() {
    for tenants in [0, 3, 1_000] {
        let mut fleet = fleet(tenants);
        // More pools than there is room for.
        fleet.pools = (0..30).map(|n| pool(&format!("pool-{n}"))).collect();
        for (width, height) in [(20, 6), (40, 10), (60, 16), (80, 24), (100, 30), (250, 70)] {
            let view = View {
                shows_help: height > 20,
                ..View::default()
            };
            let text = shown(&fleet, &view, width, height);
            let longest = text.lines().map(|line| line.chars().count()).max();
            assert!(
                longest <= Some(usize::from(width)),
                "{width}x{height}\n{text}"
            );
            assert!(text.lines().count() <= usize::from(height));
            if tenants > 0 && !view.shows_help {
                has(&text, &["TENANT", "tenant-"]);
            }
        }
    }
}

#[test]
fn colour_is_never_needed_and_can_be_off() {
    let fleet = fleet(3);
    let colours = |in_colour| {
        let view = View {
            in_colour,
            ..View::default()
        };
        let mut terminal = Terminal::new(TestBackend::new(100, 30)).unwrap();
        terminal
            .draw(|frame| {
                draw(frame, &picture(&fleet), &view);
            })
            .unwrap();
        let buffer = terminal.backend().buffer().clone();
        buffer
            .content
            .iter()
            .filter(|cell| cell.fg != Color::Reset)
            .count()
    };
    assert_eq!(colours(false), 0);
    assert!(colours(true) > 0);
}

#[test]
fn trouble_is_told_beside_what_is_known_and_without_it() {
    let fleet = fleet(1);
    let known = Picture {
        age_ms: 9_000,
        trouble: Some("no scheduler leads; start `fairlane scheduler`"),
        ..picture(&fleet)
    };
    let view = View::default();
    has(
        &text(&known, &view, 80, 24),
        &["9.0s OLD", "no scheduler leads", "tenant-0001"],
    );
    let unknown = Picture {
        fleet: None,
        ..known
    };
    has(&text(&unknown, &view, 80, 24), &["no scheduler leads"]);
    let nothing = Picture {
        trouble: None,
        ..unknown
    };
    has(
        &text(&nothing, &view, 80, 24),
        &["asking the leading scheduler"],
    );
}
