//! The OpenAPI document of the control API, made from its routes and their types.
//!
//! Names, descriptions, bounds and defaults are those of the types; the attributes that describe a
//! bound also enforce it on requests. `examples.json` has an example for each object, without the
//! parts that have an example of their own.

use std::collections::BTreeMap;

use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};
use sluice_api::{ErrorBody, ErrorKind};

const EXAMPLES: &str = include_str!("examples.json");

/// Path of the components in the document.
const SCHEMAS: &str = "/components/schemas";

type Part = fn(&mut SchemaGenerator) -> Schema;

/// The document's entry for a route.
#[derive(Clone)]
pub(super) struct Operation {
    /// `GET`, `POST`, `PUT` or `DELETE`.
    pub method: &'static str,
    /// Address, with `{name}` for a name.
    pub path: &'static str,
    id: &'static str,
    summary: &'static str,
    query: Option<Part>,
    body: Option<Part>,
    status: u16,
    answer: Option<Part>,
    /// Kind of an answer that is not JSON.
    content: &'static str,
    refusals: Vec<ErrorKind>,
}

impl Operation {
    /// A route with the refusals of all routes, and that of an unknown name if it has one.
    pub fn new(method: &'static str, path: &'static str, id: &'static str, summary: &'static str) -> Self {
        let mut refusals = vec![ErrorKind::Forbidden, ErrorKind::Internal, ErrorKind::ShuttingDown, ErrorKind::Timeout];
        if path.contains("{name}") {
            refusals.push(ErrorKind::NotFound);
        }
        Self { method, path, id, summary, query: None, body: None, status: 200, answer: None, content: "text/plain", refusals }
    }

    /// Adds the answer: its status and its type `T`.
    pub fn answers<T: JsonSchema>(self, status: u16) -> Self {
        Self { status, answer: Some(SchemaGenerator::subschema_for::<T>), ..self }
    }

    /// Adds the answer: a stream of bytes of this kind.
    pub fn streams(self, content: &'static str) -> Self {
        Self { content, ..self }
    }

    /// Adds a body of type `T`.
    pub fn takes<T: JsonSchema>(self) -> Self {
        let of_bodies = [ErrorKind::BadInput, ErrorKind::RequestTimeout, ErrorKind::TooLarge, ErrorKind::Unprocessable];
        Self { body: Some(SchemaGenerator::subschema_for::<T>), ..self.refuses(&of_bodies) }
    }

    /// Adds the fields of `T` as query parameters.
    pub fn asks<T: JsonSchema>(self) -> Self {
        Self { query: Some(|generator| T::json_schema(generator)), ..self.refuses(&[ErrorKind::BadInput]) }
    }

    pub fn refuses(mut self, kinds: &[ErrorKind]) -> Self {
        self.refusals.extend(kinds);
        self
    }

    fn describe(&self, requests: &mut SchemaGenerator, answers: &mut SchemaGenerator) -> Value {
        let (content, schema) = match self.answer {
            Some(answer) => ("application/json", answer(answers).to_value()),
            None => (self.content, json!({ "type": "string" })),
        };
        let content = json!({ content: { "schema": schema } });
        let mut responses =
            Map::from_iter([(self.status.to_string(), json!({ "description": "The answer.", "content": content }))]);
        for kind in &self.refusals {
            responses.insert(kind.code().to_string(), json!({ "$ref": format!("#/components/responses/{kind:?}") }));
        }
        let mut operation = json!({ "operationId": self.id, "summary": self.summary, "responses": responses });
        if let Some(body) = self.body {
            let content = json!({ "application/json": { "schema": body(requests) } });
            operation["requestBody"] = json!({ "required": true, "content": content });
        }
        if let Some(query) = self.query {
            let fields = query(requests);
            let parameter = |(name, schema): (&String, &Value)| {
                let (mut schema, description) = (schema.clone(), schema["description"].clone());
                schema.as_object_mut().map(|schema| schema.remove("description"));
                json!({ "name": name, "in": "query", "required": false, "description": description, "schema": schema })
            };
            operation["parameters"] =
                fields.get("properties").and_then(Value::as_object).into_iter().flatten().map(parameter).collect();
        }
        operation
    }
}

pub(super) fn document(operations: &[Operation]) -> String {
    let generator = |settings: SchemaSettings| settings.with(|all| all.definitions_path = SCHEMAS.into()).into_generator();
    let mut requests = generator(SchemaSettings::draft2020_12());
    let mut answers = generator(SchemaSettings::draft2020_12().for_serialize());
    let mut paths: BTreeMap<&str, Value> = BTreeMap::new();
    for operation in operations {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method.to_lowercase()] = operation.describe(&mut requests, &mut answers);
        if let Some(what) = named(operation.path) {
            let description = format!("Name of the {what}.");
            path["parameters"] = json!([{ "name": "name", "in": "path", "required": true, "description": description, "schema": { "type": "string" } }]);
        }
    }
    let responses = refusals(&mut answers);
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Sluice control API",
            "version": "1.0.0",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            "description": "HTTP/1.1 and JSON on a Unix socket, /run/sluice/control.sock by default; only root, the user that sluiced \
                runs as and members of control.group are answered. A configuration with operators of the page has it at a listener with TLS, too, for their tokens; \
                that of readers may GET. Try: curl --unix-socket /run/sluice/control.sock http://sluice/v1/status. Readers ignore fields \
                that they do not know; requests with unknown fields are refused.",
        },
        "servers": [{ "url": "http://sluice", "description": "Any host name will do: the socket is the address." }],
        "paths": paths,
        "components": { "schemas": schemas(requests, answers), "responses": responses },
    });
    tidy(&mut document);
    format!("{document:#}\n")
}

/// The error responses, by the kind of error.
fn refusals(answers: &mut SchemaGenerator) -> Map<String, Value> {
    let error = answers.subschema_for::<ErrorBody>();
    let kinds = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<ErrorKind>().to_value();
    let answer = |kind: &ErrorKind| {
        let name = format!("{kind:?}");
        let said = kinds["oneOf"].as_array().into_iter().flatten().find(|one| one["const"] == *name);
        let said = said.and_then(|one| one["description"].as_str()?.split_once(": "));
        let content = json!({ "application/json": { "schema": error } });
        (name, json!({ "description": said.map(|(_code, said)| said), "content": content }))
    };
    ErrorKind::ALL.iter().map(answer).collect()
}

/// The components: types of answers and of requests.
fn schemas(mut requests: SchemaGenerator, mut answers: SchemaGenerator) -> Map<String, Value> {
    let mut schemas = answers.take_definitions(true);
    // Only types that the daemon reads have defaults.
    schemas.values_mut().for_each(without_defaults);
    schemas.extend(requests.take_definitions(true));
    let examples: Map<String, Value> = serde_json::from_str(EXAMPLES).expect("the examples are JSON");
    let whole: Vec<(&String, Value)> = examples.keys().map(|name| (name, example(name, &schemas, &examples))).collect();
    for (name, example) in whole {
        schemas[name]["example"] = example;
    }
    schemas
}

/// The object that the name in an address denotes.
fn named(path: &str) -> Option<&'static str> {
    let (what, _) = path.strip_prefix("/v1/")?.split_once("/{name}")?;
    let of = [("nfs", "NF"), ("services", "service"), ("chains", "chain"), ("rules", "rule"), ("ports", "port")];
    let of = of.into_iter().chain([("tenants", "tenant; `-` is that of services without one"), ("timelines", "timeline")]);
    of.into_iter().find_map(|(plural, one)| (plural == what).then_some(one))
}

/// The example of a component: its own part, and the examples of components that it refers to.
fn example(name: &str, schemas: &Map<String, Value>, examples: &Map<String, Value>) -> Value {
    let mut whole = examples[name].clone();
    let referred = |schema: &Value| {
        let any = schema["anyOf"].as_array().into_iter().flatten();
        let to = any.chain([schema]).find_map(|one| one["$ref"].as_str())?.rsplit('/').next()?.to_string();
        examples.contains_key(&to).then_some(to)
    };
    for (field, schema) in schemas[name]["properties"].as_object().into_iter().flatten() {
        if whole.get(field).is_some() {
            continue;
        }
        let one = |schema: &Value| referred(schema).map(|to| example(&to, schemas, examples));
        if let Some(one) = one(schema) {
            whole[field] = one;
        } else if let Some(one) = one(&schema["items"]) {
            whole[field] = json!([one]);
        } else if let Some(one) = one(&schema["additionalProperties"]) {
            whole[field] = json!({ "NAME": one });
        }
    }
    whole
}

fn without_defaults(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.remove("default");
            fields.values_mut().for_each(without_defaults);
        }
        Value::Array(all) => all.iter_mut().for_each(without_defaults),
        _ => {}
    }
}

/// Turns doc comments into one line without links, and removes the parser's keywords.
fn tidy(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("x-order");
            fields.retain(|keyword, value| keyword != "default" || !value.is_null());
            for (keyword, value) in fields.iter_mut() {
                match value {
                    Value::String(text) if keyword == "description" => {
                        *text = text.replace('\n', " ").replace("[`", "`").replace("`]", "`")
                    }
                    value => tidy(value),
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(tidy),
        _ => {}
    }
}
