use std::cell::RefCell;

use proptest::prelude::*;

use super::*;
use crate::message::FlowMod;
use crate::oxm::{Field, FieldId};

/// Counters that tests set.
#[derive(Debug, Default)]
struct Counted(RefCell<HashMap<u32, EntryCount>>);

impl EntryCounts for Counted {
    fn count(&self, number: u32) -> EntryCount {
        self.0.borrow().get(&number).copied().unwrap_or_default()
    }
}

impl Counted {
    fn add(&self, number: u32, packets: u64, seen_ms: u64) {
        let mut all = self.0.borrow_mut();
        let count = all.entry(number).or_default();
        *count = EntryCount { packets: count.packets + packets, bytes: count.bytes + 100 * packets, seen_ms };
    }
}

fn to(port: u32) -> Vec<Instruction> {
    vec![Instruction::Apply(vec![Output { port, max_len: 0 }])]
}

/// IPv4 to a prefix.
fn net(address: u128, bits: u32) -> Match {
    let mask = if bits == 0 { 0 } else { FieldId::Ipv4Dst.all() << (32 - bits) & FieldId::Ipv4Dst.all() };
    let eth = Field { id: FieldId::EthType, value: 0x800, mask: 0xffff };
    Match::new([eth, Field { id: FieldId::Ipv4Dst, value: address & mask, mask }]).unwrap()
}

fn change(command: FlowModCommand, priority: u16, fields: Match, port: u32) -> FlowMod {
    FlowMod { priority, instructions: to(port), ..FlowMod::new(command, fields) }
}

/// Priority and output port of all entries, sorted.
fn all(table: &EntryTable) -> Vec<(u16, u32)> {
    let mut all: Vec<_> = table.entries().map(|e| (e.priority, e.output.map_or(0, |o| o.port))).collect();
    all.sort_unstable();
    all
}

const TEN: u128 = 0x0a00_0000;

#[test]
fn an_entry_takes_the_place_of_one_with_its_match_and_priority() {
    let (mut table, counted) = (EntryTable::new(4), Counted::default());
    let add = |port| FlowMod { flags: flow_flag::SEND_FLOW_REMOVED, ..change(FlowModCommand::Add, 5, net(TEN, 8), port) };
    assert!(table.change(&add(1), &counted, 0).unwrap().changed);
    let first = table.entries().next().unwrap().number;
    counted.add(first, 7, 500);
    let outcome = table.change(&add(2), &counted, 1000).unwrap();
    assert!(outcome.changed && outcome.removed.is_empty(), "no message for a replaced entry");
    assert_eq!(all(&table), [(5, 2)]);
    let entry = table.entries().next().unwrap().clone();
    assert_ne!(entry.number, first);
    assert_eq!(table.take_retired(), [first]);
    assert_eq!(entry.count(&counted).packets, 7, "counters go on");
    assert_eq!(entry.stats(&counted, 3500).duration_s, 2, "its time begins anew");
    let reset = FlowMod { flags: flow_flag::RESET_COUNTS, ..add(3) };
    table.change(&reset, &counted, 2000).unwrap();
    assert_eq!(table.entries().next().unwrap().count(&counted).packets, 0);
    table.change(&change(FlowModCommand::Add, 6, net(TEN, 8), 9), &counted, 0).unwrap();
    assert_eq!(all(&table), [(5, 3), (6, 9)]);
}

#[test]
fn overlaps_are_refused_when_asked_for() {
    let (mut table, counted) = (EntryTable::new(8), Counted::default());
    table.change(&change(FlowModCommand::Add, 5, net(TEN, 8), 1), &counted, 0).unwrap();
    let checked =
        |priority, fields| FlowMod { flags: flow_flag::CHECK_OVERLAP, ..change(FlowModCommand::Add, priority, fields, 2) };
    assert_eq!(table.change(&checked(5, net(TEN + 1, 32)), &counted, 0), Err(Fault::OVERLAP));
    assert_eq!(table.change(&checked(5, Match::default()), &counted, 0), Err(Fault::OVERLAP));
    assert!(table.change(&checked(6, net(TEN + 1, 32)), &counted, 0).is_ok());
    assert!(table.change(&checked(5, net(TEN << 1, 8)), &counted, 0).is_ok());
    assert!(table.change(&change(FlowModCommand::Add, 5, net(TEN + 1, 32), 2), &counted, 0).is_ok(), "unless it is not asked for");
}

#[test]
fn changes_and_deletions_strict_and_not() {
    let counted = Counted::default();
    let full = || {
        let mut table = EntryTable::new(8);
        for (priority, bits, port) in [(1, 0, 1), (5, 8, 2), (5, 16, 3), (9, 16, 4)] {
            let add = FlowMod { cookie: u64::from(port) << 4, ..change(FlowModCommand::Add, priority, net(TEN, bits), port) };
            table.change(&add, &counted, 0).unwrap();
        }
        table
    };
    let after = |asked: FlowMod| {
        let mut table = full();
        table.change(&asked, &counted, 0).unwrap();
        all(&table)
    };
    assert_eq!(after(change(FlowModCommand::Modify, 0, net(TEN, 8), 7)), [(1, 1), (5, 7), (5, 7), (9, 7)]);
    assert_eq!(after(change(FlowModCommand::ModifyStrict, 5, net(TEN, 16), 7)), [(1, 1), (5, 2), (5, 7), (9, 4)]);
    assert_eq!(after(change(FlowModCommand::ModifyStrict, 6, net(TEN, 16), 7)), [(1, 1), (5, 2), (5, 3), (9, 4)], "adds nothing");
    let by_cookie = FlowMod { cookie: 0x30, cookie_mask: 0xf0, ..change(FlowModCommand::Modify, 0, Match::default(), 7) };
    assert_eq!(after(by_cookie), [(1, 1), (5, 2), (5, 7), (9, 4)]);
    let delete = |command, priority, fields| FlowMod { priority, ..FlowMod::new(command, fields) };
    assert_eq!(after(delete(FlowModCommand::Delete, 0, net(TEN, 16))), [(1, 1), (5, 2)]);
    assert_eq!(after(delete(FlowModCommand::DeleteStrict, 9, net(TEN, 16))), [(1, 1), (5, 2), (5, 3)]);
    assert_eq!(after(FlowMod { out_port: 4, ..delete(FlowModCommand::Delete, 0, Match::default()) }), [(1, 1), (5, 2), (5, 3)]);
    assert_eq!(after(FlowMod { out_group: 1, ..delete(FlowModCommand::Delete, 0, Match::default()) }).len(), 4);
    assert_eq!(after(FlowMod { table_id: ALL_TABLES, ..delete(FlowModCommand::Delete, 0, Match::default()) }), []);
    let mut table = full();
    for wrong in [change(FlowModCommand::Add, 1, net(TEN, 9), 1), change(FlowModCommand::Modify, 1, net(TEN, 8), 1)] {
        assert_eq!(table.change(&FlowMod { table_id: 3, ..wrong }, &counted, 0), Err(Fault::FLOW_TABLE_ID));
    }
    assert_eq!(
        table.change(&FlowMod { flags: 1 << 9, ..change(FlowModCommand::Add, 1, net(TEN, 9), 1) }, &counted, 0),
        Err(Fault::FLOW_FLAGS)
    );
}

#[test]
fn a_full_table_takes_no_more_and_numbers_come_back_when_they_may() {
    let (mut table, counted) = (EntryTable::new(2), Counted::default());
    let add = |table: &mut EntryTable, n: u128| table.change(&change(FlowModCommand::Add, 1, net(TEN + n, 32), 1), &counted, 0);
    add(&mut table, 1).unwrap();
    add(&mut table, 2).unwrap();
    assert_eq!(add(&mut table, 3), Err(Fault::TABLE_FULL));
    add(&mut table, 2).unwrap();
    add(&mut table, 2).unwrap();
    // Packets may still be counted by the numbers of removed entries.
    assert_eq!(add(&mut table, 2), Err(Fault::TABLE_FULL));
    let retired = table.take_retired();
    assert_eq!(retired.len(), 2);
    counted.add(retired[0], 50, 5);
    table.reuse(retired);
    add(&mut table, 2).unwrap();
    assert!(table.entries().all(|e| e.count(&counted).packets == 0), "what was counted before is not the new entry's");
}

#[test]
fn entries_go_when_their_time_is_over() {
    let (mut table, counted) = (EntryTable::new(8), Counted::default());
    let flags = flow_flag::SEND_FLOW_REMOVED;
    let add = |n: u128, idle_timeout, hard_timeout, flags| FlowMod {
        idle_timeout,
        hard_timeout,
        flags,
        ..change(FlowModCommand::Add, 1, net(TEN + n, 32), 1)
    };
    table.change(&add(1, 2, 0, flags), &counted, 0).unwrap();
    table.change(&add(2, 2, 5, flags), &counted, 0).unwrap();
    table.change(&add(3, 1, 0, 0), &counted, 0).unwrap();
    table.change(&add(4, 0, 0, flags), &counted, 0).unwrap();
    let second = table.entries().nth(1).unwrap().number;
    assert_eq!(table.expire(&counted, 999), Effect::default());
    let outcome = table.expire(&counted, 1000);
    assert!(outcome.changed && outcome.removed.is_empty(), "no message was requested");
    counted.add(second, 3, 1900);
    let outcome = table.expire(&counted, 2000);
    assert_eq!(outcome.removed.iter().map(|r| (r.reason, r.packets)).collect::<Vec<_>>(), [(Reason::Idle, 0)]);
    for now in [3000, 4000, 4900] {
        counted.add(second, 1, now);
        assert_eq!(table.expire(&counted, now), Effect::default());
    }
    let outcome = table.expire(&counted, 5000);
    let sent: Vec<_> = outcome.removed.iter().map(|r| (r.reason, r.packets, r.bytes, r.duration_s)).collect();
    assert_eq!(sent, [(Reason::Hard, 6, 600, 5)]);
    assert_eq!(table.expire(&counted, 1 << 40), Effect::default(), "without timeouts it stays");
    assert_eq!(table.len(), 1);
}

proptest! {
    // Add, change and delete, strict or not, leave what a list of entries would.
    #[test]
    fn behaves_as_a_list(steps in prop::collection::vec((0..5u8, 0..3u16, 0..4u32, 0..4u128, 1..5u32), 0..60)) {
        let (mut table, counted) = (EntryTable::new(64), Counted::default());
        let mut model: Vec<(u16, Match, u32)> = Vec::new();
        for (what, priority, bits, address, port) in steps {
            let fields = net(TEN + (address << 24), bits * 4 + 4);
            let command = [FlowModCommand::Add, FlowModCommand::Modify, FlowModCommand::ModifyStrict, FlowModCommand::Delete, FlowModCommand::DeleteStrict][usize::from(what)];
            table.change(&change(command, priority, fields.clone(), port).only_outputs_that_count(), &counted, 0).unwrap();
            let strict = |e: &(u16, Match, u32)| e.0 == priority && e.1 == fields;
            let within = |e: &(u16, Match, u32)| e.1.is_within(&fields);
            match command {
                FlowModCommand::Add => {
                    model.retain(|e| !strict(e));
                    model.push((priority, fields.clone(), port));
                }
                FlowModCommand::Modify => model.iter_mut().filter(|e| within(e)).for_each(|e| e.2 = port),
                FlowModCommand::ModifyStrict => model.iter_mut().filter(|e| strict(e)).for_each(|e| e.2 = port),
                FlowModCommand::Delete => model.retain(|e| !within(e)),
                FlowModCommand::DeleteStrict => model.retain(|e| !strict(e)),
            }
            let retired = table.take_retired();
            table.reuse(retired);
            let mut expected: Vec<_> = model.iter().map(|e| (e.0, e.2)).collect();
            expected.sort_unstable();
            prop_assert_eq!(all(&table), expected);
        }
    }
}

impl FlowMod {
    fn only_outputs_that_count(mut self) -> Self {
        if matches!(self.command, FlowModCommand::Delete | FlowModCommand::DeleteStrict) {
            self.instructions.clear();
        }
        self
    }
}
