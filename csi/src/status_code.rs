//! Maps agent failures to gRPC status codes for the kubelet.
//!
//! After `ABORTED`, `UNAVAILABLE`, `RESOURCE_EXHAUSTED` and `DEADLINE_EXCEEDED` it doesn't know whether a volume is there, and
//! will unpublish it. After any other code it removes the directory and never calls again, so there must be nothing left.

use bdnfs::error::Kind;
use bdnfs_agent::api::Failure;
use bdnfs_agent::api::client::ClientError;
use tonic::{Code, Status};

/// The longest message, in bytes. A client takes headers of 8 KiB, in which each byte may take three.
const MAX_STATUS_BYTES: usize = 2048;

/// The status for a failure that an agent answered with, or for an agent that did not answer. `has_secret`: whether the request
/// brought credentials.
pub fn status(error: &ClientError, has_secret: bool) -> Status {
    match error {
        ClientError::Failed(failure) => failure_status(failure, has_secret),
        error => Status::unavailable(one_line(&format!(
            "{error}; is the pod of bdnfs's agent running on this node?"
        ))),
    }
}

/// The status for a failure.
pub fn failure_status(failure: &Failure, has_secret: bool) -> Status {
    let kind = Kind::ALL.into_iter().find(|kind| failure.is(*kind));
    let code = match (failure.kind.as_str(), kind) {
        (Failure::EXISTS, _) => Code::AlreadyExists,
        (Failure::FORBIDDEN, _) => Code::PermissionDenied,
        (Failure::CLOSING, _) => Code::Unavailable,
        (_, Some(kind)) => code(kind, has_secret),
        (_, None) => Code::Internal,
    };
    Status::new(code, one_line(&failure.message))
}

fn code(kind: Kind, has_secret: bool) -> Code {
    match kind {
        Kind::Invalid => Code::InvalidArgument,
        Kind::NotFound => Code::NotFound,
        Kind::Refused if has_secret => Code::PermissionDenied,
        Kind::Refused => Code::Unauthenticated,
        Kind::Timeout | Kind::Unavailable => Code::Unavailable,
        Kind::NoSpace => Code::ResourceExhausted,
        Kind::Busy | Kind::Interrupted => Code::Aborted,
        Kind::Changed | Kind::Corrupt => Code::DataLoss,
        Kind::Unsupported => Code::FailedPrecondition,
        Kind::Disk => Code::Internal,
    }
}

/// The status with a message that fits into the headers of an answer: it may quote what a request has.
pub fn bounded(status: Status) -> Status {
    let text = status.message();
    if text.len() <= MAX_STATUS_BYTES {
        return status;
    }
    Status::new(status.code(), format!("{}...", &text[..text.floor_char_boundary(MAX_STATUS_BYTES)]))
}

fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use bdnfs_agent::api::kind_name;

    use super::*;

    #[test]
    fn status_with_a_message_that_no_header_holds_is_cut() {
        let [short, long] = [10, 50_000].map(|count| bounded(Status::not_found("é".repeat(count))));
        assert_eq!((short.code(), short.message()), (Code::NotFound, "é".repeat(10).as_str()));
        assert_eq!((long.code(), long.message().len()), (Code::NotFound, MAX_STATUS_BYTES + 3));
    }

    #[test]
    fn status_of_each_failure_kind_has_its_grpc_code() {
        let code = |kind: &str, has_secret| {
            let failure = Failure { kind: kind.to_owned(), message: "two\nlines".to_owned() };
            let status = failure_status(&failure, has_secret);
            assert_eq!(status.message(), "two lines");
            status.code()
        };
        assert_eq!(code(kind_name(Kind::Refused), true), Code::PermissionDenied);
        assert_eq!(code(kind_name(Kind::Refused), false), Code::Unauthenticated);
        assert_eq!(code(Failure::EXISTS, false), Code::AlreadyExists);
        assert_eq!(code(Failure::FORBIDDEN, false), Code::PermissionDenied);
        assert_eq!(code(Failure::CLOSING, false), Code::Unavailable);
        assert_eq!(code("of a newer agent", false), Code::Internal);
        // What may be tried again leaves the volume uncertain; what may not is final.
        let uncertain = [Code::Aborted, Code::Unavailable, Code::ResourceExhausted];
        for kind in Kind::ALL {
            let again = matches!(
                kind,
                Kind::Timeout | Kind::Unavailable | Kind::NoSpace | Kind::Busy | Kind::Interrupted
            );
            assert_eq!(uncertain.contains(&code(kind_name(kind), true)), again, "{kind:?}");
        }
    }
}
