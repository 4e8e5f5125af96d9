// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What standard output is shown on.

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use clap::builder::StyledStr;
use std::io;

/// How wide it is, and whether it has colours. By default nothing is known of it: tables are as
/// wide as they need to be, and all is plain.
#[derive(Clone, Copy, Debug, Default)]
pub struct Screen {
    columns: Option<usize>,
    colours: Colours,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Colours {
    #[default]
    None,
    Ansi,
}

impl Screen {
    /// That of this process: as wide as the terminal, else as `COLUMNS` says; with colours on a
    /// terminal that has them, unless `NO_COLOR` or `CLICOLOR_FORCE` say otherwise.
    #[must_use]
    pub fn of_process() -> Self {
        let stdout = io::stdout();
        let terminal = terminal_size::terminal_size_of(&stdout);
        let terminal = terminal.map(|(columns, _)| usize::from(columns.0));
        let asked = || std::env::var("COLUMNS").ok()?.parse().ok();
        Self {
            columns: terminal.or_else(asked).filter(|columns| *columns > 0),
            colours: match AutoStream::choice(&stdout) {
                ColorChoice::Never => Colours::None,
                _ => Colours::Ansi,
            },
        }
    }

    /// Its width, where there is one to keep to.
    #[must_use]
    pub fn columns(&self) -> Option<usize> {
        self.columns
    }

    /// Help, as clap has styled it.
    pub(crate) fn help(&self, text: &StyledStr) -> String {
        match self.colours {
            Colours::None => text.to_string(),
            Colours::Ansi => text.ansi().to_string(),
        }
    }

    /// A heading.
    #[must_use]
    pub fn heading(&self, text: &str) -> String {
        self.styled(Style::new().bold(), text)
    }

    /// What makes the rest worthless.
    #[must_use]
    pub fn alarm(&self, text: &str) -> String {
        let red = AnsiColor::Red.on_default();
        self.styled(red.bold(), text)
    }

    fn styled(&self, style: Style, text: &str) -> String {
        match self.colours {
            Colours::None => text.into(),
            Colours::Ansi => format!("{style}{text}{style:#}"),
        }
    }
}
