//! Restoring the open files that the previous process served.

use std::collections::HashMap;
use std::sync::Arc;

use bdnfs::error::{Error, Kind};
use bdnfs::manifest::Node;
use bdnfs::read::Reader;

use crate::device::BackingFile;
use crate::files::registered_file::{LedgerSlot, RegisteredFile};
use crate::ledger::{LedgerEntry, LedgerItem};
use crate::open_table::OpenMode;
use crate::tree;

use super::{FileHandle, FileHandles};

impl FileHandles {
    /// Restores the handles and backing files of the previous process from the ledger's `entries`.
    pub(crate) fn restore(self: &Arc<Self>, entries: &[LedgerEntry]) {
        let (mut registered, mut damaged) = (HashMap::new(), Vec::new());
        for &LedgerEntry { number, node, item, .. } in entries {
            match item {
                LedgerItem::BackingFile(id) => drop(registered.insert(id, number)),
                LedgerItem::Damaged(id) => damaged.push((id, node, number)),
                LedgerItem::Moved => self.table.lock().restore_generation(node),
                LedgerItem::Cached | LedgerItem::Passthrough(_) => {}
            }
        }
        self.drop_unrecorded(&registered);
        let mut adopted: HashMap<u32, Arc<RegisteredFile>> = HashMap::new();
        for &LedgerEntry { number, node, unique, item } in entries {
            if matches!(item, LedgerItem::BackingFile(_) | LedgerItem::Damaged(_) | LedgerItem::Moved) {
                continue;
            }
            let Some((index, reader)) = self.reader_of(node) else { continue };
            let mode = match item {
                LedgerItem::Passthrough(id) => {
                    let adopt = || self.adopt(id, registered.remove(&id), node, &reader);
                    OpenMode::Passthrough(adopted.entry(id).or_insert_with(adopt).clone())
                }
                _ => OpenMode::Cached,
            };
            let watch = || self.watch(node, index, reader.clone());
            self.table.lock().restore(node, mode, watch);
            self.handles.lock().insert(number, FileHandle { reader, unique, item });
        }
        for (id, node, number) in damaged {
            if adopted.contains_key(&id) {
                self.table.lock().mark_damaged(node);
            } else {
                self.ledger.remove(number);
            }
        }
        // No handle needs these.
        for (id, number) in registered {
            drop(BackingFile::adopt(self.device.clone(), id));
            self.ledger.remove(number);
        }
    }

    /// The file of `node`, and a reader of it.
    fn reader_of(&self, node: u64) -> Option<(u32, Arc<Reader>)> {
        let index = tree::index(node)?;
        let open = || match self.snapshot.manifest().entry(index)?.node {
            Node::File(slice) => self.snapshot.open_file(index, slice),
            _ => Err(Error::new(Kind::Corrupt, "not a file")),
        };
        let opened =
            open().inspect_err(|error| tracing::error!(index, %error, "cannot restore an open file"));
        Some((index, Arc::new(opened.ok()?)))
    }

    /// The backing file `id` of `node`, which the previous process registered and which has this `number` in the ledger.
    fn adopt(&self, id: u32, number: Option<u64>, node: u64, reader: &Arc<Reader>) -> Arc<RegisteredFile> {
        let backing = BackingFile::adopt(self.device.clone(), id);
        let number =
            number.or_else(|| self.ledger.insert(node, 0, LedgerItem::BackingFile(id))).unwrap_or_default();
        let _slot = LedgerSlot { ledger: self.ledger.clone(), number };
        Arc::new(RegisteredFile { backing, _slot, reader: reader.clone(), file: reader.backing() })
    }

    /// Closes the backing file that the previous process registered and had no time to record. There is one
    /// at the most, and the kernel numbers them in order: it is the one before the next.
    fn drop_unrecorded(self: &Arc<Self>, registered: &HashMap<u32, u64>) {
        if self.passthrough()
            && let Ok(next) = self.device.register(self.ledger.memory())
            && let Some(last) = next.id().checked_sub(1).filter(|id| *id > 0 && !registered.contains_key(id))
        {
            drop(BackingFile::adopt(self.device.clone(), last));
        }
    }
}
