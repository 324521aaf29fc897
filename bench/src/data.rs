//! Data to be read: bytes that no disk and no network can compress, the same in every run.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};

use crate::interrupt;

/// The size of a write.
const CHUNK_BYTES: usize = 1 << 20;
/// How many files lie in a directory: some, as in a data set that was made to be read from file systems.
pub const FILES_IN_DIRECTORY: usize = 1000;

/// Numbers that look random (Marsaglia's xorshift64*).
#[derive(Debug)]
pub struct Noise(u64);

impl Noise {
    /// A sequence of its own for every `seed`.
    pub fn new(seed: u64) -> Self {
        // Any constant with many bits set: the state must not be 0.
        Self(seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15))
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Fills `bytes` with them.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.chunks_mut(8) {
            word.copy_from_slice(&self.next().to_le_bytes()[..word.len()]);
        }
    }
}

/// How many bytes a tensor takes: as a layer of a model of a few billion parameters.
const TENSOR_BYTES: u64 = 8 << 20;

/// Makes a file of `size` bytes, and waits until it is on the disk.
///
/// # Errors
/// The disk fails, and interruption.
pub fn file(path: &Path, size: u64) -> Result<()> {
    write(path, &[], size)
}

/// Makes a safetensors file with tensors of `size` bytes in all: the length of a header in JSON, the header, the content.
///
/// # Errors
/// The disk fails, and interruption.
pub fn tensors(path: &Path, size: u64) -> Result<()> {
    let tensor = |index: u64| {
        let (first, end) = (index * TENSOR_BYTES, ((index + 1) * TENSOR_BYTES).min(size));
        let shape = (end - first) / 2;
        format!(
            "\"layer.{index}.weight\":{{\"dtype\":\"F16\",\"shape\":[{shape}],\"data_offsets\":[{first},{end}]}}"
        )
    };
    let header =
        format!("{{{}}}", (0..size.div_ceil(TENSOR_BYTES)).map(tensor).collect::<Vec<_>>().join(","));
    // As its writers do: what follows begins at a multiple of 8.
    let header = format!("{header}{}", " ".repeat(header.len().next_multiple_of(8) - header.len()));
    let head = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    write(path, &head, size)
}

/// Makes a file that begins with `head`, and `size` bytes more.
fn write(path: &Path, head: &[u8], size: u64) -> Result<()> {
    let at = || format!("cannot write {}", path.display());
    let mut file = File::create_new(path).with_context(at)?;
    file.write_all(head).with_context(at)?;
    let mut noise = Noise::new(size ^ path.as_os_str().len() as u64);
    let mut piece = vec![0; CHUNK_BYTES];
    let mut left = size;
    while left > 0 {
        interrupt::check()?;
        let len = left.min(CHUNK_BYTES as u64);
        let bytes = &mut piece[..len as usize];
        noise.fill(bytes);
        file.write_all(bytes).with_context(at)?;
        left -= len;
    }
    file.sync_all().with_context(at)
}

/// Makes a table of `size` bytes of text, like a data set: repeated names, and numbers that don't repeat.
///
/// # Errors
/// The disk fails, and interruption.
pub fn text(path: &Path, size: u64) -> Result<()> {
    const WORDS: [&str; 8] = ["weight", "bias", "label", "sample", "train", "valid", "epoch", "token"];
    let at = || format!("cannot write {}", path.display());
    let mut file = File::create_new(path).with_context(at)?;
    let (mut noise, mut piece) = (Noise::new(size), String::new());
    let mut left = size;
    while left > 0 {
        interrupt::check()?;
        piece.clear();
        while piece.len() < CHUNK_BYTES {
            let number = noise.next();
            let [one, other] = [number % 8, number / 8 % 8].map(|index| WORDS[index as usize]);
            piece += &format!("{one},{other},{}.{:06}\n", number % 100, number >> 44);
        }
        let len = left.min(piece.len() as u64);
        file.write_all(&piece.as_bytes()[..len as usize]).with_context(at)?;
        left -= len;
    }
    file.sync_all().with_context(at)
}

/// Makes `count` files of `size` bytes below `directory`, `per_directory` of them in each directory.
///
/// # Errors
/// The disk fails, and interruption.
pub fn tree(directory: &Path, count: usize, per_directory: usize, size: usize) -> Result<()> {
    let mut noise = Noise::new(count as u64);
    let mut bytes = vec![0; size];
    for index in 0..count {
        let path = directory.join(name(index, per_directory));
        if index % per_directory == 0 {
            interrupt::check()?;
            let parent = path.parent().unwrap_or(directory);
            fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
        }
        noise.fill(&mut bytes);
        fs::write(&path, &bytes).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// The path of a tree's file `index`.
pub fn name(index: usize, per_directory: usize) -> String {
    format!("{}/sample-{index:08}.bin", directory(index / per_directory))
}

/// The path of a tree's directory `index`.
pub fn directory(index: usize) -> String {
    format!("part-{index:05}")
}
