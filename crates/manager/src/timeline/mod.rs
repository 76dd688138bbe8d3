//! Timelines: what ran when, as a trace of Perfetto.
//!
//! Problem: the question why a packet was late is asked afterwards, and the answer is in words that
//! packet threads and NFs have overwritten since. Approach: a thread samples these words some
//! thousand times a second, and keeps what has changed. The packet path does nothing for it, with a
//! recording or without.
//!
//! | module | what is in it |
//! |---|---|
//! | [`track`] | objects, what is observed of them, and observations |
//! | [`sampler`] | reads the words, and compares them with the last sample |
//! | [`watcher`] | samples, follows NFs that come and go, and hears of events |
//! | [`drawing`] | makes packets of a trace of observations and events |
//! | [`perfetto`] | the messages of such a trace, as bytes |
//! | [`live`] | a recording that a client asked for |
//! | [`flight`] | the flight recorder, which writes the last seconds when something goes wrong |
//! | [`kept`] | its files |
//!
//! Limits: what begins and ends between two samples is not seen, apart from the counts (wakes,
//! hand-overs, time slices, drops, throttles). A sample reads one word after another: two tracks
//! may differ by the time that one sample takes. Words of NFs are shown as the NFs write them.

pub mod drawing;
pub mod flight;
pub mod kept;
pub mod live;
pub mod perfetto;
#[cfg(test)]
mod reader;
pub mod sampler;
#[cfg(test)]
mod tests;
pub mod track;
pub mod watcher;
