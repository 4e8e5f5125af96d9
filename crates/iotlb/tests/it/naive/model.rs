// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Every strategy, written a second time from the description of the model: a map entry
//! a page, caches and buffers as vectors that are searched from end to end, the future
//! looked up by reading on. It shares nothing with the crate but the parser.

use ioatlas_iotlb::{Event, Kind, Trace};
use std::collections::BTreeMap;

/// A device and a page, or a superpage.
type Page = (usize, u64);

/// What can be chosen.
#[derive(Clone, Debug)]
pub struct Options {
    pub parts: Vec<&'static str>,
    pub entries: usize,
    pub ways: usize,
    pub buffer: usize,
    pub after_misses_only: bool,
    pub up: bool,
    pub levels: usize,
    /// Entries of the walk caches L2, L3, L4.
    pub walk: [usize; 3],
    pub ih: u8,
}

/// What is counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Result {
    pub accesses: u64,
    pub hits: u64,
    pub prefetch_hits: u64,
    pub misses: u64,
    pub faults: u64,
    pub prefetches: u64,
    pub evictions: u64,
    pub invalidations: u64,
    pub memory_reads: u64,
    pub prefetch_reads: u64,
    pub mapped_over: u64,
    pub not_mapped: u64,
    /// `h`, `p`, `m` or `f` for each access.
    pub endings: String,
}

/// An event with its pages spelled out.
enum Line {
    Map {
        device: usize,
        pages: Vec<u64>,
        streaming: bool,
        /// The group's first page, where the line is its first.
        opens: Option<u64>,
    },
    Unmap {
        device: usize,
        pages: Vec<u64>,
        /// Pages that were not mapped in the original.
        strangers: u64,
    },
    Access {
        device: usize,
        /// `None`: not mapped in the original.
        page: Option<u64>,
    },
}

fn device_of(event: &Event) -> usize {
    event.device().index()
}

/// Whether each M line is streaming; false for other lines.
fn streaming(trace: &Trace) -> Vec<bool> {
    let events = trace.events();
    let recorded = |device: usize| {
        events
            .iter()
            .any(|e| device_of(e) == device && matches!(e, Event::Map { kind: Some(_), .. }))
    };
    let recorded: Vec<bool> = trace.devices().map(|d| recorded(d.index())).collect();
    let mut result = vec![false; events.len()];
    let mut owner: BTreeMap<Page, usize> = BTreeMap::new();
    let mut unmapped = vec![false; recorded.len()];
    for (time, event) in events.iter().enumerate() {
        let device = device_of(event);
        match *event {
            Event::Map { range, kind, .. } => {
                for page in range.first().number()..=range.last().number() {
                    owner.insert((device, page), time);
                }
                result[time] = if recorded[device] {
                    kind != Some(Kind::Alloc)
                } else {
                    unmapped[device]
                };
            }
            Event::Unmap { range, .. } => {
                unmapped[device] = true;
                for page in range.first().number()..=range.last().number() {
                    if let Some(map) = owner.remove(&(device, page))
                        && !recorded[device]
                    {
                        result[map] = true;
                    }
                }
            }
            Event::Access { .. } => {}
        }
    }
    result
}

/// For each streaming M line: first line, first page and last page of its group.
fn groups(trace: &Trace, streaming: &[bool]) -> Vec<Option<(usize, u64, u64)>> {
    let events = trace.events();
    let mut group_of: Vec<Option<usize>> = vec![None; events.len()];
    let mut last_page: BTreeMap<usize, u64> = BTreeMap::new();
    for (time, event) in events.iter().enumerate() {
        let Event::Map { range, .. } = *event else {
            continue;
        };
        if !streaming[time] {
            continue;
        }
        let before = (0..time)
            .rev()
            .find(|&t| device_of(&events[t]) == device_of(event));
        let joins = before.and_then(|t| match events[t] {
            Event::Map { range: r, .. } if r.last().number() + 1 == range.first().number() => {
                group_of[t]
            }
            _ => None,
        });
        let group = joins.unwrap_or(time);
        group_of[time] = Some(group);
        last_page.insert(group, range.last().number());
    }
    let span = |group: usize| match events[group] {
        Event::Map { range, .. } => (group, range.first().number(), last_page[&group]),
        _ => unreachable!("groups begin with maps"),
    };
    group_of.into_iter().map(|g| g.map(span)).collect()
}

fn lines(trace: &Trace, mirrored: bool) -> Vec<Line> {
    let streaming = streaming(trace);
    let groups = groups(trace, &streaming);
    // By mapped page of the original: what is added to minus the page, if it is moved.
    let mut moved: BTreeMap<Page, Option<u64>> = BTreeMap::new();
    let image = |page: u64, sum: Option<u64>| sum.map_or(page, |sum| sum - page);
    let mut lines = Vec::new();
    for (time, event) in trace.events().iter().enumerate() {
        let device = device_of(event);
        lines.push(match *event {
            Event::Map { range, .. } => {
                let sum = match groups[time] {
                    Some((_, first, last)) if mirrored => Some(first + last),
                    _ => None,
                };
                let pages = range.first().number()..=range.last().number();
                for page in pages.clone() {
                    moved.insert((device, page), sum);
                }
                let opens = groups[time].filter(|&(group, ..)| group == time);
                Line::Map {
                    device,
                    pages: pages.map(|page| image(page, sum)).collect(),
                    streaming: streaming[time],
                    opens: opens.map(|(_, first, _)| image(first, sum)),
                }
            }
            Event::Unmap { range, .. } => {
                let (mut pages, mut strangers) = (Vec::new(), 0);
                for page in range.first().number()..=range.last().number() {
                    match moved.remove(&(device, page)) {
                        Some(sum) => pages.push(image(page, sum)),
                        None => strangers += 1,
                    }
                }
                Line::Unmap {
                    device,
                    pages,
                    strangers,
                }
            }
            Event::Access { page, .. } => {
                let page = page.number();
                let original = moved.get(&(device, page));
                let page = match original {
                    Some(&sum) => Some(image(page, sum)),
                    None if mirrored => None,
                    None => Some(page),
                };
                Line::Access { device, page }
            }
        });
    }
    lines
}

struct Simulation<'a> {
    options: &'a Options,
    lines: &'a [Line],
    offsets: Vec<u64>,
    /// 4 KiB pages.
    mapped: BTreeMap<Page, ()>,
    /// Latest class of pages or superpages.
    streaming: BTreeMap<Page, bool>,
    /// Least recently used first.
    sets: Vec<Vec<Page>>,
    /// Oldest first.
    buffer: Vec<Page>,
    /// By level; least recently used first.
    walk: BTreeMap<usize, Vec<Page>>,
    result: Result,
}

pub fn run(trace: &Trace, options: &Options) -> Result {
    let has = |part| options.parts.contains(&part);
    let lines = lines(trace, has("descending"));
    let classes = streaming(trace);
    // Pages of the consistent maps of the devices that come before.
    let mut offsets = Vec::new();
    for device in trace.devices() {
        let mut offset: u128 = 0;
        for (event, streaming) in trace.events().iter().zip(&classes) {
            if let Event::Map { range, .. } = event
                && !streaming
                && event.device() < device
            {
                offset += u128::from(range.pages().0);
            }
        }
        let sets = (options.entries / options.ways) as u128;
        offsets.push(if has("of") { (offset % sets) as u64 } else { 0 });
    }
    let mut simulation = Simulation {
        options,
        lines: &lines,
        offsets,
        mapped: BTreeMap::new(),
        streaming: BTreeMap::new(),
        sets: vec![Vec::new(); options.entries / options.ways],
        buffer: Vec::new(),
        walk: BTreeMap::new(),
        result: Result::default(),
    };
    for time in 0..lines.len() {
        simulation.line(time);
    }
    simulation.result
}

impl Simulation<'_> {
    fn has(&self, part: &str) -> bool {
        self.options.parts.contains(&part)
    }

    fn number(&self, page: u64) -> u64 {
        if self.has("superpage") {
            page >> 9
        } else {
            page
        }
    }

    /// Whether a page, or any page of a superpage, is mapped.
    fn is_mapped(&self, (device, number): Page) -> bool {
        if self.has("superpage") {
            let pages = (device, number << 9)..(device, (number + 1) << 9);
            self.mapped.range(pages).next().is_some()
        } else {
            self.mapped.contains_key(&(device, number))
        }
    }

    fn line(&mut self, time: usize) {
        match self.lines[time] {
            Line::Map {
                device,
                ref pages,
                streaming,
                opens,
            } => {
                for &page in pages {
                    if self.mapped.insert((device, page), ()).is_some() {
                        self.result.mapped_over += 1;
                    }
                    let number = self.number(page);
                    self.streaming.insert((device, number), streaming);
                }
                if let Some(first) = opens
                    && self.has("mpre")
                {
                    let number = self.number(first);
                    self.prefetch((device, number));
                }
            }
            Line::Unmap {
                device,
                ref pages,
                strangers,
            } => {
                self.result.not_mapped += strangers;
                let mut removed = false;
                for &page in pages {
                    if self.mapped.remove(&(device, page)).is_none() {
                        self.result.not_mapped += 1;
                        continue;
                    }
                    let entry = (device, self.number(page));
                    if self.is_mapped(entry) {
                        continue;
                    }
                    removed = true;
                    for set in &mut self.sets {
                        let before = set.len();
                        set.retain(|&e| e != entry);
                        self.result.invalidations += (before - set.len()) as u64;
                    }
                    self.buffer.retain(|&e| e != entry);
                }
                if removed && self.options.ih == 0 {
                    for cache in self.walk.values_mut() {
                        cache.retain(|&(d, _)| d != device);
                    }
                }
            }
            Line::Access { device, page } => {
                self.result.accesses += 1;
                let entry = page.map(|page| (device, self.number(page)));
                let ending = match entry {
                    Some(entry) if self.is_mapped(entry) => self.access(time, entry),
                    _ => {
                        self.result.faults += 1;
                        'f'
                    }
                };
                self.result.endings.push(ending);
            }
        }
    }

    fn set_of(&self, (device, number): Page) -> usize {
        ((number + self.offsets[device]) % self.sets.len() as u64) as usize
    }

    fn access(&mut self, time: usize, entry: Page) -> char {
        let at = self.set_of(entry);
        if let Some(position) = self.sets[at].iter().position(|&e| e == entry) {
            let entry = self.sets[at].remove(position);
            self.sets[at].push(entry);
            self.result.hits += 1;
            return 'h';
        }
        let buffered = self.buffer.iter().position(|&e| e == entry);
        if let Some(position) = buffered {
            self.buffer.remove(position);
            self.result.prefetch_hits += 1;
        } else {
            self.result.misses += 1;
            self.walk(entry);
        }
        if self.sets[at].len() == self.options.ways {
            let victim = self.victim(time, at);
            self.sets[at].remove(victim);
            self.result.evictions += 1;
        }
        self.sets[at].push(entry);
        if buffered.is_none() || !self.options.after_misses_only {
            let (device, number) = entry;
            let mut wanted = Vec::new();
            if self.has("alh") {
                wanted.extend([Some(number + 1), number.checked_sub(1)]);
            }
            if self.has("sd-alh") {
                let up = Some(number + 1).filter(|_| self.options.up);
                let down = number.checked_sub(1).filter(|_| !self.options.up);
                wanted.push(up.or(down));
            }
            for number in wanted.into_iter().flatten() {
                if self.is_mapped((device, number)) {
                    self.prefetch((device, number));
                }
            }
        }
        if buffered.is_some() { 'p' } else { 'm' }
    }

    /// Position of the entry that must go.
    fn victim(&self, time: usize, set: usize) -> usize {
        let set = &self.sets[set];
        if self.has("eh") {
            let hinted = set.iter().position(|entry| self.streaming[entry]);
            return hinted.unwrap_or(0);
        }
        if !self.has("opt-ev") {
            return 0;
        }
        let mut victim = (0, 0);
        for (position, &entry) in set.iter().enumerate() {
            let next = self.next_use(time, entry);
            // Of several that are never used again, the first is the least recently used.
            if next > victim.1 {
                victim = (position, next);
            }
        }
        victim.0
    }

    fn next_use(&self, time: usize, (device, number): Page) -> usize {
        for (later, line) in self.lines.iter().enumerate().skip(time + 1) {
            match line {
                Line::Access { device: d, page } if *d == device && *page == Some(number) => {
                    return later;
                }
                Line::Map {
                    device: d, pages, ..
                }
                | Line::Unmap {
                    device: d, pages, ..
                } if *d == device && pages.contains(&number) => break,
                _ => {}
            }
        }
        usize::MAX
    }

    fn prefetch(&mut self, entry: Page) {
        let room = if self.has("8-prefetch") {
            8
        } else {
            self.options.buffer
        };
        let cached = self.sets.iter().any(|set| set.contains(&entry));
        if room == 0 || cached || self.buffer.contains(&entry) {
            return;
        }
        if self.buffer.len() == room {
            self.buffer.remove(0);
        }
        self.buffer.push(entry);
        self.result.prefetches += 1;
        self.result.prefetch_reads += self.walk_length();
    }

    fn leaf(&self) -> usize {
        if self.has("superpage") { 2 } else { 1 }
    }

    fn walk_length(&self) -> u64 {
        (self.options.levels - self.leaf() + 1) as u64
    }

    fn walk(&mut self, (device, number): Page) {
        let leaf = self.leaf();
        // The tables of level x cover 512^(x - 1) pages of 4 KiB.
        let tag = |level: usize| (device, number >> (9 * (level - leaf)));
        let mut reads = self.walk_length();
        let mut read_to = self.options.levels;
        for level in leaf + 1..=self.options.levels.min(4) {
            let cache = self.walk.entry(level).or_default();
            if let Some(position) = cache.iter().position(|&e| e == tag(level)) {
                let entry = cache.remove(position);
                cache.push(entry);
                reads = (level - leaf) as u64;
                read_to = level - 1;
                break;
            }
        }
        for level in leaf + 1..=read_to.min(4) {
            let room = self.options.walk[level - 2];
            if room == 0 {
                continue;
            }
            let cache = self.walk.entry(level).or_default();
            if cache.len() == room {
                cache.remove(0);
            }
            cache.push(tag(level));
        }
        self.result.memory_reads += reads;
    }
}

/// Distinct pages in each window of accesses.
pub fn working_set(trace: &Trace, window: usize, superpages: bool) -> Vec<usize> {
    let accesses: Vec<Page> = trace
        .events()
        .iter()
        .filter_map(|event| match *event {
            Event::Access { device, page, .. } => {
                let number = page.number() >> if superpages { 9 } else { 0 };
                Some((device.index(), number))
            }
            _ => None,
        })
        .collect();
    let distinct = |window: &[Page]| {
        let mut pages = window.to_vec();
        pages.sort_unstable();
        pages.dedup();
        pages.len()
    };
    accesses.chunks(window).map(distinct).collect()
}
