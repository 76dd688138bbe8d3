//! What is sent to viewers: the whole state, or what differs from the sample before.
//!
//! Both are JSON: `{"tick": 7, "every_ms": 500, "tables": {NAME: …}, "events": […]}`. `tick` counts
//! the samples: a delta is for the state of the tick before. A table of the event
//!
//! - `full` is `{"columns": ["core", …], "rows": {NAME: [VALUE, …]}}`;
//! - `delta` is `{"set": {NAME: [VALUE, …]}, "change": {NAME: {COLUMN: VALUE}},
//!   "gone": [NAME, …]}`, where `COLUMN` is the number of a column. What has nothing is left out.

use axum::body::Bytes;
use serde_json::{Map, Value, json};

use crate::view::{TableRows, Values};

/// A sample's number, and the time until the next, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Tick {
    pub number: u64,
    pub every_ms: u64,
}

/// The whole state, with the latest events.
pub(crate) fn full(tick: Tick, tables: &[TableRows], events: &[Value]) -> Bytes {
    let tables: Map<String, Value> = tables
        .iter()
        .map(|table| {
            let rows: Map<String, Value> = table.rows.iter().map(|(name, row)| (name.clone(), Value::Array(row.clone()))).collect();
            (table.of.to_string(), json!({ "columns": table.columns, "rows": rows }))
        })
        .collect();
    event("full", tick, tables, events)
}

/// What differs from the tables before, which are the same ones in the same order.
pub(crate) fn delta(tick: Tick, before: &[TableRows], now: &[TableRows], new_events: &[Value]) -> Bytes {
    let mut tables = Map::new();
    for (before, now) in before.iter().zip(now) {
        let differs = of_table(before, now);
        if !differs.is_empty() {
            tables.insert(now.of.to_string(), Value::Object(differs));
        }
    }
    event("delta", tick, tables, new_events)
}

fn of_table(before: &TableRows, now: &TableRows) -> Map<String, Value> {
    let (mut set, mut change) = (Map::new(), Map::new());
    for (name, row) in &now.rows {
        match before.rows.get(name) {
            None => drop(set.insert(name.clone(), Value::Array(row.clone()))),
            Some(old) if old == row => {}
            Some(old) => drop(change.insert(name.clone(), Value::Object(of_row(old, row)))),
        }
    }
    let gone: Vec<Value> =
        before.rows.keys().filter(|name| !now.rows.contains_key(*name)).map(|name| Value::from(&**name)).collect();
    let mut all = Map::new();
    if !set.is_empty() {
        all.insert("set".into(), Value::Object(set));
    }
    if !change.is_empty() {
        all.insert("change".into(), Value::Object(change));
    }
    if !gone.is_empty() {
        all.insert("gone".into(), Value::Array(gone));
    }
    all
}

fn of_row(old: &Values, new: &Values) -> Map<String, Value> {
    let differ = old.iter().zip(new).enumerate().filter(|(_, (old, new))| old != new);
    differ.map(|(column, (_, new))| (column.to_string(), new.clone())).collect()
}

/// A server-sent event. JSON has no line break in it, so it is one line of data.
fn event(kind: &str, tick: Tick, tables: Map<String, Value>, events: &[Value]) -> Bytes {
    let mut data = Map::new();
    data.insert("tick".into(), Value::from(tick.number));
    data.insert("every_ms".into(), Value::from(tick.every_ms));
    data.insert("tables".into(), Value::Object(tables));
    if !events.is_empty() {
        data.insert("events".into(), Value::Array(events.to_vec()));
    }
    Bytes::from(format!("event: {kind}\ndata: {}\n\n", Value::Object(data)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const TICK: Tick = Tick { number: 2, every_ms: 500 };

    /// The kind and the data of an event as a browser reads it.
    pub(crate) fn parse(event: &[u8]) -> (String, Value) {
        let text = std::str::from_utf8(event).unwrap();
        let text = text.strip_suffix("\n\n").expect("an event ends with an empty line");
        let [kind, data] = text.split('\n').collect::<Vec<_>>()[..] else { panic!("{text}") };
        let data = data.strip_prefix("data: ").unwrap();
        (kind.strip_prefix("event: ").unwrap().into(), serde_json::from_str(data).unwrap())
    }

    fn table(rows: &[(&str, [i64; 2])]) -> Vec<TableRows> {
        let row = |(name, values): &(&str, [i64; 2])| (name.to_string(), values.map(Value::from).to_vec());
        vec![TableRows { of: "nf", columns: &["core", "queue"], rows: rows.iter().map(row).collect() }]
    }

    #[test]
    fn a_delta_has_what_differs_and_nothing_else() {
        let before = table(&[("a", [1, 5]), ("b", [1, 6]), ("c", [1, 7])]);
        let now = table(&[("a", [1, 5]), ("b", [1, 9]), ("d", [2, 0])]);
        let (kind, data) = parse(&delta(TICK, &before, &now, &[json!({ "number": 4 })]));
        assert_eq!(kind, "delta");
        let differs = json!({ "set": { "d": [2, 0] }, "change": { "b": { "1": 9 } }, "gone": ["c"] });
        assert_eq!(data, json!({ "tick": 2, "every_ms": 500, "tables": { "nf": differs }, "events": [{ "number": 4 }] }));
        let (_, data) = parse(&delta(TICK, &now, &now, &[]));
        assert_eq!(data, json!({ "tick": 2, "every_ms": 500, "tables": {} }));
    }

    #[test]
    fn names_stay_in_their_line_whatever_they_are() {
        let odd = "\n\nevent: full\r\u{2028}\"</script>\0";
        let (kind, data) = parse(&full(TICK, &table(&[(odd, [1, 2])]), &[]));
        assert_eq!((kind.as_str(), &data["tables"]["nf"]["rows"][odd]), ("full", &json!([1, 2])));
        assert_eq!(data["tables"]["nf"]["columns"], json!(["core", "queue"]));
    }
}
