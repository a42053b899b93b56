//! The API key: a value that is sent, and never shown.

use std::fmt;

use reqwest::header::{AUTHORIZATION, HeaderName, HeaderValue};

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// An API key or bearer token. Its debug form shows neither it nor its length.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey {
    name: HeaderName,
    value: HeaderValue,
}

/// Why a text is no key. The text itself is not part of the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("api key is empty; put the key alone into the file")]
    Empty,
    #[error(
        "api key contains spaces, line breaks or other characters no key has; put one key alone into the file"
    )]
    Character,
}

impl ApiKey {
    /// A key for the `x-api-key` header. White space around it, as files have it, is cut off.
    ///
    /// # Errors
    /// [`KeyError`] when nothing is left or it cannot be a key.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        Ok(Self {
            name: X_API_KEY,
            value: value(checked(text)?)?,
        })
    }

    /// A token for the `authorization` header; otherwise as [`ApiKey::parse`].
    ///
    /// # Errors
    /// As [`ApiKey::parse`].
    pub fn bearer(text: &str) -> Result<Self, KeyError> {
        Ok(Self {
            name: AUTHORIZATION,
            value: value(&format!("Bearer {}", checked(text)?))?,
        })
    }

    pub(crate) fn header(&self) -> (HeaderName, HeaderValue) {
        (self.name.clone(), self.value.clone())
    }
}

fn checked(text: &str) -> Result<&str, KeyError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(KeyError::Empty);
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(KeyError::Character);
    }
    Ok(text)
}

fn value(text: &str) -> Result<HeaderValue, KeyError> {
    let mut value = HeaderValue::from_str(text).map_err(|_| KeyError::Character)?;
    // Keeps it out of the debug output of requests and out of HTTP/2 header tables.
    value.set_sensitive(true);
    Ok(value)
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_never_shows_in_debug_output() {
        let key = ApiKey::parse("  sk-secret-1\n").unwrap();
        assert_eq!(key.value.as_bytes(), b"sk-secret-1");
        let shown = format!(
            "{key:?} {:?} {:?}",
            key.header(),
            ApiKey::bearer("sk-secret-1")
        );
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[test]
    fn what_cannot_be_a_key_is_refused_without_repeating_it() {
        for bad in ["", " \n", "a b", "a\nb", "ключ", "a\0"] {
            let error = ApiKey::parse(bad).unwrap_err();
            assert!(bad.trim().is_empty() || !error.to_string().contains(bad));
            assert!(ApiKey::bearer(bad).is_err());
        }
    }
}
