// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Our back end beside DPDK's testpmd, under the same guest, in turns.
//!
//! Both send each frame back. testpmd polls; ours is notified, as it is by default: with QEMU's
//! threads beside it a polling one had half the rate on two CPUs. Linux sends by its own generator
//! (pktgen: a new frame each time, so in strict mode a new page); DPDK's testpmd in the guest as
//! [`crate::dpdk`] has it. A round is a boot on each; ratios are of one round, figures medians of
//! rounds.
//!
//! What is compared is not the same: testpmd drops a frame for which it has no receive buffer, or
//! no translation of one. Ours leaves it where it is, which holds the guest up. So both rates are
//! told: frames that the guest sent, and that it was given back.

use crate::arguments::{Arguments, Driver, Mode, Pages};
use crate::back_end::{self, BackEnd};
use crate::boot::{self, Boot};
use crate::dpdk;
use crate::error::Error;
use crate::machine::Card;
use crate::network::{GUEST, PEER};
use crate::table::table;
use ioatlas_guest::{Lines, Tree};
use ioatlas_present::median;
use std::path::Path;

/// Seconds before the rate is taken.
const WARM_UP: u32 = 2;
/// Seconds for which nothing may move before the guest goes on without.
const PATIENCE: u32 = 10;

/// The back end that a rate is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Testpmd,
    Ours,
}

/// A guest whose rate is taken.
#[derive(Clone, Copy, Debug)]
enum Case {
    Linux(Mode),
    Testpmd(Pages),
}

impl Case {
    fn name(self) -> String {
        match self {
            Self::Linux(mode) => mode.to_string(),
            Self::Testpmd(pages) => format!("testpmd, {}", pages.name()),
        }
    }

    fn card(self) -> Card {
        match self {
            Self::Linux(mode) => Card::Linux(mode),
            Self::Testpmd(_) => Card::Vfio,
        }
    }
}

/// Rates in frames a second.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rates {
    sent: f64,
    received: f64,
}

/// Measures, and prints a table.
pub fn run(arguments: &Arguments, tree: &Tree) -> Result<(), Error> {
    let cases: Vec<Case> = match arguments.guest {
        Driver::Linux => {
            let modes = crate::or_all(&arguments.mode, &Mode::ALL);
            modes.iter().copied().map(Case::Linux).collect()
        }
        Driver::Testpmd => {
            let pages = crate::or_all(&arguments.pages, &Pages::ALL);
            pages.iter().copied().map(Case::Testpmd).collect()
        }
    };
    let head = [
        "guest",
        "testpmd: sent/s",
        "received/s",
        "ours: sent/s",
        "received/s",
        "sent, ratio",
        "received, ratio",
    ];
    let mut rows = vec![head.map(String::from).to_vec()];
    for case in cases {
        let mut rounds = Vec::new();
        let ours = || measure(arguments, tree, case, Whose::Ours);
        // it is known to stall; ours must not
        let theirs = || match measure(arguments, tree, case, Whose::Testpmd) {
            Err(error) if error.is_of_a_guest() => {
                eprintln!("testpmd: {error}");
                Ok(None)
            }
            theirs => theirs.map(Some),
        };
        for round in 0..arguments.rounds {
            // so that neither always comes after the other
            rounds.push(match round % 2 {
                0 => (theirs()?, ours()?),
                _ => {
                    let ours = ours()?;
                    (theirs()?, ours)
                }
            });
        }
        rows.push(row(case, &rounds));
    }
    println!("{}", table(&rows));
    Ok(())
}

fn measure(arguments: &Arguments, tree: &Tree, case: Case, whose: Whose) -> Result<Rates, Error> {
    let name = match whose {
        Whose::Testpmd => format!("{} on testpmd", case.name()),
        Whose::Ours => format!("{} on vhost-net", case.name()),
    };
    boot::within(&name, |directory| {
        // frames that are compared are to come back as they are; those of Linux to an address
        let (ours, theirs) = match case {
            Case::Linux(_) => ("macswap", "macswap"),
            Case::Testpmd(_) => ("loopback", "io"),
        };
        let _back_end = match whose {
            Whose::Testpmd => BackEnd::testpmd(directory, case.card(), theirs)?,
            Whose::Ours => {
                let ioatlas = back_end::ioatlas(arguments.ioatlas.as_deref())?;
                let options = ["--mode", ours, "--miss-timeout", "60000"];
                BackEnd::ours(&ioatlas, directory, "back-end", &options)?
            }
        };
        let rates = match case {
            Case::Linux(mode) => linux(arguments, tree, mode, directory, &name)?,
            Case::Testpmd(pages) => {
                let lines = dpdk::guest(arguments, tree, pages, directory, PATIENCE)?;
                dpdk::rates(&lines).map(|(sent, received)| Rates {
                    sent: sent as f64,
                    received: received as f64,
                })
            }
        };
        let failed = |what: &str| Error::Counts {
            mode: name.clone(),
            what: what.into(),
        };
        match rates {
            None => Err(failed("the guest tells no rate")),
            Some(rates) if whose == Whose::Ours && rates.received == 0.0 => {
                Err(failed("nothing comes back"))
            }
            Some(rates) => Ok(rates),
        }
    })
}

fn linux(
    arguments: &Arguments,
    tree: &Tree,
    mode: Mode,
    directory: &Path,
    name: &str,
) -> Result<Option<Rates>, Error> {
    let boot = Boot {
        tree,
        directory,
        limit: arguments.limit(),
        card: Card::Linux(mode),
    };
    let mut image = boot.image(include_str!("pktgen.sh"))?;
    image.variable("PEER", &PEER.to_string());
    image.variable("GUEST", &GUEST.to_string());
    image.variable("WARM_UP", &WARM_UP.to_string());
    image.variable("SECONDS_OF_RATE", &arguments.seconds.to_string());
    for module in ["virtio_pci", "virtio_net", "pktgen"] {
        image.module(module)?;
    }
    let mut lines = Lines::default();
    boot.run(name, image, &mut lines)?;
    Ok(rates(lines.all("at")))
}

/// The rates between two lines of seconds, frames sent and received.
fn rates<'a>(lines: impl Iterator<Item = &'a str>) -> Option<Rates> {
    let mut lines = lines.map(|line| {
        let mut words = line.split_whitespace().map(|word| word.parse::<f64>().ok());
        Some([words.next()??, words.next()??, words.next()??])
    });
    let (before, after) = (lines.next()??, lines.next()??);
    let took = after[0] - before[0];
    (took > 0.0).then(|| Rates {
        sent: (after[1] - before[1]) / took,
        received: (after[2] - before[2]) / took,
    })
}

fn row(case: Case, rounds: &[(Option<Rates>, Rates)]) -> Vec<String> {
    let whole = |of: Option<f64>| of.map_or("-".into(), |rate| format!("{rate:.0}"));
    let ratio = |of: Option<f64>| of.map_or("-".into(), |ratio| format!("{ratio:.2}"));
    let theirs = |of: fn(&Rates) -> f64| {
        whole(median(
            rounds
                .iter()
                .filter_map(|(theirs, _)| theirs.as_ref().map(of)),
        ))
    };
    let ours = |of: fn(&Rates) -> f64| whole(median(rounds.iter().map(|(_, ours)| of(ours))));
    let ratios = |of: fn(&Rates) -> f64| {
        let both = rounds.iter().filter_map(|(theirs, ours)| {
            let theirs = theirs.as_ref().map(of)?;
            (theirs > 0.0).then(|| of(ours) / theirs)
        });
        ratio(median(both))
    };
    let (sent, received) = (|rates: &Rates| rates.sent, |rates: &Rates| rates.received);
    vec![
        case.name(),
        theirs(sent),
        theirs(received),
        ours(sent),
        ours(received),
        ratios(sent),
        ratios(received),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_of_two_lines() {
        let found = rates(["10.00 100 7", "12.50 600 32"].into_iter());
        let wanted = Rates {
            sent: 200.0,
            received: 10.0,
        };
        assert_eq!(found, Some(wanted));
        assert_eq!(rates(["10.00 100 7"].into_iter()), None);
        assert_eq!(rates(["1 2 3", "1 2 3"].into_iter()), None, "no time");
    }

    #[test]
    fn ratios_are_of_rounds_in_which_both_ran() {
        let rates = |sent| Rates {
            sent,
            received: sent / 2.0,
        };
        let rounds = [
            (Some(rates(100.0)), rates(50.0)),
            (None, rates(60.0)),
            (Some(rates(10.0)), rates(70.0)),
            (Some(rates(100.0)), rates(200.0)),
        ];
        let row = row(Case::Linux(Mode::Strict), &rounds);
        let wanted = ["strict", "100", "50", "70", "35", "2.00", "2.00"];
        assert_eq!(row, wanted);
    }
}
