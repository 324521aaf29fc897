//! Notes: the requests of mounts as the fd store keeps them. One that does not fit into a message travels as a file in memory,
//! behind the descriptors of its mount, which every version of the fd store keeps and gives back as it keeps the mount's own.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, memfd_create};

/// The note of a mount whose request is in the last descriptor. No request looks like it.
const IN_MEMORY: &str = "\"in the last descriptor\"";
/// The longest note that is sent in a message, in bytes. There it is at most twice as long: JSON in JSON.
const MAX_NOTE_BYTES: usize = 30 << 10;

/// The note for `request`, and the file to send behind the descriptors, if there is one.
///
/// # Errors
/// Where the kernel has no memory for it.
pub fn pack(request: String) -> io::Result<(String, Option<OwnedFd>)> {
    if request.len() <= MAX_NOTE_BYTES {
        return Ok((request, None));
    }
    // The secrets in it get to no disk but by swapping, as those in memory.
    let mut file = File::from(memfd_create("bdnfs-request", MemfdFlags::CLOEXEC)?);
    file.write_all(request.as_bytes())?;
    Ok((IN_MEMORY.to_owned(), Some(file.into())))
}

/// The request that a stored note stands for. Takes its file off the `descriptors`, if it has one.
///
/// # Errors
/// Where the file is missing or can't be read.
pub fn unpack(note: String, descriptors: &mut Vec<OwnedFd>) -> io::Result<String> {
    if note != IN_MEMORY {
        return Ok(note);
    }
    let last = descriptors.pop().ok_or_else(|| io::Error::other("the request is missing"))?;
    let (mut file, mut request) = (File::from(last), String::new());
    // All who hold it share its position.
    file.seek(SeekFrom::Start(0))?;
    file.read_to_string(&mut request)?;
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_of_any_length_is_unpacked_as_it_was_packed() {
        for len in [0, 10, MAX_NOTE_BYTES, MAX_NOTE_BYTES + 1, 1 << 20] {
            let request = "\\".repeat(len);
            let (note, file) = pack(request.clone()).expect("packed");
            assert_eq!(file.is_some(), len > MAX_NOTE_BYTES);
            assert!(note.len() <= MAX_NOTE_BYTES);
            let own = File::open("/dev/null").expect("a descriptor");
            // It is given back for each agent that asks.
            for _ in 0..2 {
                let file = file.as_ref().map(|file| file.try_clone().expect("a descriptor"));
                let mut descriptors: Vec<_> =
                    [own.try_clone().expect("a descriptor").into()].into_iter().chain(file).collect();
                assert_eq!(unpack(note.clone(), &mut descriptors).expect("unpacked"), request);
                assert_eq!(descriptors.len(), 1);
            }
        }
        unpack(IN_MEMORY.to_owned(), &mut Vec::new()).expect_err("it is missing");
    }
}
