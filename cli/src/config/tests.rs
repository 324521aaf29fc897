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
        (Format::Yaml, "a: b\n? [x]\n: y\n", 2, "has something else than a text for a key"),
        (Format::Yaml, "a: !!python/name x\n", 1, "has a tag that is not known"),
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
