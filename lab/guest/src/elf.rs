// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What programs, libraries and kernel modules need beside themselves.

use object::read::elf::{Dyn as _, ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object as _, ObjectSection as _, elf};

/// What a program or library names: the loader, and libraries by their names as files.
#[derive(Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // its fields say it
pub struct Needs {
    /// Path of the program's loader, if it has one.
    pub loader: Option<String>,
    pub libraries: Vec<String>,
}

/// Reads the needs of a program or library.
///
/// # Errors
///
/// In words, if it is no 64-bit ELF file or a damaged one.
pub fn needs(bytes: &[u8]) -> Result<Needs, String> {
    let read = || -> object::Result<Needs> {
        let file = ElfFile64::<Endianness>::parse(bytes)?;
        let (header, endian) = (file.elf_header(), file.endian());
        let sections = header.sections(endian, bytes)?;
        let mut needs = Needs::default();
        for segment in header.program_headers(endian, bytes)? {
            if let Some(path) = segment.interpreter(endian, bytes)? {
                needs.loader = Some(String::from_utf8_lossy(path).into_owned());
            }
        }
        if let Some((entries, strings)) = sections.dynamic(endian, bytes)? {
            let strings = sections.strings(endian, bytes, strings)?;
            for entry in entries {
                if entry.tag(endian) == elf::DT_NEEDED {
                    let name = entry.string(endian, strings)?;
                    needs
                        .libraries
                        .push(String::from_utf8_lossy(name).into_owned());
                }
            }
        }
        Ok(needs)
    };
    read().map_err(|error| error.to_string())
}

/// Names of the modules that a kernel module needs.
///
/// # Errors
///
/// In words, if it is no ELF file or says nothing about itself.
pub fn module_needs(bytes: &[u8]) -> Result<Vec<String>, String> {
    let file = object::File::parse(bytes).map_err(|error| error.to_string())?;
    let section = file
        .section_by_name(".modinfo")
        .ok_or("no section .modinfo")?;
    let information = section.data().map_err(|error| error.to_string())?;
    let mut needs = Vec::new();
    for entry in information.split(|byte| *byte == 0) {
        if let Some(names) = entry.strip_prefix(b"depends=") {
            let names = String::from_utf8_lossy(names);
            needs.extend(
                names
                    .split(',')
                    .filter(|name| !name.is_empty())
                    .map(str::to_owned),
            );
        }
    }
    Ok(needs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_this_machine_names_its_loader_and_library() {
        let program = std::env::current_exe().unwrap();
        let needs = needs(&std::fs::read(program).unwrap()).unwrap();
        assert!(needs.loader.is_some_and(|loader| loader.starts_with('/')));
        assert!(
            needs
                .libraries
                .iter()
                .any(|library| library.starts_with("libc.so"))
        );
    }

    #[test]
    fn what_is_no_program_is_refused() {
        assert!(needs(b"#!/bin/sh\n").is_err());
        assert!(module_needs(b"\x1f\x8b").is_err());
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(module_needs(&program).unwrap_err(), "no section .modinfo");
    }
}
