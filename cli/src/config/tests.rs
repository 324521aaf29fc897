use super::*;

fn line(document: &Document, keys: &[&str]) -> usize {
    let place = keys.iter().fold(DocumentPath::default(), |place, key| match key.parse() {
        Ok(index) => place.index(index),
        Err(_) => place.key(key),
    });
    document.line(&place)
}

#[test]
fn formats_with_equal_content_have_equal_values_and_lines() {
    let yaml = "# a comment\nweights:\n  - source: \"hf://o/r\"\n    mount_location: /m\n    allow_patterns:\n      - \"*.json\"\n      - x\n";
    let json = "{\n \"weights\": [\n  {\"source\": \"hf://o/r\",\n   \"mount_location\": \"/m\",\n   \"allow_patterns\": [\n    \"*.json\", \"\\u0078\"]}]}";
    let toml = "[[weights]]\nsource = 'hf://o/r'\nmount_location = \"/m\"\nallow_patterns = [\n  '*.json',\n  'x',\n]\n";
    let said: Vec<_> = [(Format::Yaml, yaml), (Format::Json, json), (Format::Toml, toml)]
        .into_iter()
        .map(|(format, text)| parse(format, text).expect(text))
        .collect();
    assert_eq!(said[0].value, said[1].value);
    assert_eq!(said[0].value, said[2].value);
    for (keys, lines) in [
        (&["weights", "0"][..], [3, 3, 1]),
        (&["weights", "0", "mount_location"], [4, 4, 3]),
        (&["weights", "0", "allow_patterns", "1"], [7, 6, 6]),
        (&["weights", "0", "missing", "deeper"], [3, 3, 1]),
        (&["nothing"], [2, 1, 1]),
    ] {
        assert_eq!([0, 1, 2].map(|i| line(&said[i], keys)), lines, "{keys:?}");
    }
}

#[test]
fn yaml_aliases_and_merge_keys_are_expanded() {
    let text = "base: &base\n  auth_secret_name: s\n  source: x\nweights:\n  - <<: *base\n    source: y\n  - *base\n  - {<<: [*base, {more: 1}]}\n";
    let document = parse(Format::Yaml, text).expect("YAML");
    let expected = serde_json::json!([
        {"auth_secret_name": "s", "source": "y"},
        {"auth_secret_name": "s", "source": "x"},
        {"auth_secret_name": "s", "source": "x", "more": 1},
    ]);
    assert_eq!(document.value["weights"], expected);
    assert_eq!(line(&document, &["weights", "0", "auth_secret_name"]), 5);
    assert_eq!(line(&document, &["weights", "1", "source"]), 7);
    let twice = parse(Format::Yaml, "a: 1\nb: 2\na: 3\n").expect("YAML");
    let twice_json = parse(Format::Json, "{\"a\": 1,\n\"b\": 2,\n\"a\": 3}").expect("JSON");
    for document in [twice, twice_json] {
        assert_eq!(document.value["a"], 3);
        assert_eq!(document.line(&document.findings.iter().next().expect("a warning").place), 3);
    }
}

/// The messages, word for word.
#[test]
fn invalid_configuration_is_refused_with_its_line() {
    let deep = "[".repeat(100) + &"]".repeat(100);
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x]\n");
    for i in 1..10 {
        let all = vec![format!("*a{}", i - 1); 8].join(", ");
        bomb.push_str(&format!("a{i}: &a{i} [{all}]\n"));
    }
    let too_deep = "lists or mappings nested more than 64 deep";
    for (format, text, line, message) in [
        (
            Format::Yaml,
            "a: 1\nallow_patterns: [*.json]\n",
            2,
            "invalid YAML: while parsing node, found unknown anchor; quote text that begins with '*' or '&'",
        ),
        (
            Format::Yaml,
            "a:\n- b: [\nx ]\n",
            3,
            "invalid YAML: invalid indentation; indent a list, mapping or text further than its key",
        ),
        (Format::Yaml, "a: 1\n---\nb: 2\n", 2, "a second document; only one is allowed"),
        (Format::Yaml, "a: b\n? [x]\n: y\n", 2, "a key that is not text; quote it"),
        (Format::Yaml, "a: b\n1: y\n", 2, "a key that is not text; quote it"),
        (
            Format::Yaml,
            "a: b\nyes: y\n",
            2,
            "ambiguous value \"yes\"; quote it if it is text, else write true, false or a decimal number",
        ),
        (
            Format::Yaml,
            "a: !!python/name x\n",
            1,
            "unsupported tag !!python/name; only !!str can be used, for text",
        ),
        (Format::Yaml, "a: !a%0Ab c\n", 1, "unsupported tag !a\\nb; only !!str can be used, for text"),
        (Format::Yaml, "a: !x {b: c}\n", 1, "unsupported tag !x; only !!str can be used, for text"),
        (Format::Yaml, "a: b\r\nc: \"\u{7}\"\n", 2, "control character U+0007; delete it"),
        (Format::Yaml, "a: b\0\nc: d", 1, "control character U+0000; delete it"),
        (Format::Yaml, "a: &a [*a]\n", 1, "an alias within the value that it repeats"),
        (Format::Yaml, "<<: 1\n", 1, "the merge key (<<) needs a mapping, or a list of them"),
        (Format::Yaml, &deep, 1, too_deep),
        (Format::Yaml, &bomb, 6, "aliases repeat more than 262144 values"),
        (Format::Json, "{\"a\":\n hush}", 2, "invalid JSON at column 2"),
        (Format::Json, "", 1, "invalid JSON at column 0"),
        (Format::Json, &deep, 1, too_deep),
        (
            Format::Toml,
            "a = 1\nb =\n",
            2,
            "invalid TOML: string values must be quoted, expected literal string",
        ),
    ] {
        let error = parse(format, text).expect_err(text);
        assert_eq!(error, ParseError::new(line, message), "{text}");
    }
}

/// Numbers as 0, as the vectors have them: no weights have any.
fn simple(value: &Value) -> Value {
    match value {
        Value::Number(_) => Value::from(0),
        Value::Array(items) => items.iter().map(simple).collect(),
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), simple(value))).collect(),
        other => other.clone(),
    }
}

#[test]
fn yaml_of_truss_has_the_recorded_value() {
    let vectors: Value = serde_json::from_str(include_str!("testdata/yaml.json")).expect("JSON");
    let cases = vectors["cases"].as_array().expect("cases");
    assert!(cases.len() > 700);
    let mut wrong = Vec::new();
    for case in cases {
        let text = case["text"].as_str().expect("a text");
        let verdict = case.get("here").unwrap_or(&case["verdict"]);
        match parse(Format::Yaml, text) {
            Ok(document) if verdict == "accept" => {
                // An empty document is an empty mapping; what Truss refuses has no recorded value.
                let expected = match case.get("here_value").unwrap_or(&case["value"]) {
                    _ if case["verdict"] == "reject" => continue,
                    Value::Null => &serde_json::json!({}),
                    value => value,
                };
                if simple(&document.value) != *expected {
                    wrong.push(format!("{text:?} is {}, not {expected}", document.value));
                }
            }
            Ok(document) => wrong.push(format!("{text:?} is accepted, as {}", document.value)),
            Err(_) if verdict == "reject" => {}
            Err(error) => wrong.push(format!("{text:?} is refused: {error}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
