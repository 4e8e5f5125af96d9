// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What `ioatlas vhost-net` takes.

use clap::{Args, ValueEnum};
use ioatlas_vhost::{
    Limits,
    guest_memory::Patience,
    runner::{self, Files, Shrink},
};
use ioatlas_vhost_net::{MAX_PAIRS, Mode, NetConfig, Wakeup, queue::Depth};
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::Duration;

/// The TAP interface if no name is given.
const TAP: &str = "ioatlas0";

/// A guest under QEMU, whose network card is behind a VT-d unit.
const EXAMPLE: &str = "\
Example: a guest whose network card is behind an IOMMU, and TAP interface tap0

  ioatlas vhost-net --socket-path /run/card.sock --mode tap=tap0 --require-iommu

  qemu-system-x86_64 -machine q35,kernel-irqchip=split -accel kvm -m 1G \\
    -object memory-backend-memfd,id=ram,size=1G,share=on -numa node,memdev=ram \\
    -device intel-iommu,intremap=on,device-iotlb=on,caching-mode=on \\
    -chardev socket,id=c0,path=/run/card.sock,reconnect=1 \\
    -netdev vhost-user,id=n0,chardev=c0 \\
    -device virtio-net-pci,netdev=n0,disable-legacy=on,iommu_platform=on,ats=on \\
    -drive file=guest.img,if=virtio

The unit comes before the card, memory is shared, and the guest's kernel has intel_iommu=on.";

/// Run a vhost-user-net back end whose guest's memory is behind a device IOTLB.
///
/// It offers split and packed rings, mergeable receive buffers, indirect descriptors, the event
/// index and VIRTIO_F_ACCESS_PLATFORM; give QEMU `-netdev vhost-user`, a virtual IOMMU, and
/// `iommu_platform=on,ats=on` for the device. Front ends come and go; SIGINT or SIGTERM ends it,
/// removes the socket and prints what was done. What goes wrong with a front end or a guest is a
/// line on standard error, and never ends the program. --socket-path, --fd and --print-capabilities
/// are what QEMU's conventions for back-end programs ask for.
///
/// JSON: an object. Fields: iotlb, mode, wakeup, queue_pairs, seconds, connections, hits and misses
/// (buffers whose translations were all there when looked up, and others), questions (sent,
/// deduplicated: under way already, postponed: no room, unanswered, in_flight now, most_in_flight,
/// access_failures), updates, refused_updates, runs (contiguous translations held now), evictions,
/// invalidations, acknowledgement_us (mean and max: from an invalidation's arrival until every
/// burst that could use it was over; null if there was none), pairs[] (transmitted and received:
/// frames from and to the guest, received_bytes, too_long, too_short, tap_dropped, hits, misses,
/// since_miss: frames since something was missing last, bursts, calls, stopped: queues that stopped
/// because of an error).
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLE)]
pub(crate) struct VhostNetArguments {
    /// Socket at which front ends connect; it is made here, and removed at the end.
    #[arg(long, value_name = "PATH", required_unless_present_any = ["fd", "print_capabilities"])]
    pub socket_path: Option<PathBuf>,
    /// Instead, the socket that is open as file descriptor N: front ends that connect, where it
    /// listens; else the one at its other end, and the program ends with it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..),
        conflicts_with_all = ["socket_path", "socket_mode", "socket_group", "client", "replace"])]
    pub fd: Option<RawFd>,
    /// Permission bits of the socket at PATH, in octal: a process that may write to it may connect
    /// [default: what the umask leaves].
    #[arg(long, value_name = "MODE", value_parser = octal, conflicts_with = "client")]
    pub socket_mode: Option<u32>,
    /// Group of the socket at PATH, by its number or its name in /etc/group.
    #[arg(long, value_name = "GROUP", value_parser = group, conflicts_with = "client")]
    pub socket_group: Option<u32>,
    /// Print as JSON what kind of back end this is, and end. Other options mean nothing then.
    #[arg(long)]
    pub print_capabilities: bool,
    /// Connect to a front end that listens there instead, and again whenever the connection ends.
    #[arg(long)]
    pub client: bool,
    /// Remove a socket at PATH that no process listens at any more.
    #[arg(long, conflicts_with = "client")]
    pub replace: bool,
    /// Queue pairs, each served by a thread.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_PAIRS)))]
    pub queue_pairs: u16,
    /// What happens to frames: loopback (each goes back), macswap (with its addresses
    /// exchanged), tap or tap=NAME (to and from that interface [default: ioatlas0], which is
    /// made if there is none).
    #[arg(long, default_value = "loopback", value_parser = mode)]
    pub mode: Mode,
    /// How new buffers are found.
    #[arg(long, value_enum, default_value_t = How::Notify)]
    pub wakeup: How,
    /// Structure of the device IOTLB.
    #[arg(long, value_enum, default_value_t = Structure::Radix)]
    pub iotlb: Structure,
    /// Contiguous translations held at once.
    #[arg(long, value_name = "N", default_value_t = Limits::default().runs, value_parser = clap::value_parser!(u32).range(i64::from(Limits::LEAST_RUNS)..))]
    pub iotlb_runs: u32,
    /// Tables of the radix IOTLB, 586 bytes each.
    #[arg(long, value_name = "N", default_value_t = Limits::default().tables, value_parser = clap::value_parser!(u32).range(1..))]
    pub iotlb_tables: u32,
    /// Buffers of each queue that are translated ahead.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub ahead: u16,
    /// Milliseconds that a queue waits for a translation before it stops, and stays so until the
    /// guest resets the device. By default it waits, and asks again, for as long as it takes: a VMM
    /// may be paused, or get no CPU, for any time.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..=3_600_000))]
    pub miss_timeout: Option<u32>,
    /// Refuse front ends without VIRTIO_F_ACCESS_PLATFORM: no device without protection.
    #[arg(long)]
    pub require_iommu: bool,
    /// Refuse guest memory that could be truncated: files without F_SEAL_SHRINK.
    #[arg(long)]
    pub require_sealed_memory: bool,
    /// Take guest memory of any regular file, as of an NVDIMM, and not only of memfd, tmpfs and
    /// hugetlbfs. A file system that never answers can then hold everything up.
    #[arg(long)]
    pub any_memory_file: bool,
    /// Print a line of statistics on standard error every so many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub stats_every: Option<u32>,
    /// Print the final statistics as JSON.
    #[arg(long)]
    pub json: bool,
}

/// How a queue learns of new buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum How {
    /// The front end kicks it.
    Notify,
    /// It looks all the time; each queue pair takes a CPU.
    Poll,
}

/// What holds the translations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Structure {
    /// A radix table with wait-free lookup.
    Radix,
    /// A sorted list for each queue pair, under a lock (KVM'17).
    List,
    /// A balanced tree for each, under a lock (as vhost in Linux).
    Interval,
}

impl VhostNetArguments {
    /// The device as these arguments have it.
    pub fn net(&self) -> NetConfig {
        NetConfig::default()
            .pairs(self.queue_pairs)
            .mode(self.mode.clone())
            .wakeup(match self.wakeup {
                How::Notify => Wakeup::Notify,
                How::Poll => Wakeup::Poll,
            })
            .depth(Depth(self.ahead.into()))
            .patience(self.patience())
    }

    /// How the device's runner treats front ends and their memory.
    pub fn runner(&self) -> runner::Config {
        runner::Config::default()
            .iommu(match self.require_iommu {
                true => runner::Iommu::Demanded,
                false => runner::Iommu::Offered,
            })
            .shrink(match self.require_sealed_memory {
                true => Shrink::DemandSeal,
                false => Shrink::Survive,
            })
            .files(match self.any_memory_file {
                true => Files::Any,
                false => Files::InMemory,
            })
            .patience(match self.patience() {
                Some(answer) => Patience { answer },
                None => Patience::default(),
            })
    }

    /// Which processes may connect to the socket that is made.
    pub fn access(&self) -> runner::Access {
        runner::Access {
            mode: self.socket_mode,
            group: self.socket_group,
        }
    }

    /// Bounds of the cache, with a reader for each queue pair.
    pub fn limits(&self) -> Limits {
        Limits::default()
            .runs(self.iotlb_runs)
            .tables(self.iotlb_tables)
            .readers(self.queue_pairs.into())
    }

    fn patience(&self) -> Option<Duration> {
        let ms = self.miss_timeout?;
        Some(Duration::from_millis(ms.into()))
    }
}

fn mode(text: &str) -> Result<Mode, String> {
    match text.split_once('=') {
        None if text == "loopback" => Ok(Mode::Loopback),
        None if text == "macswap" => Ok(Mode::MacSwap),
        None if text == "tap" => Ok(Mode::Tap(TAP.into())),
        Some(("tap", name)) => Ok(Mode::Tap(name.into())),
        _ => Err("expected loopback, macswap, tap or tap=NAME".into()),
    }
}

fn octal(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("expected permission bits in octal, as 660".into()),
    }
}

fn group(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let groups = std::fs::read_to_string("/etc/group").map_err(|e| format!("/etc/group: {e}"))?;
    group_of(&groups, text).ok_or_else(|| format!("no group {text} in /etc/group; give its number"))
}

/// The number of a group in the text of `/etc/group`: name, password, number, members.
fn group_of(groups: &str, name: &str) -> Option<u32> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let found = fields.next() == Some(name);
        found.then(|| fields.nth(1)?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_their_whole_names() {
        let groups = "root:x:0:\nlibvirt-qemu:x:64055:a,b\nkvm:x:104:\nodd:x:none:\n";
        for (name, number) in [("root", 0), ("libvirt-qemu", 64055), ("kvm", 104)] {
            assert_eq!(group_of(groups, name), Some(number));
        }
        for name in ["libvirt", "x", "a", "odd", ""] {
            assert_eq!(group_of(groups, name), None, "{name}");
        }
    }

    #[test]
    fn modes_are_octal() {
        assert_eq!(octal("660"), Ok(0o660));
        assert_eq!(octal("0"), Ok(0));
        for text in ["", "rw", "1000", "888", "-1", "+7x"] {
            assert!(octal(text).is_err(), "{text}");
        }
    }
}
