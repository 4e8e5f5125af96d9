// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Renumbering of what tells about a machine: devices, tasks, memory, times, words.
//!
//! * Devices become `dev0`, `dev1`, .. in the order in which they appear.
//! * Memory is cut into blocks of 2 MiB. Blocks that lie side by side stay so, in runs; the runs
//!   are laid one after the other, in the order in which they appear, with a block between. So no
//!   two mappings share memory that did not, and contiguity, alignment up to 2 MiB, leaf tables and
//!   sets of caches stay. Only what a design that maps memory onto itself needs in upper tables can
//!   shrink.
//! * Tasks become `task0`, `task1`, .. in the order in which they appear.
//! * Times begin at 0. CPUs stay; so do IOVAs, which are the allocator's, and how many bytes of its
//!   pages a map is for.
//! * Comments and marks go. Notes stay: their words are ours.
//!
//! Which blocks lie side by side is known only at the end, so the file is read twice.

use super::ImportError;
use super::items::{Item, Items};
use crate::event::{DeviceId, Event};
use crate::note::{Note, Topic};
use crate::trace::{Stamp, TaskId};
use crate::units::{PAGE_LIMIT, PhysPage};
use std::collections::{BTreeMap, HashMap};

/// Pages of a block, as a power of two.
const BLOCK_LG2: u32 = 9;

/// Runs of blocks, at most: all memory of 32 TiB if no two are side by side.
const MAX_RUNS: usize = 1 << 23;

/// A run of blocks: where it ends, and which it is in order of appearance.
#[derive(Clone, Copy, Debug)]
struct Run {
    last: u64,
    number: u64,
}

/// The blocks of memory that a trace names.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// The runs, by number of their first block.
    runs: BTreeMap<u64, Run>,
    seen: u64,
}

impl Memory {
    /// Notes the memory of a map.
    pub fn event(&mut self, event: &Event) -> Result<(), ImportError> {
        let Event::Map {
            range,
            phys: Some(phys),
            ..
        } = event
        else {
            return Ok(());
        };
        let last_page = (phys.number() + range.pages().0 - 1).min(PAGE_LIMIT - 1);
        let (mut first, mut last) = (phys.number() >> BLOCK_LG2, last_page >> BLOCK_LG2);
        self.seen += 1;
        let mut number = self.seen;
        // joined with all that it touches or lies beside
        while let Some((&start, &run)) = self.runs.range(..=last.saturating_add(1)).next_back()
            && run.last.saturating_add(1) >= first
        {
            if start <= first && run.last >= last {
                return Ok(()); // nothing new
            }
            self.runs.remove(&start);
            (first, last) = (first.min(start), last.max(run.last));
            number = number.min(run.number);
        }
        self.runs.insert(first, Run { last, number });
        match self.runs.len() > MAX_RUNS {
            true => Err(ImportError::Scattered(MAX_RUNS)),
            false => Ok(()),
        }
    }

    /// Lays the runs out anew.
    pub fn renumbering(self) -> Renumbering {
        let mut runs: Vec<_> = self.runs.into_iter().collect();
        runs.sort_by_key(|(_, run)| run.number);
        let mut next = 1;
        let mut renumbering = Renumbering::default();
        for (first, run) in runs {
            renumbering.runs.insert(first, next);
            next += run.last - first + 2;
        }
        renumbering
    }
}

/// New numbers for memory.
#[derive(Debug, Default)]
pub(super) struct Renumbering {
    /// First block of a run to its new number.
    runs: BTreeMap<u64, u64>,
}

impl Renumbering {
    fn page(&self, page: PhysPage) -> Option<PhysPage> {
        let block = page.number() >> BLOCK_LG2;
        let (first, new) = self.runs.range(..=block).next_back()?;
        let within = page.number() & ((1 << BLOCK_LG2) - 1);
        PhysPage::new((new + block - first) << BLOCK_LG2 | within)
    }
}

/// A stream with everything renumbered.
pub(super) struct Anonymous<I> {
    items: I,
    renumbering: Renumbering,
    names: HashMap<DeviceId, String>,
    tasks: HashMap<TaskId, String>,
    begin: Option<u64>,
    ended: bool,
}

impl<I: Items> Anonymous<I> {
    pub fn new(items: I, renumbering: Renumbering) -> Self {
        Self {
            items,
            renumbering,
            names: HashMap::new(),
            tasks: HashMap::new(),
            begin: None,
            ended: false,
        }
    }
}

impl<I: Items> Items for Anonymous<I> {
    fn next(&mut self) -> Result<Option<Item>, ImportError> {
        loop {
            let Some(item) = self.items.next()? else {
                let note = Note {
                    topic: Topic::Anonymized,
                    count: self.names.len() as u64,
                };
                let last = !std::mem::replace(&mut self.ended, true);
                return Ok(last.then_some(Item::Note(note)));
            };
            return Ok(Some(match item {
                Item::Event(mut event) => {
                    // a device of the capture may have no line in the trace, so its number tells
                    // nothing
                    let number = self.names.len();
                    let name = self.names.entry(event.device());
                    name.or_insert_with(|| format!("dev{number}"));
                    if let Event::Map { phys, .. } = &mut event {
                        *phys = phys.and_then(|page| self.renumbering.page(page));
                    }
                    Item::Event(event)
                }
                Item::At(stamp) => {
                    if let Some(task) = stamp.task {
                        let number = self.tasks.len();
                        let name = self.tasks.entry(task);
                        name.or_insert_with(|| format!("task{number}"));
                    }
                    let begin = *self.begin.get_or_insert(stamp.nanoseconds);
                    Item::At(Stamp {
                        nanoseconds: stamp.nanoseconds.saturating_sub(begin),
                        ..stamp
                    })
                }
                Item::Note(note) if note.topic == Topic::Anonymized => continue,
                Item::Mark(_) | Item::Comment(_) => continue,
                other => other,
            }));
        }
    }

    fn device_name(&self, device: DeviceId) -> &str {
        self.names.get(&device).map_or("", String::as_str)
    }

    fn task_name(&self, task: TaskId) -> &str {
        self.tasks.get(&task).map_or("", String::as_str)
    }
}
