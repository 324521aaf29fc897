//! The requests that change a bucket: PUT, multipart uploads, DELETE.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Body;
use axum::http::{Method, StatusCode, request::Parts};
use axum::response::IntoResponse;
use futures_util::StreamExt;
use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};
use tokio::task::block_in_place;

use super::{BucketStore, S3Error, S3Query, S3Result, list::escape, sign::hex};
use crate::file::etag;

/// How the names of files that are no objects begin: uploads under way.
pub(super) const UPLOAD_PREFIX: &str = ".s3-upload-";

/// Names the object that a PUT copies, as /bucket/key.
const COPY_SOURCE: &str = "x-amz-copy-source";

/// Numbers uploads, so that no two share a file.
static NEXT_UPLOAD: AtomicU64 = AtomicU64::new(0);

pub(super) async fn answer(
    store: &BucketStore,
    head: &Parts,
    body: Body,
    query: &S3Query,
    path: &Path,
) -> S3Result {
    match (&head.method, query.get("uploadId")) {
        (&Method::PUT, None) if head.headers.contains_key(COPY_SOURCE) => {
            block_in_place(|| copy(store, head, path))
        }
        (&Method::PUT, None) => {
            let upload = scratch(&store.root);
            receive(head, body, &upload).await?;
            block_in_place(|| publish(store, head, &upload, path))
        }
        (&Method::POST, None) if query.get("uploads").is_some() => {
            let upload = scratch(&store.root);
            fs::create_dir(&upload)?;
            let id = upload
                .to_string_lossy()
                .rsplit_once(UPLOAD_PREFIX)
                .map(|(_, id)| id.to_owned())
                .unwrap_or_default();
            Ok(format!(
                "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
            )
            .into_response())
        }
        (&Method::PUT, Some(id)) => {
            let part = part(&upload(store, id)?, query.get("partNumber").unwrap_or_default())?;
            receive(head, body, &part).await?;
            Ok([("etag", etag(&fs::metadata(part)?))].into_response())
        }
        (&Method::POST, Some(id)) => complete(store, head, body, &upload(store, id)?, path).await,
        (&Method::DELETE, Some(id)) => {
            fs::remove_dir_all(upload(store, id)?)?;
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        (&Method::DELETE, None) => {
            remove(path)?;
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        _ => Err(S3Error(StatusCode::NOT_IMPLEMENTED, "NotImplemented")),
    }
}

/// Removes the objects that the body lists.
pub(super) async fn delete(store: &BucketStore, bucket: &str, body: Body) -> S3Result {
    let mut result = String::from("<DeleteResult>");
    for key in fields(&text(body).await?, "Key") {
        remove(&store.path(bucket, &key)?)?;
        result += &format!("<Deleted><Key>{}</Key></Deleted>", escape(&key));
    }
    Ok((result + "</DeleteResult>").into_response())
}

/// Removes an object, which need not be there.
fn remove(path: &Path) -> io::Result<()> {
    fs::remove_file(path)
        .or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// A document that a client sent; S3 allows no longer one.
async fn text(body: Body) -> Result<String, S3Error> {
    let bytes = axum::body::to_bytes(body, 2 << 20).await.map_err(|_| StatusCode::BAD_REQUEST)?;
    String::from_utf8(bytes.into()).map_err(|_| StatusCode::BAD_REQUEST.into())
}

/// The text of each element `name` of an XML document.
fn fields(document: &str, name: &str) -> Vec<String> {
    let open = format!("<{name}>");
    let texts = document.split(&open).skip(1).filter_map(|rest| Some(rest.split_once('<')?.0));
    let entities = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
    texts.map(|text| entities.iter().fold(text.to_owned(), |text, (name, c)| text.replace(name, c))).collect()
}

fn scratch(root: &Path) -> PathBuf {
    root.join(format!(
        "{UPLOAD_PREFIX}{}-{}",
        std::process::id(),
        NEXT_UPLOAD.fetch_add(1, Ordering::Relaxed)
    ))
}

/// The directory of an upload under way.
fn upload(store: &BucketStore, id: &str) -> Result<PathBuf, S3Error> {
    let path = store.root.join(format!("{UPLOAD_PREFIX}{id}"));
    let known = !id.contains('/') && path.is_dir();
    if known { Ok(path) } else { Err(S3Error(StatusCode::NOT_FOUND, "NoSuchUpload")) }
}

/// The file of a part.
fn part(upload: &Path, number: &str) -> Result<PathBuf, S3Error> {
    match number.parse() {
        Ok(number @ 1..=10_000_u32) => Ok(upload.join(number.to_string())),
        _ => Err(S3Error(StatusCode::BAD_REQUEST, "InvalidArgument")),
    }
}

/// Writes a body to a file, and holds it against the hash that was signed with it.
async fn receive(head: &Parts, body: Body, path: &Path) -> Result<(), S3Error> {
    let (mut file, mut hash) = (File::create(path)?, Sha256::new());
    let claimed = head.headers.get("x-amz-content-sha256").and_then(|value| value.to_str().ok());
    let checked = match claimed {
        None | Some("UNSIGNED-PAYLOAD") => None,
        Some(streaming) if streaming.starts_with("STREAMING-") => {
            return Err(S3Error(StatusCode::NOT_IMPLEMENTED, "NotImplemented"));
        }
        Some(hash) => Some(hash),
    };
    let mut pieces = body.into_data_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|_| S3Error(StatusCode::BAD_REQUEST, "IncompleteBody"))?;
        block_in_place(|| {
            if checked.is_some() {
                hash.update(&piece);
            }
            file.write_all(&piece)
        })?;
    }
    if checked.is_some_and(|claimed| claimed != hex(&hash.finalize())) {
        fs::remove_file(path)?;
        return Err(S3Error(StatusCode::BAD_REQUEST, "XAmzContentSHA256Mismatch"));
    }
    Ok(())
}

/// Joins the parts that the request lists, in its order.
async fn complete(store: &BucketStore, head: &Parts, body: Body, upload: &Path, path: &Path) -> S3Result {
    let list = text(body).await?;
    block_in_place(|| {
        let whole = upload.join("whole");
        let mut file = File::create(&whole)?;
        for number in fields(&list, "PartNumber") {
            let mut part = File::open(part(upload, &number)?)
                .map_err(|_| S3Error(StatusCode::BAD_REQUEST, "InvalidPart"))?;
            io::copy(&mut part, &mut file)?;
        }
        let tag =
            publish(store, head, &whole, path)?.headers()["etag"].to_str().unwrap_or_default().to_owned();
        fs::remove_dir_all(upload)?;
        let tag = tag.trim_matches('"');
        Ok(format!("<CompleteMultipartUploadResult><ETag>\"{tag}\"</ETag></CompleteMultipartUploadResult>")
            .into_response())
    })
}

/// Copies an object: the copy is another name of the same file, for objects are replaced and never written to.
fn copy(store: &BucketStore, head: &Parts, path: &Path) -> S3Result {
    let source = head.headers[COPY_SOURCE].to_str().unwrap_or_default();
    let source = percent_decode_str(source.trim_start_matches('/')).decode_utf8_lossy();
    let wrong = S3Error(StatusCode::BAD_REQUEST, "InvalidArgument");
    let (bucket, key) = source.split_once('/').ok_or(wrong)?;
    let upload = scratch(&store.root);
    fs::hard_link(store.path(bucket, key)?, &upload)?;
    let published = publish(store, head, &upload, path);
    // A file that had the name already keeps it, and the other one too.
    remove(&upload)?;
    let tag = published?.headers()["etag"].to_str().unwrap_or_default().to_owned();
    Ok(format!("<CopyObjectResult><ETag>{}</ETag></CopyObjectResult>", escape(&tag)).into_response())
}

/// Gives `upload` its name, where the request's condition holds.
fn publish(store: &BucketStore, head: &Parts, upload: &Path, path: &Path) -> S3Result {
    let _one_at_a_time = store.publish.lock();
    let now = fs::metadata(path).ok().map(|meta| etag(&meta));
    let holds = match (head.headers.get("if-match"), head.headers.get("if-none-match")) {
        (Some(wanted), _) => now.as_deref().is_some_and(|tag| wanted.as_bytes() == tag.as_bytes()),
        (None, Some(any)) if any == "*" => now.is_none(),
        _ => true,
    };
    let holds = holds || store.unconditional.load(Ordering::Relaxed);
    if !holds {
        fs::remove_file(upload)?;
        return Err(StatusCode::PRECONDITION_FAILED.into());
    }
    fs::create_dir_all(path.parent().unwrap_or(&store.root))?;
    fs::rename(upload, path)?;
    Ok([("etag", etag(&fs::metadata(path)?))].into_response())
}
