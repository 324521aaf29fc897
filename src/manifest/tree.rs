//! A tree while it is gathered: entries in any order, in as little memory as they fit into.

use std::collections::HashMap;

/// What an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A directory. Its `extra` is its number among the directories.
    Directory,
    /// A regular file. Its tail is its version, and its SHA-256 before that if it has one.
    File,
    /// A regular file that may be executed; otherwise like a file.
    Program,
    /// A symbolic link. Its tail is its target.
    Symlink,
}

/// One entry to be. There are millions of them: 40 bytes, and its texts in the arena.
#[derive(Debug)]
pub(super) struct Item {
    /// Where its texts begin in the arena: the length of its name in one byte, its name, its tail.
    text: u64,
    /// The size of a file, in bytes.
    pub size: u64,
    /// Seconds and nanoseconds since 1970.
    pub seconds: i64,
    pub nanoseconds: u32,
    /// The directory that holds it, by its number among the directories.
    pub parent: u32,
    /// A file's blob, once the tree is in order. A directory's number.
    pub extra: u32,
    /// The length of its tail.
    tail: u16,
    pub what: What,
    /// Whether its tail begins with a SHA-256.
    pub sha256: bool,
}

const _: () = assert!(size_of::<Item>() == 40);

/// A directory, beside its item.
#[derive(Debug)]
pub(super) struct Directory {
    /// Its item.
    pub item: u32,
    /// Whether it will be there: it was asked for, or something below it was.
    pub kept: bool,
    /// Whether its time is known.
    pub dated: bool,
}

/// The tree.
#[derive(Debug)]
pub(super) struct Tree {
    pub items: Vec<Item>,
    /// The root comes first.
    pub directories: Vec<Directory>,
    arena: Vec<u8>,
    /// Directories by their parent's number and their name.
    numbers: HashMap<Box<[u8]>, u32>,
    /// The directory that was asked for last, and its number: origins list one directory after the other.
    last: (Vec<u8>, u32),
}

impl Tree {
    /// A tree of a root alone.
    pub(super) fn new() -> Self {
        let mut tree = Self {
            items: Vec::new(),
            directories: Vec::new(),
            arena: Vec::new(),
            numbers: HashMap::new(),
            last: (Vec::new(), 0),
        };
        tree.add_directory(0, b"");
        tree.directories[0].kept = true;
        tree
    }

    /// Adds what is at `path`, a good one, and is no directory. `sha256` and `tail` are at most 65,535 bytes
    /// together.
    pub(super) fn add(
        &mut self,
        path: &[u8],
        what: What,
        sha256: Option<[u8; 32]>,
        tail: &[u8],
    ) -> &mut Item {
        let (directory, name) = match path.iter().rposition(|b| *b == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&[][..], path),
        };
        let parent = self.directory(directory);
        self.keep(parent);
        let index = self.items.len();
        self.push(parent, what, name);
        self.arena.extend_from_slice(sha256.as_ref().map_or(&[], |hash| &hash[..]));
        self.arena.extend_from_slice(tail);
        let item = &mut self.items[index];
        item.tail = (tail.len() + if sha256.is_some() { 32 } else { 0 }) as u16;
        item.sha256 = sha256.is_some();
        item
    }

    /// Gives each file or link that has the path of a directory the name that `rename` makes of it.
    pub(super) fn part(&mut self, rename: impl Fn(&[u8]) -> Vec<u8>) {
        for index in 0..self.items.len() {
            let item = &self.items[index];
            if item.what == What::Directory {
                continue;
            }
            let key = [&item.parent.to_le_bytes(), self.name(item)].concat();
            let there = self.numbers.get(&*key).is_some_and(|number| self.directories[*number as usize].kept);
            if there {
                let (name, tail) = (rename(self.name(item)), self.tail(item).to_vec());
                let text = self.arena.len() as u64;
                self.arena.push(name.len() as u8);
                self.arena.extend_from_slice(&name);
                self.arena.extend_from_slice(&tail);
                self.items[index].text = text;
            }
        }
    }

    /// The number of the directory at `path`, a good one or the root's, which is made if it is not there yet.
    pub(super) fn directory(&mut self, path: &[u8]) -> u32 {
        if path == self.last.0 {
            return self.last.1;
        }
        let mut number = 0u32;
        let mut key = Vec::new();
        for name in path.split(|b| *b == b'/').filter(|name| !name.is_empty()) {
            key.clear();
            key.extend_from_slice(&number.to_le_bytes());
            key.extend_from_slice(name);
            number = match self.numbers.get(&key[..]) {
                Some(known) => *known,
                None => {
                    let new = self.add_directory(number, name);
                    self.numbers.insert(key.clone().into(), new);
                    new
                }
            };
        }
        self.last.0.clear();
        self.last.0.extend_from_slice(path);
        self.last.1 = number;
        number
    }

    /// Keeps directory `number`, and those that it lies in.
    pub(super) fn keep(&mut self, mut number: u32) {
        while !self.directories[number as usize].kept {
            let directory = &mut self.directories[number as usize];
            directory.kept = true;
            number = self.items[directory.item as usize].parent;
        }
    }

    fn add_directory(&mut self, parent: u32, name: &[u8]) -> u32 {
        let number = self.directories.len() as u32;
        self.directories.push(Directory { item: self.items.len() as u32, kept: false, dated: false });
        self.push(parent, What::Directory, name).extra = number;
        number
    }

    fn push(&mut self, parent: u32, what: What, name: &[u8]) -> &mut Item {
        let text = self.arena.len() as u64;
        self.arena.push(name.len() as u8);
        self.arena.extend_from_slice(name);
        self.items.push(Item {
            text,
            size: 0,
            seconds: 0,
            nanoseconds: 0,
            parent,
            extra: 0,
            tail: 0,
            what,
            sha256: false,
        });
        let last = self.items.len() - 1;
        &mut self.items[last]
    }

    /// The name of `item`.
    pub(super) fn name(&self, item: &Item) -> &[u8] {
        let text = item.text as usize;
        &self.arena[text + 1..][..self.arena[text].into()]
    }

    /// The tail of `item`: its version or target, with its SHA-256 before it if it has one.
    pub(super) fn tail(&self, item: &Item) -> &[u8] {
        let text = item.text as usize;
        &self.arena[text + 1 + usize::from(self.arena[text])..][..item.tail.into()]
    }

    /// The path of `item`.
    pub(super) fn path(&self, item: &Item) -> Vec<u8> {
        let mut path = self.name(item).to_vec();
        let mut parent = item.parent;
        while parent != 0 {
            let item = &self.items[self.directories[parent as usize].item as usize];
            path.splice(0..0, self.name(item).iter().copied().chain([b'/']));
            parent = item.parent;
        }
        path
    }
}
