// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Patterns take and give back what they say, of any subject.

use ioatlas_bench::{
    Contestant, Failure, Kind, Pattern, Sizes, Subject, Worker,
    case::Ours,
    pattern::{HANDOFF, MIXED},
    peers::{Rival, peers},
    subjects::AllocatorAlone,
};
use ioatlas_dma::{
    design,
    units::{ByteCount, IovaPage, IovaRange, PageCount},
};
use ioatlas_host::{Host, HostConfig};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
};

/// Counts, and refuses what was never taken.
#[derive(Default)]
struct Counting(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    next: u64,
    live: BTreeMap<u64, u64>,
    most: usize,
    sizes: HashMap<u64, u64>,
    order: Vec<u64>,
}

impl Subject for Counting {
    type Token = u64;
    type Hand = ();
    fn hand(&self, _: usize) {}
    fn take(&self, (): &mut (), pages: PageCount) -> Result<u64, Failure> {
        let mut counts = self.0.lock().unwrap();
        let number = counts.next;
        counts.next += 1;
        counts.live.insert(number, pages.0);
        counts.most = counts.most.max(counts.live.len());
        *counts.sizes.entry(pages.0).or_default() += 1;
        Ok(number)
    }
    fn give(&self, (): &mut (), number: u64) -> Result<(), Failure> {
        let mut counts = self.0.lock().unwrap();
        counts.order.push(number);
        let known = counts.live.remove(&number);
        known.map(drop).ok_or_else(|| Failure::new("never taken"))
    }
}

/// All patterns, the large ones smaller.
fn patterns() -> impl Iterator<Item = Pattern> {
    let small = |pattern| match pattern {
        Pattern::Replace(n) => Pattern::Replace(n / 100),
        pattern => pattern,
    };
    Pattern::ALL.into_iter().map(small)
}

/// Runs a contestant, on as many threads as it has, and gives everything back. What one fails with
/// stops the others.
fn run(contestant: &Contestant<'_>, pairs: u32) -> Result<(), Failure> {
    let one = |thread: usize| -> Result<(), Failure> {
        let mut worker = contestant.worker(thread)?;
        worker.fill(&mut || true)?;
        let mut done = 0;
        while done < pairs {
            done += worker.run((pairs - done).min(100))?;
        }
        worker.finish()
    };
    std::thread::scope(|scope| {
        let one = &one;
        let threads = 0..contestant.threads();
        let threads: Vec<_> = threads.map(|n| scope.spawn(move || one(n))).collect();
        threads.into_iter().try_for_each(|t| t.join().unwrap())
    })
}

#[test]
fn everything_that_is_taken_comes_back_and_no_more_is_outstanding_than_said() {
    for pattern in patterns() {
        for sizes in Sizes::ALL {
            let subject = Counting::default();
            run(&Contestant::new(&subject, pattern, sizes, 1), 3000).unwrap();
            let counts = subject.0.into_inner().unwrap();
            assert!(counts.live.is_empty(), "{pattern}");
            let most = match pattern {
                Pattern::Replace(n) => 2 * n, // while it fills
                // one in either thread's hands
                Pattern::ProducerConsumer => HANDOFF + 2,
                pattern => pattern.outstanding(),
            };
            assert!(counts.most <= most, "{pattern}: {} > {most}", counts.most);
            assert!(counts.next >= 3000);
            let wanted: &[u8] = match sizes {
                Sizes::One => &[1],
                Sizes::Mixed => &MIXED,
            };
            let mut drawn: Vec<u64> = counts.sizes.into_keys().collect();
            drawn.sort();
            assert!(
                drawn
                    .iter()
                    .copied()
                    .eq(wanted.iter().map(|s| u64::from(*s)))
            );
        }
    }
}

#[test]
fn orders_are_those_of_the_patterns() {
    let order = |pattern| {
        let subject = Counting::default();
        run(&Contestant::new(&subject, pattern, Sizes::One, 1), 2000).unwrap();
        subject.0.into_inner().unwrap().order
    };
    for fifo in [
        Pattern::Immediate,
        Pattern::Ring(256),
        Pattern::Bursts,
        Pattern::ProducerConsumer,
    ] {
        let order = order(fifo);
        assert!(order.iter().copied().eq(0..order.len() as u64), "{fifo}");
    }
    let random = order(Pattern::Replace(500));
    let falls = random.windows(2).filter(|pair| pair[0] > pair[1]).count();
    assert!(falls > random.len() / 4, "{falls}");
    assert_eq!(random, order(Pattern::Replace(500)), "the same every time");
}

#[test]
fn filling_stops_when_it_may_not_go_on() {
    let subject = Counting::default();
    let contestant = Contestant::new(&subject, Pattern::Replace(1000), Sizes::One, 1);
    let mut worker: Box<dyn Worker + '_> = contestant.worker(0).unwrap();
    let mut left = 3;
    let stopped = worker.fill(&mut || {
        left -= 1;
        left >= 0
    });
    let why = stopped.unwrap_err().to_string();
    assert!(why.contains("of 2000 ranges"), "{why}");
    worker.finish().unwrap();
    assert!(subject.0.lock().unwrap().live.is_empty());
}

#[test]
fn every_design_serves_every_pattern_and_nothing_is_lost() {
    let alone = design::allocators().map(|a| Kind::Allocator(a.config));
    let others = [Kind::Table, Kind::Control, Kind::Nothing];
    for kind in design::all().map(Kind::Domain).chain(alone).chain(others) {
        for pattern in patterns() {
            let private = matches!(kind, Kind::Table | Kind::Control);
            if private && pattern == Pattern::ProducerConsumer {
                continue; // each thread has numbers of its own
            }
            let ours = Ours::new(kind, 64).unwrap();
            let contestant = ours.contestant(pattern, Sizes::Mixed, 1);
            run(&contestant, 300).unwrap_or_else(|why| panic!("{kind}, {pattern}: {why}"));
            if let Ours::Domain(domain) = &ours {
                domain.0.flush().unwrap();
                let audit = domain
                    .0
                    .audit()
                    .unwrap_or_else(|why| panic!("{kind}: {why}"));
                assert_eq!(audit.stats.live, PageCount(0), "{kind}, {pattern}");
            }
            if let Ours::Allocator(allocator) = &ours {
                assert_whole(allocator);
            }
        }
    }
}

fn assert_whole(alone: &AllocatorAlone<Host>) {
    let (p, allocator) = (alone.platform(), alone.allocator());
    allocator.audit(p).unwrap();
    let usage = allocator.usage(p);
    assert_eq!(usage.allocated, PageCount(0), "{usage:?}");
    let sum = usage.free.0 + usage.cached.0 + usage.others.0;
    assert_eq!(sum, usage.aperture.0, "{usage:?}");
}

#[test]
fn numbers_of_an_allocator_alone_are_disjoint_and_come_back() {
    for entry in design::allocators().filter(|entry| entry.name != "identity") {
        let host = Host::new(HostConfig::default().frames(1).slots(1));
        let host = Arc::new(host.with_heap(ByteCount(1 << 20)).unwrap());
        let aperture = IovaRange::new(IovaPage(0), PageCount(1 << 24));
        let alone = AllocatorAlone::new(host, entry.config, aperture).unwrap();
        let mut hand = alone.hand(0);
        let mut numbers = Vec::new();
        for nth in 0..200 {
            let pages = PageCount(u64::from(MIXED[nth % MIXED.len()]));
            numbers.push(alone.take(&mut hand, pages).unwrap());
        }
        let mut ranges: Vec<IovaRange> = numbers.iter().map(|n| n.range()).collect();
        ranges.sort_by_key(|range| range.first);
        let overlap = ranges.windows(2).find(|pair| pair[0].overlaps(&pair[1]));
        assert_eq!(overlap, None, "{}", entry.name);
        for number in numbers {
            alone.give(&mut hand, number).unwrap();
        }
        assert_whole(&alone);
    }
}

#[test]
fn every_peer_serves_every_pattern() {
    for peer in peers() {
        for pattern in patterns() {
            for threads in [1, 2] {
                let table = peer.rival == Rival::Table;
                if table && (threads == 2 || pattern == Pattern::ProducerConsumer) {
                    continue;
                }
                let subject = peer.subject(match pattern {
                    Pattern::ProducerConsumer => 2,
                    _ => threads,
                });
                let subject = subject.unwrap();
                let contestant = subject.contestant(pattern, Sizes::Mixed, threads);
                let what = format!("{}, {pattern}, {threads}", peer.name);
                run(&contestant, 300).unwrap_or_else(|why| panic!("{what}: {why}"));
            }
        }
    }
}
