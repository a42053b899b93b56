//! Serde for core's identifiers: each travels as its text and is checked on arrival. And JSON that
//! is safe to put into a header.

use serde::Serialize;

/// `value` as JSON in ASCII only: not every client reads headers as UTF-8.
pub(crate) fn ascii_json(value: &impl Serialize) -> String {
    let json = serde_json::to_string(value).expect("formats have no map keys that are not text");
    let mut out = String::with_capacity(json.len());
    let mut units = [0; 2];
    for c in json.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    out
}

macro_rules! as_text {
    ($module:ident, $type:ty, $parse:expr) => {
        pub(crate) mod $module {
            use serde::{Deserialize, Deserializer, Serializer, de::Error};

            pub(crate) fn serialize<S: Serializer>(
                value: &$type,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                serializer.collect_str(value)
            }

            pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
                deserializer: D,
            ) -> Result<$type, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                let parse: fn(&str) -> Result<$type, String> = $parse;
                parse(&text).map_err(D::Error::custom)
            }
        }
    };
}

as_text!(tenant, fairlane_core::TenantId, |text| {
    fairlane_core::TenantId::parse(text).map_err(|error| error.to_string())
});
as_text!(job, fairlane_core::JobId, |text| {
    fairlane_core::JobId::parse(text).map_err(|error| error.to_string())
});
as_text!(pool, fairlane_core::PoolId, |text| {
    fairlane_core::PoolId::parse(text).map_err(|error| error.to_string())
});
as_text!(model, fairlane_core::ModelId, |text| {
    fairlane_core::ModelId::parse(text).map_err(|error| error.to_string())
});
as_text!(kind, fairlane_core::Kind, |text| {
    fairlane_core::Kind::parse(text).map_err(|error| error.to_string())
});
as_text!(worker, fairlane_core::WorkerId, |text| {
    fairlane_core::WorkerId::parse(text).map_err(|error| error.to_string())
});
as_text!(priority, fairlane_core::Priority, |text| {
    fairlane_core::Priority::parse(text)
        .ok_or_else(|| format!("priority {text:?} is not one of critical, standard, batch"))
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_survives_as_ascii() {
        let text = "淡い 🎴 é \\ \"";
        let plain = ascii_json(&text);
        assert!(plain.is_ascii());
        assert_eq!(serde_json::from_str::<String>(&plain).unwrap(), text);
    }
}

/// A tenant that may be absent.
pub(crate) mod tenant_option {
    use fairlane_core::TenantId;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Wrapped(#[serde(with = "super::tenant")] TenantId);

    #[expect(clippy::ref_option, reason = "serde's signature")]
    pub(crate) fn serialize<S: Serializer>(
        tenant: &Option<TenantId>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        tenant.clone().map(Wrapped).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<TenantId>, D::Error> {
        let wrapped = Option::<Wrapped>::deserialize(deserializer)?;
        Ok(wrapped.map(|wrapped| wrapped.0))
    }
}
