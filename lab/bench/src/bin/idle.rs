// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a domain takes of the heap before it maps anything, on hosts of 1 to 256 CPUs; and a client
//! of its DMA API beside it. As a table of Markdown, in bytes.

#[path = "../../../../crates/dma/tests/it/allocators/counting.rs"]
mod counting;

use counting::live_bytes;
use ioatlas_dma::{
    design::presets,
    dma_api::{ClientConfig, Dma, DmaConfig},
    domain::Domain,
    table::{TableConfig, fmt::VtdSecond48},
    translator::{Paged, Uncached},
};
use ioatlas_host::{Host, HostConfig};
use std::{error::Error, fmt::Display, sync::Arc};

/// Bytes that `make` leaves allocated, with what it makes.
fn bytes_of<R>(
    make: impl FnOnce() -> Result<R, Box<dyn Error>>,
) -> Result<(R, i64), Box<dyn Error>> {
    let before = live_bytes();
    let made = make()?;
    Ok((made, live_bytes() - before))
}

const CPUS: [usize; 4] = [1, 4, 64, 256];

/// The cells of a row, but for the first.
fn cells(cells: [impl Display; CPUS.len()]) -> String {
    cells.map(|cell| format!(" {cell} |")).concat()
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("| CPUs |{}", cells(CPUS));
    println!("|---|{}", "--:|".repeat(CPUS.len()));
    let mut clients = [0; CPUS.len()];
    for preset in presets() {
        let mut bytes = [0; CPUS.len()];
        for (nth, slots) in CPUS.into_iter().enumerate() {
            let host = Arc::new(Host::new(HostConfig::default().frames(64).slots(slots)));
            let tables = Paged::new(&host, Uncached::<Host>::new(), TableConfig::default())?;
            let tables: Paged<_, VtdSecond48, _> = tables;
            let domain = || Ok(Arc::new(Domain::new(host, tables, preset.design.domain)?));
            let (domain, taken) = bytes_of(domain)?;
            bytes[nth] = taken;
            let client = || {
                let dma = Arc::new(Dma::new(domain, DmaConfig::default()));
                Ok(dma.client(ClientConfig::default())?)
            };
            let (_client, taken) = bytes_of(client)?;
            clients[nth] = clients[nth].max(taken);
        }
        println!("| `{}`, {} |{}", preset.name, preset.title, cells(bytes));
    }
    println!("| a client of the DMA API, at most |{}", cells(clients));
    Ok(())
}
