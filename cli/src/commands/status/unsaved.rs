//! Directories on this node with checkpoints that could not be saved, as commands show them.

use bdnfs_agent::api::saving::UnsavedDirectory;

use crate::text;

/// A table of directories with checkpoints that could not be saved; empty for none.
pub fn unsaved_table(unsaved: &[UnsavedDirectory]) -> String {
    if unsaved.is_empty() {
        return String::new();
    }
    let head = ["UNSAVED", "TENANT", "SIZE", "DIRECTORY", "REASON"].map(str::to_owned).to_vec();
    text::table(&std::iter::once(head).chain(unsaved.iter().map(unsaved_row)).collect::<Vec<_>>(), &[2])
}

fn unsaved_row(one: &UnsavedDirectory) -> Vec<String> {
    let why = one.why.clone().unwrap_or_else(|| "-".to_owned());
    let project = one.project.as_ref().map_or_else(String::new, |project| format!("{project}@"));
    let job = format!("{project}{}", one.id);
    vec![job, one.tenant.clone(), text::size(one.bytes), one.directory.display().to_string(), why]
}
