//! Counters of reports, declared once: where their field is declared.
//!
//! A field of a struct inside `counted!` that has ` => "metric"` behind its type is a counter: it
//! is added up over all objects of its kind, and the daemon exports it under that name, with its
//! doc comment as help.

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

/// The doc comments of the counters of a report.
pub fn describe<T: Counters>() -> Vec<String> {
    let schema = schema_for!(T);
    let text = |counter: &CounterOf<T>| schema.get("properties")?.get(counter.field)?.get("description")?.as_str();
    T::COUNTERS.iter().map(|counter| text(counter).unwrap_or_default().replace('\n', " ")).collect()
}

/// Declares a report whose fields with ` => "metric"` are [`Counters`].
macro_rules! counted {
    (
        $(#[$outer:meta])*
        pub struct $name:ident {
            $($(#[$inner:meta])* pub $field:ident: $kind:ty $(=> $metric:literal)?,)*
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
