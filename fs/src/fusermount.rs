//! The setuid helper of libfuse, by which users who are not root mount.

use std::ffi::OsStr;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use bdnfs::error::{Error, Kind, Result};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::device::Device;

/// The helper's name; libfuse 3 is what all distributions have.
const HELPER: &str = "fusermount3";

/// Mounts by the helper. It opens the device, mounts it, and sends its descriptor over the socket that
/// `_FUSE_COMMFD` names: here its standard input, which needs no descriptor to be left open for it.
pub(crate) fn mount(mountpoint: &Path, source: &str, allow_other: bool) -> Result<Device> {
    let failed = |e: io::Error| Error::disk("cannot talk to fusermount3", e);
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let mut command = helper();
    command.arg("-o").arg(options(source, allow_other)).arg("--").arg(mountpoint);
    command.env("_FUSE_COMMFD", "0").stdin(OwnedFd::from(theirs));
    let output = run(&mut command)?;
    // The command holds the other end: without it, nothing more can come.
    drop(command);
    if !output.status.success() {
        return Err(refusal(&format!("cannot mount at {}", mountpoint.display()), &output));
    }
    receive(&ours).map_err(failed)?.map(Device::from).ok_or_else(|| {
        Error::new(
            Kind::Unsupported,
            format!("{HELPER} mounted {} but did not send its device", mountpoint.display()),
        )
    })
}

/// Unmounts by the helper, with `flags`.
///
/// # Errors
/// [`Kind::Busy`] when the mount is in use.
pub(crate) fn unmount(mountpoint: &Path, flags: &[&str]) -> Result<()> {
    let mut command = helper();
    let output = run(command.args(flags).arg("--").arg(mountpoint).stdin(Stdio::null()))?;
    if output.status.success() {
        return Ok(());
    }
    let error = refusal(&format!("cannot unmount {}", mountpoint.display()), &output);
    // It tells only in words, and these are the kernel's (strerror of EBUSY).
    let busy = error.to_string().contains("busy");
    Err(if busy { Error::new(Kind::Busy, error.to_string()) } else { error })
}

/// The mount's options. The source may hold what separates them, with a backslash before it.
fn options(source: &str, allow_other: bool) -> String {
    let source = source.replace('\\', "\\\\").replace(',', "\\,");
    let other = if allow_other { ",allow_other" } else { "" };
    format!("ro,nosuid,nodev,default_permissions,subtype=bdnfs{other},fsname={source}")
}

/// The helper, which gets nothing of the environment but where programs are: secrets may be there.
fn helper() -> Command {
    let mut command = Command::new(HELPER);
    command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    command
}

/// Runs the helper to its end, in the language that its words are looked through in.
fn run(command: &mut Command) -> Result<Output> {
    command.env("LC_ALL", "C").stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().and_then(std::process::Child::wait_with_output).map_err(|e| {
        Error::with(
            Kind::Refused,
            format!("cannot mount: run as root (CAP_SYS_ADMIN), or install {HELPER} (package fuse3)"),
            e,
        )
    })
}

/// The helper's message, in one line.
fn refusal(what: &str, output: &Output) -> Error {
    let words = String::from_utf8_lossy(output.stderr.trim_ascii()).replace('\n', "; ");
    let program = OsStr::new(HELPER).display();
    Error::new(Kind::Refused, format!("{what}: {program} says: {words}"))
}

/// Receives a descriptor, if one was sent.
fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut data = [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(socket, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::os::fd::AsFd;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

    use super::*;

    #[test]
    fn options_source_with_separators_is_one_option() {
        let options = options("https://h/a,b\\c", true);
        assert!(options.ends_with("subtype=bdnfs,allow_other,fsname=https://h/a\\,b\\\\c"));
    }

    #[test]
    fn receive_descriptor_comes_over_the_socket() {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let descriptors = [ours.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        rustix::net::sendmsg(&theirs, &[IoSlice::new(b"\0")], &mut control, SendFlags::empty())
            .expect("sent");
        assert!(receive(&ours).expect("received").is_some());
        drop(theirs);
        assert!(receive(&ours).expect("closed").is_none());
    }
}
