//! The OpenAPI document says what the server does and what the types hold.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::{model, promise};
use super::*;
use sluice_api::change;
use sluice_api::health::{Death, Health, Problem};

fn document() -> Value {
    serde_json::from_str(OPENAPI).expect("the document is JSON")
}

#[test]
fn every_route_is_described_and_every_description_is_a_route() {
    let served: BTreeSet<(String, String)> = routes().iter().map(|r| (r.path.into(), r.method.to_lowercase())).collect();
    assert_eq!(served.len(), routes().len(), "a route comes twice");
    let document = document();
    let paths = document["paths"].as_object().unwrap();
    let described: BTreeSet<(String, String)> = paths
        .iter()
        .flat_map(|(path, methods)| methods.as_object().unwrap().keys().map(|m| (path.clone(), m.clone())))
        .filter(|(_, method)| method != "parameters")
        .collect();
    assert_eq!(served, described);
}

/// Reads an example as a type of ours, and writes it again.
fn through<T: DeserializeOwned + Serialize>(example: &Value) -> Result<Value, serde_json::Error> {
    serde_json::to_value(serde_json::from_value::<T>(example.clone())?)
}

type Through = fn(&Value) -> Result<Value, serde_json::Error>;

const SCHEMAS: &[(&str, Through)] = &[
    ("AddNf", through::<AddNf>),
    ("AddRule", through::<AddRule>),
    ("Assignment", through::<Assignment>),
    ("Buffers", through::<promise::Buffers>),
    ("Applied", through::<model::Applied>),
    ("Apply", through::<Apply>),
    ("Chain", through::<model::Chain>),
    ("ChainConfig", through::<config::Chain>),
    ("Change", through::<change::Change>),
    ("Death", through::<Death>),
    ("Distribution", through::<model::Distribution>),
    ("Done", through::<Done>),
    ("Error", through::<ErrorBody>),
    ("Event", through::<model::Event>),
    ("Frames", through::<model::Frames>),
    ("Gone", through::<model::Gone>),
    ("Health", through::<Health>),
    ("Hop", through::<model::Hop>),
    ("Memory", through::<model::Memory>),
    ("MoveNf", through::<MoveNf>),
    ("Nf", through::<model::Nf>),
    ("NfForeign", through::<model::NfForeign>),
    ("NfSched", through::<model::NfSched>),
    ("Openflow", through::<model::Openflow>),
    ("Placed", through::<promise::Placed>),
    ("Problem", through::<Problem>),
    ("Promise", through::<promise::Promise>),
    ("Promises", through::<promise::Promises>),
    ("Pool", through::<model::Pool>),
    ("Port", through::<model::Port>),
    ("PortConfig", through::<config::Port>),
    ("Rule", through::<model::Rule>),
    ("RuleConfig", through::<config::Rule>),
    ("Schedule", through::<model::Schedule>),
    ("Service", through::<model::Service>),
    ("ServiceConfig", through::<config::Service>),
    ("Stats", through::<model::Stats>),
    ("Status", through::<model::Status>),
    ("Thread", through::<model::Thread>),
    ("Trace", through::<model::Trace>),
    ("TraceRequest", through::<TraceRequest>),
    ("TracedPacket", through::<model::TracedPacket>),
    ("Woken", through::<model::Woken>),
    ("Upgrade", through::<Upgrade>),
    ("Upgraded", through::<model::Upgraded>),
    ("Zygote", through::<model::Zygote>),
];

#[test]
fn examples_go_through_the_types_unchanged_and_name_every_field() {
    let document = document();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let described: BTreeSet<&str> = schemas.keys().map(String::as_str).collect();
    assert_eq!(described, SCHEMAS.iter().map(|(name, _)| *name).collect::<BTreeSet<_>>());
    for (name, through) in SCHEMAS {
        let schema = &schemas[*name];
        let example = &schema["example"];
        let again = through(example).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(&again, example, "{name}: a field of the type is not in the example, or the reverse");
        let fields: BTreeSet<&String> = example.as_object().unwrap().keys().collect();
        let properties: BTreeSet<&String> = schema["properties"].as_object().unwrap().keys().collect();
        if schema["additionalProperties"] == true {
            assert!(properties.is_subset(&fields), "{name}");
        } else {
            assert_eq!(fields, properties, "{name}");
        }
        for optional in properties.iter().filter(|p| !schema["required"].as_array().unwrap().contains(&Value::from(p.as_str()))) {
            let mut less = example.clone();
            less.as_object_mut().unwrap().remove(optional.as_str());
            through(&less).unwrap_or_else(|error| panic!("{name} without {optional}: {error}"));
        }
        // Readers of answers forgive what is missing; requests must have what they must have.
        if [
            "AddNf",
            "AddRule",
            "Apply",
            "ServiceConfig",
            "ChainConfig",
            "RuleConfig",
            "PortConfig",
            "MoveNf",
            "Upgrade",
            "Assignment",
        ]
        .contains(name)
        {
            for required in schema["required"].as_array().unwrap() {
                let mut less = example.clone();
                less.as_object_mut().unwrap().remove(required.as_str().unwrap());
                assert!(through(&less).is_err(), "{name} without {required}");
            }
        }
    }
}

#[test]
fn every_reference_leads_somewhere() {
    fn walk(value: &Value, document: &Value) {
        match value {
            Value::Object(fields) => {
                if let Some(Value::String(to)) = fields.get("$ref") {
                    assert!(document.pointer(to.strip_prefix('#').unwrap()).is_some(), "{to}");
                }
                fields.values().for_each(|v| walk(v, document));
            }
            Value::Array(all) => all.iter().for_each(|v| walk(v, document)),
            _ => {}
        }
    }
    let document = document();
    walk(&document, &document);
}
