//! The keys of `[service.pool]`.

use super::schema::Preset::{Unset, Value};
use super::schema::Type::{Integer, Text, Words};
use super::schema::{Key, U32, key};

/// The keys of `[service.pool]`.
pub const POOL: &[Key] = &[
    key(
        "min",
        Integer(0, 65_000),
        Value("1"),
        "Least number of instances. There are so many at the start, and always so many with `per = \"rss\"` and `per = \"round-robin\"`.",
    ),
    key("max", Integer(1, 65_000), Value("64"), "Most instances. There are as many as flows come and last."),
    key(
        "class",
        Text,
        Unset,
        "With `per = \"class\"`: what flows of one class have in common. `tenant` (of their rule), `vlan`, `port` (where they come in), \
         `dscp`, `source-prefix/24` or `destination-prefix/24`, with `/24/56` where IPv6 networks have other than 64 bits. The first \
         packet of a connection says it, for both directions.",
    ),
    key(
        "ring",
        Integer(2, 1 << 20),
        Value("64"),
        "Capacity of each ring of an instance, a power of two: small where it has one flow at a time.",
    ),
    key(
        "linger_ms",
        Integer(0, 3_600_000),
        Value("100"),
        "How long late packets of a flow that has ended still meet its instance, in milliseconds. A class ends with its last flow.",
    ),
    key(
        "tcp_idle_ms",
        Integer(1, U32),
        Value("300000"),
        "An established TCP connection without packets for so long is over, in milliseconds.",
    ),
    key(
        "half_open_ms",
        Integer(1, U32),
        Value("10000"),
        "A TCP connection that only one side has spoken in, or that one side has ended, is over without packets for so long, in \
         milliseconds.",
    ),
    key("idle_ms", Integer(1, U32), Value("30000"), "A flow that is not TCP is over without packets for so long, in milliseconds."),
    key(
        "when_empty",
        Words(&["wait", "fallback", "drop"]),
        Value("\"wait\""),
        "What happens to a new flow when no instance is idle.",
    ),
    key(
        "queue",
        Integer(1, 1 << 16),
        Value("256"),
        "With `when_empty = \"wait\"`: most packets that wait, at each Rx thread. For one more, the one that has waited longest is dropped.",
    ),
    key("fallback", Text, Unset, "With `when_empty = \"fallback\"`: the shared service that has the flow instead, to its end."),
    key("isolation", Words(&["reset", "strict"]), Value("\"reset\""), "How an instance is made as new for the next flow."),
];
