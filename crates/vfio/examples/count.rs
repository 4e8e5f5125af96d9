// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a map and its unmap cost above the kernel's calls: `count CASE N`, to be run under
//! `valgrind --tool=callgrind`, the difference of two N.
//!
//! The space answers at once and keeps nothing, so what is counted is the core's and the
//! translator's share. Cases: `strict`, `deferred` (single pages), `list` (8 runs of one page),
//! `identity` (4 pages that no other mapping has), `bounce` (a kept slot, 64 bytes).

use ioatlas_dma::{dma_api::*, domain::*, iova::*, translator::AttachError, units::*};
use ioatlas_host::register;
use ioatlas_vfio::{kernel::*, platform::*, space::*, translator::Vfio};
use std::sync::Arc;

struct Willing(SpaceLimits);

// SAFETY: there is no device.
unsafe impl AddressSpace for Willing {
    fn limits(&self) -> &SpaceLimits {
        &self.0
    }
    fn pin_limit(&self) -> Option<ByteCount> {
        None
    }
    unsafe fn map(&self, _call: &MapCall) -> Result<(), Errno> {
        Ok(())
    }
    fn unmap(&self, _iova: Iova, len: ByteCount) -> Result<ByteCount, Errno> {
        Ok(len)
    }
    fn attach(&self, _device: SourceId) -> Result<(), AttachError> {
        Ok(())
    }
    fn detach(&self, _device: SourceId) -> Result<(), AttachError> {
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (case, turns) = (arguments.next(), arguments.next());
    let usage = "count strict|deferred|list|identity|bounce N";
    let (case, turns) = (case.ok_or(usage)?, turns.ok_or(usage)?.parse::<u32>()?);
    let info = SpaceInfo {
        ranges: vec![(Iova(0), Iova((1 << 39) - 1))],
        granule: ByteCount(4096),
        page_sizes: None,
        mappings: None,
    };
    let memory = Arc::new(UserSpace::new(
        UserSpaceConfig::default()
            .pages(PageCount(1024))
            .place(ArenaPlace::Below(37)),
    )?);
    let allocator = match case.as_str() {
        "identity" => AllocatorConfig::Identity(
            IdentityConfig::default()
                .phys_bits(37)
                .fallback(MagazineConfig::default()),
        ),
        _ => AllocatorConfig::Magazine(MagazineConfig::default()),
    };
    let policy = match case.as_str() {
        "deferred" => PolicyConfig::DeferredPerCpu(DeferredConfig::default()),
        _ => PolicyConfig::Strict,
    };
    register();
    let config = DomainConfig::new(allocator, policy);
    let domain = Vfio::domain(memory.clone(), Willing(SpaceLimits::new(&info)?), config)?;
    let domain = Arc::new(domain);
    let buffer = memory.buffer(ByteCount(16 << 12)).ok_or("no memory")?;
    let part = |first: u64, len: u64| {
        let part = buffer.part(ByteCount(first << 12), ByteCount(len));
        part.ok_or("outside")
    };
    match case.as_str() {
        "bounce" => {
            let dma = Arc::new(Dma::new(domain, DmaConfig::default()));
            let placement = Placement::Always;
            let client = dma.client(ClientConfig::default().placement(placement))?;
            for _ in 0..turns {
                // SAFETY: the buffer lives until the end, and is not looked at.
                let part = unsafe { Lent::new(part(0, 64)?) };
                let mapping = client.map_single(part, Direction::ToDevice)?;
                client.unmap(mapping)?;
            }
        }
        "list" => {
            let list = (0..8).map(|nth| part(2 * nth, 4096));
            let list = list.collect::<Result<Vec<_>, _>>()?;
            for _ in 0..turns {
                let mapping = domain.map_list(&list, Direction::ToDevice)?;
                domain.unmap(mapping)?;
            }
        }
        "strict" | "deferred" | "identity" => {
            let pages = if case == "identity" { 4 } else { 1 };
            for _ in 0..turns {
                let mapping = domain.map(part(0, pages << 12)?, Direction::ToDevice)?;
                domain.unmap(mapping)?;
            }
        }
        _ => return Err(usage.into()),
    }
    Ok(())
}
