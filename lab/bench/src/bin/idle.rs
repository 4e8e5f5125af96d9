// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a domain takes of the heap before it maps anything, on hosts of 1 to 256 CPUs; and a client
//! of its DMA API beside it. As a table of Markdown, in bytes.
#![allow(clippy::disallowed_types)] // a counter of the program

use ioatlas_dma::{
    design::presets,
    dma_api::{ClientConfig, Dma, DmaConfig},
    domain::Domain,
    table::{TableConfig, fmt::VtdSecond48},
    translator::{Paged, Uncached},
};
use ioatlas_host::{Host, HostConfig};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// The system's allocator, counted.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;
static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls go to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are those of `System`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are those of `System`, which gave out `at`.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Bytes that `make` leaves allocated, with what it makes.
fn bytes_of<R>(
    make: impl FnOnce() -> Result<R, Box<dyn Error>>,
) -> Result<(R, usize), Box<dyn Error>> {
    let before = LIVE.load(Ordering::Relaxed);
    let made = make()?;
    Ok((made, LIVE.load(Ordering::Relaxed) - before))
}

const CPUS: [usize; 4] = [1, 4, 64, 256];

fn main() -> Result<(), Box<dyn Error>> {
    let cells = |cells: [usize; CPUS.len()]| cells.map(|bytes| format!(" {bytes} |")).concat();
    println!("| CPUs |{}", cells(CPUS));
    println!("|---|{}", "--:|".repeat(CPUS.len()));
    let mut clients = [0; CPUS.len()];
    for preset in presets() {
        let mut bytes = [0; CPUS.len()];
        for (nth, slots) in CPUS.into_iter().enumerate() {
            let host = Arc::new(Host::new(HostConfig { frames: 64, slots }));
            let tables = Paged::new(&*host, Uncached::<Host>::new(), TableConfig::default())?;
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
