//! `docs/openapi.json`, and whether what an agent answers is as it says.

use std::collections::BTreeSet;

use boon::{Compiler, Schemas};
use serde_json::Value;

use crate::agent::{AgentProcess, ApiResponse};
use crate::repository;

/// What the document is known as to the validator.
const NAME: &str = "http://bdnfs/openapi.json";

/// The document, and which of its operations have been asked.
#[derive(Debug)]
pub struct OpenApi {
    document: Value,
    asked: BTreeSet<String>,
}

impl OpenApi {
    /// Reads the document.
    ///
    /// # Panics
    /// When it is none.
    pub fn read() -> Self {
        let path = repository().join("docs/openapi.json");
        let text = std::fs::read_to_string(&path).expect("docs/openapi.json");
        let document = serde_json::from_str(&text).expect("docs/openapi.json is JSON");
        Self { document, asked: BTreeSet::new() }
    }

    /// Asks `agent` the operation `method` of `path`, a path as the document writes it, with `fill` in the place of what
    /// stands in braces and as the query behind it. The body, the code and the answer must be as described, and the answer
    /// no failure; so the operation has been asked.
    ///
    /// # Panics
    /// When something is otherwise.
    pub fn ask(
        &mut self,
        agent: &AgentProcess,
        method: &str,
        path: &str,
        fill: &str,
        body: &str,
    ) -> ApiResponse {
        let answer = self.try_ask(agent, method, path, fill, body);
        assert!((200..300).contains(&answer.code), "{method} {path}: {} {}", answer.code, answer.body);
        answer
    }

    /// The same, and the answer may be a failure.
    ///
    /// # Panics
    /// When something is not as described.
    pub fn try_ask(
        &mut self,
        agent: &AgentProcess,
        method: &str,
        path: &str,
        fill: &str,
        body: &str,
    ) -> ApiResponse {
        let operation = format!("{} {path}", method.to_lowercase());
        let described = self.document.pointer(&format!("{}/requestBody", pointer(method, path))).is_some();
        assert_eq!(described, !body.is_empty(), "{operation}: one of document and test has a body");
        if described {
            let body: Value = serde_json::from_str(body).expect("JSON");
            let place = format!("{}/requestBody/content/application~1json/schema", pointer(method, path));
            self.check(&format!("the body of {operation}"), &place, &body);
        }
        let answer = self.answer(agent, method, path, fill, body);
        if (200..300).contains(&answer.code) {
            self.asked.insert(operation);
        }
        answer
    }

    /// Takes over what `other` has asked.
    pub fn merge(&mut self, other: Self) {
        self.asked.extend(other.asked);
    }

    /// The same with a request that must fail with `code`, and be told why as described.
    ///
    /// # Panics
    /// When something is otherwise.
    pub fn fails(
        &self,
        agent: &AgentProcess,
        (method, path, fill): (&str, &str, &str),
        body: &str,
        code: u16,
    ) {
        let answer = self.answer(agent, method, path, fill, body);
        assert_eq!(answer.code, code, "{method} {path} ({fill}): {}", answer.body);
    }

    /// Asserts that every operation of the document has been asked.
    ///
    /// # Panics
    /// When one hasn't.
    pub fn assert_all_requested(&self) {
        let paths = self.document["paths"].as_object().expect("paths");
        let operations = paths.iter().flat_map(|(path, operations)| {
            let methods = operations.as_object().expect("operations").keys();
            methods.filter(|key| *key != "parameters").map(move |method| format!("{method} {path}"))
        });
        let left: Vec<_> = operations.filter(|operation| !self.asked.contains(operation)).collect();
        assert!(left.is_empty(), "docs/openapi.json describes what this suite does not ask: {left:?}");
    }

    fn answer(&self, agent: &AgentProcess, method: &str, path: &str, fill: &str, body: &str) -> ApiResponse {
        let answer = agent.ask(method, &filled(path, fill), body);
        let operation = pointer(method, path);
        let found = |code: &str| self.document.pointer(&format!("{operation}/responses/{code}"));
        let code = answer.code.to_string();
        let code = if found(&code).is_some() { &code } else { "default" };
        let response = found(code).unwrap_or_else(|| panic!("{method} {path} is not described"));
        let place = match response["$ref"].as_str() {
            Some(place) => place.trim_start_matches('#').to_owned(),
            None => format!("{operation}/responses/{code}"),
        };
        let content = self.document.pointer(&format!("{place}/content")).expect("a content");
        let kinds: Vec<_> = content.as_object().expect("kinds of content").keys().collect();
        let kind = answer.kind.split(';').next().unwrap_or_default().trim();
        assert_eq!(kinds, [kind], "{method} {path}: {}", answer.body);
        if kind == "application/json" {
            let what = format!("the answer {} to {method} {path}", answer.code);
            self.check(&what, &format!("{place}/content/application~1json/schema"), &answer.json());
        }
        answer
    }

    /// Holds `value` against the schema at `place` of the document.
    fn check(&self, what: &str, place: &str, value: &Value) {
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler.add_resource(NAME, self.document.clone()).expect("the document");
        let place = place.replace('{', "%7B").replace('}', "%7D");
        let schema = compiler.compile(&format!("{NAME}#{place}"), &mut schemas);
        let schema = schema.unwrap_or_else(|error| panic!("docs/openapi.json: {error:#}"));
        if let Err(error) = schemas.validate(value, schema) {
            panic!("{what} is not as docs/openapi.json has it: {error}\n{value:#}");
        }
    }
}

/// Where the document has the operation.
fn pointer(method: &str, path: &str) -> String {
    format!("/paths/{}/{}", path.replace('/', "~1"), method.to_lowercase())
}

/// A path with `fill` in the place of what stands in braces, and the query that it may end in.
fn filled(path: &str, fill: &str) -> String {
    let (value, query) = fill.split_once('?').map_or((fill, None), |(value, query)| (value, Some(query)));
    let path = match (path.find('{'), path.find('}')) {
        (Some(from), Some(to)) => format!("{}{value}{}", &path[..from], &path[to + 1..]),
        _ => path.to_owned(),
    };
    query.map_or(path.clone(), |query| format!("{path}?{query}"))
}
