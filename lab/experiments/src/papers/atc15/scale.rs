// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Figures 1 to 5 and 7: throughput, latency and where the time goes, over CPUs.
//!
//! All are shown from one run of `cargo lab scale --quick`. A figure's statements are the results
//! that the paper states of it ([`Noted`]): each is reproduced if it is in the range that `scale`
//! sets for it.

use super::{
    super::{About, Found, Made, Parameter, Runs, Shown, Statement, Verdict},
    about,
};
use crate::progress::Progress;
use crate::scale::{self, Noted, Parts, Point, Scale as Simulated, named};
use crate::stated::{Compared, Stated};
use ioatlas_present::{
    Cell, Tag,
    plot::{Arrangement, At, Bars, Drawing, Line, Plot, Scale, Stroke, Theirs},
};
use ioatlas_sim::timing::params::{HZ, Origin};

/// Name and design of a series.
type Named = (&'static str, Option<&'static str>);

const NO_IOMMU: Named = ("no IOMMU", None);
const STOCK: Named = ("stock Linux", Some(named::STOCK));
const EIOVAR: Named = ("EiovaR", Some(named::EIOVAR));
const MAGAZINE: Named = ("magazine", Some(named::OURS[0]));
const IDENTITY: Named = ("identity", Some(named::OURS[1]));
const KMALLOC: Named = ("kmalloc", Some(named::OURS[2]));
const DESIGNS: [Named; 3] = [MAGAZINE, IDENTITY, KMALLOC];

/// What a figure draws up over the number of CPUs.
struct Curves {
    workload: &'static str,
    series: &'static [Named],
    y: &'static str,
    value: fn(&Point) -> f64,
    /// The paper's numbers among them.
    theirs: fn(&Simulated) -> Vec<Theirs>,
    /// The same by that without an IOMMU, where the paper's numbers are such.
    share: Option<Share>,
}

/// Throughput as a part of that without an IOMMU.
struct Share {
    series: &'static [Named],
    /// Where the axis begins, in percent.
    from: f64,
    theirs: fn(&Simulated) -> Vec<Theirs>,
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
        theirs: |_| Vec::new(),
        share: None,
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
        theirs: |_| Vec::new(),
        share: Some(Share {
            series: &DESIGNS,
            from: 80.0,
            theirs: |scale| {
                let all = [
                    (
                        "magazine, 1 CPU, request-response",
                        "the designs, 1 CPU",
                        None,
                        1.0,
                    ),
                    (
                        "magazine, 16 CPUs, request-response",
                        "magazine and identity, 16 CPUs",
                        None,
                        16.0,
                    ),
                    (
                        "kmalloc, 16 CPUs, request-response",
                        "kmalloc, 16 CPUs",
                        Some(2),
                        16.0,
                    ),
                ];
                marks(scale, all)
            },
        }),
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
        theirs: latencies,
        share: None,
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
        theirs: plateau,
        share: Some(Share {
            series: &DESIGNS,
            from: 80.0,
            theirs: |scale| {
                let all = [
                    (
                        "identity, 1 CPU, memcached",
                        "identity, 1 CPU",
                        Some(1),
                        1.0,
                    ),
                    ("kmalloc, 1 CPU, memcached", "kmalloc, 1 CPU", Some(2), 1.0),
                    (
                        "identity, 9 CPUs, memcached",
                        "identity, 9 CPUs",
                        Some(1),
                        9.0,
                    ),
                    (
                        "kmalloc, 9 CPUs, memcached",
                        "kmalloc, 9 CPUs",
                        Some(2),
                        9.0,
                    ),
                ];
                marks(scale, all)
            },
        }),
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
        theirs: |_| Vec::new(),
        share: Some(Share {
            series: &[
                ("EiovaR", Some(named::STRICT[0])),
                ("magazine", Some(named::STRICT[1])),
                ("identity", Some(named::STRICT[2])),
                ("kmalloc", Some(named::STRICT[3])),
            ],
            from: 0.0,
            theirs: |scale| {
                let sixth = stated(scale, "magazine, strict, 16 CPUs");
                let sixth = sixth.map(|sixth| At::dot(16.0, 100.0 * sixth.low));
                let mark = |at| theirs("all designs, 16 CPUs", None, at);
                sixth.map(mark).into_iter().collect()
            },
        }),
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
        let mut statements: Vec<Statement> = rows.iter().map(|noted| statement(noted)).collect();
        statements.extend((self.besides)(&scale.points));
        let mut shown = match &self.kind {
            Kind::Curves(curves) => curves.show(scale, self.about.title),
            Kind::Cycles => cycles(scale),
        };
        shown.notes.push(
            "Theirs: two sockets of 8 cores at 2.4 GHz. Ours: the same simulated, running this project's code; cargo lab scale --json lists the parameters of the model, their sources, and which were fitted."
                .into(),
        );
        shown.notes.extend(rows.iter().filter_map(|noted| {
            let note = noted.note?;
            Some(format!("{}: {note}", noted.row.name))
        }));
        Ok(Made::new(self.about, statements, shown).with(parameters(scale)))
    }
}

/// All that the simulated machine is made of.
fn parameters(scale: &Simulated) -> Vec<Parameter> {
    const MODEL: &str = "simulated CPUs: ATC'15, figures 1 to 5 and 7";
    let of = |name, value, origin, source| Parameter::new(MODEL, name, value, origin, source);
    let lock = scale.lock_model.name();
    let mut all = vec![
        of(
            "clock",
            (Cell::count(HZ), "Hz"),
            Origin::Published,
            "ATC'15 6",
        ),
        of(
            "lock_model",
            (Cell::from(lock), ""),
            Origin::Fitted,
            "figure 2, baseline: with tickets, as Linux 3.17 has them, locks collapse beyond it",
        ),
    ];
    let listed = scale.parameters.iter();
    all.extend(listed.map(|p| of(p.name, (Cell::count(p.value), p.unit), p.origin, p.source)));
    all
}

/// Where all of this is seen.
const SIMULATED: &str = "simulated CPUs";

/// A result that the paper states, by its range.
fn statement(noted: &Noted) -> Statement {
    let row = &noted.row;
    let verdict = match row.in_range {
        true => Verdict::Reproduced,
        false => Verdict::Not,
    };
    let judgement = verdict.because(format!("{:.2} {}", row.ours, row.unit));
    let compared = row.stated.map(|stated| Compared::new("", row.ours, stated));
    Statement {
        says: format!("{} ({}).", row.name, row.section).into(),
        theirs: row.paper,
        rule: format!("it is from {} to {} {}", row.low, row.high, row.unit).into(),
        found: vec![Found::of(SIMULATED, row.kind, judgement).beside(compared)],
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

/// What the paper states of the result called so.
fn stated(scale: &Simulated, name: &str) -> Option<Stated> {
    let found = scale.rows.iter().find(|noted| noted.row.name == name);
    found?.row.stated
}

fn theirs(name: &str, series: Option<usize>, at: At) -> Theirs {
    Theirs {
        name: name.into(),
        series,
        at,
    }
}

/// Results, each under a name, in the colour of a series, on so many CPUs.
fn marks<const N: usize>(
    scale: &Simulated,
    all: [(&str, &str, Option<usize>, f64); N],
) -> Vec<Theirs> {
    let mark = |(row, name, series, cpus)| {
        let at = At::Place {
            along: [cpus; 2],
            up: stated(scale, row)?.ends(),
        };
        Some(theirs(name, series, at))
    };
    all.into_iter().filter_map(mark).collect()
}

/// Figure 4: the paper gives some latencies, and others by how much later they are.
fn latencies(scale: &Simulated) -> Vec<Theirs> {
    let sum = |names: &[&str]| -> Option<f64> {
        names
            .iter()
            .map(|name| Some(stated(scale, name)?.low))
            .sum()
    };
    const ONE: &str = "no IOMMU, 1 CPU: latency";
    const MORE: &str = "no IOMMU: latency of 16 CPUs less that of 1";
    let all: [(&str, usize, f64, &[&str]); 4] = [
        ("no IOMMU, 1 CPU", 0, 1.0, &[ONE]),
        ("no IOMMU, 16 CPUs", 0, 16.0, &[ONE, MORE]),
        (
            "EiovaR, 1 CPU",
            1,
            1.0,
            &[ONE, "EiovaR, 1 CPU: latency beyond no IOMMU"],
        ),
        (
            "EiovaR, 16 CPUs",
            1,
            16.0,
            &[ONE, MORE, "EiovaR, 16 CPUs: latency beyond no IOMMU"],
        ),
    ];
    let mark = |(name, series, cpus, of)| Some(theirs(name, Some(series), At::dot(cpus, sum(of)?)));
    all.into_iter().filter_map(mark).collect()
}

/// Figure 5: EiovaR stays at a part of the wire's rate from nine CPUs on.
fn plateau(scale: &Simulated) -> Vec<Theirs> {
    let part = stated(scale, "EiovaR, 9 CPUs, memcached");
    let begins = stated(scale, "EiovaR, memcached: where the plateau begins");
    let level = part.zip(begins).map(|(part, begins)| At::Place {
        along: [begins.low, 16.0],
        up: [part.low / 100.0 * scale.wire / 1000.0; 2],
    });
    let mark = |at| theirs("EiovaR, 40 % of line rate", Some(1), at);
    level.map(mark).into_iter().collect()
}

impl Curves {
    fn lines(
        &self,
        points: &[Point],
        series: &[Named],
        value: impl Fn(&Point) -> f64,
    ) -> Vec<Line> {
        let line = |(name, design): &Named| {
            let mine = points.iter().filter(|point| {
                point.workload == self.workload && point.design.as_deref() == *design
            });
            Line {
                name: (*name).into(),
                stroke: Stroke::Numbers,
                points: mine
                    .map(|point| (point.cpus as f64, value(point)))
                    .collect(),
            }
        };
        series.iter().map(line).collect()
    }

    fn show(&self, scale: &Simulated, title: &str) -> Shown {
        let lines = self.lines(&scale.points, self.series, self.value);
        let values = || lines.iter().flat_map(|line| &line.points);
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
        let share = self.share.as_ref().map(|share| {
            let lines = self.lines(&scale.points, share.series, |point| 100.0 * point.relative);
            plot(
                "-share",
                &format!("{title}, by that without an IOMMU"),
                ("% of no IOMMU", share.from),
                lines,
                (share.theirs)(scale),
            )
        });
        let own = plot("", title, (self.y, 0.0), lines, (self.theirs)(scale));
        Shown {
            plots: share.into_iter().chain([own]).collect(),
            ..Shown::table(columns, rows)
        }
    }
}

/// Lines over the number of CPUs, up from `from`.
fn plot(
    suffix: &str,
    title: &str,
    (name, from): (&str, f64),
    lines: Vec<Line>,
    theirs: Vec<Theirs>,
) -> Plot {
    let values = lines.iter().flat_map(|line| &line.points).map(|at| at.1);
    let stated = theirs.iter().filter_map(|theirs| match theirs.at {
        At::Place { up, .. } => Some(up[1]),
        At::Bar { .. } | At::Across(_) => None,
    });
    let most = values.chain(stated).fold(from, f64::max);
    Plot {
        suffix: suffix.into(),
        title: title.into(),
        tag: Tag::Simulated,
        x: Scale::linear("CPUs", 0.0, 16.0),
        y: Scale::linear(name, from, most),
        drawing: Drawing::Lines(lines),
        theirs,
    }
}

/// The bars of figure 2, and beside them those of the paper's designs.
fn cycles(scale: &Simulated) -> Shown {
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
    let of =
        |(_, design): &Named| find(&scale.points, "rr", *design, 16).map(|point| &point.cycles);
    // by group and part; stock Linux's two parts of allocation are one number
    let stated_of = [
        (
            "stock Linux, 16 CPUs: IOVA allocation",
            "stock Linux, IOVA allocation",
            0,
            0,
        ),
        (
            "EiovaR, 16 CPUs: wait for the IOVA lock",
            "EiovaR, IOVA lock",
            1,
            1,
        ),
        (
            "EiovaR, 16 CPUs: wait for the invalidation lock",
            "EiovaR, invalidation lock",
            1,
            3,
        ),
        (
            "EiovaR with per-core invalidation, 16 CPUs: wait for the IOVA lock",
            "EiovaR, scalable invalidation, IOVA lock",
            2,
            1,
        ),
    ];
    let theirs = stated_of
        .into_iter()
        .filter_map(|(row, name, group, from)| {
            let length = stated(scale, row)?.low;
            Some(theirs(
                name,
                Some(from),
                At::Bar {
                    group,
                    from,
                    length,
                },
            ))
        });
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
            theirs: theirs.collect(),
        }],
        ..Shown::table(columns, BARS.iter().map(row))
    }
}
