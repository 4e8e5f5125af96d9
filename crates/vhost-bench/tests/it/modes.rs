// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `ioatlas-vhost-net` under the generator, in every mode: nothing corrupt, nothing lost, and the
//! messages that each mode needs.

use crate::common::*;
use ioatlas_vhost_bench::*;
use ioatlas_vhost_net::{Mode, Net, NetConfig, Wakeup};

const FRAMES: u64 = 1500;

fn net(mode: Mode, wakeup: Wakeup) -> Net {
    let config = NetConfig::default()
        .mode(mode)
        .wakeup(wakeup)
        .patience(SOON);
    Net::new(config).unwrap()
}

fn exchange(config: Config, mode: Mode, wakeup: Wakeup) -> Report {
    let drive = |stream| run(stream, config, FRAMES);
    let result = with_device(net(mode, wakeup), drop, drive);
    let report = result.unwrap_or_else(|e| panic!("{config:?}: {e}"));
    assert_eq!(report.frames_sent, FRAMES, "{config:?}");
    assert_eq!(report.frames_returned, FRAMES, "{config:?}");
    assert_eq!((report.frames_corrupt, report.frames_lost), (0, 0));
    assert_eq!((report.frames_refused, report.warm_up_lost), (0, 0));
    // A back end that asks ahead may ask twice for what one answer gives; by the second question it
    // may be unmapped again.
    if !matches!(config.mapping, Mapping::Dynamic { .. }) {
        assert_eq!(report.messages.unresolved, 0, "{config:?}");
    }
    report
}

/// Each of `mappings` with both layouts, both frame lengths, both answers; device modes take turns.
fn every_way(mappings: &[Mapping], check: impl Fn(&Config, &Report)) {
    let mut number = 0;
    for &mapping in mappings {
        for layout in [Layout::Split, Layout::Packed] {
            for frame_bytes in [64, 1500] {
                for answers in [Answers::Page, Answers::Range] {
                    number += 1;
                    let config = config()
                        .layout(layout)
                        .mapping(mapping)
                        .answers(answers)
                        .frame_bytes(frame_bytes)
                        .placement(match (number % 4, mapping) {
                            // They would not be neighbours for the device.
                            (
                                _,
                                Mapping::Off {
                                    lie: Lie::Scattered,
                                },
                            ) => Placement::InPage,
                            (3, _) => Placement::Straddling,
                            _ => Placement::InPage,
                        })
                        .mergeable([Offer::Declined, Offer::Taken][number % 2])
                        .event_index([Offer::Declined, Offer::Taken][number / 4 % 2]);
                    let mode = [Mode::Loopback, Mode::MacSwap][number % 2].clone();
                    let wakeup = [Wakeup::Notify, Wakeup::Poll][number / 2 % 2];
                    check(&config, &exchange(config, mode, wakeup));
                }
            }
        }
    }
}

#[test]
fn without_iommu_nothing_is_asked() {
    let off = [Lie::Contiguous, Lie::Scattered].map(|lie| Mapping::Off { lie });
    every_way(&off, |config, report| {
        assert_eq!(report.messages, Messages::default(), "{config:?}");
        assert_eq!(report.round_trips.count, 0);
    });
}

#[test]
fn static_mappings_are_asked_for_once() {
    let leaves = [Leaf::Small, Leaf::Large, Leaf::Huge];
    let lies = [Lie::Contiguous, Lie::Scattered];
    let all = leaves
        .iter()
        .flat_map(|&leaf| lies.map(|lie| Mapping::Static { leaf, lie }));
    every_way(&all.collect::<Vec<_>>(), |config, report| {
        let messages = report.messages;
        assert_eq!(messages.invalidations, 0, "{config:?}");
        assert_eq!(messages.updates, messages.misses, "{config:?}");
        // The warm-up met a few pages, the run all others. A page may be asked for again while its
        // answer is on the way, but not for every frame, which would be 3,000 times.
        assert!(
            messages.updates <= 4 * u64::from(config.pages),
            "{report:?}"
        );
        if let Mapping::Static { leaf, .. } = config.mapping
            && leaf != Leaf::Small
        {
            // Those that were asked for before the first answer came: no more than are in the
            // rings.
            let in_rings = 2 * u64::from(config.ring_size);
            assert!(messages.updates <= in_rings, "{report:?}");
        }
    });
}

#[test]
fn where_an_answer_may_be_for_many_pages_one_is_asked_for() {
    let (leaf, lie) = (Leaf::Huge, Lie::Contiguous);
    let config = config()
        .mapping(Mapping::Static { leaf, lie })
        // All that is asked is counted.
        .warm_up(Length::Frames(0));
    let report = exchange(config, Mode::MacSwap, Wakeup::Poll);
    // One leaf is everything; each of the two queues may ask before the other's answer comes, and
    // once more between an answer and its look.
    assert!(report.messages.misses <= 4, "{report:?}");
}

#[test]
fn scattered_pages_that_straddle_are_refused_without_an_iommu() {
    let (stream, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let config = config()
        .mapping(Mapping::Off {
            lie: Lie::Scattered,
        })
        .placement(Placement::Straddling);
    let refused = Bench::over(stream, config).map(drop);
    let Err(BenchError::Config(ConfigError::Straddling)) = refused else {
        panic!("{refused:?}");
    };
}

#[test]
fn dynamic_mappings_are_asked_for_and_forgotten() {
    let lies = [Lie::Contiguous, Lie::Scattered];
    let all = [1, 32]
        .iter()
        .flat_map(|&batch| lies.map(|lie| Mapping::Dynamic { batch, lie }));
    every_way(&all.collect::<Vec<_>>(), |config, report| {
        let messages = report.messages;
        let answered = messages.updates + messages.unresolved;
        assert_eq!(answered, messages.misses, "{config:?}");
        if let Mapping::Dynamic { batch: 1, .. } = config.mapping {
            // One for each buffer: both directions, but what the rings still hold of the warm-up.
            assert!(messages.invalidations > FRAMES, "{report:?}");
        }
        if config.answers == Answers::Page {
            assert!(messages.misses > FRAMES, "{report:?}");
        }
        let trips = messages.updates + messages.invalidations;
        assert_eq!(report.round_trips.count, trips, "{config:?}");
        assert!(report.round_trips.max_ns >= report.round_trips.median_ns);
    });
}

#[test]
fn range_answers_take_fewer_messages_than_page_answers() {
    let messages = |answers| {
        let config = config()
            .mapping(Mapping::Dynamic {
                batch: 32,
                lie: Lie::Contiguous,
            })
            .answers(answers);
        exchange(config, Mode::MacSwap, Wakeup::Notify).messages
    };
    let (page, range) = (messages(Answers::Page), messages(Answers::Range));
    assert!(range.misses < page.misses, "{range:?}, {page:?}");
}

#[test]
fn eight_pages_and_many_are_enough() {
    for (pages, frame_bytes) in [(8, 64), (8, 1500), (20_000, 1500)] {
        for lie in [Lie::Contiguous, Lie::Scattered] {
            let leaf = Leaf::Small;
            let config = config()
                .mapping(Mapping::Static { leaf, lie })
                .pages(pages)
                .frame_bytes(frame_bytes);
            exchange(config, Mode::MacSwap, Wakeup::Notify);
        }
    }
}

#[test]
fn a_low_rate_is_kept_and_nothing_is_lost() {
    let drive = |stream| {
        let mut bench = Bench::over(stream, config()).unwrap();
        let found = bench.search(1.0, Length::Frames(300)).unwrap();
        bench.stop().unwrap();
        found
    };
    // Any loss is tolerated, so the search only ever goes up.
    let found = with_device(net(Mode::Loopback, Wakeup::Notify), drop, drive);
    let rates: Vec<f64> = found.tried.iter().map(|t| t.offered_per_second).collect();
    assert!(rates.windows(2).all(|two| two[0] < two[1]), "{rates:?}");
    assert!(rates.len() > 3);
    assert_eq!(
        found.best.offered_per_second,
        rates.last().copied(),
        "the highest that passed"
    );
    assert_eq!(found.best.frames_corrupt, 0);
    let json = serde_json::to_value(&found).unwrap();
    assert_eq!(
        json["best"]["settings"]["mapping"]["off"]["lie"],
        "contiguous"
    );
    assert_eq!(json["tried"].as_array().unwrap().len(), rates.len());
}
