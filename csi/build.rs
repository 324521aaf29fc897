//! Generates the code of the protocols, without `protoc`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let files = ["proto/csi.proto", "proto/pluginregistration.proto"];
    println!("cargo:rerun-if-changed=proto");
    // Requests carry secrets and tokens: nothing can print one.
    tonic_prost_build::configure().skip_debug(["."]).compile_fds(protox::compile(files, ["proto"])?)?;
    Ok(())
}
