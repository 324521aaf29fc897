//! The fuzzer: libFuzzer's main loop around the decoder that `FUZZ_DECODER` names. `scripts/fuzz` builds and runs it.

#![no_main]

use std::sync::OnceLock;

use bdnfs_fuzz::{DECODERS, Decoder};

static CHOSEN: OnceLock<Decoder> = OnceLock::new();

libfuzzer_sys::fuzz_target!(
    init: {
        let name = std::env::var("FUZZ_DECODER").expect("FUZZ_DECODER names a decoder");
        let (_, decoder) = DECODERS.iter().find(|(known, _)| *known == name).expect("a decoder of that name");
        CHOSEN.get_or_init(|| *decoder);
    },
    |bytes: &[u8]| CHOSEN.get().expect("chosen")(bytes)
);
