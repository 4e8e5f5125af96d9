// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The text of `/sys/kernel/tracing/trace` and `trace_pipe`.
//!
//! ```text
//!      modprobe-175     [001] .....     5.881838: dma_alloc: 0000:00:1f.2 dir=BIDIRECTIONAL dma_addr=fffe0000 ...
//! CPU:0 [LOST 583 EVENTS]
//! ```
//!
//! A task that has not been switched from since tracing began has no name in the text yet: it is
//! `<...>-175`. Its name may be in `saved_cmdlines` later, so that can stand before the text, as
//! `grep -H` prints it: `saved_cmdlines:175 modprobe`.
//!
//! The name of a task can hold anything, and the flags after the CPU can be missing, so a line is
//! found by its CPU, then its time, which ends with a colon. Clocks other than seconds give the
//! order of events but no times.

use super::fields::Piece;
use super::raw::Parsed;
use super::tracepoint::{System, Tracepoint, cpu, nanoseconds, task};
use super::{Complaint, Fault};
use crate::parse::quoted;
use crate::trace::Stamp;
use std::collections::HashMap;

/// The event of a line, if it is one.
pub(super) fn tracepoint(line: &str) -> Option<Tracepoint<'_>> {
    let mut from = 0;
    while let Some(found) = line[from..].find(" [") {
        let open = from + found + 1;
        let close = open + line[open..].find(']')? + 1;
        if let Some(cpu) = cpu(&line[open..close])
            && let Some(event) = after_cpu(line, close, cpu)
        {
            return Some(match event.task {
                Some(_) => event,
                None => by_task(event, &line[..open]),
            });
        }
        from = open + 1;
    }
    None
}

/// `flags time: event: text` from `at` on.
fn after_cpu(line: &str, at: usize, cpu: u32) -> Option<Tracepoint<'_>> {
    let (mut time, mut rest) = word(line, at)?;
    let mut clock = time.strip_suffix(':');
    let mut interrupt = None;
    if clock.is_none_or(|clock| !is_clock(clock)) {
        interrupt = interrupt_of(time); // the first were flags
        (time, rest) = word(line, rest)?;
        clock = time.strip_suffix(':');
    }
    let clock = clock.filter(|clock| is_clock(clock))?;
    let (event, payload) = word(line, rest)?;
    let event = event.strip_suffix(':')?;
    Some(Tracepoint {
        stamp: nanoseconds(clock).map(|nanoseconds| Stamp {
            nanoseconds,
            cpu: Some(cpu),
            task: None,
        }),
        task: interrupt,
        unnamed: None,
        event,
        payload: Piece {
            text: &line[payload..],
            at: payload,
        },
    })
}

/// What runs in place of a task, by the third of the flags: the task that it came upon has nothing
/// to do with it.
fn interrupt_of(flags: &str) -> Option<&'static str> {
    match flags.as_bytes().get(2)? {
        b's' => Some("softirq"),
        b'h' | b'H' | b'z' | b'Z' => Some("hardirq"),
        _ => None,
    }
}

/// The event, with the task of `name-175 `, or of `name-175 ( 170) ` with its group.
fn by_task<'a>(event: Tracepoint<'a>, text: &'a str) -> Tracepoint<'a> {
    let text = text.trim_end();
    let text = match text.strip_suffix(')').and_then(|t| t.rsplit_once('(')) {
        Some((before, _)) => before.trim_end(),
        None => text,
    };
    let numbered = text
        .rsplit_once('-')
        .filter(|(_, number)| is_number(number));
    let Some((name, number)) = numbered else {
        return event;
    };
    let task = task(name);
    Tracepoint {
        task,
        unnamed: number.parse().ok().filter(|_| task.is_none()),
        ..event
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// Names of tasks that are not in the text, by their numbers.
#[derive(Default)]
pub(super) struct Names(HashMap<u32, String>);

/// Tasks whose names are kept, at most.
pub(super) const NAMES: usize = 1 << 16;

impl Names {
    /// Takes the name of a line; returns whether it has one.
    fn learn(&mut self, line: &str) -> bool {
        let Some((number, name)) = saved(line) else {
            return false;
        };
        if let (Ok(number), Some(name)) = (number.parse(), task(name))
            && self.0.len() < NAMES
        {
            self.0.insert(number, name.to_owned());
        }
        true
    }

    fn complete<'a>(&'a self, event: Tracepoint<'a>) -> Tracepoint<'a> {
        let name = event.unnamed.and_then(|number| self.0.get(&number));
        Tracepoint {
            task: event.task.or(name.map(String::as_str)),
            ..event
        }
    }
}

/// Number and name of `saved_cmdlines:175 modprobe`.
fn saved(line: &str) -> Option<(&str, &str)> {
    let (file, saved) = line.split_once("saved_cmdlines:")?;
    let numbered = saved.split_once(' ');
    let numbered = numbered.filter(|(number, _)| is_number(number));
    numbered.filter(|_| file.is_empty() || file.ends_with('/'))
}

/// Whether a line says the name of a task, and nothing else.
pub(super) fn is_name(line: &str) -> bool {
    saved(line).is_some()
}

fn is_clock(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
        && text.bytes().all(|b| b.is_ascii_digit() || b == b'.')
}

/// The word at or after `at`, and where it ends.
fn word(line: &str, at: usize) -> Option<(&str, usize)> {
    let rest = &line[at..];
    let start = at + rest.find(|c: char| c != ' ')?;
    let end = line[start..].find(' ').map_or(line.len(), |n| start + n);
    Some((&line[start..end], end))
}

/// What a line says.
pub(super) fn parse(line: &str, system: System, names: &mut Names) -> Result<Parsed, Complaint> {
    if line.starts_with('#') {
        return Ok(overwritten(line).map_or(Parsed::Nothing, Parsed::Overwritten));
    }
    if let Some(lost) = lost(line) {
        return lost;
    }
    if let Some((_, statistic)) = statistic(line) {
        return Ok(match statistic {
            Statistic::Lost(events) if events > 0 => Parsed::Lost(events),
            _ => Parsed::Nothing,
        });
    }
    match tracepoint(line) {
        Some(event) => names.complete(event).parse(system),
        None if line.trim().is_empty() || names.learn(line) => Ok(Parsed::Nothing),
        None => Ok(Parsed::Unknown),
    }
}

/// `# entries-in-buffer/entries-written: 90/100`: the difference was overwritten before anybody
/// read it. A buffer that was emptied by readers says 0 in the buffer.
fn overwritten(line: &str) -> Option<u64> {
    let comment = line.strip_prefix('#')?.trim();
    let counts = comment.strip_prefix("entries-in-buffer/entries-written:")?;
    let (kept, rest) = counts.trim().split_once('/')?;
    let written = rest.split(' ').next()?;
    let (kept, written) = (kept.parse::<u64>().ok()?, written.parse::<u64>().ok()?);
    (kept > 0 && written > kept).then(|| written - kept)
}

/// Whether the kernel says that it overwrote events: by its counts, or by a line that it prints only
/// then.
pub(super) fn is_overwritten(line: &str) -> bool {
    let began = line.starts_with("##### CPU ") && line.ends_with(" buffer started ####");
    began || overwritten(line).is_some()
}

/// What a line of the statistics of a CPU's buffer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Statistic {
    /// Entries that newer ones took the place of.
    Overwritten(u64),
    /// Events that were not written.
    Lost(u64),
    Other,
}

/// `per_cpu/cpu3/stats:overrun: 17`, as `grep` prints a line of several files.
pub(super) fn statistic(line: &str) -> Option<(u32, Statistic)> {
    let (file, statistic) = line.split_once("/stats:")?;
    let cpu = file.rsplit('/').next()?.strip_prefix("cpu")?;
    let (name, value) = statistic.split_once(": ")?;
    let count = value.trim().parse();
    let statistic = match (name, count) {
        ("overrun", Ok(count)) => Statistic::Overwritten(count),
        ("dropped events" | "commit overrun", Ok(count)) => Statistic::Lost(count),
        _ => Statistic::Other,
    };
    Some((cpu.parse().ok()?, statistic))
}

/// `CPU:0 [LOST 583 EVENTS]`, or without a number where it is not known.
fn lost(line: &str) -> Option<Result<Parsed, Complaint>> {
    let rest = line.strip_prefix("CPU:")?;
    let (_, lost) = rest.split_once(" [LOST ")?;
    let lost = lost.strip_suffix(']')?;
    let count = match lost.strip_suffix(" EVENTS") {
        Some(count) => count,
        None if lost == "EVENTS" => "1",
        None => return None,
    };
    let complaint = Complaint {
        offset: line.len() - rest.len(),
        reason: Fault::BadNumber(quoted(count)),
    };
    Some(count.parse().map(Parsed::Lost).map_err(|_| complaint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_may_be_called_anything() {
        let payload = "dma_unmap_page: d dir=TO_DEVICE dma_addr=1000 size=8 attrs=";
        for head in [
            "           <...>-17    [000] .....     5.881838: ",
            "a [001] b: c-17    [000] d.h2.   5.881838: ",
            "  x-17  (     17) [000] d.h2.   5.881838: ",
            "  x-17  [000]   5.881838: ",
        ] {
            let line = format!("{head}{payload}");
            let event = tracepoint(&line).expect(head);
            let stamp = Stamp {
                task: None,
                nanoseconds: 5_881_838_000,
                cpu: Some(0),
            };
            assert_eq!((event.stamp, event.event), (Some(stamp), "dma_unmap_page"));
        }
        assert!(tracepoint("  x-17  [000] d.h2. soon: dma_unmap_page: d").is_none());
        let counted = tracepoint("  x-17  [000] d.h2. 123456: dma_unmap_page: d").unwrap();
        assert_eq!(counted.stamp, None);
    }

    #[test]
    fn the_task_is_what_stands_before_its_number() {
        for (head, expected) in [
            ("           <...>-17    ", None),
            ("           <...>-17    (-------) ", None),
            ("          <idle>-0     ", Some("<idle>")),
            ("       irq/24-eth0-17  (     17) ", Some("irq/24-eth0")),
            ("    kworker/u8:3-dm-17 (-------) ", Some("kworker/u8:3-dm")),
            ("  Web Content (2)-17   (   1234) ", Some("Web Content (2)")),
            ("  a [001] b-3-4   ", Some("a [001] b-3")),
            (" no number-x ", None),
            ("", None),
        ] {
            let line = format!("{head}[000] d..2. 5.881838: dma_unmap_page: d");
            let event = tracepoint(&line).map(|event| event.task);
            // the CPU is found by the space before it
            assert_eq!(event.flatten(), expected, "{head}");
        }
        for (flags, expected) in [
            ("d.h2.", "hardirq"),
            ("d.H2.", "hardirq"),
            (".Ns1.", "softirq"),
            ("..s..", "softirq"),
            (".....", "cat"),
        ] {
            let line = format!("  cat-17 [000] {flags} 5.881838: dma_unmap_page: d");
            assert_eq!(tracepoint(&line).unwrap().task, Some(expected), "{flags}");
        }
        let long = "x".repeat(65);
        let line = format!(" {long}-1 [000] d..2. 5.881838: dma_unmap_page: d");
        assert_eq!(tracepoint(&line).unwrap().task, None);
    }

    #[test]
    fn a_task_without_a_name_has_the_saved_one() {
        let mut names = Names::default();
        for (line, learns) in [
            ("saved_cmdlines:17 my task", true),
            ("/sys/kernel/tracing/saved_cmdlines:18 dd", true),
            ("saved_cmdlines:19 <...>", true),
            ("saved_cmdlines:99999999999 far", true),
            ("saved_cmdlines:x y", false),
            ("saved_cmdlines:20", false),
            ("not_saved_cmdlines:21 cat", false),
        ] {
            assert_eq!(names.learn(line), learns, "{line}");
            let parsed = parse(line, System::Dma, &mut names).unwrap();
            assert_eq!(parsed == Parsed::Nothing, learns, "{line}");
        }
        for (head, expected) in [
            ("<...>-17 [000] .....", Some("my task")),
            ("<...>-18 (-----) [000] .....", Some("dd")),
            ("<...>-19 [000] .....", None),
            ("<...>-21 [000] .....", None),
            ("<...>-17 [000] ..s1.", Some("softirq")),
            ("cat-17 [000] .....", Some("cat")),
        ] {
            let line = format!("  {head} 5.881838: dma_unmap_page: d");
            let event = names.complete(tracepoint(&line).unwrap());
            assert_eq!(event.task, expected, "{head}");
        }
    }

    #[test]
    fn lost_events_are_counted_in_all_their_forms() {
        let lost = |line| parse(line, System::Dma, &mut Names::default()).unwrap();
        assert_eq!(lost("CPU:0 [LOST 583 EVENTS]"), Parsed::Lost(583));
        assert_eq!(lost("CPU:1 [LOST EVENTS]"), Parsed::Lost(1));
        assert_eq!(
            lost("# entries-in-buffer/entries-written: 90/100   #P:2"),
            Parsed::Overwritten(10)
        );
        assert_eq!(
            lost("# entries-in-buffer/entries-written: 0/3529   #P:2"),
            Parsed::Nothing
        );
        // no kernel keeps more than it wrote
        assert_eq!(
            lost("# entries-in-buffer/entries-written: 100/90   #P:2"),
            Parsed::Nothing
        );
    }

    #[test]
    fn statistics_of_a_buffer_are_read_as_grep_prints_them() {
        let of = |line| statistic(line).unwrap();
        let overrun = Statistic::Overwritten(17);
        assert_eq!(of("per_cpu/cpu3/stats:overrun: 17"), (3, overrun));
        assert_eq!(of("/sys/x/per_cpu/cpu10/stats:overrun: 17"), (10, overrun));
        for (line, expected) in [
            ("dropped events: 2", Parsed::Lost(2)),
            ("commit overrun: 1", Parsed::Lost(1)),
            ("dropped events: 0", Parsed::Nothing),
            ("oldest event ts:  4.1", Parsed::Nothing),
            ("now ts: 5.0", Parsed::Nothing),
        ] {
            let line = format!("per_cpu/cpu0/stats:{line}");
            let parsed = parse(&line, System::Dma, &mut Names::default());
            assert_eq!(parsed, Ok(expected), "{line}");
        }
        for other in [
            "cpu/stats:overrun: 1",
            "cpu1/stats: 1",
            "a/b/stats:overrun: 1",
        ] {
            assert_eq!(statistic(other), None, "{other}");
        }
    }
}
