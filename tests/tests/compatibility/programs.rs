//! Programs that read a mount: python, safetensors, git, fio, coreutils, tar, rsync.

use std::fs;
use std::path::Path;

use bdnfs_tests::MIB;
use bdnfs_tests::test_env::{TestEnv, machine_with_tree};
use bdnfs_tests::tools::{program, python, run};
use bdnfs_tests::tree::{assert_same, assert_same_tree, write_file, write_odd_tree, write_tree};

/// Sixteen processes inherit one descriptor and read a range each; the parent holds them against the original.
const SIXTEEN_PROCESSES: &str = "
import hashlib, os, sys
original, mounted = open(sys.argv[1], 'rb').read(), os.open(sys.argv[2], os.O_RDONLY)
step = len(original) // 16
children = []
for i in range(16):
    pid = os.fork()
    if pid == 0:
        done = b''
        while len(done) < step:
            done += os.pread(mounted, min(300_000, step - len(done)), i * step + len(done))
        os._exit(0 if done == original[i * step:(i + 1) * step] else 1)
    children.append(pid)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
";

#[test]
fn read_by_sixteen_processes_of_one_descriptor_is_right() {
    let (env, _, path) = TestEnv::mount_cold(32 * MIB);
    run(python(SIXTEEN_PROCESSES).arg(env.bucket().join("weights.bin")).arg(path));
}

const MAPPED_BY_PYTHON: &str = "
import mmap, sys, numpy
original = open(sys.argv[1], 'rb').read()
with open(sys.argv[2], 'rb') as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
    assert mapped[5_000_000:5_100_000] == original[5_000_000:5_100_000]
    assert mapped[:] == original
array = numpy.memmap(sys.argv[2], dtype=numpy.uint8, mode='r')
assert (array == numpy.frombuffer(original, dtype=numpy.uint8)).all()
";

#[test]
fn python_mmap_of_cold_file_is_right() {
    let (env, _, path) = TestEnv::mount_cold(20 * MIB + 1);
    run(python(MAPPED_BY_PYTHON).arg(env.bucket().join("weights.bin")).arg(path));
}

const SAVE: &str = "
import sys, numpy
from safetensors.numpy import save_file
rng = numpy.random.default_rng(7)
save_file({f'layer.{i}.weight': rng.standard_normal((256, 1024 + i), dtype=numpy.float32) for i in range(12)}, sys.argv[1])
";

const LOAD: &str = "
import sys, numpy
from safetensors import safe_open
with safe_open(sys.argv[1], framework='np') as expected, safe_open(sys.argv[2], framework='np') as found:
    assert sorted(expected.keys()) == sorted(found.keys()) and len(found.keys()) == 12
    for key in reversed(sorted(expected.keys())):
        assert (found.get_slice(key)[100:101] == expected.get_slice(key)[100:101]).all()
        assert (found.get_tensor(key) == expected.get_tensor(key)).all()
";

#[test]
fn safetensors_of_cold_model_loads_all_tensors() {
    let env = TestEnv::new();
    let original = env.bucket().join("model.safetensors");
    run(python(SAVE).arg(&original));
    let point = env.machine.mount("s3://bucket", "mnt");
    run(python(LOAD).arg(&original).arg(point.join("model.safetensors")));
}

#[test]
fn coreutils_tar_and_rsync_of_mount_equal_original() {
    let (machine, source) = machine_with_tree();
    write_odd_tree(&source);
    write_file(&source, "large", 20 * MIB);
    let sums = "find . -type f -print0 | sort -z | xargs -0 sha256sum -z";
    let expected = run(program("sh").arg("-c").arg(sums).current_dir(&source));
    let point = machine.mount(&source, "mnt");
    assert_eq!(run(program("sh").arg("-c").arg(sums).current_dir(&point)), expected);

    let find = ["-printf", "%P %y %s %l\\n"];
    let listing = |root: &Path| {
        // A directory's own size is the file system's affair.
        let text = run(program("find").arg(root).args(["-mindepth", "1", "!", "-type", "d"]).args(find));
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(listing(&point), listing(&source));

    let (copied, packed, synced) =
        (machine.directory("cp"), machine.directory("tar"), machine.directory("rsync"));
    run(program("cp").arg("-r").arg(point.join(".")).arg(&copied));
    assert_same_tree(&source, &copied);
    let pipe = "tar -C \"$1\" -cf - . | tar -C \"$2\" -xf -";
    run(program("bash").args(["-o", "pipefail", "-c", pipe, "pipe"]).arg(&point).arg(&packed));
    assert_same_tree(&source, &packed);
    run(program("rsync").arg("-rl").arg(point.join("")).arg(&synced));
    assert_same_tree(&source, &synced);
    let differing = run(program("rsync").args(["-rlcni"]).arg(source.join("")).arg(point.join("")));
    assert!(!differing.lines().any(|line| line.contains("fc")), "{differing}");
}

#[test]
fn sha256sum_of_cold_tree_succeeds() {
    let env = TestEnv::new();
    write_tree(&env.bucket());
    let sums = env.machine.directory("sums").join("SHA256SUMS");
    let list =
        run(program("sh").args(["-c", "find . -type f -exec sha256sum {} +"]).current_dir(env.bucket()));
    fs::write(&sums, list).unwrap();
    let point = env.machine.mount("s3://bucket", "mnt");
    run(program("sha256sum").args(["--quiet", "--strict", "-c"]).arg(sums).current_dir(point));
}

#[test]
fn git_fsck_of_mounted_repository_succeeds() {
    let env = TestEnv::new();
    let work = env.machine.directory("work");
    write_tree(&work);
    let git = |directory: &Path| {
        let mut git = program("git");
        let me = ["-c", "user.name=kit", "-c", "user.email=kit@localhost", "-c", "safe.directory=*"];
        git.args(me).env("HOME", directory).arg("-C").arg(directory);
        git
    };
    run(git(&work).args(["init", "-q", "-b", "main"]));
    for number in 0..3 {
        fs::write(work.join("number"), number.to_string()).unwrap();
        run(git(&work).args(["add", "-A"]));
        run(git(&work).args(["commit", "-q", "-m", "one more"]));
    }
    // A marker, since object storage has no empty directories and git looks for `refs` and `objects`.
    run(git(&work).args(["clone", "-q", "--bare", "."]).arg(env.bucket().join("repository.git")));
    write_file(&env.bucket(), "repository.git/refs/heads/.keep", 0);
    write_file(&env.bucket(), "repository.git/objects/info/.keep", 0);
    let point = env.machine.mount("s3://bucket", "mnt").join("repository.git");
    run(git(&point).args(["fsck", "--full", "--strict"]));
    assert_eq!(run(git(&point).args(["rev-list", "--count", "main"])).trim(), "3");
    let clone = env.machine.directory("clone");
    run(git(&clone).args(["clone", "-q"]).arg(&point).arg("again"));
    assert_eq!(fs::read_to_string(clone.join("again/number")).unwrap(), "2");
}

#[test]
fn fio_with_every_engine_reads() {
    let (env, bytes, path) = TestEnv::mount_cold(32 * MIB);
    for (engine, jobs, size) in
        [("psync", 16, "4k"), ("io_uring", 4, "64k"), ("mmap", 2, "1M"), ("psync", 1, "1M")]
    {
        for pattern in ["read", "randread"] {
            let mut fio = program("fio");
            fio.args([
                "--readonly",
                "--name=job",
                "--thread",
                "--io_size=8M",
                "--size=32M",
                "--output-format=terse",
            ]);
            fio.args([format!("--ioengine={engine}"), format!("--numjobs={jobs}"), format!("--bs={size}")]);
            run(fio.arg(format!("--rw={pattern}")).arg(format!("--filename={}", path.display())));
        }
    }
    assert_same(&bytes, &fs::read(&path).unwrap(), "the file after all that");
    drop(env);
}

#[test]
fn fio_verify_of_mounted_file_succeeds() {
    let env = TestEnv::new();
    let job = |directory: &Path| {
        let mut fio = program("fio");
        fio.args([
            "--name=job",
            "--size=16M",
            "--bs=64k",
            "--rw=write",
            "--verify=crc32c",
            "--output-format=terse",
        ]);
        fio.arg(format!("--filename={}", directory.join("data").display()));
        fio.current_dir(env.machine.directory("fio"));
        fio
    };
    run(job(&env.bucket()).args(["--rw=write", "--do_verify=0"]));
    let point = env.machine.mount("s3://bucket", "mnt");
    for engine in ["io_uring", "psync", "mmap"] {
        run(job(&point).args(["--rw=randread", "--readonly"]).arg(format!("--ioengine={engine}")));
    }
}
