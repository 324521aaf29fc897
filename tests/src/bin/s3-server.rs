//! `s3-server`: the kit's S3 server by itself, for the benchmarks and for people.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bdnfs_tests::fault::ServerFault;
use bdnfs_tests::large_bucket::{BUCKET, LargeBucket};
use bdnfs_tests::s3::{Keys, S3Server};
use clap::Parser;

/// Serves the buckets below a directory over the S3 protocol, on loopback: `DIR/bucket/key`.
///
/// Clients sign with the AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN) of this process's
/// environment. Without them, everybody is served. For each line that it reads it tells how much it has served so far.
#[derive(Parser)]
struct S3ServerArgs {
    /// The directory whose directories are the buckets.
    #[arg(long, value_name = "DIR", required_unless_present = "large_bucket")]
    root: Option<PathBuf>,
    /// Instead of a directory, one bucket of so many objects that are made as they are asked for, open to everybody.
    #[arg(long, alias = "crowd", value_name = "COUNT", conflicts_with = "root")]
    large_bucket: Option<u64>,
    /// The port; 0 picks a free one.
    #[arg(long, default_value_t = 9000)]
    port: u16,
    /// The latency of each request in milliseconds. A large bucket has none.
    #[arg(long, alias = "late", value_name = "MS", default_value_t = 0, conflicts_with = "large_bucket")]
    latency: u64,
}

fn main() {
    let arguments = S3ServerArgs::parse();
    match (&arguments.root, arguments.large_bucket) {
        (Some(root), _) => buckets(root, &arguments),
        (None, count) => {
            let (count, port) = (count.unwrap_or_default(), arguments.port);
            let server = LargeBucket::on_port(count, 0, port);
            println!("{} serves {count} objects in the bucket {BUCKET}", server.server.url());
            forever()
        }
    }
}

fn buckets(root: &Path, arguments: &S3ServerArgs) {
    let get = |name: &str| std::env::var(name).ok();
    let keys = get("AWS_ACCESS_KEY_ID").zip(get("AWS_SECRET_ACCESS_KEY"));
    let keys = keys.map(|(access, secret)| Keys { access, secret, token: get("AWS_SESSION_TOKEN") });
    let open = if keys.is_some() { "signed requests only" } else { "open to everybody" };
    let s3 = S3Server::on_port(root, keys, arguments.port);
    if arguments.latency > 0 {
        s3.faults.set(ServerFault::Latency(Duration::from_millis(arguments.latency)));
    }
    println!("{} serves {} ({open})", s3.server.url(), root.display());
    for _ in std::io::stdin().lock().lines().map_while(Result::ok) {
        let all = s3.requests.all();
        println!("served {} requests, {} bytes", all.requests, all.bytes);
    }
    forever()
}

fn forever() {
    loop {
        std::thread::park();
    }
}
