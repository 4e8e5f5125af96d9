// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the program takes.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::fmt;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

/// Boot an unmodified Debian guest on `ioatlas vhost-net`, under QEMU with an emulated VT-d unit,
/// and check its traffic.
///
/// Linux, in each mode of the IOMMU: the guest pings, moves TCP and UDP and compares every byte,
/// keeps a TCP connection while the back end is ended and started anew, reboots, and does it again.
///
/// testpmd in the guest, with each size of pages: DPDK drives the card from a process of the guest,
/// through VFIO, its memory mapped once. Frames of all lengths go out, come back and are compared;
/// then as many as go; none may be lost, and none may miss a translation once all memory was used.
///
/// With `--back-end testpmd` the rates of either guest are taken instead, on vhost-net and on
/// testpmd as back end, in turns.
#[derive(Debug, Parser)]
pub struct Arguments {
    #[command(subcommand)]
    pub what: Option<What>,
    /// What drives the card in the guest.
    #[arg(long, value_enum, default_value_t = Driver::Linux)]
    pub guest: Driver,
    /// How Linux uses its IOMMU; may be given several times [default: all three].
    #[arg(long, value_enum)]
    pub mode: Vec<Mode>,
    /// Pages of testpmd's memory; may be given several times [default: both].
    #[arg(long, value_enum)]
    pub pages: Vec<Pages>,
    /// Back ends: ours, or ours beside DPDK's testpmd (ci/install-dpdk.sh installs it).
    #[arg(long, value_enum, default_value_t = BackEnds::Ours)]
    pub back_end: BackEnds,
    /// Rounds beside testpmd.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub rounds: u32,
    /// Seconds for which a rate is taken.
    #[arg(long, value_name = "S", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub seconds: u32,
    /// The command whose `vhost-net` is the back end [default: `ioatlas` beside this program].
    #[arg(long, value_name = "PATH")]
    pub ioatlas: Option<PathBuf>,
    /// MiB of each TCP connection, there and back.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub mib: u32,
    /// Seconds after which a guest that has not ended is killed, and its log kept.
    #[arg(long, value_name = "S", default_value_t = 600)]
    pub timeout: u64,
    /// Directory for packages [default: ioatlas/packages in $XDG_CACHE_HOME, else in ~/.cache].
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Only fetch the packages, and say which.
    #[arg(long)]
    pub fetch_only: bool,
}

impl Arguments {
    /// How long a guest may take.
    pub fn limit(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

/// What the program is to be, if not what starts guests.
#[derive(Clone, Debug, Subcommand)]
pub enum What {
    /// What runs in the guest.
    #[command(hide = true)]
    Inside {
        /// Address of the peer.
        peer: Ipv4Addr,
        /// What to do.
        #[arg(value_enum)]
        work: Work,
    },
    /// What drives testpmd in the guest.
    #[command(hide = true)]
    Testpmd(Drive),
}

/// How the guest's testpmd is driven.
#[derive(Clone, Debug, Args)]
pub struct Drive {
    /// Address of the card on its bus.
    pub card: String,
    /// Pages of its memory.
    #[arg(long, value_enum)]
    pub pages: Pages,
    /// Libraries that it is to load.
    #[arg(long)]
    pub driver: Vec<String>,
    /// Seconds for which the rate is taken.
    #[arg(long)]
    pub seconds: u32,
    /// Seconds for which nothing may move.
    #[arg(long)]
    pub patience: u32,
}

/// What drives the card in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Driver {
    /// The kernel.
    Linux,
    /// DPDK, through VFIO.
    Testpmd,
}

/// Which back ends there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackEnds {
    /// `ioatlas vhost-net`: the guest's traffic is checked.
    Ours,
    /// That and DPDK's testpmd: rates are compared.
    Testpmd,
}

/// Pages of a process in the guest, which its IOMMU has, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pages {
    /// 2 MiB: hugepages.
    #[value(name = "2m")]
    Large,
    /// 4 KiB, at addresses that say nothing of each other.
    #[value(name = "4k")]
    Small,
}

impl Pages {
    /// Both sizes, the larger first.
    pub const ALL: [Self; 2] = [Self::Large, Self::Small];

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Large => "2m",
            Self::Small => "4k",
        }
    }
}

/// What the guest does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Work {
    /// Says how often the guest has booted.
    Boots,
    /// TCP and UDP, once.
    Traffic,
    /// TCP, with a new back end in the middle.
    Restart,
}

/// How the guest uses its IOMMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// There is none.
    Off,
    /// All memory is mapped onto itself.
    Pt,
    /// Each buffer is mapped for as long as the device has it, and invalidated at once.
    Strict,
}

impl Mode {
    /// All modes, in the order of the enumeration.
    pub const ALL: [Self; 3] = [Self::Off, Self::Pt, Self::Strict];
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Off => "off",
            Self::Pt => "pass-through",
            Self::Strict => "strict",
        })
    }
}
