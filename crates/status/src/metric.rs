//! Definitions of metrics, and their samples.

use crate::board::Shot;

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A count of events since the process began. While the process runs, the count never decreases.
    Counter,
    /// A value that can rise and fall.
    Gauge,
    /// Counts of durations or sizes, in slots whose bounds are powers of two.
    Histogram,
}

/// Definition of a metric, or of one part of a metric. A part belongs to one value of the metric's label.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Name of the metric, without `_total`.
    pub name: &'static str,
    /// Kind of the metric.
    pub kind: Kind,
    /// Meaning of the whole metric, with its unit.
    pub help: &'static str,
    /// The label that distinguishes the parts of the metric, and its value for this part. `None`: the metric has no
    /// parts.
    pub label: Option<(&'static str, &'static str)>,
    /// Meaning of this part; empty if the metric has no parts.
    pub part: &'static str,
}

impl Metric {
    /// Returns a metric without parts.
    #[must_use]
    pub const fn new(kind: Kind, name: &'static str, help: &'static str) -> Metric {
        Metric {
            name,
            kind,
            help,
            label: None,
            part: "",
        }
    }

    /// Returns the metric's name in Prometheus. The name of a counter ends with `_total`.
    #[must_use]
    pub fn full_name(&self) -> String {
        match self.kind {
            Kind::Counter => format!("{}_total", self.name),
            Kind::Gauge | Kind::Histogram => self.name.to_owned(),
        }
    }
}

/// Value of a sample.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Value of a counter, or of a gauge whose values are integers.
    Count(u64),
    /// Value of a gauge.
    Number(f64),
    /// Value of a histogram.
    Histogram(Shot),
}

/// One value of one metric.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The metric.
    pub metric: Metric,
    /// Labels in addition to those of the loop and of the metric.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: Value,
}

impl Sample {
    /// Returns a sample without further labels.
    #[must_use]
    pub const fn new(metric: Metric, value: Value) -> Sample {
        Sample {
            metric,
            labels: Vec::new(),
            value,
        }
    }
}

/// Defines the counters of one loop: a struct of words, and a metric for each word.
///
/// ```
/// pmnet_status::numbers! {
///     /// Numbers of a door.
///     pub struct Door {
///         Counter "door_opened" [""] "Times that it was opened." { opened }
///         Counter "door_closed" ["by"] "Times that it was closed, by who closed it." {
///             /// A person.
///             person,
///             /// The wind.
///             wind,
///         }
///     }
/// }
/// let door = Door { opened: 3, person: 2, wind: 1 };
/// assert_eq!(door.words(), [3, 2, 1]);
/// assert_eq!(Door::of([3, 2, 1]).person, 2);
/// assert_eq!(door.samples()[0].value, pmnet_status::Value::Count(3));
/// assert_eq!(Door::METRICS[2].label, Some(("by", "wind")));
/// ```
#[macro_export]
macro_rules! numbers {
    (
        $(#[$about:meta])*
        $visible:vis struct $name:ident {
            $($kind:ident $metric:literal [$label:literal] $help:literal {
                $($(#[doc = $text:literal])* $field:ident),* $(,)?
            })*
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default)]
        $visible struct $name {
            $($(#[allow(missing_docs)] $(#[doc = $text])* $visible $field: u64,)*)*
        }
        impl $name {
            /// The metric of each number, in the order of the fields.
            $visible const METRICS: &'static [$crate::Metric] = &[$($($crate::Metric {
                name: $metric,
                kind: $crate::Kind::$kind,
                help: $help,
                label: if $label.is_empty() { None } else { Some(($label, stringify!($field))) },
                part: concat!($($text),*),
            },)*)*];
            /// Returns the numbers, in the order of the fields.
            #[must_use]
            $visible const fn words(self) -> [u64; $name::METRICS.len()] {
                [$($(self.$field,)*)*]
            }
            /// Makes the struct from the numbers, in the order of the fields.
            #[must_use]
            $visible const fn of(words: [u64; $name::METRICS.len()]) -> $name {
                let [$($($field,)*)*] = words;
                $name { $($($field,)*)* }
            }
            /// Returns a sample for each number.
            #[must_use]
            $visible fn samples(self) -> Vec<$crate::Sample> {
                let both = $name::METRICS.iter().zip(self.words());
                both.map(|(metric, word)| $crate::Sample::new(*metric, $crate::Value::Count(word)))
                    .collect()
            }
        }
    };
}
