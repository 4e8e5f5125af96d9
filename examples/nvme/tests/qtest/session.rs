// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A whole session, as the program has it.

use crate::machine::*;
use ioatlas_dma::units::*;
use ioatlas_nvme::{
    cost::{Cost, Plan, Table},
    nvme::{command::NamespaceId, queue::Depth},
    policy::Policy,
    session::{self, Disk, Orders, Place},
};
use libtest_mimic::Failed;

pub fn whole() -> std::result::Result<(), Failed> {
    let machine = Machine::start()?;
    // the clock of the machine runs, for edu's sake; its CPU is halted
    machine.qemu.monitor("cont")?;
    for disk in [Disk::HasPattern, Disk::ReadOnly, Disk::Destroy] {
        let policies = match disk {
            Disk::HasPattern => Policy::ALL.to_vec(),
            Disk::ReadOnly | Disk::Destroy => vec![Policy::MapUnmap],
        };
        let place = Place {
            domain: machine.domain.clone(),
            nvme: machine.nvme(),
            edu: (disk == Disk::HasPattern).then(|| machine.edu() as _),
            interrupts: None,
            calls: None,
        };
        let orders = Orders {
            namespace: NamespaceId(1),
            disk,
            late: None,
            idle: IDLE,
            verify: policies.clone(),
            measure: Plan {
                policies,
                sizes: vec![ByteCount(4096)],
                depths: vec![Depth(8)],
                reads: 16,
                rounds: 1,
            },
        };
        let report = session::run(&place, &orders)?;
        let table = Table {
            costs: &report.costs,
            of: Cost::wall,
            unit: "us by the clock",
        };
        println!("{table}");
        let revoked = match disk {
            Disk::HasPattern => report.revoked.len() > 10,
            Disk::ReadOnly | Disk::Destroy => report.revoked.is_empty(),
        };
        if !report.failures.is_empty() || !revoked || report.verified.is_empty() {
            return Err(format!("{disk:?}: {report:#?}").into());
        }
    }
    Ok(())
}
