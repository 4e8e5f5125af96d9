// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a guest says on its console: lines `ioatlas: WORD REST` of its script, among the kernel's.
//!
//! Some words are known to the code that watches the guest, and end it: `done` (all is
//! well), `failed: WHY`; so does the kernel's last line when it panics. All other words
//! go to a [`Console`].

use std::borrow::Cow;

/// Begins a line of the script.
const PREFIX: &str = "ioatlas: ";

/// What a line of the guest means for the code that watches it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Nothing that is to be acted on.
    Nothing,
    /// This is what the guest does from now on: "does its work".
    Phase(Cow<'static, str>),
    /// The guest is to be ended, for this reason.
    Fail(String),
}

/// Hears what a guest says on its console.
pub trait Console {
    /// A line `ioatlas: WORD REST`.
    fn said(&mut self, word: &str, rest: &str) -> Heard;

    /// Any other line: the kernel's, or a program's.
    fn other(&mut self, line: &str) {
        let _ = line;
    }
}

/// Keeps what was said; the word `phase` begins one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// Words and what followed, in order.
    pub said: Vec<(String, String)>,
}

impl Lines {
    /// What followed the word, each time it was said.
    pub fn all<'a>(&'a self, word: &'a str) -> impl Iterator<Item = &'a str> {
        let of = move |said: &&(String, String)| said.0 == word;
        self.said.iter().filter(of).map(|(_, rest)| rest.as_str())
    }
}

impl Console for Lines {
    fn said(&mut self, word: &str, rest: &str) -> Heard {
        self.said.push((word.into(), rest.into()));
        match word {
            "phase" => Heard::Phase(rest.to_owned().into()),
            _ => Heard::Nothing,
        }
    }
}

/// How far a guest has come, by its console.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// Why the script gave up.
    pub failed: Option<String>,
    /// The last line of a dying kernel.
    pub panic: Option<String>,
    /// The script came to its end.
    pub done: bool,
}

impl State {
    /// Takes one line, with or without its end.
    pub fn line(&mut self, line: &str, console: &mut impl Console) -> Heard {
        let line = line.trim_end();
        if line.contains("Kernel panic") {
            self.panic = Some(line.into());
        }
        let Some(said) = line.strip_prefix(PREFIX) else {
            console.other(line);
            return Heard::Nothing;
        };
        let (word, rest) = said.split_once(' ').unwrap_or((said, ""));
        match word {
            "failed:" => self.failed = Some(rest.into()),
            "done" => self.done = true,
            _ => return console.said(word, rest),
        }
        Heard::Nothing
    }

    /// Why it failed, if it says so.
    pub fn why(&self) -> Option<&str> {
        self.failed.as_deref().or(self.panic.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(console: &str) -> (State, Lines, Vec<Heard>) {
        let (mut state, mut lines) = (State::default(), Lines::default());
        let heard = console.lines().map(|line| state.line(line, &mut lines));
        let heard = heard.filter(|heard| *heard != Heard::Nothing).collect();
        (state, lines, heard)
    }

    #[test]
    fn a_script_is_heard_among_the_kernels_lines() {
        let (state, lines, heard) = after(
            "[    0.000000] Linux version 6.1.0\r\nioatlas: kernel 6.1.0-56-amd64\r\nioatlas: phase moves data\r\nioatlas: alone\r\nioatlas: done\r\n",
        );
        assert_eq!(heard, [Heard::Phase("moves data".into())]);
        assert_eq!(lines.all("kernel").collect::<Vec<_>>(), ["6.1.0-56-amd64"]);
        assert_eq!(lines.all("alone").collect::<Vec<_>>(), [""]);
        assert!(state.done);
        assert_eq!(state.why(), None);
    }

    #[test]
    fn the_scripts_reason_is_told_before_the_kernels() {
        let (state, ..) = after("[   20.1] Kernel panic - not syncing: x\r\n");
        assert!(state.why().is_some_and(|why| why.ends_with("syncing: x")));
        let (state, ..) = after("ioatlas: failed: no disk\n[   20.1] Kernel panic\n");
        assert_eq!(state.why(), Some("no disk"));
        assert!(!state.done);
    }
}
