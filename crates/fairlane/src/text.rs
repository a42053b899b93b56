//! Numbers and times as people read them.

/// `0.0042` dollars as `$0.004200`, larger sums with fewer digits.
pub(crate) fn dollars(usd: f64) -> String {
    if usd < 1.0 {
        format!("${usd:.6}")
    } else {
        format!("${usd:.2}")
    }
}

/// Unix milliseconds as `2026-11-30T16:04:05Z`.
pub(crate) fn instant(unix_ms: u64) -> String {
    let known = i64::try_from(unix_ms)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    known.map_or_else(|| format!("{unix_ms} ms"), |time| format!("{time:.0}"))
}

/// Milliseconds as `850 ms`, `3.2 s`, `4 min 10 s`, `2 h 5 min`.
pub(crate) fn span(ms: u64) -> String {
    let seconds = ms / 1_000;
    match seconds {
        0 => format!("{ms} ms"),
        1..60 => format!("{seconds}.{} s", ms % 1_000 / 100),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
    }
}

/// Rows as columns: the first one to the left, the others to the right if `numbers`. All rows are of one length.
pub(crate) fn columns<const N: usize>(rows: &[[String; N]], numbers: bool) -> String {
    let length = |text: &String| text.chars().count();
    let widths: [usize; N] =
        std::array::from_fn(|at| rows.iter().map(|row| length(&row[at])).max().unwrap_or(0));
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).enumerate();
        let cells = cells.map(|(at, (cell, width))| {
            if at == 0 || !numbers {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_sums_keep_the_digits_that_matter() {
        let spans = [850, 3_250, 250_000, 7_500_000].map(span);
        assert_eq!(spans, ["850 ms", "3.2 s", "4 min 10 s", "2 h 5 min"]);
        assert_eq!(dollars(0.000_42), "$0.000420");
        assert_eq!(dollars(12.345), "$12.35");
        assert_eq!(instant(1_700_000_000_000), "2023-11-14T22:13:20Z");
        assert_eq!(instant(u64::MAX), format!("{} ms", u64::MAX));
    }
}
