//! Small pictures and numbers.

/// `[=====     ]`: a part of a whole, over-full ones with `!` at the end.
pub(crate) fn bar(part: f64, width: usize) -> String {
    let inner = width.saturating_sub(2);
    let full = cells(part, inner);
    let mut bar = "=".repeat(full) + &" ".repeat(inner - full);
    if part > 1.0 && inner > 0 {
        bar.replace_range(inner - 1.., "!");
    }
    format!("[{bar}]")
}

/// `[====|   ]`: a share, and with `|` what one is entitled to; both as parts of `whole`.
pub(crate) fn share(part: f64, entitled: f64, whole: f64, width: usize) -> String {
    let inner = width.saturating_sub(2);
    let whole = if whole > 0.0 { whole } else { 1.0 };
    let full = cells(part / whole, inner);
    let mark = cells(entitled / whole, inner).min(inner.saturating_sub(1));
    let cell = |at: usize| match at {
        _ if at == mark => '|',
        _ if at < full => '=',
        _ => ' ',
    };
    let bar: String = (0..inner).map(cell).collect();
    format!("[{bar}]")
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "clamped to a few hundred cells"
)]
fn cells(part: f64, inner: usize) -> usize {
    let part = if part.is_finite() {
        part.clamp(0.0, 1.0)
    } else {
        0.0
    };
    ((part * inner as f64).round() as usize).min(inner)
}

/// `12 %`.
pub(crate) fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

/// `950`, `12.3k`, `4.5M`: in at most six characters.
pub(crate) fn short(number: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "for showing")]
    let scaled = |unit: u64| number as f64 / unit as f64;
    match number {
        0..10_000 => number.to_string(),
        10_000..1_000_000 => format!("{:.1}k", scaled(1_000)),
        1_000_000..1_000_000_000 => format!("{:.1}M", scaled(1_000_000)),
        _ => format!("{:.1}G", scaled(1_000_000_000)),
    }
}

/// Milliseconds as `3.2s`, `4m10s`, `2h05m`, `3d04h`.
pub(crate) fn span(ms: u64) -> String {
    let seconds = ms / 1_000;
    match seconds {
        0..60 => format!("{seconds}.{}s", ms % 1_000 / 100),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_keep_their_width_whatever_they_show() {
        for part in [-1.0, 0.0, 0.5, 1.0, 7.0, f64::NAN] {
            for width in [2, 3, 12] {
                assert_eq!(bar(part, width).len(), width, "{part} {width}");
                assert_eq!(share(part, part, 1.0, width).len(), width, "{part} {width}");
            }
        }
        assert_eq!(bar(0.5, 12), "[=====     ]");
        assert_eq!(bar(1.5, 12), "[=========!]");
        assert_eq!(share(0.6, 0.3, 1.0, 12), "[===|==    ]");
        assert_eq!(share(0.1, 0.5, 0.0, 12), "[=    |    ]");
    }

    #[test]
    fn numbers_and_times_are_short() {
        let numbers = [7, 9_999, 12_345, 4_500_000, 7_200_000_000].map(short);
        assert_eq!(numbers, ["7", "9999", "12.3k", "4.5M", "7.2G"]);
        let spans = [3_250, 250_000, 7_500_000, 270_000_000].map(span);
        assert_eq!(spans, ["3.2s", "4m10s", "2h05m", "3d03h"]);
    }
}
