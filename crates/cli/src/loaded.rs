// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A trace with what a report says about its origin.

use crate::capture::CaptureArguments;
use crate::error::Error;
use crate::input::{self, Input};
use crate::record::{Class, Device};
use clap::ValueEnum;
use ioatlas_iotlb::import::{self, Assume, Format, Options, Reopen};
use ioatlas_iotlb::{Event, Limits, Note, Topic, Trace};
use ioatlas_present::short;
use sha2::{Digest, Sha256};
use std::cell::RefCell;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// Characters of a name that reports show.
pub(crate) const NAME: usize = 48;

/// A trace, the digest of the file it came from, and what is known of it.
#[derive(Debug)]
#[allow(missing_docs)] // its fields say it
pub struct LoadedTrace {
    pub trace: Trace,
    /// Short name for people: the file name without its endings.
    pub label: String,
    /// What device and workload it shows, for bundled traces.
    pub description: Option<&'static str>,
    /// SHA-256 of the file as stored (compressed), hexadecimal.
    pub sha256: String,
    /// Size of the file as stored, in bytes.
    pub file_bytes: u64,
}

impl LoadedTrace {
    /// Reads and hashes a file, which gets no accesses where it has none.
    pub(crate) fn open(
        path: &Path,
        file: &Input,
        capture: &CaptureArguments,
    ) -> Result<Self, Error> {
        Self::import(&input::name(path), file, None, capture.without_assumption())
    }

    /// Reads and hashes what a file holds; `name` appears in errors.
    pub fn read(
        name: &str,
        bytes: &[u8],
        description: Option<&'static str>,
    ) -> Result<Self, Error> {
        let options = Options {
            from: Some(Format::Trace),
            assume: Assume::None,
            ..Options::default()
        };
        Self::import(name, &bytes, description, options)
    }

    /// What its devices are for, if what it says it was recorded of names that.
    #[must_use]
    pub fn class(&self) -> Option<Class> {
        class(self.trace.origin()?)
    }

    /// Whether accesses were recorded. Those of a capture are assumed, and what follows from them
    /// follows from the assumption.
    #[must_use]
    pub fn has_accesses(&self) -> bool {
        let assumed =
            |note: &Note| matches!(note.topic, Topic::AccessesAtUnmap | Topic::AccessesAtMap);
        let access = |event: &Event| matches!(event, Event::Access { .. });
        self.trace.events().iter().any(access) && !self.trace.notes().iter().any(assumed)
    }

    /// The file's name, and the label that stands for it.
    pub(crate) fn naming(&mut self) -> (&str, &mut String) {
        (self.trace.name(), &mut self.label)
    }

    fn import(
        name: &str,
        file: &dyn Reopen,
        description: Option<&'static str>,
        options: Options,
    ) -> Result<Self, Error> {
        let hashed = Hashed {
            file,
            sum: RefCell::default(),
        };
        let trace = import::load(name, &hashed, options, Limits::default())?;
        // The last reading has gone to the end of the file, so the digest is of all of it.
        let Sum { digest, bytes } = hashed.sum.into_inner();
        let digest = digest.finalize();
        Ok(Self {
            label: short(&label(name), NAME),
            trace,
            description,
            sha256: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
            file_bytes: bytes,
        })
    }
}

/// What the devices are for that a trace was recorded of: the first word that names one of those
/// that `trace record-guest` knows, or, in an anonymous trace, the class itself.
pub(crate) fn class(origin: &str) -> Option<Class> {
    let apart = |c: char| !c.is_alphanumeric() && c != '-';
    let of = |word: &str| {
        // also `2e1000` of the oldest
        let one = word.trim_start_matches(|c: char| c.is_ascii_digit());
        let device = Device::from_str(word, false).or(Device::from_str(one, false));
        let named = Class::ALL.into_iter().find(|class| class.name() == word);
        device.ok().map(Device::class).or(named)
    };
    origin.split(apart).find_map(of)
}

/// Where files, by their names, have the same label, puts as many directories before it as tell
/// them apart.
pub(crate) fn tell_apart<'a>(files: impl Iterator<Item = (&'a str, &'a mut String)>) {
    let mut files: Vec<(&str, &mut String)> = files.collect();
    for directories in 1..8 {
        let mut counts = std::collections::HashMap::new();
        for (_, label) in &files {
            *counts.entry(label.to_string()).or_insert(0) += 1;
        }
        for (name, shown) in &mut files {
            if counts[shown.as_str()] > 1 {
                let parts: Vec<&str> = name.split('/').collect();
                let from = parts.len().saturating_sub(directories + 1);
                let parents = &parts[from..parts.len() - 1];
                **shown = short(&[parents, &[&label(name)]].concat().join("/"), NAME);
            }
        }
    }
}

/// A path without directories and endings: `dir/a.trace.zst` is `a`.
pub(crate) fn label(name: &str) -> String {
    let file = name.rsplit('/').next().unwrap_or(name);
    let label = input::without_endings(file, &[".zst", ".gz", ".txt", ".trace", ".json"]);
    if label.is_empty() {
        file.into()
    } else {
        label.into()
    }
}

/// A file that digests what is read of it.
struct Hashed<'a> {
    file: &'a dyn Reopen,
    /// Of the reading that began last, which is to be the only one that goes on.
    sum: RefCell<Sum>,
}

#[derive(Default)]
struct Sum {
    digest: Sha256,
    bytes: u64,
}

impl Reopen for Hashed<'_> {
    fn reopen(&self) -> io::Result<Box<dyn BufRead + '_>> {
        *self.sum.borrow_mut() = Sum::default();
        Ok(Box::new(BufReader::new(Hashing {
            source: self.file.reopen()?,
            sum: &self.sum,
        })))
    }

    fn is_last(&self) {
        self.file.is_last();
    }
}

struct Hashing<'a> {
    source: Box<dyn BufRead + 'a>,
    sum: &'a RefCell<Sum>,
}

impl Read for Hashing<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buf)?;
        let mut sum = self.sum.borrow_mut();
        sum.digest.update(&buf[..count]);
        sum.bytes += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_file_names_without_endings() {
        assert_eq!(label("traces/e1000-stream.trace.zst"), "e1000-stream");
        assert_eq!(label("a.trace"), "a");
        assert_eq!(label(".gz"), ".gz");
    }

    #[test]
    fn a_trace_that_says_what_was_recorded_is_of_that_class() {
        let of = |comment: &str| {
            let text = format!("# ioatlas-trace 1\n# {comment}\n# source: e1000\nA d 1 r\n");
            let loaded = LoadedTrace::read("t", text.as_bytes(), None).unwrap();
            loaded.class()
        };
        for network in [
            "recorded: virtio-net, stream, 8 MiB; 4 CPUs",
            "recorded: 2xvirtio-net, stream, 4 MiB; CPUs: 4",
            "source: norc61_2e1000",
            "nvme, but not what was recorded",
            "recorded: network",
        ] {
            assert_eq!(of(network), Some(Class::Network), "{network}");
        }
        for disk in [
            "recorded: nvme, fio, 8 MiB, depth 32; 2 CPUs",
            "recorded: ide, bonnie",
            "recorded: virtio-scsi, dd",
            "source: vtd61_lsi_bonnie",
            "recorded: disk",
        ] {
            assert_eq!(of(disk), Some(Class::Disk), "{disk}");
        }
        assert_eq!(of("recorded: my server's provided nic"), None);
    }

    #[test]
    fn equal_labels_are_told_apart() {
        let read = |name| LoadedTrace::read(name, "# ioatlas-trace 1\n".as_bytes(), None).unwrap();
        let names = ["x/a/t.trace", "x/b/t.trace", "y/b/t.trace", "u.trace"];
        let mut traces = names.map(read);
        tell_apart(traces.iter_mut().map(LoadedTrace::naming));
        let labels = traces.map(|trace| trace.label);
        assert_eq!(labels, ["a/t", "x/b/t", "y/b/t", "u"]);
    }

    #[test]
    fn the_digest_is_of_the_whole_file() {
        let text = "# ioatlas-trace 1\nA d 1 r\n";
        let loaded = LoadedTrace::read("t", text.as_bytes(), None).unwrap();
        let expected: String = Sha256::digest(text)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(
            (loaded.sha256, loaded.file_bytes),
            (expected, text.len() as u64)
        );
    }
}
