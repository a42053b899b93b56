//! Metrics as OTLP has them: what `/metrics` says at this moment, name by name and label by label.
//!
//! The SDK's instruments would count everything a second time, and what leaders say begins anew with each of their terms,
//! which instruments cannot. So the message is made of the same registry that is scraped, and the two cannot differ.

use std::collections::HashMap;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
    ResourceMetrics, ScopeMetrics, Sum, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prometheus::proto::{self, LabelPair, MetricFamily, MetricType};

use crate::metrics::CATALOGUE;

const CUMULATIVE: i32 = AggregationTemporality::Cumulative as i32;

/// A time as OTLP has it: unix nanoseconds.
pub(super) type UnixNanos = u64;

/// Makes messages, one after the other, and knows since when each series counts.
#[derive(Debug)]
pub(super) struct Messages {
    resource: Resource,
    /// What began before the first message began with the process.
    last: UnixNanos,
    series: HashMap<String, Series>,
}

#[derive(Debug, Clone, Copy)]
struct Series {
    since: UnixNanos,
    count: f64,
}

impl Messages {
    /// For a process with these attributes that began at `began`.
    pub(super) fn new(resource: Vec<(String, String)>, began: UnixNanos) -> Self {
        let attributes = resource
            .iter()
            .map(|(name, value)| attribute(name, value))
            .collect();
        Self {
            resource: Resource {
                attributes,
                ..Resource::default()
            },
            last: began,
            series: HashMap::new(),
        }
    }

    /// The message of what was gathered at `now`.
    pub(super) fn next(
        &mut self,
        families: &[MetricFamily],
        now: UnixNanos,
    ) -> ExportMetricsServiceRequest {
        let mut counting = Counting {
            last: self.last,
            now,
            before: std::mem::take(&mut self.series),
            series: HashMap::new(),
        };
        let metrics = families.iter().filter_map(|family| counting.metric(family));
        let metrics = metrics.collect();
        // What is gone is forgotten: there are never more than are exported.
        self.series = counting.series;
        self.last = now;
        let scope = InstrumentationScope {
            name: super::super::SCOPE.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        ExportMetricsServiceRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(self.resource.clone()),
                scope_metrics: vec![ScopeMetrics {
                    scope: Some(scope),
                    metrics,
                    schema_url: String::new(),
                }],
                schema_url: String::new(),
            }],
        }
    }
}

/// One message while it is made.
struct Counting {
    last: UnixNanos,
    now: UnixNanos,
    before: HashMap<String, Series>,
    series: HashMap<String, Series>,
}

impl Counting {
    fn metric(&mut self, family: &MetricFamily) -> Option<Metric> {
        let all = family.get_metric();
        let data = match family.get_field_type() {
            MetricType::COUNTER => {
                let number = |this: &mut Self, metric: &proto::Metric| {
                    let count = metric.get_counter().get_value();
                    let since = this.since(family.name(), metric.get_label(), count);
                    this.number(metric, count, since)
                };
                Data::Sum(Sum {
                    data_points: all.iter().map(|metric| number(self, metric)).collect(),
                    aggregation_temporality: CUMULATIVE,
                    is_monotonic: true,
                })
            }
            MetricType::GAUGE => {
                let number =
                    |metric: &proto::Metric| self.number(metric, metric.get_gauge().get_value(), 0);
                Data::Gauge(Gauge {
                    data_points: all.iter().map(number).collect(),
                })
            }
            MetricType::HISTOGRAM => Data::Histogram(Histogram {
                data_points: all
                    .iter()
                    .map(|metric| self.histogram(family.name(), metric))
                    .collect(),
                aggregation_temporality: CUMULATIVE,
            }),
            // The catalogue has none.
            MetricType::SUMMARY | MetricType::UNTYPED => return None,
        };
        let unit = CATALOGUE.iter().find(|def| def.name == family.name());
        Some(Metric {
            name: family.name().to_owned(),
            description: family.help().to_owned(),
            unit: unit.map_or_else(String::new, |def| def.unit.to_owned()),
            metadata: Vec::new(),
            data: Some(data),
        })
    }

    fn number(&self, metric: &proto::Metric, value: f64, since: UnixNanos) -> NumberDataPoint {
        NumberDataPoint {
            attributes: attributes(metric.get_label()),
            start_time_unix_nano: since,
            time_unix_nano: self.now,
            value: Some(number_data_point::Value::AsDouble(value)),
            ..NumberDataPoint::default()
        }
    }

    /// Prometheus counts what is at most a bound, OTLP what is between two.
    fn histogram(&mut self, name: &str, metric: &proto::Metric) -> HistogramDataPoint {
        let histogram = metric.get_histogram();
        let count = histogram.get_sample_count();
        let mut bounds = Vec::new();
        let mut counts = Vec::new();
        let mut below = 0;
        for bucket in histogram.get_bucket() {
            let up_to = bucket.cumulative_count();
            if bucket.upper_bound().is_finite() {
                bounds.push(bucket.upper_bound());
                counts.push(up_to.saturating_sub(below));
                below = up_to;
            }
        }
        counts.push(count.saturating_sub(below));
        #[expect(
            clippy::cast_precision_loss,
            reason = "only compared with the one before"
        )]
        let since = self.since(name, metric.get_label(), count as f64);
        HistogramDataPoint {
            attributes: attributes(metric.get_label()),
            start_time_unix_nano: since,
            time_unix_nano: self.now,
            count,
            sum: Some(histogram.get_sample_sum()),
            bucket_counts: counts,
            explicit_bounds: bounds,
            ..HistogramDataPoint::default()
        }
    }

    /// Since when a series counts: it began after the message before if it was not in it, or counted more there.
    fn since(&mut self, name: &str, labels: &[LabelPair], count: f64) -> UnixNanos {
        let mut key = name.to_owned();
        for label in labels {
            // Neither names nor values of labels contain what separates them here.
            key = [&key, label.name(), label.value()].join("\0");
        }
        let since = match self.before.get(&key) {
            Some(before) if before.count <= count => before.since,
            Some(_) | None => self.last,
        };
        self.series.insert(key, Series { since, count });
        since
    }
}

fn attributes(labels: &[LabelPair]) -> Vec<KeyValue> {
    let labels = labels.iter();
    labels
        .map(|label| attribute(label.name(), label.value()))
        .collect()
}

fn attribute(name: &str, value: &str) -> KeyValue {
    KeyValue {
        key: name.to_owned(),
        value: Some(AnyValue {
            value: Some(Value::StringValue(value.to_owned())),
        }),
        ..KeyValue::default()
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

    use super::*;

    fn sums(message: &ExportMetricsServiceRequest) -> Vec<(f64, u64)> {
        let metrics = &message.resource_metrics[0].scope_metrics[0].metrics;
        let points = metrics
            .iter()
            .flat_map(|metric| match metric.data.as_ref().unwrap() {
                Data::Sum(sum) => sum.data_points.clone(),
                other => panic!("{other:?}"),
            });
        points
            .map(|point| match point.value.unwrap() {
                number_data_point::Value::AsDouble(value) => (value, point.start_time_unix_nano),
                number_data_point::Value::AsInt(value) => panic!("{value}"),
            })
            .collect()
    }

    #[test]
    fn a_counter_counts_since_it_began_and_anew_when_it_begins_anew() {
        let registry = Registry::new();
        let counter = IntCounterVec::new(Opts::new("c_total", "help"), &["l"]).unwrap();
        registry.register(Box::new(counter.clone())).unwrap();
        let mut messages = Messages::new(Vec::new(), 100);
        let mut next = |now| sums(&messages.next(&registry.gather(), now));
        assert_eq!(next(200), []);
        counter.with_label_values(&["a"]).inc_by(3);
        // It was not there at 200.
        assert_eq!(next(300), [(3.0, 200)]);
        counter.with_label_values(&["a"]).inc();
        assert_eq!(next(400), [(4.0, 200)]);
        // A leader that stands by, and leads again.
        counter.reset();
        counter.with_label_values(&["a"]).inc();
        assert_eq!(next(500), [(1.0, 400)]);
        counter.reset();
        assert_eq!(next(600), []);
        counter.with_label_values(&["a"]).inc_by(9);
        assert_eq!(next(700), [(9.0, 600)]);
        assert_eq!(messages.series.len(), 1);
    }

    #[test]
    fn buckets_count_what_is_between_their_bounds() {
        let registry = Registry::new();
        let opts = HistogramOpts::new("h_seconds", "help").buckets(vec![1.0, 2.0, 4.0]);
        let histogram = HistogramVec::new(opts, &[]).unwrap();
        registry.register(Box::new(histogram.clone())).unwrap();
        for seconds in [0.5, 1.0, 1.5, 3.0, 9.0, 10.0] {
            histogram.with_label_values::<&str>(&[]).observe(seconds);
        }
        let message = Messages::new(vec![("service.name".to_owned(), "x".to_owned())], 7)
            .next(&registry.gather(), 9);
        let resource = &message.resource_metrics[0];
        assert_eq!(
            resource.resource.as_ref().unwrap().attributes,
            [attribute("service.name", "x")]
        );
        let Some(Data::Histogram(histogram)) = resource.scope_metrics[0].metrics[0].data.clone()
        else {
            panic!("{message:?}");
        };
        assert_eq!(histogram.aggregation_temporality, CUMULATIVE);
        let point = &histogram.data_points[0];
        assert_eq!(point.explicit_bounds, [1.0, 2.0, 4.0]);
        assert_eq!(point.bucket_counts, [2, 1, 1, 2]);
        assert_eq!((point.count, point.sum), (6, Some(25.0)));
        assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (7, 9));
    }
}
