//! The OpenAPI document agrees with the server and the types.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::{model, promise};
use super::*;
use sluice_api::change;
use sluice_api::health::{Death, Health, Problem};
use sluice_api::shadow::{ShadowCounts, ShadowDifference};

fn document() -> Value {
    serde_json::from_str(&OPENAPI).expect("the document is JSON")
}

/// `make reference` writes it.
#[test]
fn the_document_in_the_tree_is_the_one_that_is_served() {
    crate::in_the_tree::file("deploy/openapi.json", &OPENAPI);
}

#[test]
fn every_route_is_described_once() {
    let served: BTreeSet<(String, String)> =
        routes().iter().map(|r| (r.operation.path.into(), r.operation.method.to_lowercase())).collect();
    assert_eq!(served.len(), routes().len(), "a route comes twice");
    let document = document();
    let paths = document["paths"].as_object().unwrap();
    let described: BTreeSet<(String, String)> = paths
        .iter()
        .flat_map(|(path, methods)| methods.as_object().unwrap().keys().map(|m| (path.clone(), m.clone())))
        .filter(|(_, method)| method != "parameters")
        .collect();
    assert_eq!(served, described);
    let ids: BTreeSet<&str> = paths
        .values()
        .flat_map(|methods| methods.as_object().unwrap().values())
        .filter_map(|method| method["operationId"].as_str())
        .collect();
    assert_eq!(ids.len(), served.len(), "two routes have one name");
}

#[test]
fn everything_has_a_description_and_a_name_of_its_own() {
    let document = document();
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        assert!(!name.ends_with(|c: char| c.is_ascii_digit()), "{name}: two types have this name");
        assert!(schema["description"].as_str().is_some_and(|text| text.len() > 3), "{name}");
        for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
            assert!(schema["description"].as_str().is_some_and(|text| text.len() > 3), "{name}.{field}");
        }
    }
    for (name, answer) in document["components"]["responses"].as_object().unwrap() {
        assert!(answer["description"].as_str().is_some_and(|text| text.len() > 3), "{name}");
    }
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
    ("CanaryRequest", through::<CanaryRequest>),
    ("CaptureRequest", through::<CaptureRequest>),
    ("Chain", through::<model::Chain>),
    ("ChainConfig", through::<config::Chain>),
    ("Change", through::<change::Change>),
    ("ChangedKey", through::<change::ChangedKey>),
    ("FormerConfig", through::<change::FormerConfig>),
    ("Death", through::<Death>),
    ("Distribution", through::<model::Distribution>),
    ("Done", through::<Done>),
    ("Error", through::<ErrorBody>),
    ("Event", through::<model::Event>),
    ("Exemplar", through::<model::Exemplar>),
    ("FlowEntry", through::<model::FlowEntry>),
    ("FlowLogCounts", through::<model::FlowLogCounts>),
    ("FlowReport", through::<model::FlowReport>),
    ("FlowsReply", through::<model::FlowsReply>),
    ("FlowsRequest", through::<FlowsRequest>),
    ("Frames", through::<model::Frames>),
    ("Fusable", through::<model::Fusable>),
    ("Gone", through::<model::Gone>),
    ("Health", through::<Health>),
    ("Hop", through::<model::Hop>),
    ("Instruction", through::<model::Instruction>),
    ("Memory", through::<model::Memory>),
    ("MoveNf", through::<MoveNf>),
    ("Nf", through::<model::Nf>),
    ("NfForeign", through::<model::NfForeign>),
    ("NfPart", through::<model::NfPart>),
    ("NfSched", through::<model::NfSched>),
    ("Openflow", through::<model::Openflow>),
    ("Otlp", through::<model::Otlp>),
    ("Placed", through::<promise::Placed>),
    ("Problem", through::<Problem>),
    ("Promise", through::<promise::Promise>),
    ("Promises", through::<promise::Promises>),
    ("Pool", through::<model::Pool>),
    ("Port", through::<model::Port>),
    ("PortConfig", through::<config::Port>),
    ("RecordRequest", through::<model::RecordRequest>),
    ("Rule", through::<model::Rule>),
    ("RuleConfig", through::<config::Rule>),
    ("RunningConfig", through::<change::RunningConfig>),
    ("Schedule", through::<model::Schedule>),
    ("Service", through::<model::Service>),
    ("ServiceConfig", through::<config::Service>),
    ("SetKeys", through::<SetKeys>),
    ("ShadowCounts", through::<ShadowCounts>),
    ("ShadowDifference", through::<ShadowDifference>),
    ("ShadowReport", through::<ShadowReport>),
    ("ShadowRequest", through::<ShadowRequest>),
    ("Stats", through::<model::Stats>),
    ("Status", through::<model::Status>),
    ("Thread", through::<model::Thread>),
    ("Timeline", through::<model::Timeline>),
    ("Trace", through::<model::Trace>),
    ("TraceRequest", through::<TraceRequest>),
    ("TracedPacket", through::<model::TracedPacket>),
    ("WhyNot", through::<model::WhyNot>),
    ("WhyReply", through::<model::WhyReply>),
    ("WhyRequest", through::<WhyRequest>),
    ("Woken", through::<model::Woken>),
    ("Undo", through::<Undo>),
    ("Upgrade", through::<Upgrade>),
    ("Upgraded", through::<model::Upgraded>),
    ("Zygote", through::<model::Zygote>),
];

#[test]
fn examples_go_through_the_types_unchanged_and_name_every_field() {
    let document = document();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let with_examples = schemas.iter().filter(|(_, schema)| schema.get("example").is_some()).map(|(name, _)| name.as_str());
    assert_eq!(with_examples.collect::<BTreeSet<_>>(), SCHEMAS.iter().map(|(name, _)| *name).collect::<BTreeSet<_>>());
    for (name, through) in SCHEMAS {
        let schema = &schemas[*name];
        let example = &schema["example"];
        let again = through(example).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(&again, example, "{name}: a field of the type is not in the example, or the reverse");
        let fields: BTreeSet<&String> = example.as_object().unwrap().keys().collect();
        let properties: BTreeSet<&String> = schema["properties"].as_object().unwrap().keys().collect();
        if schema.get("oneOf").is_some() {
            assert!(properties.is_subset(&fields), "{name}");
        } else {
            assert_eq!(fields, properties, "{name}");
        }
        for optional in
            properties.iter().filter(|p| !schema["required"].as_array().is_some_and(|all| all.contains(&Value::from(p.as_str()))))
        {
            let mut less = example.clone();
            less.as_object_mut().unwrap().remove(optional.as_str());
            through(&less).unwrap_or_else(|error| panic!("{name} without {optional}: {error}"));
        }
        let is_closed = schema["additionalProperties"] == false || schema["unevaluatedProperties"] == false;
        let mut more = example.clone();
        more["a field that there is not"] = Value::Null;
        assert_eq!(through(&more).is_err(), is_closed, "{name} with a field more");
        // Answers may lack fields; requests must have all required ones.
        if [
            "AddNf",
            "AddRule",
            "Apply",
            "ServiceConfig",
            "ChainConfig",
            "RuleConfig",
            "PortConfig",
            "MoveNf",
            "CanaryRequest",
            "SetKeys",
            "ShadowRequest",
            "Undo",
            "Upgrade",
            "Assignment",
        ]
        .contains(name)
        {
            for required in schema["required"].as_array().into_iter().flatten() {
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
