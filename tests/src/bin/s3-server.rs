//! `s3-server`: the kit's S3 server by itself, for the benchmarks and for people.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bdnfs_tests::crowd::{BUCKET, Crowd};
use bdnfs_tests::fault::Fault;
use bdnfs_tests::s3::{Keys, S3};
use clap::Parser;

/// Serves the buckets below a directory over the S3 protocol, on loopback: `DIR/bucket/key`.
///
/// Clients sign with the AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN) of this process's
/// environment. Without them, everybody is served. For each line that it reads it tells how much it has served so far.
#[derive(Parser)]
struct Arguments {
    /// The directory whose directories are the buckets.
    #[arg(long, value_name = "DIR", required_unless_present = "crowd")]
    root: Option<PathBuf>,
    /// Instead of a directory, one bucket of so many objects that are made as they are asked for, open to everybody.
    #[arg(long, value_name = "COUNT", conflicts_with = "root")]
    crowd: Option<u64>,
    /// The port; 0 picks a free one.
    #[arg(long, default_value_t = 9000)]
    port: u16,
    /// How many milliseconds each request waits, as if the store were elsewhere; a crowd answers at once.
    #[arg(long, value_name = "MS", default_value_t = 0, conflicts_with = "crowd")]
    late: u64,
}

fn main() {
    let arguments = Arguments::parse();
    match (&arguments.root, arguments.crowd) {
        (Some(root), _) => buckets(root, &arguments),
        (None, count) => {
            let (count, port) = (count.unwrap_or_default(), arguments.port);
            let crowd = Crowd::on_port(count, 0, port);
            println!("{} serves {count} objects in the bucket {BUCKET}", crowd.server.url());
            forever()
        }
    }
}

fn buckets(root: &Path, arguments: &Arguments) {
    let get = |name: &str| std::env::var(name).ok();
    let keys = get("AWS_ACCESS_KEY_ID").zip(get("AWS_SECRET_ACCESS_KEY"));
    let keys = keys.map(|(access, secret)| Keys { access, secret, token: get("AWS_SESSION_TOKEN") });
    let open = if keys.is_some() { "signed requests only" } else { "open to everybody" };
    let s3 = S3::on_port(root, keys, arguments.port);
    if arguments.late > 0 {
        s3.faults.set(Fault::Late(Duration::from_millis(arguments.late)));
    }
    println!("{} serves {} ({open})", s3.server.url(), root.display());
    for _ in std::io::stdin().lock().lines().map_while(Result::ok) {
        let all = s3.tally.all();
        println!("served {} requests, {} bytes", all.requests, all.bytes);
    }
    forever()
}

fn forever() {
    loop {
        std::thread::park();
    }
}
