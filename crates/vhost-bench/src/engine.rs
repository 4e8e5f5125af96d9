// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The loop that drives a back end.
//!
//! A *step* takes what was used, refills, offers what is due, answers misses and invalidates; it
//! never waits, but for acknowledgements. The clock is read once a step.

use crate::{
    config::*,
    error::BenchError,
    frames::{Damage, Frames, HEAD},
    latency::Latency,
    ledger::{Arrival, Counts, Ledger},
    pool::Pool,
    report::{Messages, Report, Settings},
    ring::{DriverRing, Kick},
    session::Session,
    space::{Slot, Way},
};
use ioatlas_dma::units::*;
use ioatlas_vhost::server::ServerStats;
use std::time::{Duration, Instant};

/// Buffers that a step takes, or frames that it offers, at most: misses and the clock are
/// looked at in between.
const BURST: usize = 64;
/// Steps between two looks for misses while frames move; when none does, every step looks.
const STEPS_PER_LOOK: u32 = 16;
/// Steps in which nothing happens, after which another thread may run.
const PATIENT_STEPS: u32 = 64;
/// How often the back end's health is looked at.
const CHECK_EVERY: Duration = Duration::from_millis(50);
/// A step that took longer, acknowledgements apart, was interrupted; no frame was due meanwhile.
const PAUSE: Duration = Duration::from_millis(1);
/// Quiet after which frames are written off that the back end took, while more are to be offered.
/// Such as come later count as back.
const WRITE_OFF: Duration = Duration::from_millis(2);
/// At the end, where no later one can prove a frame lost, it is this part of the patience.
const PATIENCE_BY_WRITE_OFF_AT_END: u32 = 20;

struct Side<R> {
    way: Way,
    ring: R,
    pool: Pool,
}

pub(crate) struct Engine<R> {
    session: Session,
    config: Config,
    receive: Side<R>,
    transmit: Side<R>,
    frames: Frames,
    ledger: Ledger,
    /// Misses that arrived, ever.
    misses: u64,
    /// Frames of ours that came back damaged, and buffers with anything else.
    damaged: u64,
    strange: u64,
    first_damage: Option<Damage>,
    kicks: u64,
    latency: Latency,
    /// Buffers that came back and are still mapped (dynamic mappings).
    mapped: Vec<(Way, u32)>,
    scratch: Vec<u8>,
    /// Time spent waiting for acknowledgements since it was last looked at.
    acknowledging: Duration,
    steps_since_look: u32,
    idle_steps: u32,
    last_progress: Instant,
    last_back: Instant,
    /// Frames that were sent when the last one came back.
    sent_at_last_back: u64,
    last_check: Instant,
}

/// What a phase still wants.
struct Plan {
    pace: Pace,
    length: Length,
    start: Instant,
    last_step: Instant,
    paused: Duration,
    offered: u64,
    refused: u64,
}

/// Whether more frames are to be offered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Offering,
    Draining,
}

impl<R: DriverRing> Engine<R> {
    pub(crate) fn new(mut session: Session, config: &Config) -> Result<Self, BenchError> {
        let mut side = |way| -> Result<Side<R>, BenchError> {
            Ok(Side {
                way,
                ring: session.start(way, config.ring_size)?,
                pool: Pool::new(&session.space, config, way),
            })
        };
        let (receive, transmit) = (side(Way::Receive)?, side(Way::Transmit)?);
        let counted = session.is_mergeable();
        let now = Instant::now();
        Ok(Engine {
            session,
            config: *config,
            receive,
            transmit,
            frames: Frames::new(config, counted),
            ledger: Ledger::new(),
            misses: 0,
            damaged: 0,
            strange: 0,
            first_damage: None,
            kicks: 0,
            latency: Latency::new(),
            mapped: Vec::new(),
            scratch: vec![0; config.buffer_bytes()],
            acknowledging: Duration::ZERO,
            steps_since_look: 0,
            idle_steps: 0,
            last_progress: now,
            last_back: now,
            sent_at_last_back: 0,
            last_check: now,
        })
    }

    pub(crate) fn stop(mut self) -> Result<(), BenchError> {
        self.session.stop()
    }

    /// Offers frames for `length`, then waits until none is out.
    pub(crate) fn phase(&mut self, length: Length, pace: Pace) -> Result<Report, BenchError> {
        let before = (self.ledger.counts(), self.session.stats());
        let (damaged, strange, kicks) = (self.damaged, self.strange, self.kicks);
        self.latency = Latency::new();
        let now = Instant::now();
        (self.last_progress, self.last_back) = (now, now);
        self.sent_at_last_back = before.0.sent;
        let mut plan = Plan {
            pace,
            length,
            start: now,
            last_step: now,
            paused: Duration::ZERO,
            offered: 0,
            refused: 0,
        };
        let ended = loop {
            let now = Instant::now();
            if plan.is_over(now) {
                break now;
            }
            self.step(now, &mut plan, Stage::Offering)?;
        };
        let seconds = ended.duration_since(plan.start).as_secs_f64();
        let in_time = self.ledger.counts().back - before.0.back;
        while self.ledger.out() > 0 || self.transmit.ring.in_ring() > 0 {
            self.step(Instant::now(), &mut plan, Stage::Draining)?;
        }
        self.session.check()?;
        let after = (self.ledger.counts(), self.session.stats());
        let damaged = self.damaged - damaged;
        let frames = since(after.0, before.0);
        if frames.sent > 0 && frames.back == 0 && self.strange == strange {
            return Err(BenchError::Swallowed {
                taken: frames.sent,
                waited: plan.start.elapsed(),
            });
        }
        // By the clock of the last step; frames that came while others were still offered are those
        // that count.
        let in_time = match length {
            Length::Time(_) => in_time,
            Length::Frames(_) => frames.back,
        };
        let report = Report {
            settings: Settings::of(&self.config),
            offered_per_second: match pace {
                Pace::Full => None,
                Pace::FramesPerSecond(rate) => Some(rate),
            },
            seconds,
            paused_seconds: plan.paused.as_secs_f64(),
            frames_per_second: in_time.saturating_sub(damaged) as f64 / seconds.max(1e-9),
            frames_sent: frames.sent,
            frames_returned: frames.back.saturating_sub(damaged),
            frames_corrupt: damaged + (self.strange - strange),
            frames_lost: frames.lost,
            frames_lost_for_translation: frames.lost_for_translation,
            frames_refused: plan.refused,
            messages: messages(after.1, before.1),
            round_trips: self.latency.summary(),
            kicks: self.kicks - kicks,
            warm_up_lost: 0,
        };
        match self.first_damage.take() {
            Some(first) => Err(BenchError::Corrupt {
                report: Box::new(report),
                first,
            }),
            None => Ok(report),
        }
    }

    fn step(&mut self, now: Instant, plan: &mut Plan, stage: Stage) -> Result<(), BenchError> {
        plan.note_pause(now, std::mem::take(&mut self.acknowledging));
        let received = self.take_received()?;
        if received > 0 {
            self.last_back = now;
            self.sent_at_last_back = self.ledger.counts().sent;
        }
        let mut moved = received + self.take_transmitted()?;
        self.post();
        if stage == Stage::Offering {
            moved += self.offer(plan);
        }
        self.publish()?;
        self.invalidate()?;
        self.steps_since_look += 1;
        if moved == 0 || self.steps_since_look >= STEPS_PER_LOOK {
            self.steps_since_look = 0;
            let (before, started) = (self.session.stats().updates, Instant::now());
            let answered = self.session.answer_misses()?;
            if answered > 0 {
                self.misses += answered as u64;
                let updates = self.session.stats().updates - before;
                self.acknowledged(started.elapsed(), updates);
            }
        }
        if moved > 0 {
            self.last_progress = now;
            self.idle_steps = 0;
        } else {
            self.idle_steps += 1;
            if self.idle_steps >= PATIENT_STEPS {
                self.idle_steps = 0;
                std::thread::yield_now();
            }
            self.watch(now, stage)?;
        }
        if now.duration_since(self.last_check) >= CHECK_EVERY {
            self.last_check = now;
            self.session.check()?;
            self.watch_frames(now)?;
        }
        Ok(())
    }

    /// Notes round trips that took so long together.
    fn acknowledged(&mut self, took: Duration, trips: u64) {
        self.acknowledging += took;
        self.latency.record(took, trips);
    }

    /// Takes receive buffers back, and looks at what is in them.
    fn take_received(&mut self) -> Result<usize, BenchError> {
        let mut count = 0;
        while count < BURST {
            let taken = self.receive.ring.take();
            let Some(used) = taken.map_err(|fault| BenchError::Ring { queue: 0, fault })? else {
                break;
            };
            count += 1;
            if let Err(damage) = self.look(used.token, used.written) {
                self.first_damage.get_or_insert(damage);
            }
            self.returned(Way::Receive, used.token);
        }
        Ok(count)
    }

    fn look(&mut self, buffer: u32, written: u32) -> Result<(), Damage> {
        let place = self.receive.pool.place(buffer);
        place.read(&self.session.ram, &mut self.scratch);
        let number = self.frames.number(&self.scratch, written);
        let number = number.inspect_err(|_| self.strange += 1)?;
        match self.ledger.back(number, self.misses) {
            Arrival::Expected => (),
            Arrival::Unknown => {
                self.strange += 1;
                return Err(Damage::Number(number));
            }
            Arrival::Again => {
                self.strange += 1;
                return Err(Damage::Again(number));
            }
        }
        let checked = self.frames.check(&self.scratch, number);
        checked.inspect_err(|_| self.damaged += 1)
    }

    fn take_transmitted(&mut self) -> Result<usize, BenchError> {
        let mut count = 0;
        while count < BURST {
            let taken = self.transmit.ring.take();
            let Some(used) = taken.map_err(|fault| BenchError::Ring { queue: 1, fault })? else {
                break;
            };
            count += 1;
            self.returned(Way::Transmit, used.token);
        }
        Ok(count)
    }

    fn returned(&mut self, way: Way, buffer: u32) {
        match (self.config.mapping, way) {
            (Mapping::Dynamic { .. }, _) => self.mapped.push((way, buffer)),
            (_, Way::Receive) => self.receive.pool.give_back(buffer),
            (_, Way::Transmit) => self.transmit.pool.give_back(buffer),
        }
    }

    /// Fills the receive ring.
    fn post(&mut self) {
        let Side { ring, pool, .. } = &mut self.receive;
        let bytes = self.config.buffer_bytes() as u32;
        while ring.in_ring() < usize::from(self.config.ring_size) {
            let Some((buffer, iova)) = pool.take(&self.session.space) else {
                break;
            };
            let added = ring.add(buffer, iova, bytes, AccessKind::Write);
            debug_assert!(added, "there was room");
        }
    }

    /// Sends what is due, as far as there is room.
    fn offer(&mut self, plan: &mut Plan) -> usize {
        let due = plan.due();
        let ring_size = u64::from(self.config.ring_size);
        // Each needs a buffer to come back in.
        let returning = (self.receive.ring.in_ring() as u64).saturating_sub(self.ledger.out());
        let room = ring_size - self.transmit.ring.in_ring() as u64;
        let count = due.min(returning).min(room).min(BURST as u64) as usize;
        let mut sent = 0;
        while sent < count && self.send() {
            sent += 1;
        }
        plan.offered += sent as u64;
        // A ring's worth may wait for its turn; what is due beyond it finds no room.
        if let Pace::FramesPerSecond(_) = plan.pace
            && sent < BURST
        {
            let late = (due - sent as u64).saturating_sub(ring_size);
            plan.refused += late;
            plan.offered += late;
        }
        sent
    }

    /// Sends a frame, if there is a buffer for it.
    fn send(&mut self) -> bool {
        let Side { ring, pool, .. } = &mut self.transmit;
        let Some((_, place)) = pool.next() else {
            return false;
        };
        let number = self.ledger.send(self.misses);
        let ram = &self.session.ram;
        place.write(ram, 0, &self.frames.head(number));
        place.write(ram, HEADER + HEAD, self.frames.payload(number));
        let (buffer, iova) = pool.take(&self.session.space).expect("as just seen");
        let bytes = self.config.buffer_bytes() as u32;
        let added = ring.add(buffer, iova, bytes, AccessKind::Read);
        debug_assert!(added, "there was room");
        true
    }

    fn publish(&mut self) -> Result<(), BenchError> {
        for side in [&mut self.receive, &mut self.transmit] {
            if side.ring.publish() == Kick::Wanted {
                self.session.kick(side.way)?;
                self.kicks += 1;
            }
        }
        Ok(())
    }

    /// Unmaps and invalidates whole batches; less if there is no other way to go on.
    fn invalidate(&mut self) -> Result<(), BenchError> {
        let Mapping::Dynamic { batch, .. } = self.config.mapping else {
            return Ok(());
        };
        let batch = batch as usize;
        let mut done = 0;
        while self.mapped.len() - done >= batch {
            self.invalidate_batch(done, done + batch)?;
            done += batch;
        }
        let unfilled = self.receive.ring.in_ring() < usize::from(self.config.ring_size);
        let starved = unfilled && self.receive.pool.free() == 0 || self.transmit.pool.free() == 0;
        if starved && self.mapped.len() > done {
            self.invalidate_batch(done, self.mapped.len())?;
            done = self.mapped.len();
        }
        self.mapped.drain(..done);
        Ok(())
    }

    fn invalidate_batch(&mut self, from: usize, to: usize) -> Result<(), BenchError> {
        let batch = &self.mapped[from..to];
        let mut slots: Vec<(Slot, u32)> = Vec::with_capacity(batch.len());
        for (way, buffer) in batch {
            let (slot, pages) = match way {
                Way::Receive => self.receive.pool.slots(*buffer),
                Way::Transmit => self.transmit.pool.slots(*buffer),
            };
            for page in 0..pages {
                self.session.space.unmap(slot.next(page));
            }
            slots.push((slot, pages));
        }
        slots.sort_unstable();
        let runs = slots.chunk_by(|a, b| a.0.0 + a.1 == b.0.0);
        for run in runs {
            let pages: u32 = run.iter().map(|(_, pages)| pages).sum();
            let len = ByteCount(u64::from(pages) * GRANULE);
            let (before, started) = (self.session.stats().invalidations, Instant::now());
            self.session.invalidate(run[0].0.iova(), len)?;
            let sent = self.session.stats().invalidations - before;
            let took = started.elapsed();
            self.acknowledging += took;
            self.latency.record(took, sent);
        }
        for (way, buffer) in batch {
            match way {
                Way::Receive => self.receive.pool.give_back(*buffer),
                Way::Transmit => self.transmit.pool.give_back(*buffer),
            }
        }
        Ok(())
    }

    /// When nothing moves: what the back end owes, and for how long.
    fn watch(&mut self, now: Instant, stage: Stage) -> Result<(), BenchError> {
        let quiet = now.saturating_duration_since(self.last_progress);
        let (out, untaken) = (self.ledger.out(), self.transmit.ring.in_ring());
        let write_off = match stage {
            Stage::Offering => WRITE_OFF,
            Stage::Draining => self.session.patience / PATIENCE_BY_WRITE_OFF_AT_END,
        };
        if untaken == 0 {
            if out > 0 && quiet > write_off {
                self.ledger.write_off(self.misses);
            }
        } else if quiet > self.session.patience {
            self.session.check()?;
            let unresolved = self.session.stats().unresolved;
            let asked = match unresolved {
                0 => String::new(),
                n => format!(" (it asked {n} times for what is not mapped)"),
            };
            return Err(BenchError::Silent {
                what: format!("{untaken} frames are not taken, {out} not back{asked}"),
                waited: quiet,
            });
        }
        Ok(())
    }

    /// Whether frames come back at all.
    fn watch_frames(&self, now: Instant) -> Result<(), BenchError> {
        let sent = self.ledger.counts().sent;
        let in_ring = self.transmit.ring.in_ring() as u64;
        let taken = (sent - self.sent_at_last_back).saturating_sub(in_ring);
        let waited = now.saturating_duration_since(self.last_back);
        match taken > 0 && waited > self.session.patience {
            true => Err(BenchError::Swallowed { taken, waited }),
            false => Ok(()),
        }
    }
}

impl Plan {
    fn is_over(&self, now: Instant) -> bool {
        match self.length {
            Length::Time(time) => now.duration_since(self.start) >= time,
            Length::Frames(frames) => self.offered >= frames,
        }
    }

    /// Notes whether the generator was kept from running since the last step.
    fn note_pause(&mut self, now: Instant, acknowledging: Duration) {
        let gap = now.saturating_duration_since(self.last_step);
        let unexplained = gap.saturating_sub(acknowledging);
        if unexplained > PAUSE {
            self.paused += unexplained;
        }
        self.last_step = now;
    }

    /// Frames that should have been offered, and were not.
    fn due(&self) -> u64 {
        let by_length = match self.length {
            Length::Time(_) => u64::MAX,
            Length::Frames(frames) => frames - self.offered.min(frames),
        };
        let by_pace = match self.pace {
            Pace::Full => u64::MAX,
            Pace::FramesPerSecond(rate) => {
                let ran = self.last_step.duration_since(self.start);
                let ran = ran.saturating_sub(self.paused).as_secs_f64();
                ((ran * rate) as u64).saturating_sub(self.offered)
            }
        };
        by_length.min(by_pace)
    }
}

fn since(after: Counts, before: Counts) -> Counts {
    // Frames that came late may belong to the phase before.
    Counts {
        sent: after.sent - before.sent,
        back: after.back - before.back,
        lost: after.lost.saturating_sub(before.lost),
        lost_for_translation: after
            .lost_for_translation
            .saturating_sub(before.lost_for_translation),
    }
}

fn messages(after: ServerStats, before: ServerStats) -> Messages {
    Messages {
        misses: after.misses - before.misses,
        unresolved: after.unresolved - before.unresolved,
        updates: after.updates - before.updates,
        invalidations: after.invalidations - before.invalidations,
        skipped: after.skipped - before.skipped,
        access_failures: after.access_failures - before.access_failures,
    }
}
