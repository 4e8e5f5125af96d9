// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The text that `perf script` prints.
//!
//! ```text
//!     modprobe   175 [001]     5.854400:                  dma:dma_alloc: 0000:00:1f.2 dir=BIDIRECTIONAL dma_addr=fffe0000 ...
//! ```
//!
//! The name of a task can hold anything, so a line is found by its event, `dma:` or `iommu:` and a
//! name, and read backwards from there: perhaps a period, the time with a colon, the CPU. Older
//! `perf` cannot parse the kernel's format of lists and prints `[FAILED TO PARSE]` with the fields
//! by their own names and arrays as bytes.

use super::Complaint;
use super::fields::Piece;
use super::raw::Parsed;
use super::tracepoint::{System, Tracepoint, cpu, nanoseconds, other_event, task};
use crate::trace::Stamp;

/// The event of a line, if it is one of the two systems.
pub(super) fn tracepoint(line: &str) -> Option<Tracepoint<'_>> {
    [" dma:", " iommu:"].iter().find_map(|system| {
        let mut from = 0;
        while let Some(found) = line[from..].find(system) {
            let name = from + found + system.len();
            if let Some(event) = at(line, from + found, name) {
                return Some(event);
            }
            from = name;
        }
        None
    })
}

/// The event whose name begins at `name`, with what is known of it left of `end`.
fn at(line: &str, end: usize, name: usize) -> Option<Tracepoint<'_>> {
    let length = line[name..].find(':')?;
    let event = &line[name..name + length];
    if event.is_empty() || !event.bytes().all(|b| b.is_ascii_lowercase() || b == b'_') {
        return None;
    }
    let (mut rest, mut word) = last_word(&line[..end]);
    if is_number(word) {
        (rest, word) = last_word(rest); // the period
    }
    let clock = word.strip_suffix(':')?;
    let (before, word) = last_word(rest);
    let cpu = cpu(word);
    let (comm, number) = last_word(if cpu.is_some() { before } else { rest });
    // `pid`, or `pid/tid`
    let numbered = number.split('/').all(is_number);
    let payload = name + length + 1;
    // of a task that ended before its name was read, `perf` prints the number after a colon
    let unnamed = comm.trim().strip_prefix(':').is_some_and(is_number);
    Some(Tracepoint {
        stamp: nanoseconds(clock).map(|nanoseconds| Stamp {
            nanoseconds,
            cpu,
            task: None,
        }),
        task: task(comm).filter(|_| numbered && !unnamed),
        unnamed: None,
        event,
        payload: Piece {
            text: &line[payload..],
            at: payload,
        },
    })
}

/// What stands before the last word, and that.
fn last_word(text: &str) -> (&str, &str) {
    let text = text.trim_end();
    text.rsplit_once(' ').unwrap_or(("", text))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// The event of any system: the word with a colon behind the time, and perhaps a period.
fn event_of_others(line: &str) -> Option<&str> {
    let mut words = line.split(' ').filter(|word| !word.is_empty());
    let is_time = |word: &str| word.strip_suffix(':').and_then(nanoseconds).is_some();
    words.find(|word| is_time(word))?;
    words.find(|word| !is_number(word))?.strip_suffix(':')
}

/// What a line says.
pub(super) fn parse(line: &str, system: System) -> Result<Parsed, Complaint> {
    if line.trim().is_empty() || line.starts_with('#') {
        return Ok(Parsed::Nothing);
    }
    if let Some(event) = tracepoint(line) {
        return event.parse(system);
    }
    // `perf script --show-lost-events`
    let lost = line.split_once("PERF_RECORD_LOST").and_then(|(_, rest)| {
        let (_, count) = rest.split_once("lost ")?;
        count.trim().parse().ok()
    });
    Ok(match (lost, event_of_others(line)) {
        (Some(lost), _) => Parsed::Lost(lost),
        (None, Some(event)) => other_event(event),
        (None, None) => Parsed::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use super::super::raw::{Raw, Segment};
    use super::*;
    use crate::event::Permission;

    #[test]
    fn lists_that_perf_could_not_parse_are_read_from_their_bytes() {
        let line = "  kthreadd   177 [000]     6.193132:  dma:dma_map_sg: [FAILED TO PARSE] device=0000:00:1f.2 full_nents=1 \
                    full_ents=1 truncated=0 phys_addrs=ARRAY[c0, e8, 90, 01, 00, 00, 00, 00] \
                    dma_addrs=ARRAY[c0, f8, f3, ff, 00, 00, 00, 00] lengths=ARRAY[00, 02, 00, 00] dir=2 attrs=0x0";
        let Parsed::Event {
            stamp,
            task,
            device,
            raw,
        } = parse(line, System::Dma).unwrap()
        else {
            panic!("no event");
        };
        let expected = Stamp {
            nanoseconds: 6_193_132_000,
            cpu: Some(0),
            task: None,
        };
        assert_eq!(task.as_deref(), Some("kthreadd"));
        assert_eq!((stamp, device.as_str()), (Some(expected), "0000:00:1f.2"));
        assert_eq!(
            raw,
            Raw::MapList {
                segments: vec![Segment {
                    address: 0xfff3_f8c0,
                    bytes: 512
                }],
                phys: vec![0x190_e8c0],
                permission: Permission::Write,
                entries: 1,
                cut: 0,
            }
        );
    }

    #[test]
    fn the_task_is_what_stands_before_its_number() {
        for (head, expected) in [
            ("         swapper     0 [000]", Some("swapper")),
            ("     Web Content  1234/1240  [000]", Some("Web Content")),
            ("  kworker/u8:3-ev    77 [000]", Some("kworker/u8:3-ev")),
            ("a: dma:map 1 2.5:  17 [000]", Some("a: dma:map 1 2.5:")),
            ("   :175   175/175 [000]", None),
            ("   :175   175", None),
            ("     x    -1 [000]", None),
            ("           17 [000]", None),
        ] {
            let line = format!("{head} 1.000002:  dma:dma_unmap_page: d");
            assert_eq!(tracepoint(&line).expect(head).task, expected, "{head}");
        }
    }

    #[test]
    fn a_period_may_stand_before_the_event_and_the_cpu_be_missing() {
        for (line, name, cpu) in [
            (
                "x 1 [003] 1.000002: 1 dma:dma_unmap_page: d dir=NONE dma_addr=1 size=2",
                "x",
                Some(3),
            ),
            (
                "x dma: 1/2 1.000002: dma:dma_unmap_page: d dir=NONE dma_addr=1 size=2",
                "x dma:",
                None,
            ),
        ] {
            let event = tracepoint(line).expect(line);
            let stamp = Stamp {
                nanoseconds: 1_000_002_000,
                cpu,
                task: None,
            };
            assert_eq!(event.task, Some(name));
            assert_eq!((event.stamp, event.event), (Some(stamp), "dma_unmap_page"));
        }
    }
}
