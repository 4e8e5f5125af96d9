// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The guest's traffic, and what the back end has counted of it.

use crate::arguments::{Arguments, Mode};
use crate::back_end::{self, BackEnd};
use crate::boot::{self, Boot};
use crate::error::Error;
use crate::machine::Card;
use crate::network::{GUEST, PEER, TAP};
use crate::peer::Peer;
use crate::table::{numbers, table};
use ioatlas_guest::{Console, Heard, Image, Lines, Tree};
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Boots a guest in each mode, and prints what came of it.
pub fn run(arguments: &Arguments, tree: &Tree, modes: &[Mode]) -> Result<(), Error> {
    let peer = Peer::listen().map_err(Error::io("ports to listen at"))?;
    let mut rows = vec![Counts::HEAD.map(String::from).to_vec()];
    for mode in modes {
        let begun = Instant::now();
        let counts = boot::within(mode, |directory| {
            let guest = Guest {
                arguments,
                mode: *mode,
                boot: Boot {
                    tree,
                    directory,
                    limit: arguments.limit(),
                    card: Card::Linux(*mode),
                },
            };
            guest.work(&peer)
        })?;
        rows.push(counts.row(*mode, begun.elapsed()));
    }
    println!("{}", table(&rows));
    Ok(())
}

/// A guest to boot.
#[derive(Debug)]
struct Guest<'a> {
    arguments: &'a Arguments,
    mode: Mode,
    boot: Boot<'a>,
}

impl Guest<'_> {
    fn image(&self) -> Result<Image<'_>, Error> {
        let mut image = self.boot.image(include_str!("script.sh"))?;
        image.file("work", include_bytes!("traffic.sh"));
        image.variable("PEER", &PEER.to_string());
        image.variable("GUEST", &GUEST.to_string());
        image.variable("MIB", &self.arguments.mib.to_string());
        image.module("virtio_pci")?;
        image.module("virtio_net")?;
        Ok(image)
    }

    fn work(&self, peer: &Peer) -> Result<Counts, Error> {
        peer.reset();
        let ioatlas = back_end::ioatlas(self.arguments.ioatlas.as_deref())?;
        let mut hearing = Hearing {
            guest: self,
            peer,
            ioatlas,
            lines: Lines::default(),
            back_end: None,
            statistics: Vec::new(),
        };
        hearing.begin()?;
        let name = self.mode.to_string();
        self.boot.run(&name, self.image()?, &mut hearing)?;
        hearing.end()?;
        let counts = Counts::new(&hearing.lines, &hearing.statistics, peer);
        counts
            .check(self.mode)
            .map_err(|what| Error::Counts { mode: name, what })?;
        Ok(counts)
    }
}

/// Hears the guest, and does what it asks for: a new back end.
struct Hearing<'a> {
    guest: &'a Guest<'a>,
    peer: &'a Peer,
    ioatlas: PathBuf,
    lines: Lines,
    back_end: Option<BackEnd>,
    statistics: Vec<Value>,
}

impl Hearing<'_> {
    fn begin(&mut self) -> Result<(), Error> {
        let mode = format!("tap={TAP}");
        // a loaded machine is slow; what is not answered at all is to be seen, not what is late
        let options = ["--mode", &mode, "--miss-timeout", "60000"];
        let name = format!("back-end-{}", self.statistics.len());
        let started = BackEnd::ours(&self.ioatlas, self.guest.boot.directory, &name, &options)?;
        self.back_end = Some(started);
        Ok(())
    }

    fn end(&mut self) -> Result<(), Error> {
        if let Some(back_end) = self.back_end.take() {
            self.statistics.push(back_end.statistics()?);
        }
        Ok(())
    }
}

impl Console for Hearing<'_> {
    fn said(&mut self, word: &str, rest: &str) -> Heard {
        if word == "restart" {
            return match self.end().and_then(|()| self.begin()) {
                Ok(()) => {
                    self.peer.restarted();
                    Heard::Nothing
                }
                Err(error) => Heard::Fail(error.to_string()),
            };
        }
        self.lines.said(word, rest)
    }
}

/// What has come of a guest.
#[derive(Clone, Debug, Default)]
struct Counts {
    boots: u32,
    restarts: u32,
    pings: (u64, u64),
    tcp_bytes: u64,
    datagrams: u64,
    datagrams_lost: u64,
    transmitted: u64,
    received: u64,
    bursts: u64,
    questions: u64,
    invalidations: u64,
    stopped: u64,
}

impl Counts {
    const HEAD: [&'static str; 11] = [
        "IOMMU",
        "s",
        "ping",
        "TCP",
        "UDP",
        "lost",
        "from guest",
        "to guest",
        "misses",
        "a burst",
        "invalidated",
    ];

    fn new(lines: &Lines, statistics: &[Value], peer: &Peer) -> Self {
        let told = *peer.told();
        let mut counts = Self {
            boots: told.boots,
            restarts: told.restarts,
            ..Self::default()
        };
        for line in lines.all("ping") {
            if let [sent, received, ..] = numbers(line)[..] {
                counts.pings.0 += sent;
                counts.pings.1 += received;
            }
        }
        for line in lines.all("tcp") {
            counts.tcp_bytes += numbers(line).first().unwrap_or(&0);
        }
        for line in lines.all("udp") {
            if let [sent, lost] = numbers(line)[..] {
                counts.datagrams += sent;
                counts.datagrams_lost += lost;
            }
        }
        for life in statistics {
            let pair = &life["pairs"][0];
            let number = |value: &Value| value.as_u64().unwrap_or_default();
            counts.transmitted += number(&pair["transmitted"]);
            counts.received += number(&pair["received"]);
            counts.bursts += number(&pair["bursts"]);
            counts.stopped += number(&pair["stopped"]);
            counts.questions += number(&life["questions"]["sent"]);
            counts.invalidations += number(&life["invalidations"]);
        }
        counts
    }

    /// Refuses a guest in which anything was lost, or that was not what it was to be.
    fn check(&self, mode: Mode) -> Result<(), String> {
        let none = |what: &str, number: u64| match number {
            0 => Ok(()),
            number => Err(format!("{what}: {number}, not 0")),
        };
        let some = |what: &str, number: u64| match number {
            0 => Err(format!("{what}: none")),
            _ => Ok(()),
        };
        if (self.boots, self.restarts) != (2, 1) {
            let (boots, restarts) = (self.boots, self.restarts);
            return Err(format!(
                "{boots} boots and {restarts} restarts, not 2 and 1"
            ));
        }
        some("pings", self.pings.1)?;
        none("pings lost", self.pings.0 - self.pings.1.min(self.pings.0))?;
        some("datagrams", self.datagrams)?;
        none("datagrams lost", self.datagrams_lost)?;
        some("bytes over TCP", self.tcp_bytes)?;
        some("frames from the guest", self.transmitted)?;
        some("frames to the guest", self.received)?;
        none("queues that stopped", self.stopped)?;
        match mode {
            Mode::Off => none("questions, without an IOMMU", self.questions),
            Mode::Pt => some("questions", self.questions),
            Mode::Strict => some("questions", self.questions)
                .and_then(|()| some("invalidations", self.invalidations)),
        }
    }

    fn row(&self, mode: Mode, took: Duration) -> Vec<String> {
        let a_burst = self.questions as f64 / self.bursts.max(1) as f64;
        vec![
            mode.to_string(),
            took.as_secs().to_string(),
            self.pings.1.to_string(),
            format!("{} MiB", self.tcp_bytes >> 20),
            self.datagrams.to_string(),
            (self.datagrams_lost + self.pings.0.saturating_sub(self.pings.1)).to_string(),
            self.transmitted.to_string(),
            self.received.to_string(),
            self.questions.to_string(),
            format!("{a_burst:.2}"),
            self.invalidations.to_string(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Counts {
        Counts {
            boots: 2,
            restarts: 1,
            pings: (40, 40),
            tcp_bytes: 1,
            datagrams: 10,
            transmitted: 50,
            received: 50,
            questions: 5,
            invalidations: 5,
            ..Counts::default()
        }
    }

    #[test]
    fn whatever_is_lost_is_refused() {
        assert_eq!(good().check(Mode::Strict), Ok(()));
        let spoils: [fn(&mut Counts); 9] = [
            |counts| counts.pings.1 = 39,
            |counts| counts.datagrams_lost = 1,
            |counts| counts.tcp_bytes = 0,
            |counts| counts.transmitted = 0,
            |counts| counts.received = 0,
            |counts| counts.stopped = 1,
            |counts| counts.boots = 1,
            |counts| counts.restarts = 0,
            |counts| counts.invalidations = 0,
        ];
        for (n, spoil) in spoils.into_iter().enumerate() {
            let mut counts = good();
            spoil(&mut counts);
            assert!(counts.check(Mode::Strict).is_err(), "spoil {n}");
        }
        assert!(
            good().check(Mode::Off).is_err(),
            "questions without an IOMMU"
        );
    }
}
