//! What `crossbeam` would change where threads hand work to each other or count beside each other: `cargo bench -p bdnfs-bench
//! --bench threads`. The figures stand in docs/decisions/crossbeam.md.

#![allow(missing_docs, reason = "criterion's macros make public functions")]

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use crossbeam::queue::ArrayQueue;
use crossbeam::utils::CachePadded;
use parking_lot::Mutex;

/// How many threads work beside each other: one less would never meet on a cache line.
const THREADS: u64 = 2;
/// As many as `src/cache/commit.rs` lets wait.
const COMMIT_QUEUE_LEN: usize = 512;
/// As many buffers as `src/buffer.rs` keeps at the most.
const IDLE_BUFFERS: usize = 48;

/// How long `THREADS` threads take that each do `work` so many times.
fn together(times: u64, work: impl Fn(u64) + Sync) -> Duration {
    let begin = Instant::now();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let work = &work;
            scope.spawn(move || (0..times).for_each(|_| work(thread)));
        }
    });
    begin.elapsed()
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// Three counters a request, as a reply to a read adds to: its operation's bucket, their sum, the trace's number.
fn counters(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("three counters");
    group.throughput(Throughput::Elements(THREADS));
    let plain: [AtomicU64; 3] = Default::default();
    group.bench_function("side by side", |bencher| {
        bencher.iter_custom(|times| together(times, |_| plain.iter().for_each(count)));
    });
    let padded: [CachePadded<AtomicU64>; 3] = Default::default();
    group.bench_function("CachePadded", |bencher| {
        bencher.iter_custom(|times| together(times, |_| padded.iter().for_each(|n| count(n))));
    });
    group.finish();
}

/// Two senders and one receiver that takes all there is, as blobs go to their commit.
fn channels(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("a blob to its commit");
    group.throughput(Throughput::Elements(THREADS));
    group.bench_function("std::sync::mpsc", |bencher| {
        bencher.iter_custom(|times| {
            let (queue, requests) = std::sync::mpsc::sync_channel(COMMIT_QUEUE_LEN);
            let receiver = thread::spawn(move || {
                while let Ok(first) = requests.recv() {
                    black_box((first, requests.try_iter().take(COMMIT_QUEUE_LEN - 1).count()));
                }
            });
            let took = together(times, |thread| queue.send(thread).expect("somebody receives"));
            drop(queue);
            receiver.join().expect("the receiver ends");
            took
        });
    });
    group.bench_function("crossbeam::channel", |bencher| {
        bencher.iter_custom(|times| {
            let (queue, requests) = crossbeam::channel::bounded(COMMIT_QUEUE_LEN);
            let receiver = thread::spawn(move || {
                while let Ok(first) = requests.recv() {
                    black_box((first, requests.try_iter().take(COMMIT_QUEUE_LEN - 1).count()));
                }
            });
            let took = together(times, |thread| queue.send(thread).expect("somebody receives"));
            drop(queue);
            receiver.join().expect("the receiver ends");
            took
        });
    });
    group.finish();
}

/// A block's buffer taken out of the pool, written and returned.
fn pools(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("a buffer taken, filled, returned");
    group.throughput(Throughput::Bytes(THREADS << 20));
    let fresh = || (0..IDLE_BUFFERS).map(|_| vec![0_u8; 1 << 20]);
    let stack = Mutex::new(fresh().collect::<Vec<_>>());
    group.bench_function("stack behind parking_lot", |bencher| {
        bencher.iter_custom(|times| {
            together(times, |thread| {
                let taken = stack.lock().pop();
                let mut buffer = taken.expect("fewer are in use than there are");
                buffer.fill(thread as u8);
                stack.lock().push(black_box(buffer));
            })
        });
    });
    let queue = ArrayQueue::new(IDLE_BUFFERS);
    fresh().for_each(|buffer| assert!(queue.push(buffer).is_ok()));
    group.bench_function("ArrayQueue", |bencher| {
        bencher.iter_custom(|times| {
            together(times, |thread| {
                let mut buffer = queue.pop().expect("fewer are in use than there are");
                buffer.fill(thread as u8);
                assert!(queue.push(black_box(buffer)).is_ok());
            })
        });
    });
    group.finish();
}

criterion_group!(benches, counters, channels, pools);
criterion_main!(benches);
