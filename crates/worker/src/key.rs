//! The API key of the moment: a mounted file may be replaced at any time.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use fairlane_claude::{ApiKey, KeyError};

/// The file is looked at no more often than this.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Where the key comes from.
#[derive(Debug)]
pub(crate) struct Keys {
    file: Option<PathBuf>,
    now: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    key: ApiKey,
    read_at: Instant,
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("cannot read {path:?}")]
    File {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("the API key is not usable")]
    Key(#[from] KeyError),
}

impl Keys {
    /// A key that never changes.
    pub(crate) fn fixed(key: ApiKey) -> Self {
        Self {
            file: None,
            now: Mutex::new(Current {
                key,
                read_at: Instant::now(),
            }),
        }
    }

    /// The key in `file`, which must be there now.
    pub(crate) fn in_file(file: PathBuf, now: Instant) -> Result<Self, ReadError> {
        let key = read(&file)?;
        Ok(Self {
            file: Some(file),
            now: Mutex::new(Current { key, read_at: now }),
        })
    }

    /// The key to use at `now`. A file that cannot be read for a while leaves the last key in use:
    /// the upstream says so if it is no longer valid.
    pub(crate) fn current(&self, now: Instant) -> ApiKey {
        let mut current = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &self.file
            && now.saturating_duration_since(current.read_at) >= LOOK_EVERY
        {
            current.read_at = now;
            match read(file) {
                Ok(key) if key != current.key => {
                    tracing::info!(?file, "the API key was replaced");
                    current.key = key;
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(?file, %error, "keeping the last API key"),
            }
        }
        current.key.clone()
    }
}

fn read(path: &PathBuf) -> Result<ApiKey, ReadError> {
    let text = std::fs::read_to_string(path).map_err(|source| ReadError::File {
        path: path.clone(),
        source,
    })?;
    Ok(ApiKey::parse(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_is_the_next_key_and_a_broken_one_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        std::fs::write(&file, "sk-one\n").unwrap();
        let start = Instant::now();
        let keys = Keys::in_file(file.clone(), start).unwrap();
        let key = |text| ApiKey::parse(text).unwrap();
        assert!(keys.current(start) == key("sk-one"));

        std::fs::write(&file, "sk-two").unwrap();
        assert!(
            keys.current(start + LOOK_EVERY / 2) == key("sk-one"),
            "not looked at yet"
        );
        assert!(keys.current(start + LOOK_EVERY) == key("sk-two"));

        std::fs::write(&file, "").unwrap();
        assert!(keys.current(start + LOOK_EVERY * 2) == key("sk-two"));
        std::fs::remove_file(&file).unwrap();
        assert!(keys.current(start + LOOK_EVERY * 3) == key("sk-two"));
    }
}
