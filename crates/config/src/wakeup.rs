//! When instances that sleep are woken: the keys of `[service.wakeup]` and `[rule.wakeup]`.

use super::schema::{Key, Preset::Value, Type::Integer, Type::Words};

const fn key(name: &'static str, takes: super::schema::Type, default: &'static str, meaning: &'static str) -> Key {
    Key { name, takes, default: Value(default), meaning }
}

/// The keys of `[service.wakeup]` and `[rule.wakeup]`.
pub const WAKEUP: &[Key] = &[
    key(
        "policy",
        Words(&["min", "adaptive", "naive-100us", "naive-1ms"]),
        "\"adaptive\"",
        "At every packet (`min`), at 32 packets or after a time (`naive-100us`, `naive-1ms`), or at the number that its flow makes worth \
         while.",
    ),
    key(
        "early",
        Integer(0, u32::MAX as i64),
        "36",
        "With `adaptive`: each of so many packets at the beginning of a flow wakes it.",
    ),
    key(
        "least",
        Integer(1, 1 << 16),
        "1",
        "With `adaptive`: least number of packets that wait for it when it is woken, after those.",
    ),
    key("most", Integer(1, 1 << 16), "256", "With `adaptive`: largest such number; never more than half of its ring."),
    key("timer_us", Integer(1, 1_000_000), "1000", "With `adaptive`: how long packets wait for more at most, in microseconds."),
];
