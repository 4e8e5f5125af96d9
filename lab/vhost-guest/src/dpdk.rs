// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A guest in which DPDK has the card: testpmd on its virtio driver, through VFIO, its memory
//! mapped once.
//!
//! The back end sends every frame back as it is. With mappings that stay, each page is asked for
//! once; how many frames went after the last miss, the back end tells.

use crate::arguments::{Arguments, Pages};
use crate::back_end::{self, BackEnd};
use crate::boot::{self, Boot};
use crate::error::Error;
use crate::machine::Card;
use crate::table::{numbers, table};
use ioatlas_guest::{Cache, GuestError, Lines, Tree};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

/// What testpmd loads: buffers, the card's driver, and files as a card. Package (with the version
/// of DPDK's interface after it) and library.
const DRIVERS: [(&str, &str); 3] = [
    ("librte-mempool-ring", "librte_mempool_ring.so."),
    ("librte-net-virtio", "librte_net_virtio.so."),
    ("librte-net-pcap", "librte_net_pcap.so."),
];
/// Debian's package that has testpmd.
const TESTPMD: &str = "dpdk-dev";
/// A package that it needs a library of, and whose name does not say that it has one.
const PROVIDERS: &str = "ibverbs-providers";
/// The package by whose name the version of the interface is known.
const EAL: &str = "librte-eal";
/// Hugepages of 2 MiB: testpmd's memory, and as much as a few allocations round up to.
const HUGEPAGES: u32 = 40;
/// Seconds for which nothing may move before the guest gives up: a machine may be loaded.
const PATIENCE: u32 = 60;

/// What such guests are made of.
pub fn tree(cache: &Cache, kernel: &str) -> Result<Tree, Error> {
    let base = [
        kernel,
        "busybox-static",
        "libc6",
        "libgcc-s1",
        TESTPMD,
        PROVIDERS,
    ];
    let abi = abi(&cache.tree(&base)?)?;
    let drivers = DRIVERS.map(|(package, _)| format!("{package}{abi}"));
    let all: Vec<&str> = base
        .into_iter()
        .chain(drivers.iter().map(String::as_str))
        .collect();
    Ok(cache.tree(&all)?)
}

/// The version of DPDK's interface, which is part of its packages' names: "23".
fn abi(tree: &Tree) -> Result<String, GuestError> {
    let known = tree.packages.iter().find_map(|package| {
        let rest = package.strip_prefix(EAL)?;
        rest.split_once(' ').map(|(abi, _)| abi.to_owned())
    });
    known.ok_or_else(|| GuestError::Package {
        package: TESTPMD.into(),
        detail: format!("it needs no {EAL}"),
    })
}

/// Boots a guest with each size of pages, and prints what came of it.
pub fn run(arguments: &Arguments, tree: &Tree, pages: &[Pages]) -> Result<(), Error> {
    let mut rows = vec![Counts::HEAD.map(String::from).to_vec()];
    for pages in pages {
        let begun = Instant::now();
        let name = format!("testpmd, {}", pages.name());
        let counts = boot::within(&name, |directory| {
            let ioatlas = back_end::ioatlas(arguments.ioatlas.as_deref())?;
            // a loaded machine is slow; what is not answered at all is to be seen, not what is late
            let options = ["--mode", "loopback", "--miss-timeout", "60000"];
            let back_end = BackEnd::ours(&ioatlas, directory, "back-end", &options)?;
            let lines = guest(arguments, tree, *pages, directory, PATIENCE)?;
            let counts = Counts::new(&lines, &back_end.statistics()?);
            counts.check().map_err(|what| Error::Counts {
                mode: name.clone(),
                what,
            })?;
            Ok(counts)
        })?;
        rows.push(counts.row(*pages, begun.elapsed()));
    }
    println!("{}", table(&rows));
    Ok(())
}

/// Boots a guest, which gives up what has not moved for `patience` seconds; returns what it said.
pub fn guest(
    arguments: &Arguments,
    tree: &Tree,
    pages: Pages,
    directory: &Path,
    patience: u32,
) -> Result<Lines, Error> {
    let boot = Boot {
        tree,
        directory,
        limit: arguments.limit(),
        card: Card::Vfio,
    };
    let mut image = boot.image(include_str!("testpmd.sh"))?;
    image.program("dpdk-testpmd")?;
    let abi = abi(tree)?;
    let mut drivers = String::new();
    for (_, library) in DRIVERS {
        let library = format!("{library}{abi}");
        image.library(&library)?;
        drivers += &format!(" --driver /lib/{library}");
    }
    image.variable("DRIVERS", &drivers);
    image.variable("PAGES", pages.name());
    image.variable("HUGEPAGES", &HUGEPAGES.to_string());
    image.variable("SECONDS_OF_RATE", &arguments.seconds.to_string());
    image.variable("PATIENCE", &patience.to_string());
    image.module("vfio-iommu-type1")?;
    image.module("vfio-pci")?;
    let mut lines = Lines::default();
    boot.run(&format!("testpmd, {}", pages.name()), image, &mut lines)?;
    Ok(lines)
}

/// Frames a second that the guest has sent and received, if it told.
pub fn rates(lines: &Lines) -> Option<(u64, u64)> {
    match numbers(lines.all("rate").last()?)[..] {
        [sent, received] => Some((sent, received)),
        _ => None,
    }
}

/// What has come of a guest.
#[derive(Clone, Debug, Default)]
struct Counts {
    compared: u64,
    came: u64,
    sent: u64,
    received: u64,
    rate: (u64, u64),
    /// Frames of both directions while the rate was taken.
    settled: u64,
    questions: u64,
    since_miss: u64,
    stopped: u64,
}

impl Counts {
    const HEAD: [&'static str; 10] = [
        "pages",
        "s",
        "compared",
        "from guest",
        "to guest",
        "lost",
        "misses",
        "frames since the last",
        "sent/s",
        "received/s",
    ];

    fn new(lines: &Lines, statistics: &Value) -> Self {
        let said = |word: &str| -> [u64; 2] {
            let line = lines.all(word).last().unwrap_or_default();
            let mut found = numbers(line).into_iter();
            [(); 2].map(|()| found.next().unwrap_or_default())
        };
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        let pair = &statistics["pairs"][0];
        let ([compared, came], [sent, received]) = (said("compared"), said("frames"));
        Self {
            compared,
            came,
            sent,
            received,
            rate: rates(lines).unwrap_or_default(),
            settled: said("settled")[0],
            questions: number(&statistics["questions"]["sent"]),
            since_miss: number(&pair["since_miss"]),
            stopped: number(&pair["stopped"]),
        }
    }

    /// Refuses a guest in which a frame was lost, or missed a translation after
    /// all memory was used.
    fn check(&self) -> Result<(), String> {
        let equal = |what: &str, is: u64, wanted: u64| match is == wanted {
            true => Ok(()),
            false => Err(format!("{what}: {is}, not {wanted}")),
        };
        if self.compared == 0 || self.settled == 0 || self.questions == 0 {
            return Err(format!("nothing was tested: {self:?}"));
        }
        equal("frames that came back", self.came, self.compared)?;
        equal("frames received", self.received, self.sent)?;
        equal("queues that stopped", self.stopped, 0)?;
        match self.since_miss >= self.settled {
            true => Ok(()),
            false => Err(format!(
                "all memory had been used, and {} frames later a translation was missing, of {}",
                self.settled.saturating_sub(self.since_miss),
                self.settled
            )),
        }
    }

    fn row(&self, pages: Pages, took: Duration) -> Vec<String> {
        let numbers = [
            took.as_secs(),
            self.came,
            self.sent,
            self.received,
            self.sent.saturating_sub(self.received),
            self.questions,
            self.since_miss,
            self.rate.0,
            self.rate.1,
        ];
        let numbers = numbers.iter().map(u64::to_string);
        [pages.name().to_owned()]
            .into_iter()
            .chain(numbers)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_or_missing_late_is_refused() {
        let good = Counts {
            compared: 10,
            came: 10,
            sent: 100,
            received: 100,
            settled: 50,
            questions: 5,
            since_miss: 60,
            ..Counts::default()
        };
        assert_eq!(good.check(), Ok(()));
        let spoils: [fn(&mut Counts); 7] = [
            |counts| counts.came = 9,
            |counts| counts.received = 99,
            |counts| counts.stopped = 1,
            |counts| counts.since_miss = 49,
            |counts| counts.questions = 0,
            |counts| counts.settled = 0,
            |counts| counts.compared = 0,
        ];
        for (n, spoil) in spoils.into_iter().enumerate() {
            let mut counts = good.clone();
            spoil(&mut counts);
            assert!(counts.check().is_err(), "spoil {n}");
        }
    }
}
