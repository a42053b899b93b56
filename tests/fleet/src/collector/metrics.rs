//! Series of metrics as a flat list, whether they came by OTLP or stand on a page that Prometheus reads.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, HistogramDataPoint, Metric, NumberDataPoint,
};

use super::texts;

/// Value by name and labels: `jobs_total{outcome="done"}`; of a histogram its `_bucket`s, `_sum` and `_count`.
pub type Series = BTreeMap<String, f64>;

/// The series that came in one message.
///
/// # Panics
/// If something else came than counters, gauges and histograms, or values that are not cumulative.
pub(super) fn series(metrics: impl Iterator<Item = Metric>) -> Series {
    let cumulative = AggregationTemporality::Cumulative as i32;
    let mut all = Series::new();
    for metric in metrics {
        let name = &metric.name;
        assert!(!metric.description.is_empty(), "{name} says nothing");
        assert!(!metric.unit.is_empty(), "{name} has no unit");
        match metric.data.expect("a metric has data") {
            Data::Sum(sum) => {
                assert!(sum.is_monotonic, "{name}");
                assert_eq!(sum.aggregation_temporality, cumulative, "{name}");
                for point in sum.data_points {
                    assert!(point.start_time_unix_nano > 0, "{name} began at no time");
                    assert!(point.start_time_unix_nano <= point.time_unix_nano, "{name}");
                    number(&mut all, name, point);
                }
            }
            Data::Gauge(gauge) => gauge
                .data_points
                .into_iter()
                .for_each(|point| number(&mut all, name, point)),
            Data::Histogram(histogram) => {
                assert_eq!(histogram.aggregation_temporality, cumulative, "{name}");
                for point in histogram.data_points {
                    buckets(&mut all, name, point);
                }
            }
            other @ (Data::ExponentialHistogram(_) | Data::Summary(_)) => {
                panic!("{name} is {other:?}")
            }
        }
    }
    all
}

fn number(all: &mut Series, name: &str, point: NumberDataPoint) {
    let value = match point.value.expect("a point has a value") {
        Value::AsDouble(value) => value,
        Value::AsInt(value) => panic!("{name} is {value}, a whole number"),
    };
    all.insert(key(name, labels(point.attributes)), value);
}

#[expect(clippy::cast_precision_loss, reason = "tests count to some hundreds")]
fn buckets(all: &mut Series, name: &str, point: HistogramDataPoint) {
    let labels = labels(point.attributes);
    let bounds = point.explicit_bounds.into_iter().chain([f64::INFINITY]);
    let mut up_to = 0;
    for (bound, count) in bounds.zip(&point.bucket_counts) {
        up_to += count;
        let mut labels = labels.clone();
        labels.insert("le".to_owned(), bound.to_string());
        all.insert(key(&format!("{name}_bucket"), labels), up_to as f64);
    }
    assert_eq!(up_to, point.count, "{name}");
    all.insert(key(&format!("{name}_count"), labels.clone()), up_to as f64);
    all.insert(
        key(&format!("{name}_sum"), labels),
        point.sum.expect("a sum"),
    );
}

fn labels(attributes: Vec<KeyValue>) -> BTreeMap<String, String> {
    texts(attributes)
}

fn key(name: &str, labels: BTreeMap<String, String>) -> String {
    let labels = labels
        .iter()
        .map(|(name, value)| format!("{name}=\"{value}\""));
    format!("{name}{{{}}}", labels.collect::<Vec<_>>().join(","))
}

/// The series on a page in Prometheus' text format, without escapes in labels.
///
/// # Panics
/// If the page is not one.
#[must_use]
pub fn page(page: &str) -> Series {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let labels = labels.trim_end_matches('}').split("\",");
            let labels = labels.filter_map(|label| label.split_once("=\""));
            let labels = labels.map(|(name, value)| {
                let value = value.trim_end_matches('"');
                let bound = || value.parse::<f64>().expect("a bound").to_string();
                let value = if name == "le" {
                    bound()
                } else {
                    value.to_owned()
                };
                (name.to_owned(), value)
            });
            (
                key(name, labels.collect()),
                value.parse().expect("a number"),
            )
        })
        .collect()
}
