//! The terminal of `top`: the alternate screen and single keys, restored on drop.

use std::io::{self, Read, Write};

use anyhow::{Context, Result};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{Receiver, channel};

/// Escape sequences to enter the alternate screen without a cursor, and to leave it.
const ENTER_SCREEN: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE_SCREEN: &str = "\x1b[?25h\x1b[?1049l";
/// Escape sequences to move to the first cell, and to clear the rest of the line or screen.
const CURSOR_HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_SCREEN: &str = "\x1b[J";
/// The size of a terminal that does not know it.
const DEFAULT_TERMINAL_SIZE: (u16, u16) = (80, 24);
/// The keys that quit: q, Ctrl-C and Ctrl-D.
const QUIT_KEYS: [u8; 4] = [b'q', b'Q', 3, 4];

/// A terminal in use.
#[derive(Debug)]
pub struct Terminal {
    original: Termios,
    keys: Receiver<u8>,
    resize: Signal,
}

impl Terminal {
    /// Enters the alternate screen.
    pub fn enter() -> Result<Self> {
        let original = tcgetattr(io::stdin()).context("cannot read the terminal settings")?;
        let resize = signal(SignalKind::window_change())?;
        let mut settings = original.clone();
        // Ctrl-C stays a signal.
        settings.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        settings.special_codes[SpecialCodeIndex::VMIN] = 1;
        settings.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(io::stdin(), OptionalActions::Now, &settings)
            .context("cannot change the terminal settings")?;
        let (sender, keys) = channel(16);
        // A thread of its own, which waits for a key until the process ends.
        std::thread::spawn(move || {
            let mut key = [0];
            while matches!(io::stdin().read(&mut key), Ok(1)) && sender.blocking_send(key[0]).is_ok() {}
        });
        let terminal = Self { original, keys, resize };
        write(ENTER_SCREEN)?;
        Ok(terminal)
    }

    /// Draws the lines for the terminal's width, cut to its height.
    pub fn draw(&self, lines: impl FnOnce(usize) -> Vec<String>) -> Result<()> {
        let (width, height) =
            tcgetwinsize(io::stdout()).map_or(DEFAULT_TERMINAL_SIZE, |size| (size.ws_col, size.ws_row));
        let (width, height) = if width == 0 || height == 0 { DEFAULT_TERMINAL_SIZE } else { (width, height) };
        let lines = lines(width.into());
        let visible = lines.iter().take(height.into());
        let visible = visible.map(|line| line.chars().take(width.into()).collect::<String>() + CLEAR_LINE);
        // No newline after the last, which would scroll.
        write(&format!("{CURSOR_HOME}{}{CLEAR_SCREEN}", visible.collect::<Vec<_>>().join("\r\n")))
    }

    /// Waits until the user quits (true) or the size changes (false).
    pub async fn wait_for_quit(&mut self) -> bool {
        loop {
            tokio::select! {
                _ = self.resize.recv() => return false,
                key = self.keys.recv() => match key {
                    Some(key) if !QUIT_KEYS.contains(&key) => {}
                    // The end of input quits, too.
                    _ => return true,
                },
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = write(LEAVE_SCREEN);
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.original);
    }
}

fn write(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot write to the terminal")
}
