use super::*;

fn line(document: &Document, keys: &[&str]) -> usize {
    let place = keys.iter().fold(Place::default(), |place, key| match key.parse() {
        Ok(index) => place.index(index),
        Err(_) => place.key(key),
    });
    document.line(&place)
}

#[test]
fn each_format_says_the_same_and_knows_its_lines() {
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
fn yaml_repeats_and_merges() {
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

/// What is said of texts that are no documents, word for word.
#[test]
fn what_is_broken_is_told_with_its_line() {
    let deep = "[".repeat(100) + &"]".repeat(100);
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x]\n");
    for i in 1..10 {
        let all = vec![format!("*a{}", i - 1); 8].join(", ");
        bomb.push_str(&format!("a{i}: &a{i} [{all}]\n"));
    }
    for (format, text, line, what) in [
        (
            Format::Yaml,
            "a: 1\nallow_patterns: [*.json]\n",
            2,
            "is no YAML: while parsing node, found unknown anchor; a text that begins with '*' or '&' has to be quoted",
        ),
        (Format::Yaml, "a: 1\n---\nb: 2\n", 2, "begins a second document; only one is read"),
        (
            Format::Yaml,
            "a: b\n? [x]\n: y\n",
            2,
            "has something else than a text for a key; quote what is meant as one",
        ),
        (
            Format::Yaml,
            "a: b\nyes: y\n",
            2,
            "has something else than a text for a key; quote what is meant as one",
        ),
        (Format::Yaml, "a: !!python/name x\n", 1, "has a tag that is not known, or not for such a value"),
        (Format::Yaml, "a: !!seq {b: c}\n", 1, "has a tag that is not known, or not for such a value"),
        (Format::Yaml, "a:\n  - =\n", 2, "has \"=\" by itself, which is no text; quote it"),
        (Format::Yaml, "a: b\nc: \td\n", 2, "has a tab outside of quotes; write spaces"),
        (
            Format::Yaml,
            "a:\n  - 2024-13-45\n",
            2,
            "has \"2024-13-45\", which looks like a number or time and is none; quote it",
        ),
        (Format::Yaml, "a: [\n\"b\"\t,\n]\n", 2, "has a tab outside of quotes; write spaces"),
        (Format::Yaml, "a: b\n\t# c\n", 2, "has a tab outside of quotes; write spaces"),
        (Format::Yaml, "a: \"\n\u{7}\"\n", 2, "holds the character U+0007, which YAML doesn't take"),
        (
            Format::Yaml,
            "a: b\u{2028}\n",
            1,
            "holds U+2028, a line break that editors don't show as one; replace it",
        ),
        (Format::Yaml, "a: b\n\u{feff}# c\n", 2, "has a byte order mark (U+FEFF) in its midst; delete it"),
        (
            Format::Yaml,
            "a: b\nc: [model-?.bin]\n",
            2,
            "has a text with a '?', or with '|', '>' or ':' at its beginning, within brackets or braces; quote it",
        ),
        (Format::Yaml, "a: &x b\n# &x\nc: &x d\n", 3, "has the anchor &x twice"),
        (
            Format::Yaml,
            "a: &é b\n",
            1,
            "has an anchor (&) whose name is not of letters, digits, '-' and '_'; a text that begins with '&' has to be quoted",
        ),
        (Format::Yaml, "a: [!!str]\n", 1, "has a tag (!) that no space follows"),
        (Format::Yaml, "%YAML 2.0\n---\na: b\n", 1, "is not of version 1 of YAML"),
        (
            Format::Yaml,
            "%Y.1\n---\na: b\n",
            1,
            "has a directive (%) whose name is not of letters, digits, '-' and '_'",
        ),
        (Format::Yaml, "a: &a [*a]\n", 1, "repeats what is not finished yet"),
        (Format::Yaml, "<<: 1\n", 1, "merges (<<) something else than a mapping"),
        (Format::Yaml, &deep, 1, "has lists or mappings more than 64 deep in each other"),
        (Format::Yaml, &bomb, 6, "repeats more than 262144 values"),
        (Format::Json, "{\"a\":\n hush}", 2, "is no JSON at column 2"),
        (Format::Json, "", 1, "is no JSON at column 0"),
        (Format::Json, &deep, 1, "has lists or mappings more than 64 deep in each other"),
        (
            Format::Toml,
            "a = 1\nb =\n",
            2,
            "is no TOML: string values must be quoted, expected literal string",
        ),
    ] {
        let broken = parse(format, text).expect_err(text);
        assert_eq!(broken, Broken { line, what: what.to_owned() }, "{text}");
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
fn yaml_is_what_truss_takes_it_for() {
    let vectors: Value = serde_json::from_str(include_str!("testdata/yaml.json")).expect("JSON");
    let cases = vectors["cases"].as_array().expect("cases");
    assert!(cases.len() > 700);
    let mut wrong = Vec::new();
    for case in cases {
        let text = case["text"].as_str().expect("a text");
        let verdict = case.get("here").unwrap_or(&case["verdict"]);
        // A document of nothing is an empty mapping.
        let empty = case["value"].is_null().then(|| serde_json::json!({}));
        match parse(Format::Yaml, text) {
            Ok(document) if verdict == "accept" => {
                if simple(&document.value) != empty.unwrap_or_else(|| case["value"].clone()) {
                    wrong.push(format!("{text:?} is {}, not {}", document.value, case["value"]));
                }
            }
            Ok(document) => wrong.push(format!("{text:?} is taken, for {}", document.value)),
            Err(_) if verdict == "reject" => {}
            Err(broken) => wrong.push(format!("{text:?} is refused: {}", broken.what)),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
