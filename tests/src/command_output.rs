//! The output of a command of `bdnfs`, and the assertions about it.

/// The output of a command, and how it ended.
#[derive(Debug)]
pub struct CommandOutput {
    /// Its exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

impl CommandOutput {
    /// Asserts that the command succeeded, and returns its output.
    ///
    /// # Panics
    /// When it did not.
    pub fn succeeds(self) -> String {
        assert_eq!(self.code, Some(0), "it failed: {}{}", self.out, self.err);
        self.out
    }

    /// Asserts that the command failed, and said so in one line that has all of `words` in it, after nothing
    /// but notes and progress. Returns the line.
    ///
    /// # Panics
    /// When it did not.
    pub fn fails(self, words: &[&str]) -> String {
        assert!(
            self.code.is_some_and(|code| code != 0),
            "exit code {:?}: {}{}",
            self.code,
            self.out,
            self.err
        );
        let (errors, others): (Vec<_>, Vec<_>) =
            self.err.lines().partition(|line| line.starts_with("bdnfs: "));
        let known = |line: &&str| line.starts_with("note: ") || line.starts_with("staging: ");
        assert!(errors.len() == 1 && others.iter().all(known), "not one line:\n{}", self.err);
        for word in words {
            assert!(errors[0].contains(word), "`{word}` is not in: {}", errors[0]);
        }
        errors[0].to_owned()
    }
}
