//! The id of the machine's present boot: what is recorded under it does not outlive it.

use std::fs;
use std::io;

/// The id that the kernel gave this boot, with the newline that it ends in (random(4)).
///
/// # Errors
/// The kernel's, where there is no /proc.
pub fn id() -> io::Result<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
}
