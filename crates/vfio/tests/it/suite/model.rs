// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Random operations of every design, beside a plain list of what is mapped. The device is asked
//! after each.

use crate::suite::rig::*;
use ioatlas_dma::{domain::*, units::*};
use ioatlas_vfio::platform::Buffer;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Map {
        first: u64,
        pages: u64,
        offset: u64,
        direction: Direction,
    },
    List {
        parts: Vec<(u64, u64)>,
        direction: Direction,
    },
    Unmap(usize),
    Raw(usize),
    WrongRaw(usize),
    Consistent(u64),
    Flush,
    Reattach,
}

const PAGES: u64 = 32;

fn direction() -> impl Strategy<Value = Direction> {
    prop_oneof![
        Just(Direction::ToDevice),
        Just(Direction::FromDevice),
        Just(Direction::Bidirectional)
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let run = || (0..PAGES - 8, 1..8u64);
    prop_oneof![
        4 => (run(), 0..4096u64, direction()).prop_map(|((first, pages), offset, direction)| Op::Map { first, pages, offset, direction }),
        2 => (prop::collection::vec(run(), 1..5), direction()).prop_map(|(parts, direction)| Op::List { parts, direction }),
        4 => any::<usize>().prop_map(Op::Unmap),
        1 => any::<usize>().prop_map(Op::Raw),
        1 => any::<usize>().prop_map(Op::WrongRaw),
        1 => (1..4u64).prop_map(Op::Consistent),
        1 => Just(Op::Flush),
        1 => Just(Op::Reattach),
    ]
}

/// A live mapping: page by page where it leads, and for what.
struct Live {
    mapping: Option<Mapping>,
    memory: Option<Consistent>,
    pages: Vec<(u64, u64)>,
    perm: Perm,
}

fn live(mapping: Mapping, list: &[PhysRange], perm: Perm) -> Live {
    let first = mapping.iova().page().0;
    let frames = list.iter().flat_map(|part| {
        let run = part.run();
        run.first.0..run.first.0 + run.pages.0
    });
    Live {
        pages: (first..).zip(frames).collect(),
        mapping: Some(mapping),
        memory: None,
        perm,
    }
}

struct World {
    rig: Rig,
    buffer: Buffer,
    live: Vec<Live>,
    strict: bool,
    /// Everything that was ever mapped, as pages.
    seen: std::collections::BTreeSet<u64>,
}

impl World {
    fn part(&self, first: u64, pages: u64, offset: u64) -> PhysRange {
        let (at, len) = ((first << 12) + offset, (pages << 12) - offset);
        self.buffer
            .part(ByteCount(at), ByteCount(len))
            .expect("inside")
    }
    fn run(&mut self, op: &Op) {
        let domain = self.rig.domain.clone();
        match op {
            Op::Map {
                first,
                pages,
                offset,
                direction,
            } => {
                let part = self.part(*first, *pages, *offset);
                let mapping = domain.map(part, *direction).expect("room");
                assert_eq!(mapping.iova().offset(), *offset);
                self.live.push(live(mapping, &[part], direction.perm()));
            }
            Op::List { parts, direction } => {
                let list = parts
                    .iter()
                    .map(|(first, pages)| self.part(*first, *pages, 0));
                let list: Vec<_> = list.collect();
                let mapping = domain.map_list(&list, *direction).expect("room");
                self.live.push(live(mapping, &list, direction.perm()));
            }
            Op::Consistent(pages) => {
                let memory = domain.alloc_consistent(ByteCount(pages << 12));
                let memory = memory.expect("room");
                let frames = memory.frames().iter().map(|frame| frame.page().0);
                self.live.push(Live {
                    pages: (memory.iova().page().0..).zip(frames).collect(),
                    mapping: None,
                    memory: Some(memory),
                    perm: Perm::ReadWrite,
                });
            }
            Op::Unmap(nth) | Op::Raw(nth) if !self.live.is_empty() => {
                let which = nth % self.live.len();
                let ended = self.live.swap_remove(which);
                if let Some(memory) = ended.memory {
                    domain.free_consistent(memory).expect("ours");
                } else if let Some(mapping) = ended.mapping {
                    self.end(mapping, matches!(op, Op::Raw(_)));
                }
            }
            Op::WrongRaw(nth) if !self.live.is_empty() => {
                // a token is held for each, so no address ends any
                let which = &self.live[nth % self.live.len()];
                let (first, pages) = (which.pages[0].0, which.pages.len() as u64);
                let at = IovaPage(first).addr();
                let refused = domain.unmap_raw(at, ByteCount(pages << 12));
                refused.expect_err("it was not given up");
            }
            Op::Flush => domain.flush().expect("nothing fails"),
            Op::Reattach => {
                let device = nvme().source();
                domain.detach(device).expect("it is attached");
                let any = self.live.first().map(|live| live.pages[0].0);
                let reached = any.and_then(|page| self.rig.reads(IovaPage(page).addr()));
                assert_eq!(reached, None, "a quiet device");
                domain.attach(device).expect("it is back");
            }
            Op::Unmap(_) | Op::Raw(_) | Op::WrongRaw(_) => {}
        }
        for live in &self.live {
            self.seen.extend(live.pages.iter().map(|(page, _)| *page));
        }
    }
    fn end(&self, mapping: Mapping, raw: bool) {
        let domain = &self.rig.domain;
        if !raw {
            return domain.unmap(mapping).expect("ours");
        }
        match domain.into_raw(mapping) {
            Ok((iova, len)) => {
                let longer = domain.unmap_raw(iova, ByteCount(len.0 + (1 << 12)));
                longer.expect_err("longer than what is mapped");
                domain.unmap_raw(iova, len).expect("given up");
                domain.unmap_raw(iova, len).expect_err("ended");
            }
            Err(UnmapError::SharedLeaves(mapping)) => domain.unmap(mapping).expect("ours"),
            Err(other) => panic!("{other}"),
        }
    }
    fn check(&self) {
        let reach = |page: u64, kind| {
            let at = self.rig.reach(IovaPage(page).addr(), kind);
            at.map(|at| at >> GRANULE_LG2)
        };
        for live in &self.live {
            for (page, frame) in &live.pages {
                for kind in [AccessKind::Read, AccessKind::Write] {
                    let expected = live.perm.allows(kind).then_some(*frame);
                    let reached = reach(*page, kind);
                    assert_eq!(reached, expected, "page {page:#x}, {kind:?}");
                }
            }
        }
        if self.strict {
            let now = self.live.iter().flat_map(|live| &live.pages);
            let now: std::collections::BTreeSet<_> = now.map(|(page, _)| *page).collect();
            for page in self.seen.difference(&now) {
                let reached = [AccessKind::Read, AccessKind::Write].map(|kind| reach(*page, kind));
                assert_eq!(reached, [None, None], "page {page:#x} was unmapped");
            }
        }
        let kernel = self.rig.kernel.mappings().len() as u64;
        assert_eq!(self.rig.calls().held, kernel);
        self.rig.domain.audit().expect("all adds up");
    }
}

fn play(kind: Kind, config: DomainConfig, ops: &[Op]) {
    let rig = Rig::new(kind, config);
    let strict = matches!(config.policy, PolicyConfig::Strict | PolicyConfig::FreeBsd);
    let mut world = World {
        buffer: rig.buffer(PAGES),
        rig,
        live: Vec::new(),
        strict,
        seen: Default::default(),
    };
    for op in ops {
        world.run(op);
        world.check();
    }
    let World { rig, buffer, .. } = world;
    let Rig {
        kernel,
        device,
        memory,
        domain,
    } = rig;
    drop(device);
    let domain = std::sync::Arc::into_inner(domain).expect("the last");
    domain.close().expect("nothing fails");
    assert_eq!((kernel.open_files(), kernel.pinned()), (0, ByteCount(0)));
    drop((buffer, memory));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_design_does_what_a_list_of_mappings_says(ops in prop::collection::vec(op(), 1..40)) {
        for (_, config) in designs() {
            for kind in KINDS {
                play(kind, config, &ops);
            }
        }
    }
}
