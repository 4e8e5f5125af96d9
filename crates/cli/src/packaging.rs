// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `ioatlas completions` and `ioatlas man`: what a package installs beside the program, generated
//! from the grammar of the command line.

use crate::Answer;
use crate::args::Arguments;
use crate::error::Error;
use crate::output::Target;
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use std::io;
use std::path::{Path, PathBuf};

/// Print what lets a shell complete command lines of ioatlas.
///
/// For one session of bash: source <(ioatlas completions bash). For all: write it to
/// ~/.local/share/bash-completion/completions/ioatlas (bash), to _ioatlas in a folder of $fpath
/// (zsh), or to ~/.config/fish/completions/ioatlas.fish (fish).
#[derive(Args, Debug)]
pub(crate) struct CompletionsArguments {
    /// The shell.
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Print the manual page, or write those of all commands.
///
/// To read one without installing it: ioatlas man | man -l -
#[derive(Args, Debug)]
pub(crate) struct ManArguments {
    /// The folder to write ioatlas.1, ioatlas-report.1 and so on to.
    #[arg(value_name = "DIR")]
    pub folder: Option<PathBuf>,
}

pub(crate) fn completions(arguments: &CompletionsArguments) -> Answer {
    let mut script = Vec::new();
    let mut grammar = Arguments::command();
    let name = grammar.get_name().to_owned();
    clap_complete::generate(arguments.shell, &mut grammar, name, &mut script);
    String::from_utf8_lossy(&script).into_owned().into()
}

pub(crate) fn man(arguments: &ManArguments) -> Answer {
    // `ioatlas help` has no page: `man ioatlas-report` is what it would say to type
    let mut grammar = Arguments::command().disable_help_subcommand(true);
    grammar.build();
    match &arguments.folder {
        Some(folder) => write(grammar, folder).map(|()| String::new()).into(),
        None => String::from_utf8_lossy(&page(&Man::new(grammar)))
            .into_owned()
            .into(),
    }
}

/// Writes the pages of a command and all below it.
fn write(grammar: Command, folder: &Path) -> Result<(), Error> {
    for below in grammar.get_subcommands() {
        write(below.clone(), folder)?;
    }
    let man = Man::new(grammar);
    let target = Target::prepare(&folder.join(man.get_filename()))?;
    target.replace(|file| file.write_all(&page(&man)))
}

fn page(man: &Man) -> Vec<u8> {
    let mut page = Vec::new();
    // memory takes all that is written to it
    let written: io::Result<()> = man.render(&mut page);
    debug_assert!(written.is_ok());
    page
}
