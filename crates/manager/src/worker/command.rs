//! What a packet thread does when it is told something, between two rounds.

use std::sync::atomic::Ordering;

use super::entry::look_for_trace;
use super::{CLOSE_NS, Closing, Command, Progress, Worker, WorkerSetup};
use crate::asker;
use crate::forward::{Drain, NfEnd, TX_BUFFER, TxBuffer};

impl Worker {
    /// Carries out what was asked. False: stop.
    #[cold]
    pub(super) fn obey(&mut self) -> bool {
        while let Ok(command) = self.setup.commands.try_recv() {
            match command {
                Command::Tables(tables, anew) => {
                    self.setup.plane.meet_chains(&tables);
                    self.use_tables(tables, anew);
                }
                Command::Advice(advice) => {
                    self.setup.plane.generation = self.setup.plane.generation.wrapping_add(1);
                    asker::follow(&mut self.setup.plane, &self.setup.registry, advice);
                }
                Command::Release(buffer, answer) => {
                    asker::release(&mut self.setup.plane, &self.setup.registry, buffer, answer);
                }
                Command::Inject(ingress, answer, bytes) => {
                    asker::inject(&mut self.setup.plane, &self.setup.registry, ingress, answer, &bytes);
                }
                Command::Attach(handle, producer, consumer, done) => {
                    let number = handle.number as usize;
                    let plane = &mut self.setup.plane;
                    if plane.nfs.len() <= number {
                        plane.nfs.resize_with(number + 1, || None);
                        plane.in_flight.resize(number + 1, None);
                    }
                    plane.in_flight[number] = Some(handle.in_flight.clone());
                    // Members of pools come without new tables.
                    handle.place(&plane.tables.depths(), plane.tables.downstream_first);
                    if let Some(wakeup) = handle.wakeup {
                        plane.timers.make_room(handle.number, wakeup.timer_ns);
                    }
                    plane.nfs[number] = Some(NfEnd::new(handle.clone(), producer, &self.setup.sched));
                    let now = plane.now_ns;
                    self.take_turns(&handle);
                    self.drains.extend(consumer.map(|consumer| Drain::new(handle, consumer)));
                    if let Some(progress) = self.progress.get_mut(number) {
                        *progress = Progress { returned: 0, since_ns: now, turns: 0 };
                    }
                    self.arrange();
                    let _ = done.send(());
                }
                Command::Feed(hop, done) => {
                    self.foreign.push(*hop);
                    let _ = done.send(());
                }
                Command::Unfeed(number, done) => {
                    let mut hop = self.foreign.extract_if(.., |hop| hop.number() == number).next();
                    if let Some(hop) = &mut hop {
                        hop.leave(&mut self.setup.plane);
                    }
                    let _ = done.send(hop.map(Box::new));
                }
                Command::Detach(number, done) => {
                    if let Some(Some(end)) = self.setup.plane.nfs.get_mut(number as usize) {
                        end.producer = None;
                    }
                    let _ = done.send(());
                }
                Command::Reclaim(number, done) => {
                    let mut taken = 0;
                    for mut drain in self.drains.extract_if(.., |d| d.handle.number == number) {
                        taken += self.setup.plane.reclaim(&self.setup.registry, &mut drain);
                    }
                    self.forget(number);
                    let _ = done.send(taken);
                }
                Command::Follow(number, succession, done) => {
                    if let Some(drain) = self.drains.iter_mut().find(|drain| drain.handle.number == number) {
                        drain.handle.is_behind.store(true, Ordering::Relaxed);
                        drain.behind.push(succession);
                    }
                    let _ = done.send(());
                }
                Command::Meet(done) => {
                    let _ = done.send(());
                }
                Command::Forget(number, done) => {
                    self.forget(number);
                    let _ = done.send(());
                }
                Command::DropMemory(number, last, done) => {
                    let frames = &mut self.setup.plane.frames;
                    frames.empty(number);
                    let _ = done.send(if last { frames.remove(number) } else { None });
                }
                Command::AddMemory { number, stack, usual, done } => {
                    self.setup.plane.frames.add(number, *stack);
                    self.setup.plane.frames.set_usual(usual);
                    let _ = done.send(());
                }
                Command::AddQueue(mut owned, done) => {
                    owned.use_memory(&self.setup.plane.tables);
                    self.queues.push(*owned);
                    let _ = done.send(());
                }
                Command::OpenPort(port, waits) => {
                    let out = &mut self.setup.plane.out;
                    if out.len() <= port as usize {
                        out.resize_with(port as usize + 1, TxBuffer::default);
                    }
                    out[port as usize] = TxBuffer { packets: Vec::with_capacity(TX_BUFFER), waits, open: true };
                }
                Command::ClosePort(port, done) => {
                    if let Some(buffer) = self.setup.plane.out.get_mut(port as usize) {
                        buffer.open = false;
                    }
                    self.closing.push(Closing { port, until_ns: self.setup.plane.now_ns + CLOSE_NS, done });
                    self.finish_closing();
                }
                Command::Free(frames) => frames.into_iter().for_each(|frame| self.setup.plane.discard(frame)),
                Command::Pool(table) => {
                    let WorkerSetup { plane, classifier, director, roles, registry, .. } = &mut self.setup;
                    if roles.rx {
                        director.use_pool(&table, &plane.nfs, classifier.table(), registry);
                    }
                }
                Command::Dismiss(service, n) => self.setup.director.dismiss(service, n),
                Command::StartRx => self.rx_stopped = false,
                Command::StopRx(done) => {
                    self.rx_stopped = true;
                    asker::let_go(&mut self.setup.plane);
                    let pooled = self.setup.plane.asker.as_mut().map_or(Vec::new(), |asker| asker.take_pooled());
                    for (packet, ..) in pooled {
                        self.setup.plane.none_idle.add(1);
                        self.setup.plane.discard(packet.frame);
                    }
                    while let Some(waiting) = self.setup.director.take_waiting() {
                        self.setup.plane.none_idle.add(1);
                        self.setup.plane.discard(waiting.packet.frame);
                    }
                    for owned in &mut self.queues {
                        owned.counters.entry_drops.add((owned.to - owned.from) as u64);
                        for packet in &owned.batch.packets[owned.from..owned.to] {
                            self.setup.plane.discard(packet.frame);
                        }
                        owned.from = owned.to;
                    }
                    let _ = done.send(());
                }
                Command::Schedule(schedule, done) => {
                    self.schedules.push(*schedule);
                    let _ = done.send(());
                }
                Command::Lend(core, to) => {
                    let at = self.schedules.iter().position(|schedule| schedule.core() == core);
                    let _ = to.send(at.map(|at| Box::new(self.schedules.swap_remove(at))));
                }
                Command::Trace(trace) => {
                    self.setup.plane.trace = trace;
                    self.queues.iter_mut().for_each(|owned| look_for_trace(&self.setup.plane, owned));
                }
                Command::Snapshot(to) => {
                    let _ = to.send(self.snapshot());
                }
                Command::Stop => {
                    let ports: Vec<u16> = self.queues.iter().map(|q| q.port).collect();
                    ports.into_iter().for_each(|port| drop(self.close(port)));
                    self.setup.plane.frames.release();
                    return false;
                }
            }
        }
        true
    }
}
