//! The table of errnos: the one place where an error of the engine becomes a number.

use bdnfs::error::Kind;
use rustix::io::Errno;

/// The errno of a system call for which the engine fails with `kind`.
///
/// Never ESTALE nor EAGAIN, on which programs retry for ever; never EINTR, which is only right where the kernel itself asked
/// for an interruption; and never ENOSPC, which makes no sense to a reader.
pub(crate) fn from_kind(kind: Kind) -> Errno {
    match kind {
        Kind::Invalid => Errno::INVAL,
        Kind::NotFound => Errno::NOENT,
        Kind::Refused => Errno::ACCESS,
        Kind::Timeout => Errno::TIMEDOUT,
        // The pinned version is gone from the origin: no tier has the right bytes any more.
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
    fn errno_of_each_kind_is_that_of_the_table() {
        // Neither is an outcome of a read.
        assert_eq!((from_kind(Kind::NotFound), from_kind(Kind::Invalid)), (Errno::NOENT, Errno::INVAL));
        assert_eq!(from_kind(Kind::Refused), Errno::ACCESS);
        assert_eq!(from_kind(Kind::Timeout), Errno::TIMEDOUT);
        assert_eq!(from_kind(Kind::Corrupt), Errno::BADMSG);
        assert_eq!(from_kind(Kind::Changed), Errno::BADMSG);
        for kind in
            [Kind::Disk, Kind::Unavailable, Kind::NoSpace, Kind::Interrupted, Kind::Busy, Kind::Unsupported]
        {
            assert_eq!(from_kind(kind), Errno::IO);
        }
    }
}
