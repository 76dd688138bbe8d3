//! The flow table: entries, their changes and expiry (sections 5.2 to 5.5 and 6.4).
//!
//! The packet path counts an entry by its *number* ([`EntryCounts`]). The number of a removed entry
//! is reused only after [`EntryTable::reuse`], since packets may still be counted by it.
//!
//! Entries are found by number, and numbers by match and priority, so that strict changes are fast.
//! Non-strict changes and expiry scan all entries. Matching packets is not done here.
//!
//! Limits: one table. Timeouts are as precise as the calls of [`EntryTable::expire`] and the
//! counts.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::fault::Fault;
use crate::instruction::{self, Instruction, Output};
use crate::message::{FlowMod, FlowModCommand, FlowRemoved, Reason, flow_flag};
use crate::multipart::{FlowRequest, FlowStats};
use crate::oxm::Match;
use crate::{ALL_TABLES, ANY_GROUP, port};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EntryCount {
    pub packets: u64,
    pub bytes: u64,
    /// Time of the last packet, in milliseconds; 0: none yet.
    pub seen_ms: u64,
}

/// Counts packets by the numbers of entries. Counts never decrease.
pub trait EntryCounts {
    fn count(&self, number: u32) -> EntryCount;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub number: u32,
    /// The highest of the matching entries wins.
    pub priority: u16,
    pub fields: Match,
    pub instructions: Vec<Instruction>,
    /// The output of `instructions`; None drops packets.
    pub output: Option<Output>,
    pub cookie: u64,
    /// Bits of [`flow_flag`].
    pub flags: u16,
    /// Seconds without a packet after which it expires; 0: never.
    pub idle_timeout: u16,
    /// Seconds after which it expires; 0: never.
    pub hard_timeout: u16,
    created_ms: u64,
    /// Time of the last change, or of the last packet under a former number.
    touched_ms: u64,
    /// Counts of its number when its counters were zero.
    zero: EntryCount,
    /// Counts of the entry that it replaced.
    before: EntryCount,
}

impl Entry {
    /// Whether it is the table-miss entry.
    pub fn is_miss(&self) -> bool {
        self.priority == 0 && self.fields.is_empty()
    }

    /// Packets and bytes that matched it.
    pub fn count(&self, counts: &dyn EntryCounts) -> EntryCount {
        let now = counts.count(self.number);
        EntryCount {
            packets: now.packets.saturating_sub(self.zero.packets) + self.before.packets,
            bytes: now.bytes.saturating_sub(self.zero.bytes) + self.before.bytes,
            seen_ms: now.seen_ms.max(self.touched_ms),
        }
    }

    fn sends_to(&self, out_port: u32) -> bool {
        out_port == port::ANY || self.output.is_some_and(|output| output.port == out_port)
    }

    fn is_asked(&self, fields: &Match, out_port: u32, out_group: u32, cookie: u64, cookie_mask: u64) -> bool {
        // No entry outputs to a group.
        out_group == ANY_GROUP
            && (self.cookie ^ cookie) & cookie_mask == 0
            && self.sends_to(out_port)
            && self.fields.is_within(fields)
    }

    pub fn stats(&self, counts: &dyn EntryCounts, now_ms: u64) -> FlowStats {
        let (duration_s, duration_ns) = duration(self.created_ms, now_ms);
        let count = self.count(counts);
        FlowStats {
            table_id: 0,
            duration_s,
            duration_ns,
            priority: self.priority,
            idle_timeout: self.idle_timeout,
            hard_timeout: self.hard_timeout,
            flags: self.flags,
            cookie: self.cookie,
            packets: count.packets,
            bytes: count.bytes,
            fields: self.fields.clone(),
            instructions: self.instructions.clone(),
        }
    }
}

/// Whole seconds between two times, and the remaining nanoseconds.
pub(crate) fn duration(from_ms: u64, now_ms: u64) -> (u32, u32) {
    let ms = now_ms.saturating_sub(from_ms);
    (u32::try_from(ms / 1000).unwrap_or(u32::MAX), (ms % 1000) as u32 * 1_000_000)
}

/// The effect of a change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Effect {
    /// Whether packets may match other entries, or matching entries act differently.
    pub changed: bool,
    pub removed: Vec<FlowRemoved>,
}

#[derive(Debug)]
pub struct EntryTable {
    most: usize,
    entries: BTreeMap<u32, Entry>,
    numbers: HashMap<(u16, Match), u32>,
    free: VecDeque<u32>,
    /// Numbers of removed entries, until [`EntryTable::take_retired`].
    retired: Vec<u32>,
}

impl EntryTable {
    /// A table of up to `most` entries, numbered 1 to twice that: see [`EntryTable::reuse`].
    pub fn new(most: u32) -> Self {
        Self {
            most: most as usize,
            entries: BTreeMap::new(),
            numbers: HashMap::new(),
            free: (1..=most.saturating_mul(2)).collect(),
            retired: Vec::new(),
        }
    }

    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    pub fn entry(&self, number: u32) -> Option<&Entry> {
        self.entries.get(&number)
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn most(&self) -> usize {
        self.most
    }

    /// Takes the numbers that were retired since the last call.
    pub fn take_retired(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.retired)
    }

    /// Returns numbers for reuse; nothing may be counted by them any more.
    pub fn reuse(&mut self, numbers: impl IntoIterator<Item = u32>) {
        self.free.extend(numbers);
    }

    /// Executes a change whose output, if any, is valid.
    ///
    /// # Errors
    /// The fault to report; the table is unchanged.
    pub fn change(&mut self, change: &FlowMod, counts: &dyn EntryCounts, now_ms: u64) -> Result<Effect, Fault> {
        let deletes = matches!(change.command, FlowModCommand::Delete | FlowModCommand::DeleteStrict);
        if change.table_id != 0 && !(deletes && change.table_id == ALL_TABLES) {
            return Err(Fault::FLOW_TABLE_ID);
        }
        if change.flags & !flow_flag::ALL != 0 {
            return Err(Fault::FLOW_FLAGS);
        }
        match change.command {
            FlowModCommand::Add => self.add(change, counts, now_ms),
            FlowModCommand::Modify | FlowModCommand::ModifyStrict => self.modify(change, counts),
            FlowModCommand::Delete | FlowModCommand::DeleteStrict => Ok(self.delete(change, counts, now_ms)),
        }
    }

    fn add(&mut self, change: &FlowMod, counts: &dyn EntryCounts, now_ms: u64) -> Result<Effect, Fault> {
        let output = instruction::output_of(&change.instructions)?;
        let overlaps = |entry: &Entry| entry.priority == change.priority && entry.fields.overlaps(&change.fields);
        if change.flags & flow_flag::CHECK_OVERLAP != 0 && self.entries.values().any(overlaps) {
            return Err(Fault::OVERLAP);
        }
        let key = (change.priority, change.fields.clone());
        let old = self.numbers.get(&key).copied();
        if old.is_none() && self.entries.len() >= self.most {
            return Err(Fault::TABLE_FULL);
        }
        let number = self.free.pop_front().ok_or(Fault::TABLE_FULL)?;
        // A replaced entry is not reported; its counters go on unless they are reset.
        let mut before = EntryCount::default();
        if let Some(entry) = old.and_then(|old| self.entries.remove(&old)) {
            if change.flags & flow_flag::RESET_COUNTS == 0 {
                before = entry.count(counts);
            }
            self.retired.push(entry.number);
        }
        self.numbers.insert(key, number);
        let entry = Entry {
            number,
            priority: change.priority,
            fields: change.fields.clone(),
            instructions: change.instructions.clone(),
            output,
            cookie: change.cookie,
            flags: change.flags,
            idle_timeout: change.idle_timeout,
            hard_timeout: change.hard_timeout,
            created_ms: now_ms,
            touched_ms: now_ms,
            zero: counts.count(number),
            before,
        };
        self.entries.insert(number, entry);
        Ok(Effect { changed: true, removed: Vec::new() })
    }

    /// Numbers of the entries that a modify or delete selects.
    fn asked(&self, change: &FlowMod) -> Vec<u32> {
        let deletes = matches!(change.command, FlowModCommand::Delete | FlowModCommand::DeleteStrict);
        let (out_port, out_group) = if deletes { (change.out_port, change.out_group) } else { (port::ANY, ANY_GROUP) };
        let is_asked = |e: &&Entry| e.is_asked(&change.fields, out_port, out_group, change.cookie, change.cookie_mask);
        if matches!(change.command, FlowModCommand::ModifyStrict | FlowModCommand::DeleteStrict) {
            let number = self.numbers.get(&(change.priority, change.fields.clone()));
            return number.and_then(|n| self.entries.get(n)).filter(is_asked).map(|e| e.number).into_iter().collect();
        }
        self.entries.values().filter(is_asked).map(|e| e.number).collect()
    }

    fn modify(&mut self, change: &FlowMod, counts: &dyn EntryCounts) -> Result<Effect, Fault> {
        let output = instruction::output_of(&change.instructions)?;
        let mut changed = false;
        for number in self.asked(change) {
            let Some(entry) = self.entries.get_mut(&number) else { continue };
            changed |= entry.output != output;
            entry.instructions.clone_from(&change.instructions);
            entry.output = output;
            if change.flags & flow_flag::RESET_COUNTS != 0 {
                entry.zero = counts.count(number);
                entry.before = EntryCount::default();
            }
        }
        Ok(Effect { changed, removed: Vec::new() })
    }

    fn delete(&mut self, change: &FlowMod, counts: &dyn EntryCounts, now_ms: u64) -> Effect {
        let asked = self.asked(change);
        Effect { changed: !asked.is_empty(), removed: self.remove(&asked, Reason::Delete, counts, now_ms) }
    }

    fn remove(&mut self, numbers: &[u32], reason: Reason, counts: &dyn EntryCounts, now_ms: u64) -> Vec<FlowRemoved> {
        let mut sent = Vec::new();
        for number in numbers {
            let Some(entry) = self.entries.remove(number) else { continue };
            self.retired.push(*number);
            if entry.flags & flow_flag::SEND_FLOW_REMOVED != 0 {
                let stats = entry.stats(counts, now_ms);
                sent.push(FlowRemoved {
                    cookie: entry.cookie,
                    priority: entry.priority,
                    reason,
                    table_id: 0,
                    duration_s: stats.duration_s,
                    duration_ns: stats.duration_ns,
                    idle_timeout: entry.idle_timeout,
                    hard_timeout: entry.hard_timeout,
                    packets: stats.packets,
                    bytes: stats.bytes,
                    fields: entry.fields.clone(),
                });
            }
            self.numbers.remove(&(entry.priority, entry.fields));
        }
        sent
    }

    /// Removes expired entries.
    pub fn expire(&mut self, counts: &dyn EntryCounts, now_ms: u64) -> Effect {
        let over = |from_ms: u64, timeout: u16| timeout > 0 && now_ms.saturating_sub(from_ms) >= u64::from(timeout) * 1000;
        let mut outcome = Effect::default();
        for reason in [Reason::Hard, Reason::Idle] {
            let is_over = |e: &&Entry| match reason {
                Reason::Hard => over(e.created_ms, e.hard_timeout),
                _ => e.idle_timeout > 0 && over(e.count(counts).seen_ms, e.idle_timeout),
            };
            let gone: Vec<u32> = self.entries.values().filter(is_over).map(|e| e.number).collect();
            outcome.changed |= !gone.is_empty();
            outcome.removed.extend(self.remove(&gone, reason, counts, now_ms));
        }
        outcome
    }

    /// The entries that a request selects.
    pub fn select(&self, request: &FlowRequest) -> impl Iterator<Item = &Entry> {
        let of_here = request.table_id == 0 || request.table_id == ALL_TABLES;
        let request = request.clone();
        self.entries.values().filter(move |e| {
            of_here && e.is_asked(&request.fields, request.out_port, request.out_group, request.cookie, request.cookie_mask)
        })
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
