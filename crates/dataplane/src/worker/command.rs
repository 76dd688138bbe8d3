//! What the supervisor's [`Command`](super::Command)s make a packet thread do.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;

use sluice_api::config::Sched;
use sluice_shm::BURST;
use sluice_shm::ring::{Consumer, Producer};

use super::drain::{MOST_LOOKED_AT, Returns};
use super::handover::Handover;
use super::{Closing, Progress, Worker};
use crate::batch::OwnedQueue;
use crate::capture::{CaptureScope, Sight, Tap};
use crate::chain::Tables;
use crate::end::{Drain, NfEnd};
use crate::frame::Stack;
use crate::handle::NfHandle;
use crate::handlers::Inline;
use crate::hooks::{Feeder, Sharing};
use crate::meter::{FlowMeter, MeteredFlows};
use crate::observers::Observers;
use crate::plane::{ForwardSettings, Plane};
use crate::queue::PortQueue;
use crate::queue::{TX_BUFFER, TxBuffer};
use crate::rx::{Rx, look_for_trace};
use crate::succession::Succession;
use crate::trace::TraceRequest;
use crate::tx;

/// Nanoseconds that waiting packets may delay the closing of their port.
const CLOSE_NS: u64 = 1_000_000_000;

impl Worker {
    /// Carries out queued commands. False: stop.
    #[cold]
    pub(super) fn carry_out_commands(&mut self) -> bool {
        while let Ok(command) = self.setup.commands.try_recv() {
            command(self);
            if self.is_stopped {
                return false;
            }
        }
        true
    }

    /// The forwarding state and the Rx role.
    pub fn parts(&mut self) -> (&mut Plane, &mut Rx) {
        (&mut self.setup.plane, &mut self.setup.rx)
    }

    /// Has all flows decided again.
    pub fn decide_anew(&mut self) {
        self.setup.plane.generation = self.setup.plane.generation.wrapping_add(1);
    }

    /// Adds an NF: this thread's end of its rx ring, and of its tx ring if this thread drains it.
    /// With `wakes` this thread is the one that wakes it.
    pub fn attach(&mut self, handle: &Arc<NfHandle>, producer: Producer, consumer: Option<Consumer>, wakes: bool) {
        let number = handle.number as usize;
        self.add_end(NfEnd::new(handle.clone(), producer, &self.setup.settings.sched));
        let plane = &mut self.setup.plane;
        if let Some(wakeup) = handle.wakeup {
            plane.timers.make_room(handle.number, wakeup.timer_ns);
        }
        let now = plane.now_ns;
        if wakes && !handle.poll {
            self.hand_over(handle);
        }
        self.drains.extend(consumer.map(|consumer| Drain::new(handle.clone(), consumer)));
        if let Some(progress) = self.progress.get_mut(number) {
            *progress = Progress { returned: 0, since_ns: now, slices: 0 };
        }
        self.arrange();
    }

    /// Adds an NF that runs in packet threads: in this one, if there are handlers for it.
    pub fn attach_inline(&mut self, handle: &Arc<NfHandle>, inline: Option<Box<dyn Inline>>) {
        self.setup.plane.inlines.extend(inline.as_ref().map(|_| handle.number));
        let end = NfEnd::inline(handle.clone(), inline, &self.setup.settings.sched);
        self.add_end(end);
    }

    /// Takes the handlers of an NF out of this thread, if they run in it.
    pub fn take_inline(&mut self, number: u16) -> Option<Box<dyn Inline>> {
        self.setup.plane.inlines.retain(|nf| *nf != number);
        self.setup.plane.nfs.get_mut(number as usize)?.as_mut()?.inline.take()
    }

    fn add_end(&mut self, end: NfEnd) {
        let handle = end.handle.clone();
        let number = handle.number as usize;
        let plane = &mut self.setup.plane;
        if plane.nfs.len() <= number {
            plane.nfs.resize_with(number + 1, || None);
            plane.in_flight.resize(number + 1, None);
        }
        plane.in_flight[number] = Some(handle.in_flight.clone());
        // Instances may come without new tables.
        handle.place(&plane.tables.depths(), plane.tables.downstream_first);
        plane.nfs[number] = Some(end);
    }

    /// Stops posting packets to an NF.
    pub fn detach(&mut self, number: u16) {
        if let Some(Some(end)) = self.setup.plane.nfs.get_mut(number as usize) {
            end.producer = None;
        }
    }

    /// Reclaims a dead NF's frames, forgets it, and returns how many. For its draining thread.
    pub fn reclaim(&mut self, number: u16) -> usize {
        let mut taken = 0;
        for mut drain in self.drains.extract_if(.., |d| d.handle.number == number) {
            taken += self.setup.plane.reclaim(&self.setup.rx.registry, &mut drain);
        }
        self.forget(number);
        taken
    }

    /// Adds the feeder of an NF. Only for the thread that drains the NF.
    pub fn feed(&mut self, feeder: Box<dyn Feeder>) {
        self.feeders.push(feeder);
    }

    /// Removes and returns the feeder of an NF, if it has one.
    pub fn unfeed(&mut self, number: u16) -> Option<Box<dyn Feeder>> {
        let mut feeder = self.feeders.extract_if(.., |feeder| feeder.number() == number).next();
        if let Some(feeder) = &mut feeder {
            feeder.leave(&mut self.setup.plane);
        }
        feeder
    }

    /// Takes nothing from this NF until the succession is over. Only for the thread that drains it.
    pub fn follow(&mut self, number: u16, succession: Arc<Succession>) {
        if let Some(drain) = self.drains.iter_mut().find(|drain| drain.handle.number == number) {
            drain.handle.is_behind.store(true, Ordering::Relaxed);
            drain.behind.push(succession);
        }
    }

    /// Returns an arena's free frames to its pool. With `last` the arena is removed, and the rest
    /// of it is returned to be freed elsewhere.
    pub fn drop_memory(&mut self, number: u8, last: bool) -> Option<Stack> {
        let frames = &mut self.setup.plane.frames;
        frames.empty(number);
        if last { frames.remove(number) } else { None }
    }

    /// Adds an arena, whose free frames go to this stack. From now on `usual` is the default arena.
    pub fn add_memory(&mut self, number: u8, stack: Stack, usual: u8) {
        self.setup.plane.frames.add(number, stack);
        self.setup.plane.frames.set_usual(usual);
    }

    /// Makes another arena the default one.
    pub fn use_usual(&mut self, usual: u8) {
        self.setup.plane.frames.set_usual(usual);
    }

    /// Changes the settings that can change while packets move.
    pub fn tune(&mut self, forward: ForwardSettings, sched: Sched) {
        let plane = &mut self.setup.plane;
        plane.settings = forward;
        plane.nfs.iter_mut().flatten().for_each(|end| end.tune(&sched));
        self.throttling.iter_mut().for_each(|throttling| throttling.tune(&sched));
        self.setup.settings.sched = sched;
    }

    /// Changes the rate of a port that makes packets, in packets per second; 0: without a limit.
    pub fn pace(&mut self, port: u16, rate_pps: f64) {
        self.queues.iter_mut().filter(|owned| owned.port == port).for_each(|owned| owned.queue.pace(rate_pps));
    }

    /// Takes over a port queue.
    pub fn add_queue(&mut self, mut owned: OwnedQueue) {
        owned.use_memory(&self.setup.plane.tables);
        owned.counters.lost_packets.watch(self.setup.plane.observers.is_some());
        self.queues.push(owned);
    }

    /// Opens a port for sending. With `waits` packets are held, not dropped, when it accepts none.
    pub fn open_port(&mut self, port: u16, waits: bool) {
        let out = &mut self.setup.plane.out;
        if out.len() <= port as usize {
            out.resize_with(port as usize + 1, TxBuffer::default);
        }
        out[port as usize] = TxBuffer { packets: Vec::with_capacity(TX_BUFFER), waits, open: true };
    }

    /// Closes a port: sends its waiting packets as far as possible, and returns its queues through
    /// `done`, since dropping them may take long.
    pub fn close_port(&mut self, port: u16, done: Sender<Vec<Box<dyn PortQueue>>>) {
        if let Some(buffer) = self.setup.plane.out.get_mut(port as usize) {
            buffer.open = false;
        }
        self.closing.push(Closing { port, until_ns: self.setup.plane.now_ns + CLOSE_NS, done });
        self.finish_closing();
    }

    /// Frees frames that nothing else refers to.
    pub fn free(&mut self, frames: Vec<u32>) {
        frames.into_iter().for_each(|frame| self.setup.plane.discard(frame));
    }

    /// Begins to read packets from ports.
    pub fn start_rx(&mut self) {
        self.rx_stopped = false;
    }

    /// Stops reading packets from ports.
    pub fn stop_rx(&mut self) {
        self.rx_stopped = true;
        self.setup.rx.let_go(&mut self.setup.plane);
        for owned in &mut self.queues {
            owned.counters.api.entry_drops.add((owned.to - owned.from) as u64);
            for packet in &owned.batch.packets[owned.from..owned.to] {
                self.setup.plane.discard(packet.frame);
            }
            owned.from = owned.to;
        }
    }

    /// Adds the scheduler of a core. Only for the thread that wakes the core.
    pub fn put_sharing(&mut self, sharing: Box<dyn Sharing>) {
        self.sharings.push(sharing);
    }

    /// Removes a core's scheduler. Until it is put back, the NF that has the core keeps it.
    pub fn take_sharing(&mut self, core: usize) -> Option<Box<dyn Sharing>> {
        let at = self.sharings.iter().position(|sharing| sharing.core() == core)?;
        Some(self.sharings.swap_remove(at))
    }

    /// Sets or ends a trace.
    pub fn trace(&mut self, trace: Option<Arc<TraceRequest>>) {
        self.observe(|observers| observers.trace = trace);
        self.queues.iter_mut().for_each(|owned| look_for_trace(&self.setup.plane, owned));
    }

    /// Begins to copy packets for a capture.
    pub fn capture(&mut self, tap: Tap) {
        self.observe(|observers| observers.taps.push(tap));
    }

    /// Ends a capture, and returns its tap: to free it takes time.
    pub fn end_capture(&mut self, capture: &Arc<CaptureScope>) -> Option<Tap> {
        self.observe(|observers| observers.end(capture))
    }

    /// Begins to meter flows, instead of what it meters now. Returns the former meter: to free it
    /// takes time.
    pub fn meter(&mut self, meter: Box<FlowMeter>) -> Option<Box<FlowMeter>> {
        self.observe(|observers| observers.meter.replace(meter))
    }

    /// Meters these flows no more, and returns their meter: to free it takes time.
    pub fn end_meter(&mut self, flows: &Arc<MeteredFlows>) -> Option<Box<FlowMeter>> {
        self.observe(|observers| observers.end_meter(flows))
    }

    /// Has metered flows end after other times ([`FlowMeter::set_times`]).
    pub fn time_meter(&mut self, idle_ns: u64, active_ns: u64) {
        let meter = self.setup.plane.observers.as_mut().and_then(|observers| observers.meter.as_mut());
        meter.into_iter().for_each(|meter| meter.set_times(idle_ns, active_ns));
    }

    fn observe<T>(&mut self, change: impl FnOnce(&mut Observers) -> T) -> T {
        let mut observers = self.setup.plane.observers.take().unwrap_or_default();
        let changed = change(&mut observers);
        self.setup.plane.observers = observers.unless_empty();
        let is_watched = self.setup.plane.observers.is_some();
        self.queues.iter().for_each(|owned| owned.counters.lost_packets.watch(is_watched));
        changed
    }

    /// Shows what port queues have dropped by themselves.
    #[cold]
    pub(super) fn show_lost(&mut self) {
        let Plane { observers: Some(observers), now_ns, .. } = &mut self.setup.plane else { return };
        for owned in &self.queues {
            owned.counters.lost_packets.take(|why, len, head| {
                observers.show_bytes(*now_ns, &Sight::refused(None, None, why.into(), owned.port), len, head);
            });
        }
    }

    /// Closes all ports, returns all frames, and ends the thread.
    pub fn stop(&mut self) {
        let ports: Vec<u16> = self.queues.iter().map(|q| q.port).collect();
        ports.into_iter().for_each(|port| drop(self.close(port)));
        self.setup.plane.frames.release();
        self.is_stopped = true;
    }

    /// Uses these tables from now on; `anew`: flows are decided again.
    pub fn use_tables(&mut self, tables: Arc<Tables>, anew: bool) {
        self.setup.plane.meet_chains(&tables);
        let depths = tables.depths();
        self.setup.plane.nfs.iter().flatten().for_each(|end| end.handle.place(&depths, tables.downstream_first));
        tables.rules.timers_ns().for_each(|timer_ns| self.setup.plane.timers.learn(timer_ns));
        self.queues.iter_mut().for_each(|owned| owned.use_memory(&tables));
        // The supervisor keeps the old tables until all threads have these: freeing them here would
        // take time. Reserves two bursts for each queue: one being read and one behind it.
        let received = tables.ports.iter().flatten().map(|port| (port.memory, port.owners.len() * 2 * BURST));
        let passed: Vec<u8> = tables.chains.iter().flatten().flat_map(|chain| self.setup.plane.arenas_of(chain, &tables)).collect();
        self.setup.plane.frames.reserve(received, passed.into_iter());
        self.setup.plane.tables = tables;
        self.setup.plane.generation = self.setup.plane.generation.wrapping_add(u32::from(anew));
        self.arrange();
    }

    pub(super) fn arrange(&mut self) {
        let plane = &mut self.setup.plane;
        self.sharings.iter_mut().for_each(|sharing| sharing.learn(&self.setup.rx.registry, &plane.tables, &plane.nfs));
        let depths = plane.tables.depths();
        self.drains.sort_by_key(|d| std::cmp::Reverse(depths.get(d.handle.service as usize).copied().unwrap_or(0)));
        self.returns = Returns::default();
        if self.drains.len() > MOST_LOOKED_AT {
            for (i, drain) in self.drains.iter().enumerate() {
                self.returns.add(&drain.handle.core_page, drain.handle.slot, i);
            }
        }
    }

    /// Has the Wakeup role wake an NF.
    fn hand_over(&mut self, handle: &Arc<NfHandle>) {
        let now = self.setup.plane.now_ns;
        let at = self.handovers.iter().position(|handover| handover.page().is_same(&handle.core_page)).unwrap_or_else(|| {
            self.handovers.push(Handover::new(handle.core_page.clone(), self.setup.settings.fallback_wake_us * 1_000));
            self.handovers.len() - 1
        });
        self.handovers[at].add(handle, now);
    }

    /// Forgets an NF.
    pub fn forget(&mut self, number: u16) {
        if let Some(end) = self.setup.plane.nfs.get_mut(number as usize)
            && let Some(end) = end.take()
        {
            self.handovers
                .iter_mut()
                .filter(|handover| handover.page().is_same(&end.handle.core_page))
                .for_each(|t| t.remove(&end.handle));
            self.handovers.retain(|handover| !handover.is_empty());
        }
        self.setup.plane.timers.unset(number);
        if let Some(throttling) = &mut self.throttling {
            throttling.forget(number, &self.setup.plane.nfs);
        }
        self.loads.forget(number);
        self.sharings.iter_mut().for_each(|sharing| sharing.forget_paths());
        self.arrange();
    }

    /// Drops packets that wait for a port, and returns its queues.
    fn close(&mut self, port: u16) -> Vec<Box<dyn PortQueue>> {
        let plane = &mut self.setup.plane;
        if let Some(buffer) = plane.out.get_mut(port as usize) {
            buffer.open = false;
            let lost = std::mem::take(&mut buffer.packets);
            if !lost.is_empty() {
                tx::drop_waiting(plane, &self.queues, port, &lost);
            }
        }
        if let Some(mark) = plane.jammed.get(port as usize) {
            mark.store(false, Ordering::Relaxed);
        }
        let mut queues = Vec::new();
        for owned in self.queues.extract_if(.., |q| q.port == port) {
            owned.counters.api.entry_drops.add((owned.to - owned.from) as u64);
            for packet in &owned.batch.packets[owned.from..owned.to] {
                plane.table.free(packet.frame);
                plane.frames.free(packet.frame);
            }
            queues.push(owned.queue);
        }
        queues
    }

    /// Closes ports without waiting packets, or past their deadline. Normal rounds send the rest.
    #[cold]
    pub(super) fn finish_closing(&mut self) {
        let now = self.setup.plane.now_ns;
        let mut at = 0;
        while let Some(closing) = self.closing.get(at) {
            let empty = self.setup.plane.out.get(closing.port as usize).is_none_or(|b| b.packets.is_empty());
            if !empty && now < closing.until_ns {
                at += 1;
                continue;
            }
            let closing = self.closing.swap_remove(at);
            let queues = self.close(closing.port);
            let _ = closing.done.send(queues);
        }
    }
}
