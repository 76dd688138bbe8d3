//! What a packet thread is asked to do, between two rounds: what the supervisor sends as [`Command`](super::Command)s.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;

use sluice_shm::BURST;
use sluice_shm::ring::{Consumer, Producer};

use super::drain::{MOST_LOOKED_AT, Returns};
use super::handover::Handover;
use super::{Closing, Progress, Worker};
use crate::batch::OwnedQueue;
use crate::chain::Tables;
use crate::end::{Drain, NfEnd};
use crate::frame::Stack;
use crate::handle::NfHandle;
use crate::hooks::{Feeder, Sharing};
use crate::plane::Plane;
use crate::queue::PortQueue;
use crate::queue::{TX_BUFFER, TxBuffer};
use crate::rx::{Rx, look_for_trace};
use crate::succession::Succession;
use crate::trace::TraceRequest;
use crate::tx;

/// How long packets that wait for a port may keep it from being closed, in nanoseconds.
const CLOSE_NS: u64 = 1_000_000_000;

impl Worker {
    /// Carries out what was asked. False: stop.
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

    /// What it forwards with, and how it classifies.
    pub fn parts(&mut self) -> (&mut Plane, &mut Rx) {
        (&mut self.setup.plane, &mut self.setup.rx)
    }

    /// Has all flows decided anew.
    pub fn decide_anew(&mut self) {
        self.setup.plane.generation = self.setup.plane.generation.wrapping_add(1);
    }

    /// A new NF: this thread's end of its rx ring, and of its tx ring if it drains it.
    pub fn attach(&mut self, handle: &Arc<NfHandle>, producer: Producer, consumer: Option<Consumer>) {
        let number = handle.number as usize;
        let plane = &mut self.setup.plane;
        if plane.nfs.len() <= number {
            plane.nfs.resize_with(number + 1, || None);
            plane.in_flight.resize(number + 1, None);
        }
        plane.in_flight[number] = Some(handle.in_flight.clone());
        // Instances may come without new tables.
        handle.place(&plane.tables.depths(), plane.tables.downstream_first);
        if let Some(wakeup) = handle.wakeup {
            plane.timers.make_room(handle.number, wakeup.timer_ns);
        }
        plane.nfs[number] = Some(NfEnd::new(handle.clone(), producer, &self.setup.settings.sched));
        let now = plane.now_ns;
        self.hand_over(handle);
        self.drains.extend(consumer.map(|consumer| Drain::new(handle.clone(), consumer)));
        if let Some(progress) = self.progress.get_mut(number) {
            *progress = Progress { returned: 0, since_ns: now, slices: 0 };
        }
        self.arrange();
    }

    /// Gives no more packets to an NF.
    pub fn detach(&mut self, number: u16) {
        if let Some(Some(end)) = self.setup.plane.nfs.get_mut(number as usize) {
            end.producer = None;
        }
    }

    /// Takes back the frames of a dead NF, says how many, and forgets it. Only for the thread that drains it.
    pub fn reclaim(&mut self, number: u16) -> usize {
        let mut taken = 0;
        for mut drain in self.drains.extract_if(.., |d| d.handle.number == number) {
            taken += self.setup.plane.reclaim(&self.setup.rx.registry, &mut drain);
        }
        self.forget(number);
        taken
    }

    /// Reads the rings of an NF for it. Only for the thread that drains it.
    pub fn feed(&mut self, feeder: Box<dyn Feeder>) {
        self.feeders.push(feeder);
    }

    /// Reads them no more, and gives back what did, if something did.
    pub fn unfeed(&mut self, number: u16) -> Option<Box<dyn Feeder>> {
        let mut feeder = self.feeders.extract_if(.., |feeder| feeder.number() == number).next();
        if let Some(feeder) = &mut feeder {
            feeder.leave(&mut self.setup.plane);
        }
        feeder
    }

    /// Takes nothing from this NF until that is over. Only for the thread that drains it.
    pub fn follow(&mut self, number: u16, succession: Arc<Succession>) {
        if let Some(drain) = self.drains.iter_mut().find(|drain| drain.handle.number == number) {
            drain.handle.is_behind.store(true, Ordering::Relaxed);
            drain.behind.push(succession);
        }
    }

    /// Has no free frames of an arena; `last`: nor anything else of it, it goes away. What is left of it is given back, to be freed
    /// elsewhere.
    pub fn drop_memory(&mut self, number: u8, last: bool) -> Option<Stack> {
        let frames = &mut self.setup.plane.frames;
        frames.empty(number);
        if last { frames.remove(number) } else { None }
    }

    /// There is one more arena, whose free frames go to this stack. From now on frames are taken from `usual` where nobody says from
    /// which.
    pub fn add_memory(&mut self, number: u8, stack: Stack, usual: u8) {
        self.setup.plane.frames.add(number, stack);
        self.setup.plane.frames.set_usual(usual);
    }

    /// Takes over a port queue.
    pub fn add_queue(&mut self, mut owned: OwnedQueue) {
        owned.use_memory(&self.setup.plane.tables);
        self.queues.push(owned);
    }

    /// Packets for this port may be sent; `waits`: they are held rather than dropped when it takes none.
    pub fn open_port(&mut self, port: u16, waits: bool) {
        let out = &mut self.setup.plane.out;
        if out.len() <= port as usize {
            out.resize_with(port as usize + 1, TxBuffer::default);
        }
        out[port as usize] = TxBuffer { packets: Vec::with_capacity(TX_BUFFER), waits, open: true };
    }

    /// Sends what waits for a port, as far as it goes, and gives back its queues: whoever asked drops them, which may take long.
    pub fn close_port(&mut self, port: u16, done: Sender<Vec<Box<dyn PortQueue>>>) {
        if let Some(buffer) = self.setup.plane.out.get_mut(port as usize) {
            buffer.open = false;
        }
        self.closing.push(Closing { port, until_ns: self.setup.plane.now_ns + CLOSE_NS, done });
        self.finish_closing();
    }

    /// Gives frames back that nobody has any more.
    pub fn free(&mut self, frames: Vec<u32>) {
        frames.into_iter().for_each(|frame| self.setup.plane.discard(frame));
    }

    /// Begins to read packets from ports.
    pub fn start_rx(&mut self) {
        self.rx_stopped = false;
    }

    /// Reads no more packets from ports.
    pub fn stop_rx(&mut self) {
        self.rx_stopped = true;
        self.setup.rx.let_go(&mut self.setup.plane);
        for owned in &mut self.queues {
            owned.counters.entry_drops.add((owned.to - owned.from) as u64);
            for packet in &owned.batch.packets[owned.from..owned.to] {
                self.setup.plane.discard(packet.frame);
            }
            owned.from = owned.to;
        }
    }

    /// Has a core shared by this from now on. Only for the thread that wakes the core.
    pub fn put_sharing(&mut self, sharing: Box<dyn Sharing>) {
        self.sharings.push(sharing);
    }

    /// Gives back what shares a core, if it is here. Until it is put back, the NF that has the core keeps it.
    pub fn take_sharing(&mut self, core: usize) -> Option<Box<dyn Sharing>> {
        let at = self.sharings.iter().position(|sharing| sharing.core() == core)?;
        Some(self.sharings.swap_remove(at))
    }

    /// Traces packets, or no more.
    pub fn trace(&mut self, trace: Option<Arc<TraceRequest>>) {
        self.setup.plane.trace = trace;
        self.queues.iter_mut().for_each(|owned| look_for_trace(&self.setup.plane, owned));
    }

    /// Gives everything back and ends.
    pub fn stop(&mut self) {
        let ports: Vec<u16> = self.queues.iter().map(|q| q.port).collect();
        ports.into_iter().for_each(|port| drop(self.close(port)));
        self.setup.plane.frames.release();
        self.is_stopped = true;
    }

    /// Uses these tables from now on; `anew`: flows are decided anew.
    pub fn use_tables(&mut self, tables: Arc<Tables>, anew: bool) {
        self.setup.plane.meet_chains(&tables);
        let depths = tables.depths();
        self.setup.plane.nfs.iter().flatten().for_each(|end| end.handle.place(&depths, tables.downstream_first));
        tables.rules.timers_ns().for_each(|timer_ns| self.setup.plane.timers.learn(timer_ns));
        self.queues.iter_mut().for_each(|owned| owned.use_memory(&tables));
        // The supervisor keeps the old ones until all threads have these: freeing them would take time here.
        // A burst that is being read for each queue, and one behind it.
        let received = tables.ports.iter().flatten().map(|port| (port.memory, port.owners.len() * 2 * BURST));
        self.setup.plane.frames.reserve(received);
        self.setup.plane.tables = tables;
        self.setup.plane.generation = self.setup.plane.generation.wrapping_add(u32::from(anew));
        self.arrange();
    }

    /// Puts the NFs to drain in order.
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

    /// Has the Wakeup role wake an NF, if it is this thread's.
    fn hand_over(&mut self, handle: &Arc<NfHandle>) {
        if !self.setup.roles.wakeup || handle.poll || !self.setup.wakes.has(handle.core) {
            return;
        }
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

    /// Drops what waits for a port, and gives back its queues.
    fn close(&mut self, port: u16) -> Vec<Box<dyn PortQueue>> {
        let plane = &mut self.setup.plane;
        if let Some(buffer) = plane.out.get_mut(port as usize) {
            buffer.open = false;
            let lost = std::mem::take(&mut buffer.packets);
            if !lost.is_empty() {
                tx::count_lost(&self.queues, &plane.unsent, port, lost.len());
            }
            for packet in lost {
                plane.table.free(packet.frame);
                plane.frames.free(packet.frame);
            }
        }
        if let Some(mark) = plane.jammed.get(port as usize) {
            mark.store(false, Ordering::Relaxed);
        }
        let mut queues = Vec::new();
        for owned in self.queues.extract_if(.., |q| q.port == port) {
            owned.counters.entry_drops.add((owned.to - owned.from) as u64);
            for packet in &owned.batch.packets[owned.from..owned.to] {
                plane.table.free(packet.frame);
                plane.frames.free(packet.frame);
            }
            queues.push(owned.queue);
        }
        queues
    }

    /// Closes the ports for which nothing waits any more, or whose time is over. What still waits is sent by the usual rounds.
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
