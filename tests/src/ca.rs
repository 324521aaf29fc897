//! Certificate authorities that sign the certificates of nodes, with the commands of `bdnfs cluster`.

use std::path::{Path, PathBuf};

use crate::command_output::CommandOutput;
use crate::machine::Machine;

/// Certificate authorities and the certificates that they signed, in one directory.
#[derive(Debug)]
pub struct TestCa {
    machine: Machine,
    root: PathBuf,
}

impl TestCa {
    /// A directory without any authority.
    pub fn empty() -> Self {
        let machine = Machine::new();
        let root = machine.directory("ca");
        Self { machine, root }
    }

    /// One authority, `ca`, which has signed for each of `ids`, as nodes of `tenant`.
    ///
    /// # Panics
    /// When it can't be made.
    pub fn with(ids: &[&str], tenant: &str) -> Self {
        let ca = Self::empty();
        ca.run("cluster init-ca @ca").succeeds();
        for id in ids {
            ca.run(&format!("cluster issue {id} --ca @ca --tenant {tenant} --out @")).succeeds();
        }
        ca
    }

    /// Runs `bdnfs` with the words of `line`, in which `@` stands for the directory.
    pub fn run(&self, line: &str) -> CommandOutput {
        let line = line.replace('@', &format!("{}/", self.root.display()));
        self.machine.run(&line.split(' ').collect::<Vec<_>>())
    }

    /// The directory with authorities, certificates and keys.
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
