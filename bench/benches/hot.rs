//! How long the functions take that every read passes: `cargo bench -p bdnfs-bench`. Instructions are steadier: `scripts/bench
//! --only hot`.

#![allow(missing_docs, reason = "criterion's macros make public functions")]

use criterion::{Criterion, criterion_group, criterion_main};

fn hot(criterion: &mut Criterion) {
    for (name, make) in hot::all() {
        match make() {
            Ok(mut work) => drop(criterion.bench_function(name, |bencher| bencher.iter(&mut work))),
            Err(error) => eprintln!("{name}: {error}"),
        }
    }
}

criterion_group!(benches, hot);
criterion_main!(benches);
