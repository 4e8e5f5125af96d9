// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Asking the front end, and waiting for its answers.
//!
//! Readers *ask* for translations; a question goes out on the back channel unless the same one, or
//! one for more permission, is under way. The control thread tells when an update is in the cache
//! ([`MissChannel::answered`]); the readers that wait look again.
//!
//! # What waits for what
//! A front end may be unable to answer misses before its own request is acknowledged, and an
//! invalidation is acknowledged only when guards have been dropped. So a reader that waits *in* a
//! guard (a device holds slices of guest memory) must give up as soon as the control thread waits
//! for guards, and any reader must when the control thread wants its queues: [`Urgency`]. Waits are
//! bounded: a question that is not answered in time is withdrawn, and may be put again.
//!
//! # Bounds
//! At most [`IN_FLIGHT`] questions are under way; more are not asked until answers come. Sending
//! never blocks: while the front end does not read its end, nothing is asked, and waiting readers
//! try again until their time is up.
//!
//! # How much is asked at once
//! A question names no length; how far an answer reaches is the front end's choice. Where its last
//! answer was more than a page, one question a look is enough, and more would be answered for
//! nothing: [`Answering::Ranges`]. Where it was a page, each page needs its own.
//!
//! # Ordering
//! `answers` and `wanted` are words of their own, so that neither the control thread nor a reader
//! that polls waits for one that is just sending (which is a system call under `state`). A thread
//! that waits counts itself in `waiters`, under `state`, before it looks at them; one that changes
//! them looks at `waiters` afterwards, and takes `state` only where there are any. All four
//! accesses are sequentially consistent: one of the two sees the other.
//!
//! Lock order: `state -> pending questions`.

use super::{
    message::{Header, IOTLB_BYTES, IotlbMessage},
    socket::{self, BACKEND_IOTLB_MSG},
};
use crate::{
    cache::Miss,
    data_path::{Asked as Noted, PendingMisses},
    log_limit::peer_log,
};
use ioatlas_dma::{
    platform::{Ordering, Platform},
    units::*,
};
use ioatlas_host::Host;
use rustix::net::SendFlags;
use std::{
    io::ErrorKind,
    os::fd::{AsFd, OwnedFd},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

type Word = <Host as Platform>::A64;

/// Questions under way at once.
pub const IN_FLIGHT: usize = 1024;
/// How long a reader waits before it tries again to send what did not fit into the socket.
const RETRY: Duration = Duration::from_millis(1);
/// After how long a [`MissChannel::default`] puts a question again.
const REPEAT: Duration = Duration::from_millis(250);

/// Which readers have to stop waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Urgency {
    /// Those that wait under a guard: an invalidation waits for it.
    Guards,
    /// All of them: queues are being changed or stopped.
    All,
}

/// Where a reader waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiting {
    /// With slices in its hands.
    Pinned,
    /// Without slices, and outside of a guard.
    Unpinned,
}

/// Why a wait is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// An update came, though not necessarily the one wanted: look again.
    Answered,
    /// The time is up.
    TimedOut,
    /// Another thread is waiting for this reader.
    GiveUp,
    /// No question can be sent: no IOMMU, no back channel, or no front end.
    NoBackChannel,
}

/// What became of a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its variants say it
pub enum Asked {
    Sent,
    /// The same, or more, was under way already.
    UnderWay,
    /// There is no room for it.
    Later,
    /// No question can be sent, as in [`Waited::NoBackChannel`].
    NoBackChannel,
}

/// How far the answer to a question reaches, by the last that came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answering {
    /// A page: a reader that misses several asks for each.
    Pages,
    /// Further; or nothing was asked yet. A reader that misses several asks for the
    /// first, and looks again.
    Ranges,
}

/// What happened on a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // its fields say it
pub struct MissStats {
    pub sent: u64,
    /// Questions that were under way already.
    pub deduplicated: u64,
    /// Questions that found no room.
    pub postponed: u64,
    /// Questions that were not answered for long or before the front end left, and put again
    /// if still of interest.
    pub unanswered: u64,
    pub access_failures: u64,
    /// Questions under way now.
    pub in_flight: usize,
    /// Most questions under way at a time.
    pub most_in_flight: usize,
}

/// The back channel and the questions under way on it.
pub struct MissChannel {
    state: Mutex<State>,
    changed: Condvar,
    pending: PendingMisses,
    /// Updates so far: a reader that waits compares.
    answers: Word,
    /// How many callers want guards, or all waits, to end; by [`Urgency`].
    wanted: [Word; 2],
    /// How many readers wait for a change of these.
    waiters: Word,
    /// 1: the last answer to a question was a page.
    pages: Word,
    start: Instant,
    repeat: Duration,
}

#[derive(Debug, Default)]
struct State {
    back: Option<OwnedFd>,
    stats: MissStats,
}

impl Default for MissChannel {
    fn default() -> Self {
        MissChannel::repeating(REPEAT)
    }
}

impl std::fmt::Debug for MissChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MissChannel")
            .field("state", &*self.state())
            .field("in_flight", &self.pending.len())
            .finish_non_exhaustive()
    }
}

impl MissChannel {
    /// A channel that puts a question again after so long without an answer: a front end says
    /// nothing when an address is not mapped, and the guest may have mapped it since.
    pub fn repeating(after: Duration) -> Self {
        MissChannel {
            state: Mutex::default(),
            changed: Condvar::new(),
            pending: PendingMisses::new(IN_FLIGHT),
            answers: Word::new(0),
            wanted: [Word::new(0), Word::new(0)],
            waiters: Word::new(0),
            pages: Word::new(0),
            start: Instant::now(),
            repeat: after,
        }
    }

    /// Takes the socket on which to ask from now on, or none. Questions under way are forgotten.
    pub fn connect(&self, back: Option<OwnedFd>) {
        let mut state = self.state();
        state.back = back;
        state.stats.unanswered += self.pending.len() as u64;
        self.pending.clear();
        self.pages.store(0, Ordering::Relaxed);
        drop(state);
        self.answers.fetch_add(1, Ordering::SeqCst);
        self.wake();
    }

    /// After a change of what waiters look at.
    fn wake(&self) {
        if self.waiters.load(Ordering::SeqCst) > 0 {
            // A reader that looked before the change is asleep once this is ours.
            drop(self.state());
            self.changed.notify_all();
        }
    }

    /// What happened so far.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn stats(&self) -> MissStats {
        MissStats {
            in_flight: self.pending.len(),
            ..self.state().stats
        }
    }

    /// The time by which pending questions age.
    fn now(&self) -> TimeNs {
        TimeNs(self.start.elapsed().as_nanos() as u64)
    }

    /// How many updates have come; to be read *before* looking in the cache, and given to
    /// `wait` after a miss.
    pub fn answers(&self) -> u64 {
        self.answers.load(Ordering::SeqCst)
    }

    /// How far the next answer can be expected to reach.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn answering(&self) -> Answering {
        match self.pages.load(Ordering::Relaxed) {
            0 => Answering::Ranges,
            _ => Answering::Pages,
        }
    }

    /// Asks for what is missing, unless that is under way.
    ///
    /// Noting a question, sending it and taking the note back if it cannot be sent are one step
    /// under `state`: no reader is told that a question is under way which never goes out.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn ask(&self, miss: &Miss) -> Asked {
        let mut state = self.state();
        match self.pending.ask(miss, self.now()) {
            Noted::New => {
                let asked = state.send(miss);
                if asked != Asked::Sent {
                    self.withdraw(miss);
                }
                state.stats.most_in_flight = state.stats.most_in_flight.max(self.pending.len());
                asked
            }
            Noted::Already => {
                state.stats.deduplicated += 1;
                Asked::UnderWay
            }
            Noted::Full => {
                state.stats.postponed += 1;
                Asked::Later
            }
        }
    }

    /// Tells the front end that its answer does not permit an access. It need not care; no
    /// reader waits for it.
    pub fn report_failure(&self, iova: Iova, len: ByteCount, need: Perm) {
        let mut state = self.state();
        let Some(back) = &state.back else { return };
        let header = Header::request(BACKEND_IOTLB_MSG, IOTLB_BYTES);
        let failure = IotlbMessage::access_fail(iova, len, need).encode();
        if socket::send(back.as_fd(), header, &failure, SendFlags::DONTWAIT).is_ok() {
            state.stats.access_failures += 1;
        }
    }

    /// Says that an update is in the cache, or was refused: either way the questions that it
    /// answers are over, whatever it permits.
    pub fn answered(&self, iova: Iova, len: ByteCount) {
        // An update that was not asked for says nothing about answers.
        if self.pending.answered(iova, len, Perm::ReadWrite) > 0 {
            let page = u64::from(len.0 <= GRANULE);
            self.pages.store(page, Ordering::Relaxed);
        }
        self.answers.fetch_add(1, Ordering::SeqCst);
        self.wake();
    }

    /// Withdraws questions that have been under way for long, so that they are put again.
    pub fn expire(&self) {
        let since = self.now().0.saturating_sub(self.repeat.as_nanos() as u64);
        // Under one lock: a reader that asks again and finds the number unchanged takes the second
        // question for a refusal of the first.
        let mut state = self.state();
        let expired = self.pending.expire(TimeNs(since));
        state.stats.unanswered += expired as u64;
    }

    /// Withdraws a question: no reader waits for the answer.
    pub fn withdraw(&self, miss: &Miss) {
        self.pending.answered(miss.iova, miss.len, miss.need);
    }

    /// Whether a question, or one for more, has not been answered yet.
    pub fn is_under_way(&self, miss: &Miss) -> bool {
        let _guard = self.state();
        self.pending.includes(miss)
    }

    /// Waits for an update that came after `seen` updates.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn wait(&self, seen: u64, until: Instant, waiting: Waiting, asked: Asked) -> Waited {
        let mut state = self.state();
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let _waiter = Counted(&self.waiters);
        loop {
            if self.is_wanted(Urgency::All)
                || (waiting == Waiting::Pinned && self.is_wanted(Urgency::Guards))
            {
                return Waited::GiveUp;
            }
            if self.answers() != seen {
                return Waited::Answered;
            }
            if state.back.is_none() || asked == Asked::NoBackChannel {
                return Waited::NoBackChannel;
            }
            let now = Instant::now();
            let Some(left) = until.checked_duration_since(now).filter(|d| !d.is_zero()) else {
                return Waited::TimedOut;
            };
            let left = match asked {
                Asked::Sent | Asked::UnderWay => left.min(self.repeat),
                Asked::Later | Asked::NoBackChannel => left.min(RETRY),
            };
            let (back, timeout) = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner);
            state = back;
            if timeout.timed_out() && Instant::now() < until {
                return Waited::Answered; // or not, but it is time to ask again
            }
        }
    }

    /// Makes readers give up waiting, as long as what is returned lives.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn interrupt_waiters(&self, urgency: Urgency) -> Hurry<'_> {
        let word = &self.wanted[urgency as usize];
        word.fetch_add(1, Ordering::SeqCst);
        self.wake();
        Hurry(Counted(word))
    }

    fn is_wanted(&self, urgency: Urgency) -> bool {
        self.wanted[urgency as usize].load(Ordering::SeqCst) > 0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn send(&mut self, miss: &Miss) -> Asked {
        let Some(back) = &self.back else {
            return Asked::NoBackChannel;
        };
        let header = Header::request(BACKEND_IOTLB_MSG, IOTLB_BYTES);
        let message = IotlbMessage::miss(miss.iova, miss.need).encode();
        match socket::send(back.as_fd(), header, &message, SendFlags::DONTWAIT) {
            Ok(()) => {
                self.stats.sent += 1;
                Asked::Sent
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                self.stats.postponed += 1;
                Asked::Later
            }
            Err(e) => {
                peer_log!(Warn, "back channel: {e}; nothing is asked any more");
                self.back = None;
                Asked::NoBackChannel
            }
        }
    }
}

/// Readers give up waiting while it lives: see [`MissChannel::interrupt_waiters`].
#[derive(Debug)]
pub struct Hurry<'c>(#[expect(dead_code, reason = "it ends with this")] Counted<'c>);

/// One of those that a word counts, until it is dropped.
#[derive(Debug)]
struct Counted<'c>(&'c Word);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(u64::MAX, Ordering::SeqCst);
    }
}
