//! The errno of each kind of error: the one place where an error becomes a number.

use bdnfs::error::Kind;
use rustix::io::Errno;

/// What a system call answers when the engine fails with `kind` (DESIGN.md, section 6).
///
/// Never ESTALE nor EAGAIN, which callers take for an invitation to try for ever; never EINTR, which is only
/// right where the kernel itself asked for an interruption; and no ENOSPC, which makes no sense to somebody
/// who reads.
pub(crate) fn of(kind: Kind) -> Errno {
    match kind {
        Kind::Invalid => Errno::INVAL,
        Kind::NotFound => Errno::NOENT,
        Kind::Refused => Errno::ACCESS,
        Kind::Timeout => Errno::TIMEDOUT,
        // The pinned version is gone from the origin: nobody has the right bytes any more.
        Kind::Changed | Kind::Corrupt => Errno::BADMSG,
        Kind::Unavailable
        | Kind::Disk
        | Kind::NoSpace
        | Kind::Busy
        | Kind::Interrupted
        | Kind::Unsupported => Errno::IO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_that_of_the_design() {
        assert_eq!(of(Kind::Refused), Errno::ACCESS);
        assert_eq!(of(Kind::Timeout), Errno::TIMEDOUT);
        assert_eq!(of(Kind::Corrupt), Errno::BADMSG);
        assert_eq!(of(Kind::Changed), Errno::BADMSG);
        for kind in
            [Kind::Disk, Kind::Unavailable, Kind::NoSpace, Kind::Interrupted, Kind::Busy, Kind::Unsupported]
        {
            assert_eq!(of(kind), Errno::IO);
        }
    }
}
