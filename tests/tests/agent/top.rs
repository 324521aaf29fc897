//! `bdnfs top`, as a person at a terminal has it, and as a script.

use std::os::unix::net::UnixListener;
use std::process::Stdio;

use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::wait_for_exit;
use bdnfs_tests::tools::{python, run};
use bdnfs_tests::tree::write_file;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Runs a command on a terminal of its own of 80 by 24, makes that narrower, and ends the command as the first argument says:
/// with a signal, or with a key. Says how it ended, and what it left of the terminal.
const TERMINAL: &str = r#"
import fcntl, os, pty, select, signal, struct, sys, termios
how, command = sys.argv[1], sys.argv[2:]
ready, go = os.pipe()
pid, terminal = pty.fork()
if pid == 0:
    os.read(ready, 1)
    os.execv(command[0], command)
def size(columns):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack('HHHH', 24, columns, 0, 0))
seen = b''
def read_until(enough):
    global seen
    while not enough(seen):
        if not select.select([terminal], [], [], 60)[0]:
            sys.exit(f'nothing more after {seen!r}')
        try:
            seen += os.read(terminal, 65536)
        except OSError:
            return
size(80)
before = termios.tcgetattr(terminal)
os.write(go, b'.')
read_until(lambda seen: b'q to quit\x1b[K' in seen and seen.endswith(b'\x1b[J'))
assert seen.startswith(b'\x1b[?1049h'), seen
seen = b''
size(30)
frames = lambda: seen.split(b'\x1b[H')
bare = lambda line: line.replace(b'\x1b[K', b'').replace(b'\x1b[J', b'').strip(b'\r')
widest = lambda frame: max(len(bare(line)) for line in frame.split(b'\n'))
read_until(lambda seen: seen.endswith(b'\x1b[J') and widest(frames()[-1]) <= 30)
if how in ('q', '\x04'):
    os.write(terminal, how.encode())
else:
    os.kill(pid, signal.Signals[how])
read_until(lambda seen: False)
assert seen.endswith(b'\x1b[?25h\x1b[?1049l'), seen
assert termios.tcgetattr(terminal) == before
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;

#[test]
fn top_in_terminal_follows_its_size_and_restores_it() {
    let machine = Machine::new();
    let agent = machine.agent("");
    let cache = machine.cache().to_str().expect("text").to_owned();
    let top = machine.command(&["top", "--interval", "0.1", "--cache-dir", &cache]);
    for how in ["q", "\x04", "SIGINT", "SIGTERM", "SIGHUP"] {
        let ended = run(python(TERMINAL).arg(how).arg(top.get_program()).args(top.get_args()));
        assert_eq!(ended.trim(), "0", "{how}");
    }
    agent.stop();
}

#[test]
fn top_as_json_ends_on_sigterm_while_an_agent_hangs() {
    let machine = Machine::new();
    let agent = UnixListener::bind(machine.socket()).unwrap();
    let mut top = machine.command(&["top", "--json", "--interval", "0.1"]);
    let mut top = top.stdout(Stdio::null()).spawn().unwrap();
    // Accepted and never answered: the second one is of the loop, which has caught the signal by then.
    let _held = [agent.accept().unwrap(), agent.accept().unwrap()];
    kill_process(Pid::from_child(&top), Signal::TERM).unwrap();
    assert!(wait_for_exit(&mut top, "bdnfs top").success());
}

#[test]
fn top_without_terminal_prints_lines() {
    let machine = Machine::new();
    let source = machine.directory("source");
    write_file(&source, "file", 70_000);
    let agent = machine.agent("");
    let point = machine.mount_with(&source, "mnt", &["--wait"]);
    let cache = machine.cache().to_str().expect("text").to_owned();
    let top = |more: &[&str]| {
        machine
            .run(&[&["top", "--once", "--interval", "0.1", "--cache-dir", &cache], more].concat())
            .succeeds()
    };
    let output: Value = serde_json::from_str(&top(&["--json"])).expect("one line of JSON");
    let shown = &output["daemons"][0];
    assert_eq!(shown["pid"], agent.pid().as_raw_nonzero().get());
    let mount = &shown["mounts"][0];
    assert_eq!(mount["mountpoint"], point.to_str().expect("text"));
    assert_eq!((&mount["bytes"], &mount["local"]), (&70_000.into(), &70_000.into()));
    assert_eq!(shown["work"]["traffic"]["origin"], 70_000);
    assert!(shown["rates"]["origin"].is_number() && mount["rates"]["cache"].is_number(), "{output}");
    let lines = top(&[]);
    assert!(lines.contains("(agent ") && lines.contains("100 %"), "{lines}");
    agent.stop();
}
