//! Where word of a job's end may go: a submission names its own address, so the fleet says which it
//! will write to.

use fairlane_core::TenantId;
use fairlane_runtime::config::Settings;
use fairlane_wire::names::NamespaceError;
use fairlane_wire::{Callback, DeadReason, Failure, Namespace};
use reqwest::Url;

/// A list of the configuration that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllowedError {
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    #[error(
        "producer.callback_subjects has {0:?}; give NATS subjects such as acme.ended.>, comma separated, * for a token and > for the rest"
    )]
    Pattern(String),
    #[error(
        "producer.callback_urls has {0:?}; give addresses such as https://hooks.example/fairlane/, comma separated, without a query"
    )]
    Url(String),
}

/// What is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    names: Namespace,
    subjects: Vec<String>,
    urls: Vec<Url>,
}

impl Allowed {
    /// What `settings` allow.
    ///
    /// # Errors
    /// [`AllowedError`] with the entry that is wrong.
    pub fn read(settings: &Settings) -> Result<Self, AllowedError> {
        let producer = &settings.producer;
        let subjects = list(producer.callback_subjects.as_ref()).map(|pattern| {
            let usable = is_pattern(pattern);
            usable.ok_or_else(|| AllowedError::Pattern(pattern.to_owned()))
        });
        let urls = list(producer.callback_urls.as_ref()).map(|text| {
            let url = Url::parse(text)
                .ok()
                .filter(|url| is_web(url) && url.query().is_none() && url.fragment().is_none());
            url.ok_or_else(|| AllowedError::Url(text.to_owned()))
        });
        Ok(Self {
            names: Namespace::parse(&settings.nats.namespace)?,
            subjects: subjects.collect::<Result<_, _>>()?,
            urls: urls.collect::<Result<_, _>>()?,
        })
    }

    /// Whether any allowed address is one over TLS.
    pub(crate) fn has_tls(&self) -> bool {
        self.urls.iter().any(|url| url.scheme() == "https")
    }

    /// What is always allowed, and nothing else.
    pub(crate) fn own_only(names: Namespace) -> Self {
        Self {
            names,
            subjects: Vec::new(),
            urls: Vec::new(),
        }
    }

    /// Says whether jobs of `tenant` may have this callback.
    ///
    /// # Errors
    /// The failure to refuse the job with.
    pub fn check(&self, tenant: &TenantId, callback: &Callback) -> Result<(), Failure> {
        let own = self.names.own_callback_prefix(tenant);
        let (field, value, is_allowed, fix) = match callback {
            // Nobody outside can ask for this one.
            Callback::Parent(_) => return Ok(()),
            Callback::Subject(subject) => {
                let allowed = subject.starts_with(&own) || self.allows_subject(subject);
                let fix = match self.subjects.join(", ").as_str() {
                    "" => format!("give a subject that begins with {own}"),
                    extra => format!("give a subject that begins with {own} or is one of {extra}"),
                };
                ("callback.subject", subject, allowed, fix)
            }
            Callback::Url(text) => {
                let urls: Vec<&str> = self.urls.iter().map(Url::as_str).collect();
                let fix = match urls.join(", ").as_str() {
                    "" => {
                        format!("give a subject that begins with {own}; no addresses are allowed")
                    }
                    extra => format!("give an address below {extra}"),
                };
                ("callback.url", text, self.allows_url(text), fix)
            }
        };
        if is_allowed {
            return Ok(());
        }
        let shown: String = value.chars().take(80).collect();
        let message = format!("{field} {shown:?} is not an address that this fleet writes to");
        Err(Failure::new(DeadReason::InvalidJob, message)
            .field(field)
            .fix(fix))
    }

    /// The server's own subjects and the fleet's are nobody's to choose, whatever the patterns say.
    fn allows_subject(&self, subject: &str) -> bool {
        let first = subject.split('.').next().unwrap_or_default();
        !first.starts_with(['$', '_'])
            && first != self.names.as_str()
            && self.subjects.iter().any(|it| matches(it, subject))
    }

    /// Compared as addresses and not as text: `https://a.example` is no beginning of
    /// `https://a.example.evil.example`.
    fn allows_url(&self, text: &str) -> bool {
        let Ok(url) = Url::parse(text) else {
            return false;
        };
        is_web(&url) && self.urls.iter().any(|prefix| is_below(prefix, &url))
    }
}

fn list(text: Option<&String>) -> impl Iterator<Item = &str> {
    let words = text.map_or("", String::as_str).split(',').map(str::trim);
    words.filter(|word| !word.is_empty())
}

fn is_web(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https")
        && url.username().is_empty()
        && url.password().is_none()
}

fn is_below(prefix: &Url, url: &Url) -> bool {
    let rest = url.path().strip_prefix(prefix.path());
    prefix.origin() == url.origin()
        && rest.is_some_and(|rest| {
            rest.is_empty() || prefix.path().ends_with('/') || rest.starts_with('/')
        })
}

/// The pattern, if it is one.
fn is_pattern(pattern: &str) -> Option<String> {
    let tokens: Vec<&str> = pattern.split('.').collect();
    let last = tokens.len() - 1;
    let usable = tokens.iter().enumerate().all(|(at, token)| match *token {
        "" => false,
        "*" => true,
        ">" => at == last,
        text => text.bytes().all(|byte| byte.is_ascii_graphic()) && !text.contains(['*', '>']),
    });
    usable.then(|| pattern.to_owned())
}

fn matches(pattern: &str, subject: &str) -> bool {
    let mut tokens = subject.split('.');
    for wanted in pattern.split('.') {
        match (wanted, tokens.next()) {
            (">", Some(_)) => return true,
            ("*", Some(_)) => {}
            (text, Some(token)) if text == token => {}
            (_, _) => return false,
        }
    }
    tokens.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(subjects: &str, urls: &str) -> Result<Allowed, AllowedError> {
        let mut settings = Settings::default();
        settings.producer.callback_subjects = Some(subjects.to_owned());
        settings.producer.callback_urls = Some(urls.to_owned());
        Allowed::read(&settings)
    }

    fn check(allowed: &Allowed, callback: Callback) -> Result<(), Failure> {
        allowed.check(&TenantId::parse("acme").unwrap(), &callback)
    }

    #[test]
    fn a_tenant_has_its_own_subjects_and_those_of_the_patterns() {
        let allowed = allowed("ops.*.ended, acme.>, >", "").unwrap();
        let narrow = self::allowed("ops.*.ended, acme.>", "").unwrap();
        let subject = |subject: &str| Callback::Subject(subject.to_owned());
        for good in [
            "fl.callback.acme.x",
            "fl.callback.acme.x.y",
            "ops.a.ended",
            "acme.a.b",
        ] {
            assert_eq!(check(&narrow, subject(good)), Ok(()), "{good}");
        }
        for bad in ["ops.ended", "ops.a.ended.b", "acme", "other"] {
            assert!(check(&narrow, subject(bad)).is_err(), "{bad}");
        }
        for never in [
            "fl.callback.other.x",
            "fl.submit.other",
            "fl.ctl.cancel",
            "$JS.API.STREAM.DELETE.FL_JOBS",
            "_INBOX.a",
        ] {
            assert!(check(&allowed, subject(never)).is_err(), "{never}");
        }
    }

    #[test]
    fn an_address_is_below_an_allowed_one_or_refused() {
        let allowed = allowed("", "https://hooks.example/fl, http://127.0.0.1:8080/").unwrap();
        let url = |url: &str| Callback::Url(url.to_owned());
        for good in [
            "https://hooks.example/fl",
            "https://hooks.example/fl/a?b=c",
            "https://hooks.example:443/fl/",
            "http://127.0.0.1:8080/anything",
        ] {
            assert_eq!(check(&allowed, url(good)), Ok(()), "{good}");
        }
        for bad in [
            "https://hooks.example/",
            "https://hooks.example/flat",
            "https://hooks.example/fl/../admin",
            "https://hooks.example/fl/%2e%2e/admin",
            "https://hooks.example.evil.example/fl",
            "https://hooks.example@evil.example/fl",
            "https://me:pw@hooks.example/fl",
            "http://hooks.example/fl",
            "http://127.0.0.1:8081/",
            "ftp://127.0.0.1:8080/",
            "nonsense",
        ] {
            let failure = check(&allowed, url(bad)).unwrap_err();
            assert_eq!(failure.field.as_deref(), Some("callback.url"), "{bad}");
            assert!(failure.message.contains(bad), "{failure:?}");
            let fix = failure.fix.unwrap();
            assert!(fix.contains("https://hooks.example/fl"), "{fix}");
        }
    }

    #[test]
    fn nothing_but_its_own_subjects_is_allowed_by_default() {
        let allowed = Allowed::read(&Settings::default()).unwrap();
        let own = Callback::Subject("fl.callback.acme.x".into());
        assert_eq!(check(&allowed, own), Ok(()));
        assert!(check(&allowed, Callback::Subject("acme.x".into())).is_err());
        assert!(check(&allowed, Callback::Url("https://a.example/".into())).is_err());
    }

    #[test]
    fn a_list_that_cannot_be_used_is_named() {
        for bad in ["a..b", "a.>.b", "a b", "a.x*"] {
            let error = allowed(bad, "").unwrap_err();
            assert_eq!(error, AllowedError::Pattern(bad.to_owned()));
        }
        for bad in ["ftp://a.example/", "https://a.example/?x", "hooks.example"] {
            let error = allowed("", bad).unwrap_err();
            assert_eq!(error, AllowedError::Url(bad.to_owned()));
        }
    }
}
