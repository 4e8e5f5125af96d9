// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Where the functions of interest are in a guest's kernel.

use crate::event::Kind;
use std::fmt;

/// A function of the guest's kernel at whose entry registers are dumped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// `intel_iommu_map_pages`: the driver maps pages.
    MapPages,
    /// `intel_iommu_unmap_pages`: the driver unmaps pages.
    UnmapPages,
    /// `iommu_dma_alloc`: a consistent allocation begins.
    DmaAlloc,
    /// `iommu_dma_map_page`: a streaming buffer is mapped.
    DmaMapPage,
    /// `iommu_dma_map_sg`: a scatter-gather list is mapped.
    DmaMapSg,
}

impl Function {
    /// All functions, those of the driver first.
    pub const ALL: [Function; 5] = [
        Function::MapPages,
        Function::UnmapPages,
        Function::DmaAlloc,
        Function::DmaMapPage,
        Function::DmaMapSg,
    ];

    /// Its name in the kernel.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Function::MapPages => "intel_iommu_map_pages",
            Function::UnmapPages => "intel_iommu_unmap_pages",
            Function::DmaAlloc => "iommu_dma_alloc",
            Function::DmaMapPage => "iommu_dma_map_page",
            Function::DmaMapSg => "iommu_dma_map_sg",
        }
    }

    /// What the maps made under it are.
    pub(super) const fn kind(self) -> Option<Kind> {
        match self {
            Function::MapPages | Function::UnmapPages => None,
            Function::DmaAlloc => Some(Kind::Alloc),
            Function::DmaMapPage => Some(Kind::Page),
            Function::DmaMapSg => Some(Kind::ScatterGather),
        }
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The guest's kernel lacks a function, or does not say where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no address of {0} in the kernel's symbols")]
pub struct MissingSymbol(pub Function);

/// Addresses of all [`Function`]s.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbols(pub(super) [(u64, Function); 5]);

impl Symbols {
    /// From lines as in `/proc/kallsyms` (`address type name`), in any order; others are skipped.
    ///
    /// # Errors
    ///
    /// [`MissingSymbol`], also where an address is 0: so the kernel hides
    /// them from the unprivileged.
    pub fn from_kallsyms(text: &str) -> Result<Self, MissingSymbol> {
        let find = |function: Function| {
            let address = text.lines().find_map(|line| {
                let mut fields = line.split_ascii_whitespace();
                let (address, _, name) = (fields.next()?, fields.next()?, fields.next()?);
                (name == function.name() && fields.next().is_none())
                    .then(|| u64::from_str_radix(address, 16).ok())?
            });
            match address {
                Some(address) if address != 0 => Ok((address, function)),
                _ => Err(MissingSymbol(function)),
            }
        };
        let mut all = Function::ALL.map(|function| (0, function));
        for entry in &mut all {
            *entry = find(entry.1)?;
        }
        Ok(Self(all))
    }

    /// The value of QEMU's `-dfilter` that dumps registers at the entry of each function.
    #[must_use]
    pub fn dfilter(&self) -> String {
        self.0.map(|(at, _)| format!("{at:#x}+1")).join(",")
    }

    pub(super) fn at(&self, address: u64) -> Option<Function> {
        let found = self.0.iter().find(|(at, _)| *at == address)?;
        Some(found.1)
    }
}
