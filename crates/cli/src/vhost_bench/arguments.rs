// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What `ioatlas vhost-bench` takes.

use clap::{Args, ValueEnum};
use ioatlas_vhost_bench::{
    Answers, Config, Layout, Leaf, Length, Lie, Mapping, Offer, Pace, Placement, Socket,
};
use std::path::PathBuf;
use std::time::Duration;

/// Drive a vhost-user-net back end without a VM, and check every frame that comes back.
///
/// It is a front end with memory, rings and an I/O page table of its own, for any back end that
/// sends frames back (a loopback or a MAC swap). It offers a frame only while there is a receive
/// buffer for it to come back in; what does not come back, the back end has lost. A back end that
/// does not answer, breaks a ring or hangs up ends the run with an error that says so. Exit status
/// 1 too if a frame came back corrupt.
///
/// JSON: an object. Fields: settings (layout, ring_size, mapping, answers, pages, frame_bytes,
/// placement, mergeable, event_index), offered_per_second (null: as fast as possible), seconds,
/// paused_seconds (the generator itself was kept from running), frames_per_second (returned),
/// frames_sent, frames_returned, frames_corrupt, frames_lost, frames_lost_for_translation (of
/// those: the back end asked for a translation meanwhile), frames_refused (due, and no room),
/// messages (misses, unresolved: for what is not mapped, updates, invalidations, skipped,
/// access_failures), round_trips (count, mean_ns, median_ns, p99_ns, max_ns: from updates and
/// invalidations to their acknowledgements), kicks, warm_up_lost. With --loss: tolerated_loss (a
/// fraction), best (such an object), tried[] (offered_per_second, loss).
#[derive(Args, Debug)]
pub(crate) struct VhostBenchArguments {
    /// Socket at which the back end listens.
    #[arg(value_name = "SOCKET")]
    pub socket: PathBuf,
    /// Listen there, and have the back end connect.
    #[arg(long)]
    pub listen: bool,
    /// What descriptors hold: guest-physical addresses (off: no IOMMU is negotiated), IOVAs
    /// that are mapped once (static), or a fresh IOVA for each frame and buffer, invalidated
    /// when it is used (dynamic).
    #[arg(long, value_enum, default_value_t = Map::Off)]
    pub map: Map,
    /// Leaves of the I/O page table (static).
    #[arg(long, value_enum, default_value_t = LeafSize::Small)]
    pub leaf: LeafSize,
    /// Neighbours in IOVA space are scattered in memory. (Off: buffers are where
    /// they would be then.)
    #[arg(long)]
    pub scattered: bool,
    /// Buffers that are invalidated together (dynamic).
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub batch: u32,
    /// How misses are answered: with the page that missed, or with the largest
    /// contiguous range around it.
    #[arg(long, value_enum, default_value_t = Answer::Page)]
    pub answers: Answer,
    /// Pages of 4 KiB for buffers in each direction.
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub pages: u32,
    /// Ring layout.
    #[arg(long, value_enum, default_value_t = Ring::Split)]
    pub ring: Ring,
    /// Entries of each ring, a power of two.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub ring_size: u16,
    /// Bytes of a frame, without its check sequence.
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    pub frame_bytes: u16,
    /// Let every frame's header lie across the end of a page.
    #[arg(long)]
    pub straddling: bool,
    /// Negotiate mergeable receive buffers if they are offered; each has room for a
    /// frame all the same.
    #[arg(long)]
    pub mergeable: bool,
    /// Negotiate the event index if it is offered.
    #[arg(long)]
    pub event_idx: bool,
    /// Seconds to run, or of each trial with --loss.
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = some_seconds, conflicts_with = "frames")]
    pub seconds: f64,
    /// Frames to send instead.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub frames: Option<u64>,
    /// Frames a second to offer [default: as many as possible].
    #[arg(long, value_name = "RATE", value_parser = rate, conflicts_with = "loss")]
    pub rate: Option<f64>,
    /// Find the highest rate at which at most this part of the frames is lost:
    /// 0.005%, or a fraction.
    #[arg(long, value_name = "PART", value_parser = part)]
    pub loss: Option<f64>,
    /// Seconds before counting begins.
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = seconds)]
    pub warm_up: f64,
    /// Seconds that the back end may be silent when it owes something.
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = some_seconds)]
    pub patience: f64,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// What the addresses are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Map {
    /// Guest-physical addresses: there is no IOMMU.
    Off,
    /// IOVAs that are mapped once.
    Static,
    /// IOVAs, fresh each time.
    Dynamic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LeafSize {
    #[value(name = "4k")]
    Small,
    #[value(name = "2m")]
    Large,
    #[value(name = "1g")]
    Huge,
}

/// What an update covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Answer {
    Page,
    Range,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Ring {
    Split,
    Packed,
}

impl VhostBenchArguments {
    pub fn socket(&self) -> Socket {
        match self.listen {
            true => Socket::Listen(self.socket.clone()),
            false => Socket::Connect(self.socket.clone()),
        }
    }

    pub fn config(&self) -> Config {
        let lie = match self.scattered {
            true => Lie::Scattered,
            false => Lie::Contiguous,
        };
        let batch = self.batch;
        Config::default()
            .layout(match self.ring {
                Ring::Split => Layout::Split,
                Ring::Packed => Layout::Packed,
            })
            .ring_size(self.ring_size)
            .mapping(match self.map {
                Map::Off => Mapping::Off { lie },
                Map::Static => Mapping::Static {
                    leaf: match self.leaf {
                        LeafSize::Small => Leaf::Small,
                        LeafSize::Large => Leaf::Large,
                        LeafSize::Huge => Leaf::Huge,
                    },
                    lie,
                },
                Map::Dynamic => Mapping::Dynamic { batch, lie },
            })
            .answers(match self.answers {
                Answer::Page => Answers::Page,
                Answer::Range => Answers::Range,
            })
            .pages(self.pages)
            .frame_bytes(self.frame_bytes)
            .placement(match self.straddling {
                true => Placement::Straddling,
                false => Placement::InPage,
            })
            .mergeable(offer(self.mergeable))
            .event_index(offer(self.event_idx))
            .patience(Duration::from_secs_f64(self.patience))
            .warm_up(Length::Time(Duration::from_secs_f64(self.warm_up)))
    }

    pub fn length(&self) -> Length {
        match self.frames {
            Some(frames) => Length::Frames(frames),
            None => Length::Time(Duration::from_secs_f64(self.seconds)),
        }
    }

    pub fn pace(&self) -> Pace {
        self.rate.map_or(Pace::Full, Pace::FramesPerSecond)
    }
}

fn offer(taken: bool) -> Offer {
    match taken {
        true => Offer::Taken,
        false => Offer::Declined,
    }
}

fn number(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_string())?;
    match number.is_finite() && number >= 0.0 {
        true => Ok(number),
        false => Err("not a number of zero or more".into()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match number(text)? {
        s if s <= 86_400.0 => Ok(s),
        _ => Err("at most a day, 86400".into()),
    }
}

/// The same, and not none.
fn some_seconds(text: &str) -> Result<f64, String> {
    match seconds(text)? {
        s if s >= 1e-3 => Ok(s),
        _ => Err("at least a millisecond, 0.001".into()),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match number(text)? {
        r if r >= 1.0 => Ok(r),
        _ => Err("at least 1 frame a second".into()),
    }
}

/// A part of all: `0.005%`, or `0.00005`.
fn part(text: &str) -> Result<f64, String> {
    let part = match text.strip_suffix('%') {
        Some(percent) => number(percent)? / 100.0,
        None => number(text)?,
    };
    match part < 1.0 {
        true => Ok(part),
        false => Err("less than 100% is needed".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_percent_or_fractions() {
        assert_eq!(part("0.005%"), Ok(0.005 / 100.0));
        assert_eq!(part("0.25"), Ok(0.25));
        for bad in ["", "%", "100%", "1", "-1%", "nan", "inf%", "1e999"] {
            assert!(part(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_are_bounded() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        for bad in ["-1", "nan", "inf", "86401", "1e300", "x"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
        assert!(some_seconds("0").is_err());
        assert!(rate("0.5").is_err());
    }
}
