//! An office that signs the certificates of nodes, with the commands of `bdnfs cluster`.

use std::path::{Path, PathBuf};

use crate::bdnfs::{Machine, Ran};

/// Some authorities, and what they signed, in one directory.
#[derive(Debug)]
pub struct Office {
    machine: Machine,
    root: PathBuf,
}

impl Office {
    /// An office without any.
    pub fn open() -> Self {
        let machine = Machine::new();
        let root = machine.directory("office");
        Self { machine, root }
    }

    /// An office with the authority `ca`, which has signed for each of `ids`, as nodes of `tenant`.
    ///
    /// # Panics
    /// When it can't be made.
    pub fn with(ids: &[&str], tenant: &str) -> Self {
        let office = Self::open();
        office.run("cluster init-ca @ca").succeeds();
        for id in ids {
            office.run(&format!("cluster issue {id} --ca @ca --tenant {tenant} --out @")).succeeds();
        }
        office
    }

    /// Runs `bdnfs` with the words of `line`, in which `@` stands for the office's directory.
    pub fn run(&self, line: &str) -> Ran {
        let line = line.replace('@', &format!("{}/", self.root.display()));
        self.machine.run(&line.split(' ').collect::<Vec<_>>())
    }

    /// Where it keeps all.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The lines of a configuration that make an agent the node `id`, which trusts `authority`.
    pub fn lines(&self, id: &str, authority: &str) -> String {
        let root = self.root.display();
        format!(
            "certificate = \"{root}/{id}.pem\"\nkey = \"{root}/{id}.key\"\nca = \"{root}/{authority}/ca.pem\"\n"
        )
    }
}
