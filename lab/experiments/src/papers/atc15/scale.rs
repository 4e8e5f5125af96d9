// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Figures 1 to 5 and 7: throughput, latency and where the time goes, over CPUs.
//!
//! All are shown from one run of `cargo lab scale --quick`. A figure's statements are the results
//! that the paper states of it ([`Noted`]): each is reproduced if it is in the range that `scale`
//! sets for it.

use super::{
    super::{About, Found, Made, Runs, Shown, Statement, Verdict},
    about,
};
use crate::progress::Progress;
use crate::scale::{self, Noted, Parts, Point, named};
use ioatlas_present::{
    Cell, Tag,
    plot::{Arrangement, Bars, Drawing, Line, Plot, Scale, Whose},
};

/// Name and design of a series.
type Named = (&'static str, Option<&'static str>);

const NO_IOMMU: Named = ("no IOMMU", None);
const STOCK: Named = ("stock Linux", Some(named::STOCK));
const EIOVAR: Named = ("EiovaR", Some(named::EIOVAR));
const MAGAZINE: Named = ("magazine", Some(named::OURS[0]));
const IDENTITY: Named = ("identity", Some(named::OURS[1]));
const KMALLOC: Named = ("kmalloc", Some(named::OURS[2]));

/// What a figure draws up over the number of CPUs.
struct Curves {
    workload: &'static str,
    series: &'static [Named],
    y: &'static str,
    value: fn(&Point) -> f64,
}

enum Kind {
    Curves(Curves),
    /// Parts of all cycles on 16 CPUs.
    Cycles,
}

/// One of these figures: what it is about, which results are its own, and how it is drawn.
pub(super) struct Exhibit {
    about: About,
    /// Whether a result is of this figure, by its section.
    is_ours: fn(&str) -> bool,
    /// What else is judged of it.
    besides: fn(&[Point]) -> Vec<Statement>,
    kind: Kind,
}

const THOUSANDS: &str = "thousand transactions a second";

fn thousands(point: &Point) -> f64 {
    point.per_second / 1000.0
}

pub(super) static FIGURE_1: Exhibit = Exhibit {
    about: about(
        "figure 1",
        "Request-response throughput of today's mapping code",
        "With an IOMMU and Linux's mapping code, stock or with EiovaR, throughput drops and stops growing with the cores; with a static identity mapping it is \
         that of no IOMMU (1).",
    ),
    is_ours: |section| section.ends_with("figure 1"),
    besides: scaling,
    kind: Kind::Curves(Curves {
        workload: "rr",
        series: &[NO_IOMMU, STOCK, EIOVAR],
        y: THOUSANDS,
        value: thousands,
    }),
};

pub(super) static FIGURE_2: Exhibit = Exhibit {
    about: about(
        "figure 2",
        "Where the cycles go on 16 cores",
        "Under EiovaR cores wait for the IOVA lock 31.9 % of the cycles and for the invalidation lock 21.7 %; with scalable invalidation the IOVA lock takes nearly \
         70 %; under stock Linux IOVA allocation takes about 60 % (3).",
    ),
    is_ours: |section| section.ends_with("figure 2") || section == "3.2",
    besides: |_| Vec::new(),
    kind: Kind::Cycles,
};

pub(super) static FIGURE_3: Exhibit = Exhibit {
    about: about(
        "figure 3",
        "Request-response throughput of the designs",
        "The designs have 93 to 95 % of no IOMMU's throughput on one core, and 93 to 94 % on 16 (6.1).",
    ),
    is_ours: |section| section.ends_with("figure 3"),
    besides: |_| Vec::new(),
    kind: Kind::Curves(Curves {
        workload: "rr",
        series: &[NO_IOMMU, STOCK, EIOVAR, MAGAZINE, IDENTITY, KMALLOC],
        y: THOUSANDS,
        value: thousands,
    }),
};

pub(super) static FIGURE_4: Exhibit = Exhibit {
    about: about(
        "figure 4",
        "Request-response latency, one connection a core",
        "Without an IOMMU latency grows from 29 to 41 us; EiovaR is 1.2 us later on one core and 10 us on 16; the designs are on par (6.1).",
    ),
    is_ours: |section| section.ends_with("figure 4"),
    besides: |_| Vec::new(),
    kind: Kind::Curves(Curves {
        workload: "latency",
        series: &[NO_IOMMU, EIOVAR, MAGAZINE, IDENTITY, KMALLOC],
        y: "latency, us",
        value: |point| point.latency_us,
    }),
};

pub(super) static FIGURE_5: Exhibit = Exhibit {
    about: about(
        "figure 5",
        "Throughput of memcached",
        "The designs have 89 to 91 % of no IOMMU's throughput on one core and 89.5 to 91.5 % on nine, and reach line rate; EiovaR stays at 40 % of it from nine cores on (6.1).",
    ),
    is_ours: |section| section.ends_with("figure 5"),
    besides: |_| Vec::new(),
    kind: Kind::Curves(Curves {
        workload: "memcached",
        series: &[NO_IOMMU, EIOVAR, MAGAZINE, IDENTITY, KMALLOC],
        y: THOUSANDS,
        value: thousands,
    }),
};

pub(super) static FIGURE_7: Exhibit = Exhibit {
    about: about(
        "figure 7",
        "Request-response throughput under strict invalidation",
        "All designs have about 1/6 of no IOMMU's throughput on 16 cores, and do not differ on more than 6 (6.1).",
    ),
    is_ours: |section| section.ends_with("figure 7"),
    besides: |_| Vec::new(),
    kind: Kind::Curves(Curves {
        workload: "rr",
        series: &[
            NO_IOMMU,
            ("EiovaR", Some(named::STRICT[0])),
            ("magazine", Some(named::STRICT[1])),
            ("identity", Some(named::STRICT[2])),
            ("kmalloc", Some(named::STRICT[3])),
        ],
        y: THOUSANDS,
        value: thousands,
    }),
};

/// Progress of an exhibit, from that of points.
struct Words<'a>(&'a dyn Fn(&str));

impl Progress for Words<'_> {
    fn at(&self, what: &str, done: usize, total: usize) {
        (self.0)(&format!("{what}, {done} of {total}"));
    }
}

impl Runs for Exhibit {
    fn about(&self) -> About {
        self.about
    }

    fn make(&self, progress: &dyn Fn(&str)) -> Result<Made, String> {
        let scale = scale::quick(&Words(progress))?;
        let rows = scale.rows.iter();
        let rows: Vec<&Noted> = rows
            .filter(|noted| (self.is_ours)(noted.row.section))
            .collect();
        let mut statements: Vec<Statement> = rows.iter().map(|noted| stated(noted)).collect();
        statements.extend((self.besides)(&scale.points));
        let mut shown = match &self.kind {
            Kind::Curves(curves) => curves.show(&scale.points, self.about.title),
            Kind::Cycles => cycles(&scale.points),
        };
        shown.notes.push(
            "Theirs: two sockets of 8 cores at 2.4 GHz. Ours: the same simulated, running this project's code; cargo lab scale --json lists the parameters of the model, their sources, and which were fitted."
                .into(),
        );
        shown.notes.extend(rows.iter().filter_map(|noted| {
            let note = noted.note?;
            Some(format!("{}: {note}", noted.row.name))
        }));
        Ok(Made::new(self.about, statements, shown))
    }
}

/// Where all of this is seen.
const SIMULATED: &str = "simulated CPUs";

/// A result that the paper states, by its range.
fn stated(noted: &Noted) -> Statement {
    let row = &noted.row;
    let verdict = match row.in_range {
        true => Verdict::Reproduced,
        false => Verdict::Not,
    };
    let judgement = verdict.because(format!("{:.2} {}", row.ours, row.unit));
    Statement {
        says: format!("{} ({}).", row.name, row.section).into(),
        theirs: row.paper,
        rule: format!("it is from {} to {} {}", row.low, row.high, row.unit).into(),
        found: vec![Found::of(SIMULATED, row.kind, judgement)],
    }
}

/// Figure 1: with Linux's code throughput is lower, and stops growing.
fn scaling(points: &[Point]) -> Vec<Statement> {
    let of = |(_, design): Named, cpus| {
        find(points, "rr", design, cpus).map_or(f64::NAN, |point| point.per_second)
    };
    let base = of(NO_IOMMU, 16);
    let found = |verdict: Verdict, reason| vec![Found::new(SIMULATED, verdict.because(reason))];
    let mut all = Vec::new();
    for named in [STOCK, EIOVAR] {
        let (part, growth) = (of(named, 16) / base, of(named, 16) / of(named, 8));
        all.push(Statement {
            says: format!("{}: throughput drops significantly (1, figure 1).", named.0).into(),
            theirs: "significantly",
            rule: "on 16 CPUs it is at most half of no IOMMU's; weak: three quarters".into(),
            found: found(
                Verdict::at_most(part, 0.5, 0.75),
                format!("{:.0} % of no IOMMU", 100.0 * part),
            ),
        });
        all.push(Statement {
            says: format!(
                "{}: it ceases to increase with the cores (1, figure 1).",
                named.0
            )
            .into(),
            theirs: "it ceases",
            rule: "on 16 CPUs it is at most 1.1 times that of 8; weak: 1.5 times".into(),
            found: found(
                Verdict::at_most(growth, 1.1, 1.5),
                format!("{growth:.2} times that of 8"),
            ),
        });
    }
    all
}

fn find<'p>(
    points: &'p [Point],
    workload: &str,
    design: Option<&str>,
    cpus: usize,
) -> Option<&'p Point> {
    points.iter().find(|point| {
        point.workload == workload && point.cpus == cpus && point.design.as_deref() == design
    })
}

impl Curves {
    fn show(&self, points: &[Point], title: &str) -> Shown {
        let of = |design: Option<&str>| -> Vec<(f64, f64)> {
            let mine = points.iter().filter(|point| {
                point.workload == self.workload && point.design.as_deref() == design
            });
            mine.map(|point| (point.cpus as f64, (self.value)(point)))
                .collect()
        };
        let lines: Vec<Line> = self
            .series
            .iter()
            .map(|(name, design)| Line {
                name: (*name).into(),
                whose: Whose::Ours,
                points: of(*design),
            })
            .collect();
        let values = || lines.iter().flat_map(|line| &line.points);
        let most = values().map(|(_, value)| *value).fold(0.0, f64::max);
        let mut counts: Vec<f64> = values().map(|(cpus, _)| *cpus).collect();
        counts.sort_by(f64::total_cmp);
        counts.dedup();
        let mut columns = vec![("CPUs".to_owned(), None)];
        columns.extend(lines.iter().map(|line| {
            let name = format!("{}: {}", line.name, self.y);
            (name, Some(Tag::Simulated))
        }));
        let row = |cpus: &f64| {
            let mut row = vec![Cell::Number(*cpus)];
            row.extend(lines.iter().map(|line| {
                let found = line.points.iter().find(|(at, _)| at == cpus);
                found.map_or(Cell::from(""), |(_, value)| Cell::Number(*value))
            }));
            row
        };
        let rows: Vec<Vec<Cell>> = counts.iter().map(row).collect();
        Shown {
            plots: vec![Plot {
                suffix: String::new(),
                title: title.into(),
                tag: Tag::Simulated,
                x: Scale::linear("CPUs", 0.0, 16.0),
                y: Scale::linear(self.y, 0.0, most),
                drawing: Drawing::Lines(lines),
            }],
            ..Shown::table(columns, rows)
        }
    }
}

/// The bars of figure 2, and beside them those of the paper's designs.
fn cycles(points: &[Point]) -> Shown {
    const BARS: [Named; 6] = [
        STOCK,
        EIOVAR,
        ("EiovaR, scalable invalidation", Some(named::EIOVAR_PERCPU)),
        MAGAZINE,
        IDENTITY,
        KMALLOC,
    ];
    type Part = (&'static str, fn(&Parts) -> f64);
    const PARTS: [Part; 6] = [
        ("IOVA allocation", |parts| parts.iova),
        ("IOVA lock", |parts| parts.iova_lock),
        ("invalidation", |parts| parts.invalidation),
        ("invalidation lock", |parts| parts.invalidation_lock),
        ("page tables and other mapping", |parts| {
            parts.tables + parts.other
        }),
        ("outside", |parts| parts.outside),
    ];
    let of = |(_, design): &Named| find(points, "rr", *design, 16).map(|point| &point.cycles);
    let mut bars = Bars {
        arrangement: Arrangement::Stacked,
        groups: BARS.iter().map(|(name, _)| (*name).to_owned()).collect(),
        ..Bars::default()
    };
    for (name, part) in PARTS {
        let values = BARS
            .iter()
            .map(|bar| of(bar).map(|parts| 100.0 * part(parts)));
        bars = bars.with(name, values.collect());
    }
    let mut columns = vec![("system".to_owned(), None)];
    columns.extend(
        PARTS
            .iter()
            .map(|(name, _)| (format!("{name}, % of cycles"), Some(Tag::Simulated))),
    );
    let row = |bar: &Named| {
        let mut row = vec![Cell::from(bar.0)];
        row.extend(PARTS.iter().map(|(_, part)| {
            of(bar).map_or(Cell::from(""), |parts| Cell::Number(100.0 * part(parts)))
        }));
        row
    };
    Shown {
        plots: vec![Plot {
            suffix: String::new(),
            title: "Cycles of request-response on 16 CPUs".into(),
            tag: Tag::Simulated,
            x: Scale::linear("% of cycles", 0.0, 100.0),
            y: Scale::names("system"),
            drawing: Drawing::Bars(bars),
        }],
        ..Shown::table(columns, BARS.iter().map(row))
    }
}
