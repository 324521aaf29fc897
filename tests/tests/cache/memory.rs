//! The agent's memory while it fetches.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use bdnfs_tests::MIB;
use bdnfs_tests::process::peak_memory;
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::test_env::TestEnv;

/// `memory` in agent.toml, in MiB: fetches that wait for no other node, and half of it for those that may.
const MEMORY_MIB: u64 = 16;
/// Blocks that arrived a moment ago, and idle buffers, in MiB: at most 64 and 48, whatever `memory` is.
const RECENT_MIB: u64 = 64 + 48;
/// Connections, threads, and what the allocator does not give back, in MiB.
const OTHER_MIB: u64 = 32;
const FILES: usize = 16;
const FILE_BYTES: usize = 24 * MIB;

/// Reads the file at `path` with pauses, and returns how many of its pieces are those of `bytes`.
fn read_slowly(path: &Path, bytes: &[u8]) -> usize {
    let (file, mut piece) = (File::open(path).unwrap(), vec![0; MIB]);
    let pieces = bytes.chunks(MIB).enumerate().filter(|(index, expected)| {
        thread::sleep(Duration::from_millis(20));
        file.read_exact_at(&mut piece, (index * MIB) as u64).unwrap();
        piece == *expected
    });
    pieces.count()
}

#[test]
fn fetches_of_many_readers_and_a_stage_keep_to_the_agents_memory() {
    let env = TestEnv::new();
    let read: Vec<_> = (0..FILES).map(|number| env.put(&format!("read/{number}"), FILE_BYTES)).collect();
    (0..FILES).for_each(|number| drop(env.put(&format!("staged/{number}"), FILE_BYTES)));
    // A little latency, so that requests are long.
    env.proxy.set(NetworkFault { delay: Duration::from_millis(2), ..NetworkFault::default() });
    let agent = env.machine.agent(&format!("memory = \"{MEMORY_MIB}M\""));
    let staged = env.machine.mount("s3://bucket/staged", "staged");
    let point = env.machine.mount("s3://bucket/read", "read");
    let before = peak_memory(agent.pid()) >> 20;
    thread::scope(|scope| {
        let stage = scope.spawn(|| env.machine.run(&["wait".as_ref(), staged.as_os_str()]));
        let readers = read.iter().enumerate().map(|(number, bytes)| {
            let path = point.join(number.to_string());
            scope.spawn(move || read_slowly(&path, bytes))
        });
        for reader in readers.collect::<Vec<_>>() {
            assert_eq!(reader.join().unwrap(), FILE_BYTES / MIB, "pieces that are right");
        }
        stage.join().unwrap().succeeds();
    });
    let (peak, bound) =
        (peak_memory(agent.pid()) >> 20, before + MEMORY_MIB * 3 / 2 + RECENT_MIB + OTHER_MIB);
    assert!(peak <= bound, "{peak} MiB, of which {before} before; at most {bound} were to be used");
    agent.stop();
}
