// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A disk. A request whose data are refused ends with the status `IOERR`.

use crate::port::*;
use ioatlas_dma::units::*;
use ioatlas_viommu::machine::TransferError;
use virtio_drivers::transport::DeviceType;

pub const SECTOR: usize = 512;
pub const SECTORS: usize = 1024;

pub const FLUSH: u64 = 1 << 9;

/// The statuses of requests.
const OK: u8 = 0;
const IOERR: u8 = 1;
const UNSUPPORTED: u8 = 2;

/// What a disk has, and has seen.
pub struct Disk {
    pub sectors: Vec<u8>,
    /// Where it moves data in place of the driver's buffers.
    pub astray: Option<Iova>,
    /// Why the last request failed.
    pub refused: Option<TransferError>,
    pub requests: u64,
}

impl Disk {
    /// Of zeroes.
    pub fn new() -> Self {
        Disk {
            sectors: vec![0; SECTORS * SECTOR],
            astray: None,
            refused: None,
            requests: 0,
        }
    }
}

impl Model for Disk {
    const TYPE: DeviceType = DeviceType::Block;

    /// The capacity.
    fn config(&self) -> Vec<u8> {
        (SECTORS as u64).to_le_bytes().to_vec()
    }

    fn serve(&mut self, reach: &Reach, _: usize, chain: &[Shared]) -> Moved<Option<u32>> {
        let [header, data @ .., status] = chain else {
            panic!("a chain of {} buffers", chain.len());
        };
        self.requests += 1;
        let [kind, _, low, high]: [u32; 4] = reach.read_as(header.iova)?;
        let mut sector = low as usize | (high as usize) << 32;
        let mut answer = OK;
        let mut written = 1;
        for part in data {
            let iova = self.astray.unwrap_or(part.iova);
            let bytes = sector * SECTOR..sector * SECTOR + part.len;
            let mut copy = vec![0; part.len];
            let moved = match (kind, part.write) {
                (0, true) => {
                    written += part.len as u32;
                    reach.write(iova, &self.sectors[bytes])
                }
                (1, false) => reach.read(iova, &mut copy).map(|()| {
                    self.sectors[bytes].copy_from_slice(&copy);
                }),
                (8, true) => reach.write(iova, b"an ioatlas disk\0\0\0\0\0"),
                _ => panic!("request {kind} with {part:?}"),
            };
            if let Err(refused) = moved {
                self.refused = Some(refused);
                answer = IOERR;
            }
            sector += part.len / SECTOR;
        }
        if ![0, 1, 4, 8].contains(&kind) {
            answer = UNSUPPORTED;
        }
        reach.write(status.iova, &[answer])?;
        Ok(Some(written))
    }
}
