//! Listings: what they take, refuse and rename; and how much of it fits into memory.

use super::*;

#[test]
fn listing_with_bad_names_is_refused_with_all_of_them() {
    let mut bad =
        listing(&[], &["ok", "a//b", "/abs", "x/../y", "nul\0", "twice", "twice", "both", "both/in"]);
    bad.file(file("huge", 1 << 63));
    bad.symlink(b"link", b"", (0, 0));
    bad.directory(b"d/", (0, 0));
    bad.directory(b"ok", (0, 0));
    bad.file(ListedFile { path: b"\xff\n/./x", ..file("", 1) });
    let error = finish(bad).expect_err("bad");
    assert_eq!(error.kind(), Kind::Invalid);
    let text = error.to_string();
    for named in [
        r#""a//b""#,
        r#""/abs""#,
        r#""x/../y""#,
        r#""nul\0""#,
        r#""twice""#,
        r#""both""#,
        r#""huge""#,
        r#""link""#,
        r#""d/""#,
        r#""ok""#,
        r#""\xff\n/./x""#,
    ] {
        assert!(text.contains(named), "{named} in {text}");
    }
}

#[test]
fn listing_with_many_bad_names_reports_each_and_quotes_the_first() {
    let listed = Arc::new(Mutex::new(Vec::new()));
    let callback = listed.clone();
    let mut many = listing(&[], &[]);
    many.on_rejected(move |path, why| {
        callback.lock().push((String::from_utf8_lossy(path).into_owned(), why.to_owned()));
    });
    (0..10_000).for_each(|i| many.file(file(&format!("{i}/."), 5)));
    let error = finish(many).expect_err("bad").to_string();
    assert!(error.contains(r#""999/.": a part is '.' or '..'; "1000/.""#), "{error}");
    let more = error.rsplit_once("; and ").expect("more").1;
    let told_at_once = error.matches("a part is").count();
    assert_eq!(more, format!("{} more: `bdnfs ls` prints all of them", 10_000 - told_at_once));
    assert!((60 << 10..70 << 10).contains(&error.len()), "{}", error.len());
    let listed = listed.lock();
    assert_eq!((listed.len(), &listed[9_999].0[..]), (10_000, "9999/."));
}

#[test]
fn listing_larger_than_memory_is_sorted_on_disk() {
    let paths = |spilled: bool| {
        let mut listing = listing(&[], &[]);
        listing.escape();
        if spilled {
            listing.limit_memory(2_000);
        }
        // Every path of three directories each, and each directory also as a file; far apart from each other.
        for i in 0..3_000u32 {
            let at = i * 1_571 % 3_000;
            listing.file(file(&format!("{}/{}/f{at}", at % 7, at % 11), u64::from(at % 3)));
            listing.check_spill().expect("room");
        }
        for i in 0..77 {
            listing.file(file(&format!("{}/{}", i % 7, i % 11), 1));
        }
        let manifest = finish(listing).expect("good");
        let paths: Vec<_> = walk(&manifest).expect("good").into_keys().collect();
        (manifest.digest(), paths)
    };
    let (all, spilled) = (paths(false), paths(true));
    assert_eq!(all.1.len(), 3_000 + 77 + 77 + 7);
    assert!(all.1.contains(&b"3/%35".to_vec()), "a file beside the directory 3/5");
    assert_eq!(all, spilled);
}

#[test]
#[ignore = "takes minutes and 4 GB of disk"]
fn listing_of_ten_million_files_takes_little_memory() {
    let mut listing = listing(&[], &[]);
    for i in 0..10_000_000u64 {
        // Each thousand in a directory of its own, and those in no order.
        let shard = i / 1000 * 7_919 % 10_000;
        let (path, version) = (format!("train/shard-{shard:05}/image-{i:08}.jpg"), format!("\"{i:032x}\""));
        listing.file(ListedFile { version: version.as_bytes(), ..file(&path, i) });
    }
    let mut out = tempfile::tempfile().expect("a file");
    listing.finish(&mut std::io::BufWriter::new(&mut out)).expect("good");
    let kib = |what| {
        let status = std::fs::read_to_string("/proc/self/status").expect("status");
        let kib = status.lines().find_map(|line| line.strip_prefix(what)).expect("a line of it");
        kib.trim().trim_end_matches(" kB").parse::<u64>().expect("kB")
    };
    let peak = kib("VmHWM:");
    assert!(peak < 128 << 10, "{peak} KiB");
    let (heap, begun) = (kib("RssAnon:"), std::time::Instant::now());
    let manifest = Manifest::open(&out).expect("good");
    let took = begun.elapsed();
    assert_eq!((manifest.entries(), manifest.files()), (10_010_002, 10_000_000));
    let last = manifest.entries() - 1;
    assert_eq!(manifest.path(last).expect("good"), b"train/shard-09999/image-02321999.jpg");
    let (grown, len) = (kib("RssAnon:").saturating_sub(heap), out.metadata().expect("its size").len());
    println!(
        "a manifest of {len} bytes was opened in {took:?}; the heap grew by {grown} KiB, its peak was {peak} KiB"
    );
    assert!(grown < 1 << 10, "opening takes {grown} KiB of heap");
}

#[test]
fn listing_without_scratch_space_is_an_error() {
    let mut listing = Listing::new(ORIGIN, Patterns::default(), Path::new("/proc/no-such-directory"));
    listing.limit_memory(100);
    (0..9).for_each(|i| listing.file(file(&format!("f{i}"), 5)));
    let error = listing.check_spill().and_then(|()| finish(listing).map(drop)).expect_err("no room");
    assert_eq!(error.kind(), Kind::Disk);
    let text = "the listing is too long for memory, and cannot be kept in /proc/no-such-directory: ";
    assert!(error.to_string().contains(text), "{error}");
}

#[test]
fn listing_with_patterns_takes_only_what_they_select() {
    let mut some = listing(&["*.json", "typo/"], &["a/x.json", "b/y.bin", "bad//name"]);
    some.directory(b"a", (50, 0));
    some.directory(b"b", (0, 0));
    some.directory(b"bad//name", (0, 0));
    some.symlink(b"c/l.json", b"../a", (60, 0));
    assert_eq!(some.notes().unmatched, ["typo/"]);
    let manifest = finish(some).expect("good");
    let paths: Vec<_> = walk(&manifest).expect("good").into_keys().collect();
    assert_eq!(paths, [&b"a"[..], b"a/x.json", b"c", b"c/l.json"]);
    // A directory that was listed has its own time, others that of the newest entry below them.
    let times: Vec<_> = (0..3).map(|i| manifest.entry(i).expect("good").mtime.0).collect();
    assert_eq!(times, [60, 50, 60]);

    let mut empty = listing(&[], &[]);
    empty.directory(b"d", (0, 0));
    assert_eq!(finish(empty).expect_err("empty").to_string(), "s3://bucket/models holds no file");
    let error = finish(listing(&["*.x", "y/"], &["a", "b"])).expect_err("nothing");
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(error.to_string().contains(r#"none of the 2 files"#), "{error}");
    assert!(error.to_string().contains(r#"(allow "*.x", "y/")"#), "{error}");
}

#[test]
fn listing_with_escape_encodes_bad_names() {
    let mut listing = Listing::new(ORIGIN, Patterns::default(), &std::env::temp_dir());
    listing.escape();
    let long = "x".repeat(300);
    for path in ["a", "a/b", "a//b", "../x", "n\0", "100%", &long] {
        listing.file(file(path, 5));
    }
    listing.directory(b"a", (1, 2));
    let manifest = finish(listing).expect("all of them");
    let paths: BTreeSet<_> = (1..manifest.entries())
        .filter(|i| matches!(manifest.entry(*i).expect("entry").node, Node::File(_)))
        .map(|i| String::from_utf8(manifest.path(i).expect("path")).expect("UTF-8"))
        .collect();
    let long = format!("{}%/{}", "x".repeat(254), "x".repeat(46));
    let expected = ["%61", "a/b", "a/%2Fb", "%2E%2E/x", "n%00", "100%25", &long].map(str::to_owned);
    assert_eq!(paths, expected.into());
}
