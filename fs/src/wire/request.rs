//! Requests: the kernel's bytes, decoded. Hostile bytes give `None`, never a panic.

use zerocopy::FromBytes;

use super::abi::{InHeader, InitIn, InterruptIn, OpenIn, ReadIn, ReleaseIn, XattrSize};
use super::flags::opcode;

/// A request: who asks about what.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    /// The number, by which it is answered.
    pub(crate) unique: u64,
    /// The node that it is about.
    pub(crate) node: u64,
    /// The operation; `None` when its body can't be understood.
    pub(crate) operation: Option<Operation<'a>>,
}

/// A decoded operation.
#[derive(Debug, PartialEq)]
pub(crate) enum Operation<'a> {
    /// The beginning: versions and capabilities.
    Init { major: u32, minor: u32, max_readahead: u32, flags: u64 },
    /// The node called `name` in a directory.
    Lookup { name: &'a [u8] },
    /// The kernel no longer knows some nodes. Not answered.
    Forget,
    /// A node's attributes.
    Getattr,
    /// The target of a symbolic link.
    Readlink,
    /// Open a file with the flags of `open(2)`.
    Open { flags: u32 },
    /// Bytes of a file.
    Read { fh: u64, offset: u64, size: u32 },
    /// The last use of an open file has ended.
    Release { fh: u64 },
    /// A directory's entries from `offset` on; with their attributes, if `plus`.
    Readdir { offset: u64, size: u32, plus: bool },
    /// The size of the file system.
    Statfs,
    /// An extended attribute; its size, if `size` is 0.
    Getxattr { name: &'a [u8], size: u32 },
    /// The names of the extended attributes; their size, if `size` is 0.
    Listxattr { size: u32 },
    /// Give up the request `unique`. Not answered.
    Interrupt { unique: u64 },
    /// The end.
    Destroy,
    /// Anything that would change the file system.
    Change,
    /// Anything else.
    Unknown,
}

impl<'a> Request<'a> {
    /// Decodes what one read of the device gave. `None`: not even a whole header, so no reply is possible.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (header, body) = InHeader::read_from_prefix(bytes).ok()?;
        if header.len as usize != bytes.len() {
            return None;
        }
        let operation = Operation::decode(header.opcode, body);
        Some(Self { unique: header.unique, node: header.node, operation })
    }
}

/// Decodes a request, for fuzzers. True if it can be answered.
#[cfg(feature = "fuzz")]
pub fn decode_request(bytes: &[u8]) -> bool {
    Request::decode(bytes).is_some()
}

impl<'a> Operation<'a> {
    /// Decodes the body of the request `code`.
    fn decode(code: u32, body: &'a [u8]) -> Option<Self> {
        Some(match code {
            opcode::INIT => init(body)?,
            opcode::LOOKUP => Self::Lookup { name: name(body)? },
            opcode::FORGET | opcode::BATCH_FORGET => Self::Forget,
            opcode::GETATTR => Self::Getattr,
            opcode::READLINK => Self::Readlink,
            opcode::OPEN => Self::Open { flags: OpenIn::read_from_prefix(body).ok()?.0.flags },
            opcode::READ => {
                let ReadIn { fh, offset, size, .. } = ReadIn::read_from_prefix(body).ok()?.0;
                Self::Read { fh, offset, size }
            }
            opcode::RELEASE => Self::Release { fh: ReleaseIn::read_from_prefix(body).ok()?.0.fh },
            opcode::READDIR | opcode::READDIRPLUS => {
                let ReadIn { offset, size, .. } = ReadIn::read_from_prefix(body).ok()?.0;
                Self::Readdir { offset, size, plus: code == opcode::READDIRPLUS }
            }
            opcode::STATFS => Self::Statfs,
            opcode::GETXATTR => {
                let (head, rest) = XattrSize::read_from_prefix(body).ok()?;
                Self::Getxattr { name: name(rest)?, size: head.size }
            }
            opcode::LISTXATTR => Self::Listxattr { size: XattrSize::read_from_prefix(body).ok()?.0.size },
            opcode::INTERRUPT => {
                Self::Interrupt { unique: InterruptIn::read_from_prefix(body).ok()?.0.unique }
            }
            opcode::DESTROY => Self::Destroy,
            opcode::SETATTR
            | opcode::SYMLINK
            | opcode::MKNOD
            | opcode::MKDIR
            | opcode::UNLINK
            | opcode::RMDIR
            | opcode::RENAME
            | opcode::LINK
            | opcode::WRITE
            | opcode::SETXATTR
            | opcode::REMOVEXATTR
            | opcode::CREATE
            | opcode::FALLOCATE
            | opcode::RENAME2
            | opcode::COPY_FILE_RANGE
            | opcode::TMPFILE => Self::Change,
            _ => Self::Unknown,
        })
    }
}

/// INIT, whose upper flags come only with the flag that says so.
fn init(body: &[u8]) -> Option<Operation<'_>> {
    let (head, rest) = InitIn::read_from_prefix(body).ok()?;
    let upper = match u64::from(head.flags) & super::flags::init::EXT {
        0 => 0,
        _ => u32::read_from_prefix(rest).ok()?.0,
    };
    let flags = u64::from(upper) << 32 | u64::from(head.flags);
    let InitIn { major, minor, max_readahead, .. } = head;
    Some(Operation::Init { major, minor, max_readahead, flags })
}

/// A name that ends with a zero byte.
fn name(body: &[u8]) -> Option<&[u8]> {
    let end = body.iter().position(|byte| *byte == 0)?;
    Some(&body[..end])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
        let len = (size_of::<InHeader>() + body.len()) as u32;
        let header = InHeader { len, opcode, unique: 8, node: 1, _unused: [0; 4] };
        [header.as_bytes(), body].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Operation<'_>> {
        Request::decode(bytes).and_then(|request| request.operation)
    }

    #[test]
    fn request_names_end_at_their_zero_byte() {
        let lookup = request(opcode::LOOKUP, b"a\n\xff\0");
        assert_eq!(decode(&lookup), Some(Operation::Lookup { name: b"a\n\xff" }));
        assert_eq!(decode(&request(opcode::LOOKUP, b"endless")), None);
        let getxattr = request(opcode::GETXATTR, b"\x10\0\0\0\0\0\0\0user.x\0");
        assert_eq!(decode(&getxattr), Some(Operation::Getxattr { name: b"user.x", size: 16 }));
    }

    #[test]
    fn upper_init_flags_count_only_when_announced() {
        let mut body = vec![0_u8; 20];
        body[0] = 7;
        body[16] = 1 << 5;
        let plain = request(opcode::INIT, &body);
        body[15] = 1 << 6;
        let extended = request(opcode::INIT, &body);
        assert!(matches!(decode(&plain), Some(Operation::Init { major: 7, flags: 0, .. })));
        let flags = super::super::flags::init::EXT | super::super::flags::init::PASSTHROUGH;
        assert!(matches!(decode(&extended), Some(Operation::Init { flags: f, .. }) if f == flags));
        assert_eq!(decode(&extended[..extended.len() - 1]), None);
    }

    proptest! {
        #[test]
        fn request_of_hostile_bytes_never_panics(
            code in 0_u32..60,
            body in proptest::collection::vec(any::<u8>(), 0..100),
            cut in 0_usize..140,
        ) {
            let bytes = request(code, &body);
            let _ = Request::decode(&bytes);
            prop_assert!(cut >= bytes.len() || Request::decode(&bytes[..cut]).is_none());
            let _ = Request::decode(&body);
        }
    }
}
