//! Callback style: the library owns the loop, the NF is a [`Handler`].
//!
//! # Life of an NF
//! attach → make the handler → ready → bursts and ticks → stop → storage flushed →
//! [`Handler::clean`] → exit code 0. An NF that serves one flow at a time is cleaned in the same
//! way between two flows, and goes on.
//!
//! With a zygote, the handler was made in another process, once for all instances: fork → attach →
//! [`Handler::forked`] → ready → ….
//!
//! It leaves on the manager's request (after its rx rings are empty), on SIGTERM or SIGINT (after
//! the current burst), when the manager is gone, and when the handler panics: then the burst's
//! packets go back as dropped, the error is counted, and the exit code is 1. Packets left in its rx
//! rings belong to the manager again as soon as the process has left.

use std::any::Any;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Duration;

use sluice_shm::descriptor::Verdict as RawVerdict;

use crate::context::Context;
use crate::engine::Engine;
use crate::error::NfError;
use crate::handler::Handler;
use crate::options::{self, Options};
use crate::packet::{Burst, Packet};
use crate::signals;
use crate::zygote;

/// A handler that may also fail: what [`Handler`] and the C interface have in common.
pub(crate) trait FallibleHandler {
    /// The number of packets left in an impossible state (marked as dropped).
    fn burst(&mut self, burst: &mut Burst<'_>) -> Result<usize, NfError>;
    fn tick(&mut self, now_ns: u64);
    fn tick_every(&self) -> Option<Duration>;
    fn clean(&mut self);
    fn forked(&mut self, context: &Context) -> Result<(), NfError>;
}

pub(crate) struct Plain<H>(pub(crate) H);

impl<H: Handler> FallibleHandler for Plain<H> {
    #[inline(always)]
    fn burst(&mut self, burst: &mut Burst<'_>) -> Result<usize, NfError> {
        self.0.burst(burst);
        Ok(0)
    }
    fn tick(&mut self, now_ns: u64) {
        self.0.tick(now_ns);
    }
    fn tick_every(&self) -> Option<Duration> {
        self.0.tick_every()
    }
    fn clean(&mut self) {
        self.0.clean();
    }
    fn forked(&mut self, context: &Context) -> Result<(), NfError> {
        self.0.forked(context).map_err(NfError::Handler)
    }
}

pub(crate) struct Ticker {
    every_ns: Option<u64>,
    next_ns: u64,
}

impl Ticker {
    pub(crate) fn new(every: Option<Duration>, now: u64) -> Self {
        let every_ns = every.map(|e| u64::try_from(e.as_nanos()).unwrap_or(u64::MAX).max(1));
        Self { every_ns, next_ns: every_ns.map_or(u64::MAX, |e| now.saturating_add(e)) }
    }

    fn deadline(&self) -> Option<u64> {
        self.every_ns.map(|_| self.next_ns)
    }

    /// Whether a tick is due at `now`; the next is then a period later. Missed ticks are skipped.
    pub(crate) fn is_due(&mut self, now: u64) -> bool {
        let Some(every) = self.every_ns else { return false };
        if now < self.next_ns {
            return false;
        }
        self.next_ns = if self.next_ns.saturating_add(every) > now { self.next_ns.saturating_add(every) } else { now + every };
        true
    }
}

/// The message of a panic.
fn words_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

pub(crate) fn guarded<T>(f: impl FnOnce() -> T) -> Result<T, NfError> {
    // AssertUnwindSafe: after a panic the handler is never called again.
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| NfError::Panicked(words_of(&*panic)))
}

/// The loop. Ok is a clean stop.
fn work(engine: &mut Engine, step: &mut impl FallibleHandler) -> Result<(), NfError> {
    let mut ticker = Ticker::new(step.tick_every(), engine.now_ns());
    let sleeper = engine.sleeper();
    engine.ready();
    loop {
        guarded(|| sleeper.poll()).inspect_err(|_| engine.count_errors(1))?;
        if engine.is_shut_out() {
            engine.stand()?;
        }
        // Read before the rings: packets posted before the word was set are still handled.
        let stop = engine.must_stop();
        let (first, n) = engine.receive_burst()?;
        if engine.must_clean() {
            // Work begun for the former flow completes before the flow is forgotten.
            guarded(|| sleeper.flush()).inspect_err(|_| engine.count_errors(1))?;
            guarded(|| step.clean()).inspect_err(|_| engine.count_errors(1))?;
            engine.cleaned();
        }
        if n == 0 {
            if stop || signals::stopped() {
                return Ok(());
            }
            engine.wait(ticker.deadline())?;
            let now = engine.now_ns();
            if engine.is_glance_due(now) {
                engine.glance(now)?;
            }
            if ticker.is_due(now) {
                guarded(|| step.tick(now)).inspect_err(|_| engine.count_errors(1))?;
            }
            continue;
        }
        let now = engine.now_ns();
        // SAFETY: n slots of the tx ring, this NF's until sent. The reference ends with this round.
        let descriptors = unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), n) };
        // SAFETY: receive_burst() checked them. The manager gave these frames to this NF alone, and
        // those of earlier bursts went back with send_burst().
        let mut burst = unsafe { Burst::new(engine.arena(), descriptors, now) };
        let outcome = guarded(|| step.burst(&mut burst)).and_then(|outcome| outcome);
        match outcome {
            Ok(0) => {}
            Ok(errors) => engine.count_errors(errors),
            Err(error) => {
                engine.count_errors(1);
                descriptors.iter_mut().for_each(|d| d.verdict = RawVerdict::Drop as u8);
                engine.send_burst(n, n);
                engine.publish();
                return Err(error);
            }
        }
        let drops = descriptors.iter().filter(|d| d.verdict == RawVerdict::Drop as u8).count();
        if engine.is_sample_due(now) {
            let after = engine.now_ns();
            if !sleeper.has_waited() {
                engine.sample(n, after, after.saturating_sub(now));
            }
            engine.send_burst(n, drops);
            engine.publish_at(now);
            engine.glance(after)?;
            if ticker.is_due(after) {
                guarded(|| step.tick(after)).inspect_err(|_| engine.count_errors(1))?;
            }
        } else {
            engine.send_burst(n, drops);
            engine.publish_at(now);
        }
        if signals::stopped() {
            engine.publish();
            return Ok(());
        }
        if engine.must_yield(now) {
            engine.publish();
            engine.rest(ticker.deadline())?;
        }
    }
}

/// An error, and the connection to the manager, which takes an NF that hangs up for dead and kills
/// it: what the NF says of its error has to come before that.
pub(crate) struct EndedRun {
    pub(crate) error: NfError,
    _engine: Option<Box<Engine>>,
}

impl<E: Into<NfError>> From<E> for EndedRun {
    fn from(error: E) -> Self {
        Self { error: error.into(), _engine: None }
    }
}

/// Attaches, makes the handler, and runs it until it stops; in a zygote, in each forked process.
pub(crate) fn run_step<S: FallibleHandler>(
    options: &Options,
    make: impl FnOnce(&Context) -> Result<S, NfError>,
) -> Result<(), EndedRun> {
    let make = |context: &Context| guarded(|| make(context))?;
    if !options.zygote {
        let (mut engine, context) = Engine::attach(options).map_err(NfError::from)?;
        let outcome = make(&context).and_then(|mut step| serve(&mut engine, &mut step));
        return outcome.map_err(|error| EndedRun { error, _engine: Some(Box::new(engine)) });
    }
    let Some((mut step, own)) = zygote::serve(options, make)? else { return Ok(()) };
    let (mut engine, context) = Engine::attach(&own).map_err(NfError::from)?;
    let outcome = guarded(|| step.forked(&context)).and_then(|forked| forked).and_then(|()| serve(&mut engine, &mut step));
    outcome.map_err(|error| EndedRun { error, _engine: Some(Box::new(engine)) })
}

/// Runs a made handler until it stops, and cleans it.
fn serve(engine: &mut Engine, step: &mut impl FallibleHandler) -> Result<(), NfError> {
    work(engine, step)?;
    // Storage completes before the handler is cleaned, and again after what that writes.
    let sleeper = engine.sleeper();
    guarded(|| sleeper.flush())?;
    guarded(|| step.clean())?;
    guarded(|| sleeper.flush())
}

/// As [`run`], but returns the error instead of printing it.
///
/// # Errors
/// [`NfError`]: attaching or making the handler failed, it panicked, or the manager is gone.
pub fn run_with<H: Handler>(
    options: &Options,
    make: impl FnOnce(&Context) -> Result<H, Box<dyn std::error::Error>>,
) -> Result<(), NfError> {
    attempt(options, make).map_err(|ended| ended.error)
}

fn attempt<H: Handler>(
    options: &Options,
    make: impl FnOnce(&Context) -> Result<H, Box<dyn std::error::Error>>,
) -> Result<(), EndedRun> {
    #[cfg(feature = "trace")]
    if let Some(traffic) = crate::trace::asked() {
        return Ok(crate::trace::run(traffic, make)?);
    }
    run_step(options, |context| make(context).map(Plain).map_err(NfError::Handler))
}

/// An NF's `main`: attaches, makes the handler, runs it, and stops on SIGTERM, SIGINT or request.
/// [`Options::from_env`] finds the manager. An error is printed to stderr, once, with what to do,
/// and the exit code is 1. If the only argument is `--help` or `--version`, it answers on stdout
/// instead, with exit code 0; programs with other arguments read them before this call.
pub fn run<H: Handler>(make: impl FnOnce(&Context) -> Result<H, Box<dyn std::error::Error>>) -> ExitCode {
    if is_answered() {
        return ExitCode::SUCCESS;
    }
    ended(&Options::from_env(), |options| attempt(options, make))
}

/// Runs an NF, and makes an error a line and an exit code.
pub(crate) fn ended(options: &Options, run: impl FnOnce(&Options) -> Result<(), EndedRun>) -> ExitCode {
    match run(options) {
        Ok(()) => ExitCode::SUCCESS,
        // Connected until this is printed.
        Err(ended) => {
            let name = zygote::forked_as().or(options.name.as_deref()).map_or_else(options::program, str::to_owned);
            eprintln!("{name}: {}", ended.error);
            ExitCode::FAILURE
        }
    }
}

/// Prints the help or version if that is all that was asked for; returns whether it was.
pub(crate) fn is_answered() -> bool {
    let Some(answer) = options::answer(&options::program(), &options::args()) else { return false };
    // A closed stdout is no error.
    let _ = std::io::stdout().write_all(answer.as_bytes());
    true
}

/// An NF that is one function of a packet, as a handler.
#[derive(Debug)]
pub struct Each<F>(pub F);

impl<F: FnMut(&mut Packet<'_>)> Handler for Each<F> {
    #[inline(always)]
    fn burst(&mut self, burst: &mut Burst<'_>) {
        for mut packet in burst.iter_mut() {
            (self.0)(&mut packet);
        }
    }
}

/// As [`run`], for an NF that is one function of a packet.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     sluice_nf::run_each(|packet| {
///         if packet.len() < 60 {
///             packet.drop();
///         }
///     })
/// }
/// ```
pub fn run_each(f: impl FnMut(&mut Packet<'_>)) -> ExitCode {
    run(|_| Ok(Each(f)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_come_once_a_period_and_are_not_made_up_for() {
        let mut ticker = Ticker::new(Some(Duration::from_nanos(100)), 1000);
        assert_eq!(ticker.deadline(), Some(1100));
        assert!(!ticker.is_due(1099));
        assert!(ticker.is_due(1130));
        assert_eq!(ticker.deadline(), Some(1200), "the beat is kept");
        assert!(ticker.is_due(1750));
        assert_eq!(ticker.deadline(), Some(1850), "five are left out");
        let mut none = Ticker::new(None, 0);
        assert_eq!(none.deadline(), None);
        assert!(!none.is_due(u64::MAX));
    }

    #[test]
    fn a_panic_keeps_its_words() {
        let error = guarded(|| panic!("table {} is full", 3)).unwrap_err();
        assert!(error.to_string().ends_with("table 3 is full"), "{error}");
    }
}
