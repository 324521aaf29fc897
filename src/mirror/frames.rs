//! Frames: a blob's blocks compressed, one zstd frame each, so that a block is read alone and `zstd -d` restores the
//! blob.

use bytes::Bytes;

use crate::error::{Error, Kind, Result};

/// The compression level. Measured in blocks of 1 MiB on one core: level 1 makes source code 5.9 times smaller at
/// 430 MB/s and CSV 2.7 times at 230 MB/s; level 3 makes them 6.8 and 2.5 times smaller at about half the speed. Either is
/// restored at about 1 GB/s.
const ZSTD_LEVEL: i32 = 1;
/// The ratio up to which compression pays, in percent. Text comes to 15-40 %. Weights in bf16 come to 78 %,
/// in fp16 and fp32 to 92 %: too little for a core that restores slower than a good network sends.
const MAX_COMPRESSED_PERCENT: usize = 66;
/// The size of the sample of a blob, in bytes and in pieces: pieces so that one odd stretch does not decide.
const SAMPLE_BYTES: usize = 256 << 10;
const SAMPLE_PIECES: usize = 8;

/// Whether the content that begins with `blocks` is worth compressing.
pub fn compresses_well(blocks: &[Bytes]) -> bool {
    let len: usize = blocks.iter().map(Bytes::len).sum();
    let mut sample = Vec::with_capacity(SAMPLE_BYTES);
    for piece in 0..SAMPLE_PIECES {
        let mut from = len / SAMPLE_PIECES * piece;
        for block in blocks {
            if from < block.len() {
                let end =
                    block.len().min(from + SAMPLE_BYTES / SAMPLE_PIECES).min(from + len / SAMPLE_PIECES + 1);
                sample.extend_from_slice(&block[from..end]);
                break;
            }
            from -= block.len();
        }
    }
    compress(&sample).is_ok_and(|small| small.len() * 100 <= sample.len() * MAX_COMPRESSED_PERCENT)
}

/// A block's frame.
///
/// # Errors
/// [`Kind::Unsupported`] when zstd fails, which takes a lack of memory.
pub fn compress(block: &[u8]) -> Result<Bytes> {
    let frame = zstd::bulk::compress(block, ZSTD_LEVEL);
    frame.map(Bytes::from).map_err(|e| Error::with(Kind::Unsupported, "zstd cannot compress", e))
}

/// The block of `len` bytes that `frame` holds.
///
/// # Errors
/// [`Kind::Corrupt`] when it doesn't.
pub fn decompress(frame: &[u8], len: usize) -> Result<Bytes> {
    let wrong = |how: String| Error::new(Kind::Corrupt, format!("a zstd frame is damaged: {how}"));
    let block = zstd::bulk::decompress(frame, len).map_err(|e| wrong(e.to_string()))?;
    if block.len() == len {
        Ok(block.into())
    } else {
        Err(wrong(format!("it holds {} bytes, not {len}", block.len())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that nothing can be saved on.
    fn noise(len: usize) -> Bytes {
        let mut bytes = vec![0; len];
        blake3::Hasher::new().finalize_xof().fill(&mut bytes);
        bytes.into()
    }

    #[test]
    fn compresses_well_is_true_for_text_and_false_for_noise() {
        let text = Bytes::from("the same words, again and again\n".repeat(40_000));
        assert!(compresses_well(&[text.slice(..900)]) && compresses_well(std::slice::from_ref(&text)));
        assert!(
            !compresses_well(&[noise(1 << 20)]) && !compresses_well(&[noise(900)]) && !compresses_well(&[])
        );
        assert!(
            !compresses_well(&[text.slice(..1 << 17), noise(1 << 20)]),
            "what is at the front does not decide"
        );
    }

    #[test]
    fn frame_decompresses_to_its_block_only() {
        for block in [noise(70_000), Bytes::from(vec![7; 1 << 20]), Bytes::from_static(b"x")] {
            let frame = compress(&block).expect("memory");
            assert_eq!(decompress(&frame, block.len()).expect("its own"), block);
            assert_eq!(decompress(&frame, block.len() + 1).expect_err("longer").kind(), Kind::Corrupt);
            assert_eq!(decompress(&frame, block.len() - 1).expect_err("shorter").kind(), Kind::Corrupt);
            assert_eq!(decompress(&frame[1..], block.len()).expect_err("cut").kind(), Kind::Corrupt);
        }
    }
}
