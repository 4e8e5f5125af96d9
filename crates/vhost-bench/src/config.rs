// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a run is made of.

use serde::Serialize;
use std::time::Duration;

/// Which ring layout is negotiated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// Three arrays (virtio 1.2, 2.7).
    Split,
    /// One array (virtio 1.2, 2.8).
    Packed,
}

/// The size of a leaf of the I/O page table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Leaf {
    /// Leaves of 4 KiB.
    #[serde(rename = "4k")]
    Small,
    /// Leaves of 2 MiB.
    #[serde(rename = "2m")]
    Large,
    /// Leaves of 1 GiB.
    #[serde(rename = "1g")]
    Huge,
}

impl Leaf {
    /// Log2 of its bytes.
    pub fn lg2(self) -> u32 {
        match self {
            Leaf::Small => 12,
            Leaf::Large => 21,
            Leaf::Huge => 30,
        }
    }
}

/// Where leaves that are neighbours in IOVAs are in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lie {
    /// They are neighbours, too.
    Contiguous,
    /// Anywhere, and no two of them neighbours.
    Scattered,
}

/// What the addresses in descriptors are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mapping {
    /// Guest-physical: `VIRTIO_F_ACCESS_PLATFORM` is not negotiated.
    Off {
        /// Which pages of 4 KiB lie so, for the device, too.
        lie: Lie,
    },
    /// IOVAs that are mapped once.
    Static {
        /// By leaves of this size.
        leaf: Leaf,
        /// How those leaves lie.
        lie: Lie,
    },
    /// A fresh IOVA for each packet, unmapped when its buffer comes back.
    Dynamic {
        /// Buffers that are unmapped and invalidated together, at least 1.
        batch: u32,
        /// How the pages behind them lie.
        lie: Lie,
    },
}

/// How misses are answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answers {
    /// With the leaf that missed.
    Page,
    /// With the largest range around it that is contiguous, as far as it is mapped at the time.
    Range,
}

/// Where in its page a buffer begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Such that it ends in the same page.
    InPage,
    /// 32 bytes before the page's end: the frame's header is in two pages.
    Straddling,
}

/// What is done about a feature that is not needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Offer {
    /// It is not negotiated.
    Declined,
    /// It is where the back end offers it.
    Taken,
}

/// How long a phase is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Length {
    /// It lasts so long.
    Time(Duration),
    /// Until so many frames were offered.
    Frames(u64),
}

/// How fast frames are offered.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Pace {
    /// Whenever there is a receive buffer for one to come back in.
    Full,
    /// So many a second; those for which there is no room are refused, and lost.
    FramesPerSecond(f64),
}

/// What is driven how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its fields say it
#[non_exhaustive]
pub struct Config {
    pub layout: Layout,
    /// Entries of each ring, a power of two, at most [`MAX_RING`].
    pub ring_size: u16,
    /// What the addresses are.
    pub mapping: Mapping,
    /// How misses are answered.
    pub answers: Answers,
    /// Pages of 4 KiB for buffers in each direction, 8 to [`MAX_PAGES`]. A frame takes a page of
    /// its own, the one that was not used for longest, unless there are fewer pages than entries.
    pub pages: u32,
    /// Bytes of a frame, its check sequence not counted, 60 to [`MAX_FRAME`].
    pub frame_bytes: u16,
    /// Where in its page a buffer begins.
    pub placement: Placement,
    /// `VIRTIO_NET_F_MRG_RXBUF`. Each buffer has room for a frame all the same.
    pub mergeable: Offer,
    /// `VIRTIO_RING_F_EVENT_IDX`: kicks as the back end asks for them by index.
    pub event_index: Offer,
    /// How long the back end may be silent when it owes an answer or a frame.
    pub patience: Duration,
    /// What is run before counting begins.
    pub warm_up: Length,
}

/// Entries of a ring, at most: descriptors of 16 bytes, and both rings in the area
/// set aside for them.
pub const MAX_RING: u16 = 4096;
/// Pages in each direction, at most: 4 GiB.
pub const MAX_PAGES: u32 = 1 << 20;
/// Bytes of a frame, at most: Ethernet's, without check sequence.
pub const MAX_FRAME: u16 = 1514;
/// Bytes before a frame (5.1.6: `struct virtio_net_hdr`, with `num_buffers`).
pub const HEADER: usize = 12;
/// Buffers of a batch, at most.
pub const MAX_BATCH: u32 = 4096;

ioatlas_dma::setters!(const Config {
    layout: Layout,
    ring_size: u16,
    mapping: Mapping,
    answers: Answers,
    pages: u32,
    frame_bytes: u16,
    placement: Placement,
    mergeable: Offer,
    event_index: Offer,
    patience: Duration,
    warm_up: Length,
});

impl Default for Config {
    /// Split rings of 256, no optional features, IOMMU off, 512 pages, 64 bytes, 5 seconds of
    /// patience, a second of warm-up.
    fn default() -> Self {
        Config {
            layout: Layout::Split,
            ring_size: 256,
            mapping: Mapping::Off {
                lie: Lie::Contiguous,
            },
            answers: Answers::Page,
            pages: 512,
            frame_bytes: 64,
            placement: Placement::InPage,
            mergeable: Offer::Declined,
            event_index: Offer::Declined,
            patience: Duration::from_secs(5),
            warm_up: Length::Time(Duration::from_secs(1)),
        }
    }
}

/// Why a configuration cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not a power of two, or out of range.
    #[error("rings of {0} entries: a power of two from 2 to {MAX_RING} is needed")]
    RingSize(u16),
    /// Too few pages, or too many.
    #[error("{0} pages: 8 to {MAX_PAGES} can be")]
    Pages(u32),
    /// No frame is that long.
    #[error("frames of {0} bytes: 60 to {MAX_FRAME} can be")]
    FrameBytes(u16),
    /// No batch is that large.
    #[error("batches of {0} buffers: 1 to {MAX_BATCH} can be")]
    Batch(u32),
    /// A buffer would be in two places, and have one address.
    #[error(
        "buffers straddle pages that are scattered: without an IOMMU nothing makes them neighbours"
    )]
    Straddling,
    /// No time to wait.
    #[error("no patience: a back end needs time to answer")]
    Patience,
}

impl Config {
    /// Whether it can be.
    ///
    /// # Errors
    /// The first thing that cannot.
    pub fn check(&self) -> Result<(), ConfigError> {
        let size = self.ring_size;
        if !size.is_power_of_two() || !(2..=MAX_RING).contains(&size) {
            return Err(ConfigError::RingSize(size));
        }
        if !(8..=MAX_PAGES).contains(&self.pages) {
            return Err(ConfigError::Pages(self.pages));
        }
        if !(60..=MAX_FRAME).contains(&self.frame_bytes) {
            return Err(ConfigError::FrameBytes(self.frame_bytes));
        }
        if let Mapping::Dynamic { batch, .. } = self.mapping
            && !(1..=MAX_BATCH).contains(&batch)
        {
            return Err(ConfigError::Batch(batch));
        }
        let scattered = Mapping::Off {
            lie: Lie::Scattered,
        };
        if self.mapping == scattered && self.placement == Placement::Straddling {
            return Err(ConfigError::Straddling);
        }
        if self.patience.is_zero() {
            return Err(ConfigError::Patience);
        }
        Ok(())
    }

    /// Bytes of a buffer: header and frame.
    pub(crate) fn buffer_bytes(&self) -> usize {
        HEADER + usize::from(self.frame_bytes)
    }

    /// The leaf that an answer of one page gives.
    pub(crate) fn leaf(&self) -> Leaf {
        match self.mapping {
            Mapping::Static { leaf, .. } => leaf,
            _ => Leaf::Small,
        }
    }

    /// Whether an IOMMU is negotiated.
    pub(crate) fn has_iommu(&self) -> bool {
        !matches!(self.mapping, Mapping::Off { .. })
    }

    pub(crate) fn lie(&self) -> Lie {
        match self.mapping {
            Mapping::Off { lie } | Mapping::Static { lie, .. } | Mapping::Dynamic { lie, .. } => {
                lie
            }
        }
    }
}
