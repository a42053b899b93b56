//! From a picture and a view to a frame.

use fairlane_wire::FleetRecord;
use fairlane_wire::fleet::{BreakerRecord, FleetPool};
use fairlane_wire::snapshot::ConcernsRecord;
use ratatui::backend::TestBackend;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Row as TableRow, Table, TableState};
use ratatui::{Frame, Terminal};

use crate::bars::{bar, percent, share, short, span};
use crate::tenants::{Row, rows};
use crate::view::View;

/// What is known.
#[derive(Debug, Clone, Copy)]
pub struct Picture<'a> {
    /// Where it comes from: server and namespace.
    pub source: &'a str,
    /// What the leader said last; None before the first word.
    pub fleet: Option<&'a FleetRecord>,
    /// How old that is, milliseconds.
    pub age_ms: u64,
    /// What is wrong with asking now, and what to do.
    pub trouble: Option<&'a str>,
}

/// A picture older than this is said to be old.
const OLD_MS: u64 = 5_000;

/// What a span of text means.
#[derive(Debug, Clone, Copy)]
enum Ink {
    Plain,
    Heading,
    Aside,
    Good,
    Warn,
    Bad,
}

struct Pen {
    in_colour: bool,
}

impl Pen {
    fn style(&self, ink: Ink) -> Style {
        let style = Style::default();
        let coloured = |colour| {
            if self.in_colour {
                style.fg(colour)
            } else {
                style
            }
        };
        match ink {
            Ink::Plain => style,
            Ink::Heading => style.add_modifier(Modifier::BOLD),
            Ink::Aside => style.add_modifier(Modifier::DIM),
            Ink::Good => coloured(Color::Green),
            Ink::Warn => coloured(Color::Yellow),
            Ink::Bad => coloured(Color::Red).add_modifier(Modifier::BOLD),
        }
    }

    fn span<'a>(&self, ink: Ink, text: impl Into<String>) -> Span<'a> {
        Span::styled(text.into(), self.style(ink))
    }

    fn line<'a>(&self, ink: Ink, text: impl Into<String>) -> Line<'a> {
        Line::from(self.span(ink, text))
    }
}

/// Draws the frame. Returns how many tenants pass the filter, and how many of them are in sight, which is what
/// [`View::press`] wants to know.
pub fn draw(frame: &mut Frame<'_>, picture: &Picture<'_>, view: &View) -> (usize, usize) {
    let pen = Pen {
        in_colour: view.in_colour,
    };
    let area = frame.area();
    let width = usize::from(area.width);
    let mut head = vec![title(&pen, picture, view, width)];
    if let Some(trouble) = picture.trouble {
        head.push(pen.line(Ink::Bad, trouble.to_owned()));
    }
    let Some(fleet) = picture.fleet else {
        if picture.trouble.is_none() {
            head.push(pen.line(Ink::Aside, "asking the leading scheduler ..."));
        }
        frame.render_widget(
            Paragraph::new(head).wrap(ratatui::widgets::Wrap { trim: true }),
            area,
        );
        return (0, 0);
    };
    head.extend(lanes(&pen, fleet, width));
    head.extend(pools(&pen, fleet, width, usize::from(area.height)));
    head.push(workers(&pen, fleet, width));
    head.extend(refusals(&pen, fleet));
    let most = usize::from(area.height).saturating_sub(4).max(1);
    head.truncate(most);
    let head_height = u16::try_from(head.len()).unwrap_or(area.height);
    let (top, rest) = split(area, head_height);
    frame.render_widget(Paragraph::new(head), top);
    let (table, foot) = split(rest, rest.height.saturating_sub(1));
    let rows = rows(fleet, view);
    let page = usize::from(table.height.saturating_sub(1));
    tenants(frame, table, &pen, fleet, &rows, view);
    frame.render_widget(footer(&pen, fleet, rows.len(), page, view, width), foot);
    if view.shows_help {
        help(frame, &pen, area);
    }
    (rows.len(), page)
}

/// A frame as text, for terminals that are none.
#[must_use]
pub fn text(picture: &Picture<'_>, view: &View, width: u16, height: u16) -> String {
    let Ok(mut terminal) = Terminal::new(TestBackend::new(width.max(20), height.max(6)));
    let Ok(_) = terminal.draw(|frame| {
        draw(frame, picture, view);
    });
    let buffer = terminal.backend().buffer();
    let width = usize::from(buffer.area.width).max(1);
    let cells: Vec<&str> = buffer
        .content
        .iter()
        .map(ratatui::buffer::Cell::symbol)
        .collect();
    let lines = cells
        .chunks(width)
        .map(|line| line.concat().trim_end().to_owned());
    let text = lines.collect::<Vec<_>>().join("\n");
    text.trim_end().to_owned()
}

fn split(area: Rect, first: u16) -> (Rect, Rect) {
    let first = first.min(area.height);
    let top = Rect {
        height: first,
        ..area
    };
    let rest = Rect {
        y: area.y + first,
        height: area.height - first,
        ..area
    };
    (top, rest)
}

fn title<'a>(pen: &Pen, picture: &Picture<'_>, view: &View, width: usize) -> Line<'a> {
    let mut spans = vec![pen.span(Ink::Heading, "fairlane top")];
    if let Some(fleet) = picture.fleet {
        let slots: u64 = fleet
            .workers
            .iter()
            .map(|worker| u64::from(worker.slots))
            .sum();
        spans.push(Span::raw(format!(
            "  term {}  {}/{} slots  {} tenants active",
            fleet.term, fleet.in_flight, slots, fleet.active_tenants
        )));
    }
    if view.is_paused {
        spans.push(pen.span(Ink::Warn, "  PAUSED"));
    } else if picture.fleet.is_some() && picture.age_ms > OLD_MS {
        spans.push(pen.span(Ink::Warn, format!("  {} OLD", span(picture.age_ms))));
    }
    if width >= 100 {
        spans.push(pen.span(Ink::Aside, format!("  {}", picture.source)));
    }
    Line::from(spans)
}

fn lanes<'a>(pen: &Pen, fleet: &FleetRecord, width: usize) -> Vec<Line<'a>> {
    let lane = |lane: &fairlane_wire::fleet::LaneRecord| {
        let name = lane.priority.as_str();
        if lane.queued == 0 {
            return format!("{name} 0");
        }
        format!(
            "{name} {} oldest {}",
            short(lane.queued),
            span(lane.oldest_ms)
        )
    };
    let lanes = fleet.lanes.iter().map(lane);
    if width >= 72 {
        let line = lanes.collect::<Vec<_>>().join("   ");
        let spans = vec![pen.span(Ink::Heading, "in line  "), Span::raw(line)];
        return vec![Line::from(spans)];
    }
    lanes.map(|line| pen.line(Ink::Plain, line)).collect()
}

/// The part of each limit that is used.
#[expect(clippy::cast_precision_loss, reason = "parts for showing")]
fn used(pool: &FleetPool) -> [f64; 3] {
    std::array::from_fn(|at| 1.0 - pool.left[at] as f64 / pool.per_minute[at].max(1) as f64)
}

fn pools<'a>(pen: &Pen, fleet: &FleetRecord, width: usize, height: usize) -> Vec<Line<'a>> {
    let room = (height / 4).max(1);
    let mut pools: Vec<&FleetPool> = fleet.pools.iter().collect();
    let worst = |pool: &FleetPool| used(pool).into_iter().fold(0.0, f64::max);
    pools.sort_by(|one, other| worst(other).total_cmp(&worst(one)));
    let longest = pools.iter().map(|pool| pool.pool.as_str().len()).max();
    let name_width = longest.unwrap_or(0).min(width / 4).max(4);
    let lines = pools.iter().take(room);
    let mut lines: Vec<Line<'a>> = lines
        .map(|pool| pool_line(pen, pool, fleet.at_ms, name_width, width))
        .collect();
    if pools.len() > room {
        lines.push(pen.line(Ink::Aside, format!("and {} more pools", pools.len() - room)));
    }
    lines
}

fn pool_line<'a>(pen: &Pen, pool: &FleetPool, now: u64, name: usize, width: usize) -> Line<'a> {
    let mut spans = vec![pen.span(Ink::Heading, format!("{:<name$.name$}", pool.pool.as_str()))];
    for (what, used) in ["req", "in", "out"].into_iter().zip(used(pool)) {
        let ink = match used {
            _ if used >= 0.95 => Ink::Bad,
            _ if used >= 0.8 => Ink::Warn,
            _ => Ink::Good,
        };
        spans.push(Span::raw(format!("  {what} ")));
        if width >= 100 {
            spans.push(pen.span(ink, bar(used, 14)));
            spans.push(Span::raw(" "));
        }
        spans.push(pen.span(ink, format!("{:>5}", percent(used.max(0.0)))));
    }
    let (ink, state) = pool_state(pool, now);
    spans.push(Span::raw("  "));
    spans.push(pen.span(ink, state));
    Line::from(spans)
}

fn pool_state(pool: &FleetPool, now: u64) -> (Ink, String) {
    let left = |until: u64| span(until.saturating_sub(now));
    if let (BreakerRecord::Open, Some(until)) = (pool.breaker, pool.open_until_ms) {
        return (Ink::Bad, format!("BREAKER OPEN {}", left(until)));
    }
    if let Some(until) = pool.paused_until_ms {
        return (Ink::Warn, format!("PAUSED {}", left(until)));
    }
    match (pool.breaker, pool.heard) {
        (BreakerRecord::HalfOpen, _) => (Ink::Warn, "breaker probing".to_owned()),
        (BreakerRecord::Closed | BreakerRecord::Open, true) => (Ink::Aside, "ok".to_owned()),
        (BreakerRecord::Closed | BreakerRecord::Open, false) => {
            (Ink::Aside, "ok, limits as configured".to_owned())
        }
    }
}

fn workers<'a>(pen: &Pen, fleet: &FleetRecord, width: usize) -> Line<'a> {
    let slots: u64 = fleet
        .workers
        .iter()
        .map(|worker| u64::from(worker.slots))
        .sum();
    let live: u64 = fleet
        .workers
        .iter()
        .map(|worker| u64::from(worker.live))
        .sum();
    let draining = fleet
        .workers
        .iter()
        .filter(|worker| worker.draining)
        .count();
    let silent = fleet
        .workers
        .iter()
        .filter(|worker| worker.silent_ms > 3_500)
        .count();
    let mut spans = vec![pen.span(Ink::Heading, "workers  ")];
    if fleet.workers.is_empty() {
        spans.push(pen.span(Ink::Bad, "NONE: start `fairlane worker`"));
        return Line::from(spans);
    }
    spans.push(Span::raw(format!(
        "{}  {live}/{slots} slots ",
        fleet.workers.len()
    )));
    if width >= 60 {
        #[expect(clippy::cast_precision_loss, reason = "a part for showing")]
        let part = live as f64 / slots.max(1) as f64;
        spans.push(Span::raw(bar(part, 16)));
    }
    for (count, word) in [(draining, "draining"), (silent, "SILENT")] {
        if count > 0 {
            spans.push(pen.span(Ink::Warn, format!("  {count} {word}")));
        }
    }
    if let Some(max) = fleet.calls_max {
        spans.push(pen.span(Ink::Warn, format!("  at most {max} calls at once")));
    }
    Line::from(spans)
}

/// Gates that are shown.
const GATES_SHOWN: usize = 3;

fn refusals<'a>(pen: &Pen, fleet: &FleetRecord) -> Vec<Line<'a>> {
    let gates = fleet
        .gates
        .iter()
        .filter(|gate| gate.until_ms > fleet.at_ms);
    let gates: Vec<_> = gates.collect();
    let lines = gates.iter().take(GATES_SHOWN).map(|gate| {
        let whom = match &gate.concerns {
            ConcernsRecord::Account => "the whole account (key, billing or spend limit)".to_owned(),
            ConcernsRecord::Pool { pool } => format!("pool {pool}"),
            ConcernsRecord::Model { model } => format!("model {model}"),
            ConcernsRecord::Kind {
                tenant,
                kind,
                model,
            } => format!("{kind} of {tenant} on {model}"),
        };
        let left = span(gate.until_ms.saturating_sub(fleet.at_ms));
        pen.line(Ink::Bad, format!("REFUSED  {whom}; tried again in {left}"))
    });
    let mut lines: Vec<_> = lines.collect();
    if gates.len() > GATES_SHOWN {
        lines.push(pen.line(
            Ink::Bad,
            format!("and {} more refusals", gates.len() - GATES_SHOWN),
        ));
    }
    lines
}

/// A column of the tenants, and from which width of the terminal on it is shown.
struct Column {
    head: &'static str,
    width: u16,
    from: u16,
}

const COLUMNS: [Column; 10] = [
    Column {
        head: "CRIT",
        width: 6,
        from: 64,
    },
    Column {
        head: "STD",
        width: 6,
        from: 64,
    },
    Column {
        head: "BATCH",
        width: 6,
        from: 64,
    },
    Column {
        head: "LINE",
        width: 6,
        from: 0,
    },
    Column {
        head: "RUN",
        width: 5,
        from: 0,
    },
    Column {
        head: "SHARE",
        width: 6,
        from: 44,
    },
    Column {
        head: "DUE",
        width: 6,
        from: 52,
    },
    Column {
        head: "SHARE | DUE",
        width: 22,
        from: 120,
    },
    Column {
        head: "TODAY",
        width: 14,
        from: 96,
    },
    Column {
        head: "STATE",
        width: 24,
        from: 76,
    },
];

fn cells(row: &Row<'_>, whole: f64, now: u64) -> [String; 10] {
    let tenant = row.tenant;
    let [critical, standard, batch] = tenant.queued.map(short);
    let today = match tenant.daily_input_tokens {
        Some(budget) => format!("{}/{}", short(tenant.input_tokens_today), short(budget)),
        None => short(tenant.input_tokens_today),
    };
    [
        critical,
        standard,
        batch,
        short(tenant.queued.iter().sum()),
        short(u64::from(tenant.in_flight)),
        percent(row.share),
        percent(row.entitled),
        share(row.share, row.entitled, whole, 22),
        today,
        row.state(now),
    ]
}

fn tenants(
    frame: &mut Frame<'_>,
    area: Rect,
    pen: &Pen,
    fleet: &FleetRecord,
    rows: &[Row<'_>],
    view: &View,
) {
    let shown: Vec<usize> = (0..COLUMNS.len())
        .filter(|at| COLUMNS[*at].from <= area.width)
        // The sum stands for the three where they have no room.
        .filter(|at| COLUMNS[*at].head != "LINE" || area.width < 64)
        .collect();
    let parts = rows.iter().map(|row| row.share.max(row.entitled));
    let whole = parts.fold(0.0, f64::max);
    let page = usize::from(area.height.saturating_sub(1)).max(1);
    let selected = view.row.min(rows.len().saturating_sub(1));
    // Whole pages, so that what one looks at does not slide away.
    let first = selected / page * page;
    let in_sight = rows.iter().skip(first).take(page);
    let lines = in_sight.map(|row| {
        let cells = cells(row, whole, fleet.at_ms);
        let state = cells[9].clone();
        let ink = match state.as_str() {
            "" => Ink::Plain,
            "behind" | "over budget" => Ink::Warn,
            _ => Ink::Bad,
        };
        let name = Span::raw(row.tenant.tenant.to_string());
        let mut line = vec![Line::from(name)];
        line.extend(shown.iter().map(|at| {
            let text = cells[*at].clone();
            match COLUMNS[*at].head {
                "STATE" => Line::from(pen.span(ink, text)),
                "SHARE | DUE" => Line::from(text),
                _ => Line::from(text).right_aligned(),
            }
        }));
        TableRow::new(line)
    });
    let mut heads = vec![Line::from(format!("TENANT by {}", view.sort.as_str()))];
    heads.extend(shown.iter().map(|at| match COLUMNS[*at].head {
        head @ ("STATE" | "SHARE | DUE") => Line::from(head),
        head => Line::from(head).right_aligned(),
    }));
    let mut widths = vec![Constraint::Min(12)];
    widths.extend(
        shown
            .iter()
            .map(|at| Constraint::Length(COLUMNS[*at].width)),
    );
    let table = Table::new(lines, widths)
        .header(TableRow::new(heads).style(pen.style(Ink::Heading)))
        .row_highlight_style(Style::default().add_modifier(Modifier::REVERSED));
    let mut state =
        TableState::default().with_selected((!rows.is_empty()).then_some(selected - first));
    frame.render_stateful_widget(table, area, &mut state);
}

fn footer<'a>(
    pen: &Pen,
    fleet: &FleetRecord,
    rows: usize,
    page: usize,
    view: &View,
    width: usize,
) -> Line<'a> {
    if view.is_typing {
        return pen.line(
            Ink::Warn,
            format!("filter: {}_   enter keeps it, esc drops it", view.filter),
        );
    }
    let page = page.max(1);
    let pages = rows.div_ceil(page).max(1);
    let at = view.row.min(rows.saturating_sub(1)) / page + 1;
    let mut text = format!("page {at}/{pages}, {rows} tenants");
    if !view.filter.is_empty() {
        text += &format!(" with {:?}", view.filter);
    }
    let told = fleet.tenants.len() as u64;
    if told < fleet.active_tenants {
        text += &format!(" (the busiest {told} of {})", fleet.active_tenants);
    }
    let keys = if width >= 84 {
        "   q quit  / filter  s sort  r reverse  p pause  pgup/pgdn page  ? help"
    } else {
        "   q quit  ? help"
    };
    pen.line(Ink::Aside, text + keys)
}

const HELP: [&str; 12] = [
    "q, esc      quit (esc first drops the filter)",
    "/           filter tenants by a part of their name",
    "s, r        sort by the next figure, reverse",
    "arrows, j k one row up or down",
    "pgup, pgdn  one page up or down; home, end",
    "p, space    hold the picture still, go on",
    "",
    "SHARE  part of the cost granted in the last minute",
    "DUE    part its weight gives it among tenants with work",
    "req in out  used part of the limits per minute",
    "a tenant that is demoted has its standard work served as batch",
    "fairlane why --tenant NAME says what it waits for",
];

fn help(frame: &mut Frame<'_>, pen: &Pen, area: Rect) {
    let lines: Vec<Line<'_>> = HELP
        .iter()
        .map(|line| pen.line(Ink::Plain, *line))
        .collect();
    let height = u16::try_from(HELP.len() + 2)
        .unwrap_or(u16::MAX)
        .min(area.height);
    let width = 68.min(area.width);
    let at = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, at);
    let block = Block::bordered().title(" help ");
    frame.render_widget(Paragraph::new(lines).block(block), at);
}

#[cfg(test)]
mod tests;
