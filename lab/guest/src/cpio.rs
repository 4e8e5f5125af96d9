// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Archives that a kernel unpacks into its first file system: cpio, "new ASCII" format without
//! checksums.
//!
//! An entry is a header of 110 bytes (a magic number and 13 numbers of 8 hexadecimal digits), the
//! name with a zero byte, and the content; header with name, and content, are each padded to 4
//! bytes. An entry named `TRAILER!!!` ends an archive. The kernel takes several archives in a row;
//! a file `kernel/firmware/acpi/*.aml` of the first, uncompressed, overrides an ACPI table.

/// An archive that grows.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;

impl Archive {
    /// Adds a directory. What is above it must be there already.
    pub fn directory(&mut self, path: &str) {
        self.entry(path, DIRECTORY, &[]);
    }

    /// Adds a file that is not executable.
    ///
    /// # Panics
    ///
    /// If it has 4 GiB or more, more than the format can say.
    pub fn file(&mut self, path: &str, content: &[u8]) {
        self.entry(path, FILE, content);
    }

    /// Adds a file that may be executed.
    ///
    /// # Panics
    ///
    /// If it has 4 GiB or more, more than the format can say.
    pub fn program(&mut self, path: &str, content: &[u8]) {
        self.entry(path, PROGRAM, content);
    }

    /// Adds a symbolic link.
    ///
    /// # Panics
    ///
    /// If the target's name has 4 GiB or more.
    pub fn link(&mut self, path: &str, target: &str) {
        self.entry(path, LINK, target.as_bytes());
    }

    /// The archive's bytes, with its trailer.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.entries = u32::MAX; // inode 0, as others write it
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entries = self.entries.wrapping_add(1);
        let size = u32::try_from(content.len()).expect("a file below 4 GiB");
        let name = path.len() as u32 + 1;
        // inode, mode, uid, gid, links, mtime, size, device (2), node's device (2), name's length,
        // checksum
        let numbers = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name, 0];
        self.bytes.extend_from_slice(b"070701");
        for number in numbers {
            self.bytes
                .extend_from_slice(format!("{number:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Path, mode and content of each entry; the reader follows the format, not the writer.
    fn read(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        loop {
            assert_eq!(&bytes[..6], b"070701");
            let number = |index: usize| {
                let digits = &bytes[6 + 8 * index..14 + 8 * index];
                u32::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap()
            };
            let (mode, size, name) = (number(1), number(6) as usize, number(11) as usize);
            let path = std::str::from_utf8(&bytes[110..110 + name - 1]).unwrap();
            assert_eq!(bytes[110 + name - 1], 0);
            if path == "TRAILER!!!" {
                assert!(bytes.len() < 110 + name + 4);
                return entries;
            }
            let at = (110 + name).div_ceil(4) * 4;
            entries.push((path.to_owned(), mode, bytes[at..at + size].to_vec()));
            bytes = &bytes[(at + size).div_ceil(4) * 4..];
        }
    }

    #[test]
    fn what_goes_in_comes_out_whatever_the_padding() {
        let mut archive = Archive::default();
        archive.directory("bin");
        let contents: Vec<Vec<u8>> = (0..9).map(|n| vec![n as u8 + 1; n]).collect();
        for content in &contents {
            archive.file(&format!("bin/{}", "x".repeat(content.len() + 1)), content);
        }
        archive.program("init", b"#!/bin/sh\n");
        archive.link("sh", "busybox");
        let entries = read(&archive.finish());
        assert_eq!(entries[0], ("bin".into(), 0o040_755, vec![]));
        for (entry, content) in entries[1..10].iter().zip(&contents) {
            assert_eq!(entry.1, 0o100_644);
            assert_eq!(entry.2, *content);
            assert_eq!(entry.0.len(), 4 + content.len() + 1);
        }
        assert_eq!(
            entries[10],
            ("init".into(), 0o100_755, b"#!/bin/sh\n".into())
        );
        assert_eq!(entries[11], ("sh".into(), 0o120_777, b"busybox".into()));
        assert_eq!(entries.len(), 12);
    }
}
