//! How long the server wants to be left alone: the `retry-after` header.
//!
//! Seen in the wild: whole seconds, floats, HTTP dates, zero, negative numbers, hours (13 262 s), and
//! nonsense. What is believable is obeyed in full; what is not counts as not given. A negative number
//! or a date in the past is a time that has come: zero, which is still a time.

/// A wait asked for by the server, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RetryAfter(u64);

impl RetryAfter {
    /// The longest believable wait: a spend cap that ends with the month.
    pub const MAX: Self = Self(31 * 24 * 3_600 * 1_000);

    /// A wait of `ms` milliseconds; `None` above [`RetryAfter::MAX`].
    #[must_use]
    pub fn from_ms(ms: u64) -> Option<Self> {
        (ms <= Self::MAX.0).then_some(Self(ms))
    }

    /// A wait of a known number of seconds, up to 18 hours.
    pub(super) const fn from_secs(secs: u16) -> Self {
        Self(secs as u64 * 1_000)
    }

    /// The wait in milliseconds.
    #[must_use]
    pub fn ms(self) -> u64 {
        self.0
    }
}

/// Reads a `retry-after` header: seconds, whole or not, or an HTTP date.
///
/// `now_unix_ms` is what a date is counted from. Best is the time in the answer's own `date` header
/// (see [`http_date_unix_ms`]): then the clocks need not agree.
#[must_use]
pub fn parse(header: &str, now_unix_ms: u64) -> Option<RetryAfter> {
    let text = header.trim();
    match text.parse::<f64>() {
        Ok(seconds) => from_float_ms(seconds * 1_000.0),
        Err(_) => RetryAfter::from_ms(http_date_unix_ms(text)?.saturating_sub(now_unix_ms)),
    }
}

/// Reads a `retry-after-ms` header: milliseconds, whole or not.
#[must_use]
pub fn parse_ms(header: &str) -> Option<RetryAfter> {
    from_float_ms(header.trim().parse().ok()?)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "the value was just compared with the bounds"
)]
fn from_float_ms(ms: f64) -> Option<RetryAfter> {
    if ms.is_nan() || ms > RetryAfter::MAX.0 as f64 {
        return None;
    }
    // Rounded up: earlier retries fail.
    RetryAfter::from_ms(ms.max(0.0).ceil() as u64)
}

/// Reads an HTTP date in any of its three forms, in Unix milliseconds; `None` when it is none, or
/// before 1970.
///
/// `Sun, 06 Nov 1994 08:49:37 GMT`, `Sunday, 06-Nov-94 08:49:37 GMT`, `Sun Nov  6 08:49:37 1994`.
#[must_use]
pub fn http_date_unix_ms(text: &str) -> Option<u64> {
    let words: Vec<&str> = text
        .split([' ', ',', '-'])
        .filter(|word| !word.is_empty())
        .take(8)
        .collect();
    let (day, month, year, time) = match words[..] {
        [_, day, month, year, time, "GMT"] => (day, month, year, time),
        [_, month, day, time, year] => (day, month, year, time),
        _ => return None,
    };
    let month = MONTHS.iter().position(|name| *name == month)?;
    let day = number(day, 1, 31)?;
    // Two digits belong to the form of RFC 850, which nobody wrote before 1970.
    let year = match number(year, 0, 9_999)? {
        short @ 0..=69 => 2_000 + short,
        short @ 70..=99 => 1_900 + short,
        full => full,
    };
    let mut clock = time.split(':');
    let hour = number(clock.next()?, 0, 23)?;
    let minute = number(clock.next()?, 0, 59)?;
    let second = number(clock.next()?, 0, 60)?;
    if clock.next().is_some() || year < 1_970 {
        return None;
    }
    let days = days_since_epoch(year, u64::try_from(month).ok()?, day);
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000)
}

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

fn number(text: &str, min: u64, max: u64) -> Option<u64> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse()
        .ok()
        .filter(|value| (min..=max).contains(value))
}

/// Days from 1970-01-01; `month` counts from 0, `day` from 1, `year` is at least 1970.
fn days_since_epoch(year: u64, month: u64, day: u64) -> u64 {
    // Years that begin in March put the leap day at the end; month lengths then follow 153/5.
    let (year, month) = if month < 2 {
        (year - 1, month + 10)
    } else {
        (year, month - 2)
    };
    let leap_days = year / 4 - year / 100 + year / 400;
    const DAYS_TO_1970_01_01: u64 = 719_468;
    year * 365 + leap_days + (153 * month + 2) / 5 + (day - 1) - DAYS_TO_1970_01_01
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 784_111_777_000; // Sun, 06 Nov 1994 08:49:37 GMT

    #[test]
    fn every_form_seen_in_the_wild_has_a_meaning() {
        let cases = [
            ("16", Some(16_000)),
            (" 16 ", Some(16_000)),
            ("0", Some(0)),
            ("1.5", Some(1_500)),
            ("0.0001", Some(1)),
            ("13262", Some(13_262_000)),
            ("2678400", Some(RetryAfter::MAX.ms())),
            ("-5", Some(0)),
            ("-1e99", Some(0)),
            ("Sun, 06 Nov 1994 08:49:47 GMT", Some(10_000)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(0)),
            ("Sat, 05 Nov 1994 08:49:37 GMT", Some(0)),
            ("Sunday, 06-Nov-94 08:50:37 GMT", Some(60_000)),
            ("Sun Nov  6 09:49:37 1994", Some(3_600_000)),
            ("Sun, 06 Nov 2094 08:49:37 GMT", None),
            ("2678401", None),
            ("1e99", None),
            ("inf", None),
            ("NaN", None),
            ("", None),
            ("soon", None),
            ("16s", None),
            ("Sun, 06 Nov 1994 08:49:47 CET", None),
            ("Sun, 32 Nov 1994 08:49:47 GMT", None),
            ("Sun, 06 Now 1994 08:49:47 GMT", None),
            ("Sun, 06 Nov 1994 08:49 GMT", None),
            ("Sun, 06 Nov 1994 +8:49:37 GMT", None),
        ];
        for (header, want) in cases {
            assert_eq!(parse(header, NOW).map(RetryAfter::ms), want, "{header:?}");
        }
    }

    #[test]
    fn http_dates_agree_with_the_calendar() {
        let cases = [
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("Tue, 29 Feb 2000 12:00:00 GMT", Some(951_825_600_000)),
            ("Fri, 01 Mar 2024 00:00:00 GMT", Some(1_709_251_200_000)),
            ("Mon, 30 Nov 2026 16:00:00 GMT", Some(1_796_054_400_000)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(253_402_300_799_000)),
            ("Wed, 31 Dec 1969 23:59:59 GMT", None),
        ];
        for (text, want) in cases {
            assert_eq!(http_date_unix_ms(text), want, "{text}");
        }
    }

    #[test]
    fn milliseconds_have_a_header_of_their_own() {
        assert_eq!(parse_ms("1500").map(RetryAfter::ms), Some(1_500));
        assert_eq!(parse_ms("0.5").map(RetryAfter::ms), Some(1));
        assert_eq!(parse_ms("1e99"), None);
        assert_eq!(parse_ms("x"), None);
    }
}
