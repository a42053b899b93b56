//! Serde for core's identifiers: each travels as its text and is checked on arrival.

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
as_text!(worker, fairlane_core::WorkerId, |text| {
    fairlane_core::WorkerId::parse(text).map_err(|error| error.to_string())
});
as_text!(priority, fairlane_core::Priority, |text| {
    fairlane_core::Priority::parse(text)
        .ok_or_else(|| format!("priority {text:?} is not one of critical, standard, batch"))
});
