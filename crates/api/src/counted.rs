//! Counters of reports, declared once: where their field is declared.
//!
//! A field of a struct inside `counted!` that has ` => "metric"` behind its type is a counter: it
//! is added up over all objects of its kind, and the daemon exports it under that name, with its
//! doc comment as help.
//!
//! What packet threads count has ` by threads` behind that, and its struct the name of another one,
//! which has these fields alone. A packet thread has it with counters as fields, and adds to them;
//! sums have numbers. So such a counter is one line here and its increments.

use schemars::{JsonSchema, schema_for};

/// A counter of a report of type `T`.
pub struct CounterOf<T> {
    /// Its field.
    pub field: &'static str,
    /// The name of its metric, which ends in `_total`.
    pub metric: &'static str,
    /// Reads it.
    pub get: fn(&T) -> u64,
}

/// A report with counters. `counted!` implements it.
pub trait Counters: JsonSchema + Sized + 'static {
    /// All of them.
    const COUNTERS: &'static [CounterOf<Self>];

    /// Adds another report's counters. Sums stop at the largest number: an NF may report any count.
    fn add_counters(&mut self, other: &Self);

    /// What each counts, in the order of [`Counters::COUNTERS`].
    fn help() -> &'static [String];
}

/// A counter of a packet thread.
pub trait CounterValue {
    /// Its value.
    fn count(&self) -> u64;
}

/// The doc comments of the counters of a report.
pub fn describe<T: Counters>() -> Vec<String> {
    let schema = schema_for!(T);
    let text = |counter: &CounterOf<T>| schema.get("properties")?.get(counter.field)?.get("description")?.as_str();
    T::COUNTERS.iter().map(|counter| text(counter).unwrap_or_default().replace('\n', " ")).collect()
}

/// Declares a report whose fields with ` => "metric"` are [`Counters`]. `pub struct Chain:
/// ChainCounts` also declares `ChainCounts`, of the fields with ` => "metric" by threads`.
macro_rules! counted {
    (
        $(#[$outer:meta])*
        pub struct $name:ident: $counts:ident { $($fields:tt)* }
    ) => {
        $crate::counted::counted! { @counts $name $counts [] $($fields)* }
        $crate::counted::counted! { $(#[$outer])* pub struct $name { $($fields)* } }
    };
    // Keeps the fields that packet threads count, and skips the others.
    (
        @counts $name:ident $counts:ident [$($kept:tt)*]
        $(#[$inner:meta])* pub $field:ident: $kind:ty => $metric:literal by threads, $($rest:tt)*
    ) => {
        $crate::counted::counted! { @counts $name $counts [$($kept)* $(#[$inner])* $field,] $($rest)* }
    };
    (
        @counts $name:ident $counts:ident $kept:tt
        $(#[$inner:meta])* pub $field:ident: $kind:ty $(=> $metric:literal)?, $($rest:tt)*
    ) => {
        $crate::counted::counted! { @counts $name $counts $kept $($rest)* }
    };
    (@counts $name:ident $counts:ident [$($(#[$inner:meta])* $field:ident,)*]) => {
        #[doc = concat!("What packet threads count for [`", stringify!($name), "`]: counters, or their sums.")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize, serde::Serialize, schemars::JsonSchema)]
        #[serde(default)]
        #[schemars(bound = "C: schemars::JsonSchema + serde::Serialize + Default")]
        pub struct $counts<C = u64> {
            $($(#[$inner])* pub $field: C,)*
        }

        impl<C: $crate::counted::CounterValue> $counts<C> {
            /// The values of these counters.
            pub fn read(&self) -> $counts {
                $counts { $($field: self.$field.count(),)* }
            }
        }

        impl $counts {
            /// Adds others to these.
            pub fn add(&mut self, others: &Self) {
                $(self.$field = self.$field.saturating_add(others.$field);)*
            }
        }

        impl $name {
            /// Those of its counters that packet threads count.
            pub fn counts(&self) -> $counts {
                $counts { $($field: self.$field,)* }
            }

            /// Adds to these counters.
            pub fn add_counts(&mut self, counts: &$counts) {
                $(self.$field = self.$field.saturating_add(counts.$field);)*
            }
        }
    };
    (
        $(#[$outer:meta])*
        pub struct $name:ident {
            $($(#[$inner:meta])* pub $field:ident: $kind:ty $(=> $metric:literal $(by $threads:ident)?)?,)*
        }
    ) => {
        $(#[$outer])*
        pub struct $name {
            $($(#[$inner])* pub $field: $kind,)*
        }

        impl $crate::counted::Counters for $name {
            const COUNTERS: &'static [$crate::counted::CounterOf<Self>] = &[
                $($($crate::counted::CounterOf { field: stringify!($field), metric: $metric, get: |report| report.$field },)?)*
            ];

            fn add_counters(&mut self, other: &Self) {
                $($(
                    let _: &str = $metric;
                    self.$field = self.$field.saturating_add(other.$field);
                )?)*
            }

            fn help() -> &'static [String] {
                static HELP: std::sync::LazyLock<Vec<String>> = std::sync::LazyLock::new($crate::counted::describe::<$name>);
                &HELP
            }
        }
    };
}
pub(crate) use counted;
