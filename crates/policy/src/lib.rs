//! Decisions as pure functions: plain values in, plain values out, time is an argument.

pub mod spread;
