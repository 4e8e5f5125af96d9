// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Figures 4 to 7: which pages a device accesses, and which are mapped and unmapped, over virtual
//! time.
//!
//! Virtual time is the index of the event among maps, unmaps and accesses, as in the paper (3.1). A
//! *step* goes from one streaming page that a device accesses to the next other one of the same
//! stream, which is all mappings of one permission, for a NIC sends and receives side by side; it
//! is *to a neighbour* if the pages are adjacent. Accesses to descriptors in between are none. A
//! *group* is what the paper's 4.7 calls so: streaming maps of a device, one after the other with
//! nothing between, each beginning where the last ended; a scatter-gather list is one.

mod claims;
mod observed;

use claims::*;
use observed::{Observed, stream};

use super::{
    About, Found, Made, Runs, Shown, Statement, about,
    workload::{E1000, LSI, Recorded, TWO_E1000, Workload},
};
use ioatlas_iotlb::{Class, Effect, Event, EventTime, LiveMappings};
use ioatlas_present::{
    Cell, Tag,
    plot::{Dot, Dots, Drawing, Plot, Scale},
};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// Events of a close-up, from the middle of the trace or its start.
const CLOSE_UP: usize = 1500;

/// What a figure shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Accesses,
    Maps,
}

/// What part of a trace is drawn, for names of files and in titles.
#[derive(Clone, Copy)]
struct Close {
    suffix: &'static str,
    words: &'static str,
}

const WHOLE: Close = Close {
    suffix: "",
    words: "",
};
const START: Close = Close {
    suffix: "-start",
    words: ", the start",
};
const MIDDLE: Close = Close {
    suffix: "-close-up",
    words: ", close up",
};

/// A figure of the paper.
pub(super) struct Exhibit {
    about: About,
    what: What,
    workload: &'static Workload,
    says: &'static [Claim],
}

pub(super) static FIGURES: [Exhibit; 4] = [
    Exhibit {
        about: about(
            "figure 4",
            "E1000 NIC, netperf send: virtual I/O memory access",
            "The consistent region is accessed all the time and rapidly; buffers mapped page by page are accessed at descending addresses (3.2).",
        ),
        what: What::Accesses,
        workload: &E1000,
        says: &[RAPIDLY, DESCENDING_STEPS],
    },
    Exhibit {
        about: about(
            "figure 5",
            "E1000 NIC, netperf send: map and unmap operations",
            "Mapping starts at a certain address and goes on in descending order; consistent mappings come before any streaming one (3.2), and neighbours in time \
             are neighbours in space (4.6).",
        ),
        what: What::Maps,
        workload: &E1000,
        says: &[DESCENDING_MAPS, CONSISTENT_FIRST, ADJACENT_MAPS],
    },
    Exhibit {
        about: about(
            "figure 6",
            "SCSI controller, bonnie++ write: virtual I/O memory access",
            "The consistent region is accessed all the time and rapidly; the pages of a scatter-gather list have ascending addresses, and the next list begins below (3.2).",
        ),
        what: What::Accesses,
        workload: &LSI,
        says: &[RAPIDLY, ASCENDING_STEPS, DESCENDING_MAPS],
    },
    Exhibit {
        about: about(
            "figure 7",
            "Two E1000 NICs, netperf send: map and unmap operations",
            "The regions of the two devices overlap, and the consistent mappings of both are in the same few pages (3.2).",
        ),
        what: What::Maps,
        workload: &TWO_E1000,
        says: &[OVERLAP, SAME_CONSISTENT],
    },
];

/// What is drawn and judged of a trace.
struct Data {
    kernel: &'static str,
    suffix: &'static str,
    /// What is observed, by device.
    seen: Vec<Observed>,
    /// Access events: device, class, and the event.
    accesses: Vec<(usize, Class, Dot)>,
    maps: Vec<(usize, Class, Dot)>,
    unmaps: Vec<(usize, Class, Dot)>,
    events: usize,
}

impl Data {
    fn of(recorded: &Recorded) -> Self {
        let trace = &recorded.trace;
        let classes = trace.classes();
        let mut live = LiveMappings::new(trace);
        // the class of each live page, for unmaps name pages only
        let mut class_of: HashMap<(u32, u64), Class> = HashMap::new();
        let streams: Vec<usize> = trace
            .events()
            .iter()
            .map(|event| match event {
                Event::Map { permission, .. } => stream(*permission),
                Event::Unmap { .. } | Event::Access { .. } => 0,
            })
            .collect();
        let mut data = Data {
            kernel: recorded.kernel,
            suffix: recorded.suffix(),
            seen: vec![Observed::default(); trace.devices().len()],
            accesses: Vec::new(),
            maps: Vec::new(),
            unmaps: Vec::new(),
            events: trace.events().len(),
        };
        for (at, event) in trace.events().iter().enumerate() {
            let device = event.device();
            let seen = &mut data.seen[device.index()];
            let effect = live.apply(EventTime(at), event);
            let dot = |low: u64, high: u64| Dot {
                at: at as f64,
                low: low as f64,
                high: high as f64,
            };
            match *event {
                Event::Map { range, .. } => {
                    let class = classes[at].unwrap_or(Class::Streaming);
                    let (first, last) = (range.first().number(), range.last().number());
                    seen.map(class, first, range.pages().0);
                    class_of.insert((device.0, first), class);
                    data.maps.push((device.index(), class, dot(first, last)));
                }
                Event::Unmap { range, .. } => {
                    seen.end_group();
                    let (first, last) = (range.first().number(), range.last().number());
                    let class = class_of.remove(&(device.0, first));
                    let class = class.unwrap_or(Class::Streaming);
                    data.unmaps.push((device.index(), class, dot(first, last)));
                }
                Event::Access { page, .. } => {
                    let Effect::Accessed(Some(owner)) = effect else {
                        continue;
                    };
                    let class = classes[owner.0].unwrap_or(Class::Streaming);
                    seen.access(class, streams[owner.0], page.number());
                    let dot = dot(page.number(), page.number());
                    data.accesses.push((device.index(), class, dot));
                }
            }
        }
        data.seen.iter_mut().for_each(Observed::end_group);
        data
    }
}

impl Runs for Exhibit {
    fn about(&self) -> About {
        self.about
    }

    fn make(&self, progress: &dyn Fn(&str)) -> Result<Made, String> {
        progress(self.workload.name);
        let data: Vec<Data> = self.workload.load()?.iter().map(Data::of).collect();
        let statement = |claim: &Claim| Statement {
            says: claim.says.into(),
            theirs: claim.theirs,
            rule: claim.rule.into(),
            found: data
                .iter()
                .map(|data| Found::new(data.kernel, (claim.judge)(&data.seen)))
                .collect(),
        };
        Ok(Made::new(
            self.about,
            self.says.iter().map(statement).collect(),
            self.show(&data),
        ))
    }
}

impl Exhibit {
    fn show(&self, data: &[Data]) -> Shown {
        let counted = Some(Tag::Counted);
        let columns = [
            ("kernel", None),
            ("device", None),
            ("consistent pages", counted),
            ("streaming page numbers", counted),
            ("consistent accesses", counted),
            ("streaming accesses", counted),
            ("steps down to a neighbour", counted),
            ("steps up to a neighbour", counted),
            ("steps elsewhere", counted),
            ("groups of maps below the one before", counted),
            ("not below", counted),
            ("just below", counted),
        ];
        let mut rows = Vec::new();
        for one in data {
            for (device, seen) in one.seen.iter().enumerate() {
                let mut row: Vec<Cell> = vec![one.kernel.into(), Cell::count(device as u64 + 1)];
                row.extend(
                    [
                        seen.consistent_pages.len() as u64,
                        seen.streaming_pages.len() as u64,
                        seen.consistent_accesses,
                        seen.streaming_accesses,
                        seen.down,
                        seen.up,
                        seen.jumps,
                        seen.groups_below,
                        seen.groups_above,
                        seen.groups_adjacent,
                    ]
                    .map(Cell::count),
                );
                rows.push(row);
            }
        }
        let draw = |times: fn(&Data) -> Range<usize>, close: Close| {
            data.iter().map(move |data| match self.what {
                What::Accesses => self.accesses(data, times(data), close),
                What::Maps => self.maps(data, times(data), close),
            })
        };
        let mut plots: Vec<Plot> = draw(|data| 0..data.events, WHOLE).collect();
        if self.what == What::Maps {
            plots.extend(draw(|_| 0..CLOSE_UP, START));
        }
        let middle = |data: &Data| {
            let from = data.events / 2 / CLOSE_UP * CLOSE_UP;
            from..from + CLOSE_UP
        };
        plots.extend(draw(middle, MIDDLE));
        Shown {
            plots,
            notes: vec![
                format!(
                    "Virtual time: the index of the event among maps, unmaps and accesses. Traces: {}, an unmodified Linux 6.1 under emulation, and the same \
                     with its IOVA reuse cache off, so that addresses are handed out in descending order, as in 2010. Theirs: Linux 2.6.31.",
                    self.workload.title
                ),
                "Dots that fall on the same place are drawn once; the files beside hold those drawn.".into(),
            ],
            ..Shown::table(columns, rows)
        }
    }

    fn accesses(&self, data: &Data, times: Range<usize>, close: Close) -> Plot {
        let of = |which: Class| -> Vec<Dot> {
            let such = data.accesses.iter().filter(|(_, class, _)| *class == which);
            such.map(|(_, _, dot)| *dot).collect()
        };
        let named = [
            ("streaming", 1, of(Class::Streaming)),
            ("consistent", 0, of(Class::Consistent)),
        ];
        self.plot(data, "accesses", close, &times, &named)
    }

    fn maps(&self, data: &Data, times: Range<usize>, close: Close) -> Plot {
        let several = data.seen.len() > 1;
        let of = |from: &[(usize, Class, Dot)], device: usize, which: Class| -> Vec<Dot> {
            let such = from
                .iter()
                .filter(|(of, class, _)| *of == device && *class == which);
            such.map(|(_, _, dot)| *dot).collect()
        };
        let mut named = Vec::new();
        let mut consistent = Vec::new();
        for device in 0..data.seen.len() {
            let whose = if several {
                format!("device {}: ", device + 1)
            } else {
                String::new()
            };
            // the first device has colours 1 and 2, the second 3 and 4
            let colour = 1 + device % 2 * 2;
            named.push((
                format!("{whose}map"),
                colour,
                of(&data.maps, device, Class::Streaming),
            ));
            named.push((
                format!("{whose}unmap"),
                colour + 1,
                of(&data.unmaps, device, Class::Streaming),
            ));
            consistent.extend(of(&data.maps, device, Class::Consistent));
        }
        named.push(("map, consistent".to_owned(), 0, consistent));
        let named: Vec<(&str, usize, Vec<Dot>)> = named
            .iter()
            .map(|(name, colour, dots)| (name.as_str(), *colour, dots.clone()))
            .collect();
        self.plot(data, "map and unmap operations", close, &times, &named)
    }

    fn plot(
        &self,
        data: &Data,
        what: &str,
        close: Close,
        times: &Range<usize>,
        named: &[(&str, usize, Vec<Dot>)],
    ) -> Plot {
        let inside = |dot: &&Dot| times.contains(&(dot.at as usize));
        let dots = || named.iter().flat_map(|(_, _, dots)| dots).filter(inside);
        let low = lowest(dots().map(|dot| dot.low as u64));
        let high = dots().map(|dot| dot.high as u64).max().unwrap_or(0);
        let x = Scale::linear(
            "virtual time (events)",
            times.start as f64,
            times.end as f64,
        );
        let y = Scale::pages("virtual I/O page (hexadecimal)", low, high);
        let drawn = named.iter().map(|(name, colour, dots)| {
            let visible: Vec<Dot> = dots
                .iter()
                .filter(inside)
                .filter(|dot| dot.low >= low as f64)
                .copied()
                .collect();
            Dots::new(*name, *colour, &visible, &x, &y)
        });
        Plot {
            suffix: format!("{}{}", data.suffix, close.suffix),
            title: format!(
                "{}, {}: {what}{}",
                self.workload.title, data.kernel, close.words
            ),
            tag: Tag::Counted,
            drawing: Drawing::Dots(drawn.collect()),
            theirs: Vec::new(),
            x,
            y,
        }
    }
}

/// The lowest page that belongs to the others: a single one far below, such as a reserved region,
/// would squeeze all others together.
fn lowest(pages: impl Iterator<Item = u64>) -> u64 {
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    for page in pages {
        *counts.entry(page).or_default() += 1;
    }
    let span = |from: u64| counts.keys().next_back().copied().unwrap_or(0) - from;
    let mut keys = counts.keys();
    match (keys.next(), keys.next()) {
        (Some(first), Some(second)) if second - first > span(*second) / 2 => *second,
        (Some(first), _) => *first,
        (None, _) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::wiosca10::Verdict;

    /// The verdicts of each figure's statements: for each, on today's kernel and with reuse off.
    fn verdicts(figure: &Exhibit) -> Vec<Vec<Verdict>> {
        let made = figure.make(&|_| ()).unwrap();
        let found = |statement: &Statement| {
            let verdicts = statement.found.iter().filter_map(|found| found.verdict);
            verdicts.collect()
        };
        made.statements.iter().map(found).collect()
    }

    #[test]
    fn the_verdicts_on_the_bundled_traces_are_these() {
        use Verdict::{Not, Reproduced, Weak};
        let all: Vec<Vec<Vec<Verdict>>> = FIGURES.iter().map(verdicts).collect();
        let both = || vec![Reproduced; 2];
        assert_eq!(all[0], [both(), vec![Weak, Weak]]);
        assert_eq!(
            all[1],
            [vec![Not, Reproduced], both(), vec![Weak, Reproduced]]
        );
        assert_eq!(all[2], [both(), both(), vec![Not, Weak]]);
        assert_eq!(all[3], [both(), both()]);
    }

    #[test]
    fn steps_are_counted_by_direction_and_rests_are_none() {
        let mut seen = Observed::default();
        for page in [9, 9, 8, 7, 7, 8, 20, 19] {
            seen.access(Class::Streaming, 0, page);
            seen.access(Class::Streaming, 1, 500); // another stream
            seen.access(Class::Consistent, 2, 100);
        }
        assert_eq!((seen.down, seen.up, seen.jumps), (3, 1, 1));
        let judged = steps(&[seen], |seen| seen.down, "down");
        assert_eq!(judged.verdict, Verdict::Weak, "3 of 4 go down");
    }

    #[test]
    fn a_page_far_below_the_others_is_not_drawn() {
        assert_eq!(lowest([5, 1000, 1010, 1020].into_iter()), 1000);
        assert_eq!(lowest([990, 1000, 1010, 1020].into_iter()), 990);
        assert_eq!(lowest(std::iter::empty()), 0);
    }
}
