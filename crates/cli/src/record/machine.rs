// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! QEMU's arguments.

use super::plan::Device;
use ioatlas_guest::qemu::{self, Reboot, comma_safe};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Where the LSI controller sits, and which of its regions is its on-chip memory.
pub const LSI_SLOT: u8 = 6;
/// Number of that region's base address register.
pub const LSI_MEMORY: u32 = 2;
/// Where a network card's gateway, which is the peer, and the card are: `10.0.2.`, `10.0.3.`
pub const NET: &str = "10.0.";

/// Trace events that the importer understands.
const EVENTS: [&str; 5] = [
    "port92_write",
    "vtd_inv_desc_iotlb_pages",
    "vtd_iotlb_page_hit",
    "vtd_iotlb_page_update",
    "vtd_dmar_fault",
];

/// A guest to boot.
#[derive(Debug)]
pub struct Machine<'a> {
    /// What is to be recorded.
    pub device: Device,
    pub cpus: u32,
    pub memory_mib: u32,
    /// Number of pairs of queues.
    pub queues: u32,
    /// Entries of a receive ring.
    pub ring: u32,
    pub kernel: &'a Path,
    /// Its first file system.
    pub initrd: &'a Path,
    /// Backing file of a disk.
    pub disk: &'a Path,
    /// Where registers are dumped, if events are to be recorded at all.
    pub dfilter: Option<&'a str>,
    /// Socket of a debugger that starts the guest.
    pub debugger: Option<PathBuf>,
}

impl Machine<'_> {
    /// All arguments. The console is standard output, the log standard error.
    #[must_use]
    pub fn arguments(&self) -> Vec<OsString> {
        let machine = qemu::Machine {
            cpus: self.cpus,
            memory_mib: self.memory_mib,
            kernel: self.kernel,
            initrd: self.initrd,
            command_line: "nokaslr intel_iommu=on iommu.strict=1",
            reboot: Reboot::Ends,
        };
        let mut arguments = machine.arguments();
        let mut add = |words: &[&str]| arguments.extend(words.iter().map(OsString::from));
        // one thread for all CPUs: the order of the log is the order of what happened
        add(&["-accel", "tcg,thread=single"]);
        add(&["-device", "intel-iommu,intremap=off"]);
        for (option, value) in self.devices() {
            add(&[option, &value]);
        }
        if let Some(dfilter) = self.dfilter {
            add(&["-msg", "timestamp=on", "-d", "cpu", "-dfilter", dfilter]);
            for event in EVENTS {
                add(&["-trace", &format!("enable={event}")]);
            }
        }
        if let Some(socket) = &self.debugger {
            let port = format!("unix:{},server=on,wait=off", comma_safe(socket));
            add(&["-S", "-gdb", &port]);
        }
        arguments
    }

    /// The recorded device, or devices, and what they are connected to.
    fn devices(&self) -> Vec<(&'static str, String)> {
        let queues = self.queues;
        let mut options = Vec::new();
        for card in 0..self.device.cards() {
            let net = 2 + card;
            let backend = if queues > 1 {
                let tap = tap(card);
                format!("tap,id=n{card},ifname={tap},queues={queues},script=no,downscript=no")
            } else {
                format!("user,id=n{card},net={NET}{net}.0/24,host={NET}{net}.2")
            };
            options.push(("-netdev", backend));
            let kind = match self.device {
                Device::E1000 | Device::TwoE1000 => "e1000".to_owned(),
                _ => {
                    let ring = self.ring;
                    let several = match queues {
                        1 => String::new(),
                        // one vector a queue of either direction, one for control, one for
                        // configuration
                        _ => format!(",mq=on,vectors={}", 2 * queues + 2),
                    };
                    // ats: the address space through the unit needs it no more, but the guest's
                    // driver looks for it
                    format!(
                        "virtio-net-pci,disable-legacy=on,iommu_platform=on,ats=on,rx_queue_size={ring}{several}"
                    )
                }
            };
            let slot = 4 + card;
            options.push(("-device", format!("{kind},netdev=n{card},addr={slot}")));
        }
        if self.device.cards() == 0 {
            let file = comma_safe(self.disk);
            let options_of_disk = "format=raw,cache=unsafe,file.locking=off";
            options.push((
                "-drive",
                format!("if=none,id=d0,file={file},{options_of_disk}"),
            ));
        }
        let controller = match self.device {
            Device::Lsi => Some(format!("lsi53c895a,addr={LSI_SLOT},id=c0")),
            Device::VirtioScsi => Some(format!(
                "virtio-scsi-pci,addr=9,id=c0,disable-legacy=on,iommu_platform=on,num_queues={queues}"
            )),
            _ => None,
        };
        options.extend(controller.map(|controller| ("-device", controller)));
        let disk = match self.device {
            Device::Lsi | Device::VirtioScsi => Some("scsi-hd,drive=d0,bus=c0.0".to_owned()),
            Device::Ide => Some("ide-hd,drive=d0,bus=ide.0".to_owned()),
            Device::Nvme => Some(format!(
                "nvme,drive=d0,serial=x,addr=7,max_ioqpairs={queues}"
            )),
            _ => None,
        };
        options.extend(disk.map(|disk| ("-device", disk)));
        options
    }
}

/// Name of the host's end of a card with several queues.
#[must_use]
pub fn tap(card: usize) -> String {
    format!("ioatlas{card}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;

    fn arguments(device: Device, queues: u32, debugger: Option<PathBuf>) -> Vec<String> {
        let machine = Machine {
            device,
            cpus: 4,
            memory_mib: 512,
            queues,
            ring: 1024,
            kernel: Path::new("vmlinuz"),
            initrd: Path::new("initrd"),
            disk: Path::new("a,b/disk"),
            dfilter: Some("0x1+1"),
            debugger,
        };
        let arguments = machine.arguments().into_iter();
        arguments.map(|word| word.into_string().unwrap()).collect()
    }

    #[test]
    fn every_device_is_behind_the_unit_and_has_what_it_is_connected_to() {
        for device in Device::value_variants() {
            let line = arguments(*device, 1, None).join(" ");
            assert!(line.contains("-accel tcg"), "{line}");
            let unit = line.find("-device intel-iommu").unwrap();
            let devices = line.matches("-device ").count() - 1;
            let backends = line.matches("-netdev user").count() + line.matches("-drive").count();
            // controllers with a bus have a disk beside them
            let both = matches!(device, Device::Lsi | Device::VirtioScsi);
            assert_eq!(devices, backends + usize::from(both), "{line}");
            assert!(line[unit..].contains("-device "), "{line}");
            assert!(
                line.contains("file=a,,b/disk,") == (device.cards() == 0),
                "{line}"
            );
        }
    }

    #[test]
    fn several_queues_need_a_tap_and_vectors_for_all() {
        let line = arguments(Device::VirtioNet, 4, None).join(" ");
        assert!(
            line.contains("tap,id=n0,ifname=ioatlas0,queues=4,"),
            "{line}"
        );
        assert!(
            line.contains("rx_queue_size=1024,mq=on,vectors=10,"),
            "{line}"
        );
        let line = arguments(Device::Nvme, 2, None).join(" ");
        assert!(line.contains("max_ioqpairs=2"), "{line}");
    }

    #[test]
    fn a_debugger_starts_the_guest() {
        assert!(!arguments(Device::E1000, 1, None).contains(&"-S".into()));
        let words = arguments(Device::E1000, 1, Some("d/gdb".into()));
        assert!(words.contains(&"-S".into()));
        assert!(words.contains(&"unix:d/gdb,server=on,wait=off".into()));
    }
}
