// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a map and its unmap take under a design: this project's code, timed on this machine.
//!
//! To time it takes most of the time that a report of a small trace takes, and gives the same for
//! every trace. So what was timed is kept for some days in the user's cache, with what it is
//! true of: the program by its commit, size and time of last change, the machine by the kernel's
//! random identity of its boot, the model of its CPU, and the number of CPUs that may be used. So
//! clones of a machine, images of a container on several hosts, and another firmware, microcode or
//! command line of the kernel share nothing. A virtual machine that is moved without a boot is not
//! told from itself. Where any of that differs it is timed anew. A file that does not read is as
//! none, and that none can be written is no failure.

use super::provenance;
use crate::output::Target;
use crate::replay::{Driver, Unmaps};
use ioatlas_bench::{Effort, Failure, Pattern, Spread, pair_time};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// After so many days a machine may have become another: moved, or with other limits.
const DAYS: u64 = 7;

/// A random number of the kernel's, made at each boot.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Bytes of a file of the cache, at most; with every design it is a tenth of that.
const MOST_BYTES: u64 = 1 << 20;

/// Where times come from.
#[derive(Clone, Debug, Default)]
pub enum Bench {
    /// They are timed now, and not kept.
    #[default]
    Now,
    /// They are those of this folder, or else timed, and kept there.
    Cached(PathBuf),
    /// They are timed now, and kept in this folder.
    Fresh(PathBuf),
    /// There are none.
    Off,
}

/// Why there are no times, and how to get them.
const WHY_OFF: &str = "--no-bench was given; without it this machine is measured";

/// Where the times of a report came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Origin {
    /// All were measured for it.
    Measured,
    /// Some were measured before.
    Cached {
        /// The earliest day on which one was, in UTC: `2026-11-27`.
        measured_on: String,
    },
    /// There are none, and nothing that follows from them.
    NotMeasured {
        /// Why, and how to get them.
        reason: &'static str,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Measured => f.write_str("measured for this report"),
            Origin::Cached { measured_on } => write!(f, "measured on {measured_on}, cached"),
            Origin::NotMeasured { reason } => write!(f, "not measured: {reason}"),
        }
    }
}

/// A time as the cache has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Kept {
    design: String,
    /// Mappings that one call ends.
    unmapped_at_a_time: usize,
    threads: usize,
    /// Slices that were wanted of it: with more it is more certain.
    slices: usize,
    low: f64,
    median: f64,
    high: f64,
    /// When, in seconds since 1970.
    measured: u64,
}

impl Kept {
    /// Whether it can have been measured, and not too long ago.
    fn is_sound(&self, now: u64) -> bool {
        let ordered = 0.0 < self.low && self.low <= self.median && self.median <= self.high;
        let recent = self.measured <= now && now - self.measured < DAYS * 24 * 3600;
        ordered && self.high.is_finite() && recent
    }

    /// Whether it is of the same thing.
    fn is_of(&self, design: &str, at_a_time: usize, threads: usize) -> bool {
        let same_driver = self.design == design && self.unmapped_at_a_time == at_a_time;
        same_driver && self.threads == threads
    }

    fn spread(&self) -> Spread {
        Spread {
            low: self.low,
            median: self.median,
            high: self.high,
        }
    }
}

/// The file of the cache.
#[derive(Serialize, Deserialize)]
struct Contents {
    /// What the times are true of.
    setting: String,
    times: Vec<Kept>,
}

/// Times, from a cache as far as it has them.
pub struct Timings {
    is_off: bool,
    cache: Option<Cache>,
    now: u64,
    times: RefCell<Vec<Kept>>,
    /// When the oldest was measured that was taken from the cache.
    oldest: Cell<Option<u64>>,
}

struct Cache {
    file: PathBuf,
    setting: String,
    /// Whether anything is there that its file does not have.
    is_newer: Cell<bool>,
}

impl Timings {
    /// Begins with what there is.
    #[must_use]
    pub fn new(bench: &Bench) -> Self {
        Self::of(bench, setting(Path::new(BOOT)), seconds(SystemTime::now()))
    }

    fn of(bench: &Bench, setting: Option<String>, now: u64) -> Self {
        let folder = match bench {
            Bench::Now | Bench::Off => None,
            Bench::Cached(folder) | Bench::Fresh(folder) => Some(folder),
        };
        let cache = folder.zip(setting).map(|(folder, setting)| Cache {
            file: folder.join("timings.json"),
            setting,
            is_newer: Cell::new(false),
        });
        let times = match (bench, &cache) {
            (Bench::Cached(_), Some(cache)) => cache.read(now),
            _ => Vec::new(),
        };
        Self {
            is_off: matches!(bench, Bench::Off),
            cache,
            now,
            times: RefCell::new(times),
            oldest: Cell::new(None),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.is_off
    }

    /// The time of a pair; `None` where there are none, or the machine was too busy to run all
    /// threads at once.
    ///
    /// # Errors
    ///
    /// The design failed where it must not.
    pub fn pair(
        &self,
        driver: Driver,
        threads: usize,
        effort: Effort,
    ) -> Result<Option<Spread>, Failure> {
        if self.is_off {
            return Ok(None);
        }
        let (name, at_a_time) = (driver.design.to_string(), driver.unmaps.at_a_time());
        let same =
            |kept: &&Kept| kept.is_of(&name, at_a_time, threads) && kept.slices >= effort.slices;
        if let Some(kept) = self.times.borrow().iter().find(same) {
            // those of this run are not old
            if kept.measured < self.now {
                let oldest = self.oldest.get().unwrap_or(kept.measured);
                self.oldest.set(Some(oldest.min(kept.measured)));
            }
            return Ok(Some(kept.spread()));
        }
        let pattern = match driver.unmaps {
            Unmaps::OneByOne => Pattern::Ring(256),
            Unmaps::InBursts => Pattern::Bursts,
        };
        let measured = pair_time(driver.design, pattern, threads, effort)?;
        if let Some(spread) = measured {
            let mut times = self.times.borrow_mut();
            times.retain(|kept| !kept.is_of(&name, at_a_time, threads));
            times.push(Kept {
                design: name,
                unmapped_at_a_time: at_a_time,
                threads,
                slices: effort.slices,
                low: spread.low,
                median: spread.median,
                high: spread.high,
                measured: self.now,
            });
            if let Some(cache) = &self.cache {
                cache.is_newer.set(true);
            }
        }
        Ok(measured)
    }

    /// Where those that were asked for came from.
    #[must_use]
    pub fn origin(&self) -> Origin {
        match self.oldest.get() {
            _ if self.is_off => Origin::NotMeasured { reason: WHY_OFF },
            None => Origin::Measured,
            Some(seconds) => Origin::Cached {
                measured_on: day(seconds),
            },
        }
    }

    /// Keeps what was measured, if there is where.
    pub fn keep(&self) {
        if let Some(cache) = &self.cache
            && cache.is_newer.get()
        {
            // the report is as good without
            let _ = cache.write(&self.times.borrow(), self.now);
        }
    }
}

impl Cache {
    /// What the file has that is still true; nothing if there is none, or no such.
    fn read(&self, now: u64) -> Vec<Kept> {
        let read = || {
            let mut bytes = Vec::new();
            let file = File::open(&self.file).ok()?;
            file.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
            serde_json::from_slice::<Contents>(&bytes).ok()
        };
        match read() {
            Some(contents) if contents.setting == self.setting => {
                let times = contents.times.into_iter();
                times.filter(|kept| kept.is_sound(now)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Writes these times, and those that the file has of others.
    fn write(&self, times: &[Kept], now: u64) -> Option<()> {
        let mut all = self.read(now);
        let is_new = |old: &Kept| {
            let Kept {
                design,
                unmapped_at_a_time,
                threads,
                ..
            } = old;
            let same = |new: &Kept| new.is_of(design, *unmapped_at_a_time, *threads);
            times.iter().any(same)
        };
        all.retain(|old| !is_new(old));
        all.extend_from_slice(times);
        let contents = Contents {
            setting: self.setting.clone(),
            times: all,
        };
        let text = serde_json::to_vec(&contents).ok()?;
        fs::create_dir_all(self.file.parent()?).ok()?;
        let target = Target::prepare(&self.file).ok()?;
        target.replace(|file| file.write_all(&text)).ok()
    }
}

/// The folder of the user's cache for this program: under XDG_CACHE_HOME, else HOME.
#[must_use]
pub fn cache_folder() -> Option<PathBuf> {
    let absolute = |name: &str| {
        let path = PathBuf::from(std::env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    let home = || Some(absolute("HOME")?.join(".cache"));
    Some(absolute("XDG_CACHE_HOME").or_else(home)?.join("ioatlas"))
}

/// What times are true of, digested; `None` where this program or this machine cannot be told from
/// another.
fn setting(boot: &Path) -> Option<String> {
    let program = fs::metadata(std::env::current_exe().ok()?).ok()?;
    let changed = program.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    let boot = fs::read_to_string(boot).ok()?;
    let parts = [
        crate::COMMIT.to_owned(),
        program.len().to_string(),
        changed.as_nanos().to_string(),
        boot,
        provenance::cpu_model(),
        provenance::cpus().to_string(),
    ];
    // with a machine's identity in it, it is nothing to be shown
    let digest = Sha256::digest(parts.join("\n"));
    Some(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Seconds since 1970; 0 before.
fn seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.as_ref().map_or(0, Duration::as_secs)
}

/// The day in UTC: `2026-11-27`. After Hinnant, "chrono-Compatible Low-Level Date Algorithms":
/// years begin in March, so that the day that may be missing is the last.
fn day(seconds: u64) -> String {
    const ERA: u64 = 146_097; // days of 400 years
    let days = seconds / (24 * 3600) + 719_468;
    let (era, day) = (days / ERA, days % ERA);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march + 2) / 5 + 1;
    let month = if march < 10 { march + 3 } else { march - 9 };
    let year = 400 * era + year + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ioatlas_dma::design::Design;

    const NOW: u64 = 1_800_000_000;

    /// A time that no machine can have measured.
    const MADE_UP: f64 = 123_456.0;

    fn kept(median: f64, measured: u64) -> Kept {
        Kept {
            design: "magazine,strict".into(),
            unmapped_at_a_time: 1,
            threads: 1,
            slices: Effort::FULL.slices,
            low: median - 1.0,
            median,
            high: median + 1.0,
            measured,
        }
    }

    fn cache(folder: &Path, setting: &str) -> Cache {
        Cache {
            file: folder.join("timings.json"),
            setting: setting.into(),
            is_newer: Cell::new(false),
        }
    }

    fn timings(bench: &Bench) -> Timings {
        Timings::of(bench, Some("here".into()), NOW)
    }

    /// What is told of the time of a design, and whether that was kept.
    fn told(timings: &Timings) -> (bool, Origin) {
        let design = Design::parse("magazine,strict").unwrap();
        let spread = timings
            .pair(design.into(), 1, Effort::QUICK)
            .unwrap()
            .unwrap();
        (spread.median == MADE_UP, timings.origin())
    }

    #[test]
    fn what_was_measured_is_taken_from_the_cache_and_said_to_be() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("new/ioatlas");
        let yesterday = NOW - 24 * 3600;
        cache(&folder, "here")
            .write(&[kept(MADE_UP, yesterday)], NOW)
            .unwrap();
        let cached = Origin::Cached {
            measured_on: day(yesterday),
        };
        assert_eq!(
            told(&timings(&Bench::Cached(folder.clone()))),
            (true, cached)
        );
        // a fresh one takes its place
        let fresh = timings(&Bench::Fresh(folder.clone()));
        assert_eq!(told(&fresh), (false, Origin::Measured));
        fresh.keep();
        assert!(!told(&timings(&Bench::Cached(folder.clone()))).0);
        assert_eq!(cache(&folder, "here").read(NOW).len(), 1);
        assert_eq!(told(&timings(&Bench::Now)), (false, Origin::Measured));
    }

    #[test]
    fn what_is_old_foreign_or_damaged_is_measured_anew() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path();
        let put = |setting: &str, times: &[Kept]| {
            cache(folder, setting).write(times, NOW).unwrap();
        };
        let measures_anew = |why: &str| {
            let timings = timings(&Bench::Cached(folder.into()));
            assert_eq!(told(&timings), (false, Origin::Measured), "{why}");
            timings.keep();
            let again = self::timings(&Bench::Cached(folder.into()));
            assert!(!again.times.borrow().is_empty(), "{why}: nothing was kept");
        };
        put("there", &[kept(MADE_UP, NOW - 1)]);
        measures_anew("of another machine or program");
        for (why, wrong) in [
            ("too old", kept(MADE_UP, NOW - DAYS * 24 * 3600)),
            ("of the future", kept(MADE_UP, NOW + 1)),
            ("of nothing", kept(0.0, NOW - 1)),
            (
                "of less effort",
                Kept {
                    slices: 1,
                    ..kept(MADE_UP, NOW - 1)
                },
            ),
        ] {
            put("here", &[wrong]);
            measures_anew(why);
        }
        for damaged in [
            "",
            "{",
            "[]",
            "{\"setting\":\"here\",\"times\":[{}]}",
            "\0\u{1}",
        ] {
            fs::write(folder.join("timings.json"), damaged).unwrap();
            measures_anew(damaged);
        }
        // cut off
        let long = format!("{{\"setting\":\"here\",\"times\":[{}", " ".repeat(2 << 20));
        fs::write(folder.join("timings.json"), long).unwrap();
        measures_anew("too long");
    }

    #[test]
    fn each_boot_and_so_each_clone_of_a_machine_has_a_setting_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let of = |name: &str| setting(&dir.path().join(name));
        for name in ["one", "other"] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        assert!(of("one").is_some());
        assert_eq!(of("one"), of("one"));
        assert_ne!(of("one"), of("other"));
        assert_eq!(of("missing"), None);
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_no_failure() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "mine").unwrap();
        let folder = dir.path().join("timings.json");
        fs::create_dir(&folder).unwrap();
        for cache in [file.join("below"), file.clone(), dir.path().into()] {
            let timings = timings(&Bench::Cached(cache));
            assert!(!told(&timings).0);
            timings.keep();
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
        assert!(folder.is_dir());
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01"),
            (951_782_399, "2000-02-28"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_798_761_599, "2026-12-31"),
            (4_107_542_400, "2100-03-01"),
        ] {
            assert_eq!(day(seconds), expected);
        }
    }
}
