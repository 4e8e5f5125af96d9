// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! An unmodified Debian guest on `ioatlas vhost-net`, with QEMU as the front end.
//!
//! The guest's kernel drives a virtio network card behind QEMU's VT-d unit ([`machine`]); the
//! card's rings and buffers are served by the back end ([`back_end`]), whose other side is a TAP
//! interface. At that, this machine's network stack answers pings, and [`peer`] echoes TCP and UDP.
//! In the guest runs this same program ([`inside`]), which checks every byte that comes back.
//!
//! ```text
//! inside -- guest's stack -- virtio-net -- QEMU ==vhost-user== vhost-net -- TAP -- this machine's stack -- peer
//! ```
//!
//! On the way the back end is ended and started anew in the middle of a TCP connection, and the
//! guest reboots; both must go on as if nothing had been. The TAP interface is in a user and
//! network name space of our own ([`ioatlas_guest::network`]), so nothing of this needs privileges,
//! and no other network is touched.
//!
//! Or DPDK has the card in the guest ([`dpdk`]): testpmd, driven by this same program
//! ([`testpmd`]), through VFIO, all its memory mapped once. Then the back end sends each frame back
//! itself, and there is no network.
//!
//! Rates are taken beside testpmd as back end ([`compare`]).
//!
//! Under software emulation QEMU 7.2 crashes where vhost-user meets MSI-X, hence `vectors=0`: the
//! card has one interrupt line. What is measured is the guest under emulation as well as the back
//! end, so a rate says nothing but beside another of the same run.
#![forbid(unsafe_code)]

mod arguments;
mod back_end;
mod boot;
mod capture;
mod compare;
mod dpdk;
mod error;
mod inside;
mod machine;
mod network;
mod pattern;
mod peer;
mod table;
mod testpmd;
mod traffic;

use arguments::{Arguments, BackEnds, Driver, Mode, Pages, What};
use clap::Parser as _;
use error::Error;
use ioatlas_guest::{Cache, Tree, qemu};
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            match arguments.what {
                // for the program that watches the guest
                Some(_) => println!("ioatlas: failed: {error}"),
                None => eprintln!("error: {error}"),
            }
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Error> {
    match &arguments.what {
        Some(What::Inside { peer, work }) => return Ok(inside::run(*peer, *work)?),
        Some(What::Testpmd(drive)) => return Ok(testpmd::run(drive)?),
        None => {}
    }
    let tree = packages(arguments)?;
    if arguments.fetch_only {
        tree.packages
            .iter()
            .for_each(|package| println!("{package}"));
        return Ok(());
    }
    let (version, begun) = (qemu::version()?, Instant::now());
    match (arguments.back_end, arguments.guest) {
        (BackEnds::Testpmd, _) => {
            println!("{version}");
            compare::run(arguments, &tree)?;
        }
        (BackEnds::Ours, Driver::Linux) => {
            network::enter()?;
            println!("{version}");
            traffic::run(arguments, &tree, or_all(&arguments.mode, &Mode::ALL))?;
        }
        (BackEnds::Ours, Driver::Testpmd) => {
            println!("{version}");
            dpdk::run(arguments, &tree, or_all(&arguments.pages, &Pages::ALL))?;
        }
    }
    println!("{} s in all", begun.elapsed().as_secs());
    Ok(())
}

fn or_all<'a, T>(named: &'a [T], all: &'a [T]) -> &'a [T] {
    match named {
        [] => all,
        named => named,
    }
}

/// What guests are made of.
fn packages(arguments: &Arguments) -> Result<Tree, Error> {
    let directory = arguments.cache.clone().or_else(Cache::default_directory);
    let cache = Cache::open(&directory.ok_or(Error::NoCache)?)?;
    let kernel = cache.kernel()?;
    match arguments.guest {
        Driver::Linux => Ok(cache.tree(&[&kernel, "busybox-static", "libc6", "libgcc-s1"])?),
        Driver::Testpmd => dpdk::tree(&cache, &kernel),
    }
}
