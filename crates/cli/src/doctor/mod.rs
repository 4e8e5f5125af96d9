// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `ioatlas doctor`: what this machine's IOMMU is set to, and what to type next.
//!
//! [`tree`] reads files, with bounds; [`machine`], [`unit`] and [`device`] make a model of them,
//! [`mode`] says what it means, [`advice`] what to do, and [`terminal`] shows it.

mod advice;
mod device;
mod machine;
mod mode;
mod terminal;
mod tree;
mod unit;

use crate::Answer;
use crate::error::Error;
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

/// Say what this machine's IOMMU is set to, and what to type next.
///
/// Needs no root and changes nothing: reads files of /sys, /proc and /boot. Prints the units, the
/// mode that devices get and where that comes from, a line for each device, huge pages, the
/// kernel's trace events, and commands to go on with. Devices without a driver are counted where
/// they are many.
///
/// Modes: lazy (DMA-FQ), strict (DMA), passthrough (identity), blocked; translated, where a kernel
/// before 5.15 does not say which of the first two; VFIO, where a program or guest maps.
///
/// JSON: root, kernel, cpu, command_line, config, units[], no_iommu_because, default_mode (mode,
/// source, by[]), groups[], devices[], huge_pages, events, remarks[], next[] (command, root, why),
/// unread (first[], count); null is unknown.
#[derive(Args, Debug)]
pub(crate) struct DoctorArguments {
    /// The folder that has the folders sys, proc and boot: of another machine's copy, perhaps.
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
    /// List devices without a driver, however many.
    #[arg(long)]
    pub all: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// All that was found.
#[derive(Debug, Serialize)]
struct Doctor {
    root: String,
    kernel: machine::Kernel,
    cpu: machine::Cpu,
    command_line: mode::CommandLine,
    config: Option<machine::Config>,
    units: Vec<unit::Unit>,
    no_iommu_because: Option<String>,
    default_mode: mode::DefaultMode,
    groups: Vec<device::Group>,
    devices: Vec<device::Device>,
    huge_pages: machine::HugePages,
    events: machine::Events,
    remarks: Vec<String>,
    next: Vec<advice::Step>,
    unread: tree::Troubles,
}

pub(crate) fn run(arguments: &DoctorArguments) -> Answer {
    let tree = match tree::Tree::new(&arguments.root) {
        Ok(tree) => tree,
        Err(source) => {
            let path = arguments.root.clone();
            return Error::Root { path, source }.into();
        }
    };
    let doctor = Doctor::examine(&tree, arguments.root.display().to_string());
    let mut answer: Answer = Answer::show(&doctor, arguments.json, |doctor| {
        terminal::text(doctor, arguments.all)
    });
    if arguments.json {
        answer.text = harmless(&answer.text);
    }
    answer
}

/// JSON whose strings steer no terminal: such a character, which can only be in a string, becomes
/// its escape. JSON's own rules ask for that of a part of them only.
fn harmless(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if c == '\n' || !ioatlas_present::steers(c) {
            text.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            text += &format!("\\u{unit:04x}");
        }
    }
    text
}

impl Doctor {
    fn examine(tree: &tree::Tree, root: String) -> Self {
        let kernel = machine::Kernel::read(tree);
        let cpu = machine::Cpu::read(tree);
        let command_line = mode::CommandLine::parse(tree.text("proc/cmdline").as_deref(), &cpu);
        let config = machine::Config::read(tree, &kernel);
        let units = unit::units(tree);
        let groups = device::groups(tree, &kernel);
        let devices = device::devices(tree, &groups);
        let mut doctor = Doctor {
            root,
            no_iommu_because: None,
            default_mode: mode::DefaultMode::of(&command_line, config.as_ref(), &groups),
            huge_pages: machine::HugePages::read(tree),
            events: machine::Events::read(tree),
            kernel,
            cpu,
            command_line,
            config,
            units,
            groups,
            devices,
            remarks: Vec::new(),
            next: Vec::new(),
            unread: tree::Troubles::default(),
        };
        if !doctor.uses_iommu() {
            let (line, config) = (&doctor.command_line, doctor.config.as_ref());
            doctor.no_iommu_because = Some(unit::absence(tree, &doctor.cpu, line, config));
        }
        doctor.remarks = advice::remarks(&doctor);
        doctor.next = advice::next(&doctor);
        doctor.unread = tree.troubles();
        doctor
    }

    /// Whether Linux drives an IOMMU. VFIO makes groups without one as well.
    fn uses_iommu(&self) -> bool {
        let real = |group: &device::Group| !group.vfio_without_iommu;
        !self.units.is_empty() || self.groups.iter().any(real)
    }
}
