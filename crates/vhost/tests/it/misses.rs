// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Questions to a front end that does not read, does not answer, or is not there.

use ioatlas_dma::{
    platform::{Ordering, Platform},
    units::*,
};
use ioatlas_host::Host;
use ioatlas_vhost::{
    cache::{Miss, MissCause},
    protocol::{
        message::{IotlbMessage, VhostIotlbType},
        misses::*,
    },
};
use std::{
    io::Read,
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

fn miss(page: u64, need: Perm) -> Miss {
    Miss {
        iova: Iova(page * GRANULE),
        len: ByteCount(GRANULE),
        need,
        cause: MissCause::Absent,
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(20)
}

#[test]
fn the_same_question_is_sent_once_and_a_greater_one_anew() {
    let (back, mut front) = UnixStream::pair().unwrap();
    let channel = MissChannel::default();
    channel.connect(Some(back.into()));
    assert_eq!(channel.ask(&miss(1, Perm::Read)), Asked::Sent);
    assert_eq!(channel.ask(&miss(1, Perm::Read)), Asked::UnderWay);
    assert_eq!(channel.ask(&miss(1, Perm::ReadWrite)), Asked::Sent);
    assert_eq!(channel.ask(&miss(1, Perm::Write)), Asked::UnderWay);
    assert_eq!(channel.ask(&miss(2, Perm::Read)), Asked::Sent);
    let mut raw = [0; 3 * 44];
    front.read_exact(&mut raw).unwrap();
    let sent: Vec<_> = raw
        .chunks(44)
        .map(|m| IotlbMessage::decode(&m[12..]).unwrap())
        .collect();
    assert!(sent.iter().all(|m| m.kind == VhostIotlbType::Miss));
    assert_eq!(
        sent.iter().map(|m| m.iova.0).collect::<Vec<_>>(),
        [0x1000, 0x1000, 0x2000]
    );
    // One answer for all of page 1.
    channel.answered(Iova(GRANULE), ByteCount(GRANULE));
    assert_eq!(channel.stats().in_flight, 1);
    assert_eq!(channel.ask(&miss(1, Perm::Read)), Asked::Sent);
}

#[test]
fn how_far_answers_reach_is_learnt_from_the_last_to_a_question() {
    let (back, _front) = UnixStream::pair().unwrap();
    let channel = MissChannel::default();
    channel.connect(Some(back.into()));
    assert_eq!(channel.answering(), Answering::Ranges, "one is tried");
    let page = ByteCount(GRANULE);
    channel.answered(Iova(GRANULE), page);
    assert_eq!(channel.answering(), Answering::Ranges, "not asked for");
    for (len, expected) in [
        (1, Answering::Pages),
        (2, Answering::Ranges),
        (1, Answering::Pages),
    ] {
        assert_eq!(channel.ask(&miss(7, Perm::Read)), Asked::Sent);
        channel.answered(Iova(7 * GRANULE), ByteCount(len * GRANULE));
        assert_eq!(channel.answering(), expected);
    }
    channel.connect(None);
    assert_eq!(channel.answering(), Answering::Ranges, "another front end");
}

#[test]
fn a_front_end_that_does_not_read_blocks_nothing_and_costs_bounded_memory() {
    let (back, mut front) = UnixStream::pair().unwrap();
    let channel = MissChannel::default();
    channel.connect(Some(back.into()));
    let asked: Vec<_> = (0..10_000)
        .map(|page| channel.ask(&miss(2 * page, Perm::Read)))
        .collect();
    let sent = asked.iter().filter(|a| **a == Asked::Sent).count();
    assert_eq!(asked[9_999], Asked::Later);
    assert!(sent > 0 && sent <= IN_FLIGHT, "{sent}");
    assert_eq!(channel.stats().in_flight, sent, "only what is under way");
    // What was not sent can be, once there is room.
    let mut raw = vec![0; 44 * sent];
    front.read_exact(&mut raw).unwrap();
    channel.answered(Iova(0), ByteCount(u64::MAX));
    assert_eq!(channel.ask(&miss(19_998, Perm::Read)), Asked::Sent);
}

#[test]
fn without_a_front_end_nothing_is_waited_for() {
    let channel = MissChannel::default();
    assert_eq!(channel.ask(&miss(1, Perm::Read)), Asked::NoBackChannel);
    let waited = channel.wait(
        channel.answers(),
        soon(),
        Waiting::Unpinned,
        Asked::NoBackChannel,
    );
    assert_eq!(waited, Waited::NoBackChannel);
    let (back, front) = UnixStream::pair().unwrap();
    channel.connect(Some(back.into()));
    drop(front);
    assert_eq!(
        channel.ask(&miss(1, Perm::Read)),
        Asked::NoBackChannel,
        "hung up"
    );
}

#[test]
fn a_reader_that_waits_makes_way_for_what_waits_for_it() {
    let (back, _front) = UnixStream::pair().unwrap();
    let channel = MissChannel::default();
    channel.connect(Some(back.into()));
    let wait = |waiting| channel.wait(channel.answers(), soon(), waiting, Asked::Sent);
    let both = [Waiting::Pinned, Waiting::Unpinned];
    assert_eq!(both.map(wait), [Waited::TimedOut; 2]);
    {
        let _hurry = channel.interrupt_waiters(Urgency::Guards);
        assert_eq!(both.map(wait), [Waited::GiveUp, Waited::TimedOut]);
    }
    {
        let _hurry = channel.interrupt_waiters(Urgency::All);
        assert_eq!(both.map(wait), [Waited::GiveUp; 2]);
    }
    assert_eq!(both.map(wait), [Waited::TimedOut; 2]);
    let before = channel.answers();
    channel.answered(Iova(0), ByteCount(GRANULE));
    let waited = channel.wait(before, soon(), Waiting::Pinned, Asked::Sent);
    assert_eq!(waited, Waited::Answered, "an answer before the wait counts");
}

#[test]
fn under_way_is_not_said_of_a_question_that_never_went_out() {
    // Nothing fits into the socket any more: every question is withdrawn as soon as it is noted.
    let (back, _front) = UnixStream::pair().unwrap();
    let full = MissChannel::default();
    full.connect(Some(back.into()));
    let mut page = 0;
    loop {
        while full.ask(&miss(page, Perm::Read)) == Asked::Sent {
            page += 1;
        }
        // It is the socket that has no room, not the list of questions.
        full.answered(Iova(0), ByteCount(page * GRANULE));
        if full.ask(&miss(page, Perm::Read)) == Asked::Later {
            break;
        }
    }
    let unconnected = MissChannel::default();
    for (channel, must) in [(&full, Asked::Later), (&unconnected, Asked::NoBackChannel)] {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..50_000 {
                        assert_eq!(channel.ask(&miss(page, Perm::Read)), must);
                        assert!(!channel.is_under_way(&miss(page, Perm::Read)));
                    }
                });
            }
        });
    }
}

#[test]
fn no_answer_is_slept_through() {
    const ROUNDS: u64 = 20_000;
    let (back, _front) = UnixStream::pair().unwrap();
    // No reader is woken to ask again.
    let channel = MissChannel::repeating(Duration::from_secs(3600));
    channel.connect(Some(back.into()));
    let begun = <Host as Platform>::A64::new(0);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            for round in 1..=ROUNDS {
                let seen = channel.answers();
                // From here on the answer comes, before, while or after we fall asleep.
                begun.store(round, Ordering::Release);
                let until = Instant::now() + Duration::from_secs(60);
                let waited = channel.wait(seen, until, Waiting::Unpinned, Asked::Sent);
                assert_eq!(waited, Waited::Answered, "round {round}");
            }
        });
        for round in 1..=ROUNDS {
            while begun.load(Ordering::Acquire) < round {
                if waiter.is_finished() {
                    return; // it has failed
                }
                std::thread::yield_now();
            }
            channel.answered(Iova(0), ByteCount(GRANULE));
        }
    });
}
