// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the program takes.

use clap::{Parser, Subcommand, ValueEnum};
use std::fmt;
use std::net::Ipv4Addr;
use std::path::PathBuf;

/// Boot an unmodified Debian guest on `ioatlas vhost-net`, under QEMU with an emulated VT-d unit, and check its traffic.
///
/// In each mode: the guest pings, moves TCP and UDP and compares every byte, keeps a TCP connection while the back end is ended and started
/// anew, reboots, and does it again.
#[derive(Debug, Parser)]
pub struct Arguments {
    #[command(subcommand)]
    pub what: Option<What>,
    /// How the guest uses its IOMMU; may be given several times [default: all three].
    #[arg(long, value_enum)]
    pub mode: Vec<Mode>,
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

/// What the program is to be, if not what starts guests.
#[derive(Clone, Copy, Debug, Subcommand)]
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
    /// All.
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
