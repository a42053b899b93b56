//! Values of flags, checked where they are read: what is wrong says what would be right.

pub(crate) fn tenant(text: &str) -> Result<fairlane_core::TenantId, String> {
    fairlane_core::TenantId::parse(text).map_err(|error| error.to_string())
}

pub(crate) fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.to_owned()))
        }
        Some(_) | None => Err("give key=value, such as worker.slots=128".to_owned()),
    }
}

pub(crate) fn context_name(text: &str) -> Result<String, String> {
    let fits = (1..=64).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    fits.then(|| text.to_owned())
        .ok_or_else(|| "use 1 to 64 letters, digits, -, _ and .".to_owned())
}

/// A duration from the command line, milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DurationMs(pub(crate) u64);

pub(crate) fn duration(text: &str) -> Result<DurationMs, String> {
    const LONGEST: u64 = 30 * 24 * 3_600_000;
    let parsed = text.parse::<jiff::SignedDuration>().ok();
    let ms = parsed.and_then(|duration| u64::try_from(duration.as_millis()).ok());
    ms.filter(|ms| (1..=LONGEST).contains(ms))
        .map(DurationMs)
        .ok_or_else(|| "give a duration such as 90s, 10m or 2h, of at most 720h".to_owned())
}

pub(crate) fn look_back(text: &str) -> Result<std::time::Duration, String> {
    let right = || "give a number and s, m, h or d, such as 24h".to_owned();
    let (number, unit) = text
        .split_at_checked(text.len().saturating_sub(1))
        .ok_or_else(right)?;
    let number: u64 = number.parse().map_err(|_| right())?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(right()),
    };
    Ok(std::time::Duration::from_secs(
        number.saturating_mul(seconds),
    ))
}
