//! The terminal while `top` has it: another screen, and keys one by one. It is given back as it was, however that ends.

use std::io::{self, Read, Write};

use anyhow::{Context, Result};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{Receiver, channel};

/// To the other screen, without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// The first cell; and from the cursor on, nothing of what stood there.
const HOME: &str = "\x1b[H";
const REST_OF_LINE: &str = "\x1b[K";
const REST: &str = "\x1b[J";
/// What a terminal that does not know its size is taken for.
const USUAL: (u16, u16) = (80, 24);
/// Ctrl-C and Ctrl-D, where they come as keys.
const LEAVING: [u8; 4] = [b'q', b'Q', 3, 4];

/// A terminal that is ours.
#[derive(Debug)]
pub struct Terminal {
    before: Termios,
    keys: Receiver<u8>,
    resize: Signal,
}

impl Terminal {
    /// Takes it.
    pub fn take() -> Result<Self> {
        let before = tcgetattr(io::stdin()).context("the terminal can't be asked how it is set")?;
        let resize = signal(SignalKind::window_change())?;
        let mut ours = before.clone();
        // Ctrl-C stays a signal.
        ours.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        ours.special_codes[SpecialCodeIndex::VMIN] = 1;
        ours.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(io::stdin(), OptionalActions::Now, &ours).context("the terminal can't be set")?;
        let (tell, keys) = channel(16);
        // A thread of its own, which waits for a key until the process ends.
        std::thread::spawn(move || {
            let mut key = [0];
            while matches!(io::stdin().read(&mut key), Ok(1)) && tell.blocking_send(key[0]).is_ok() {}
        });
        let terminal = Self { before, keys, resize };
        write(ENTER)?;
        Ok(terminal)
    }

    /// Draws what `lines` has for the terminal's width, as far as its height goes.
    pub fn draw(&self, lines: impl FnOnce(usize) -> Vec<String>) -> Result<()> {
        let (width, height) = tcgetwinsize(io::stdout()).map_or(USUAL, |size| (size.ws_col, size.ws_row));
        let (width, height) = if width == 0 || height == 0 { USUAL } else { (width, height) };
        let lines = lines(width.into());
        let fit = lines.iter().take(height.into());
        let fit = fit.map(|line| line.chars().take(width.into()).collect::<String>() + REST_OF_LINE);
        // No newline behind the last: it would scroll.
        write(&format!("{HOME}{}{REST}", fit.collect::<Vec<_>>().join("\r\n")))
    }

    /// Waits until somebody has seen enough (true), or its size is another one.
    pub async fn left(&mut self) -> bool {
        loop {
            tokio::select! {
                _ = self.resize.recv() => return false,
                key = self.keys.recv() => match key {
                    Some(key) if !LEAVING.contains(&key) => {}
                    // Without a key nobody is there any more.
                    _ => return true,
                },
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have gone away.
        let _ = write(LEAVE);
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

fn write(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot write to the terminal")
}
