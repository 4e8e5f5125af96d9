// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Wrong arguments, tokens at the wrong place, iterators and callbacks that misbehave: what is
//! refused comes back, and changes nothing.
#![forbid(unsafe_code)]

use super::*;
use ioatlas_dma::{
    table::TableConfig,
    translator::{Paged, PagedError},
};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// No offset, length or number of anything.
const HUGE: [usize; 5] = [usize::MAX, usize::MAX - 1, usize::MAX / 2, 1 << 52, 1 << 40];

fn panics<R>(f: impl FnOnce() -> R) -> bool {
    catch_unwind(AssertUnwindSafe(f)).is_err()
}

fn bytes(buffer: &CpuBuffer<Host, BothWays>) -> Vec<u8> {
    let mut seen = vec![0; buffer.len().0 as usize];
    buffer.read(ByteCount(0), &mut seen).expect("inside");
    seen
}

/// Another `Dma` of the domain, another domain, another machine, and a client of the same `Dma`
/// that has a pool of its own.
#[test]
fn a_token_at_the_wrong_place() {
    for (mut lab, client, placement) in cases() {
        let mut far = Lab::new(lab.domain.policy());
        let config = ClientConfig::default().placement(Placement::Always);
        let pool = tight(ON_DEMAND).pool.growth(ON_DEMAND);
        let own = lab.dma.client_with_pool(config, &pool).expect("memory");
        let others = [far.client(placement), far.stranger.clone()];
        let orphan = far.token(&others[0]);
        let mut token = lab.token(&client);
        let (at, before) = (token.iova(), lab.domain.stats());
        let here = [&own, &lab.stranger, &lab.victims.client];
        for wrong in others.iter().chain(here) {
            let Err(DmaUnmapError::Foreign(back)) = wrong.unmap(token) else {
                panic!("{}: P8: it was ended elsewhere", lab.what)
            };
            let batch = wrong.unmap_batch(&mut [*back].into_iter(), |_| panic!("P8"));
            let Some(DmaUnmapError::Foreign(back)) = batch.expect_err("P8").stopped else {
                panic!("{}: P8: it was ended elsewhere", lab.what)
            };
            let pending = wrong.unmap_start(&mut [*back].into_iter());
            let started = pending.finish(|_| panic!("P8"));
            let Some(DmaUnmapError::Foreign(back)) = started.expect_err("P8").stopped else {
                panic!("{}: P8: it was ended elsewhere", lab.what)
            };
            assert!(lab.reaches(at), "{}: P14: it is mapped still", lab.what);
            token = *back;
        }
        let after = lab.domain.stats();
        assert_eq!(
            (after.live, after.unmaps),
            (before.live, before.unmaps),
            "P8"
        );
        client.unmap(token).expect("its own place");
        // one whose client is gone, with all of its machine, and one whose `Dma` lives
        drop((others, far, own));
        let ours = lab.token(&client);
        for (token, other) in [(orphan, &client), (ours, &lab.stranger)] {
            let refused = matches!(other.unmap(token), Err(DmaUnmapError::Foreign(_)));
            assert!(refused, "{}: P8: it was ended elsewhere", lab.what);
        }
        drop(client);
        lab.judge();
    }
}

/// The victims' memory under tables, or a unit, in which its page numbers are the driver's own.
#[test]
fn tables_and_units_of_another_platform() {
    let lab = Lab::new(PolicyConfig::Strict);
    let used = lab.host.frames_in_use();
    let own = Arc::new(Host::new(HostConfig::default().frames(FRAMES).slots(2)));
    let unit = UnitConfig::new(Geometry::of::<Vtd>());
    let machine = Machine::new(own.clone(), &unit).expect("a machine");
    let tables = |platform| {
        Paged::<_, Vtd, _>::new(platform, machine.driver().clone(), TableConfig::default())
    };
    let of_own = tables(&own).expect("a root");
    let refused = Domain::new(lab.host.clone(), of_own, DomainConfig::default());
    assert_eq!(
        refused.err(),
        Some(DomainError::OtherPlatform),
        "P8: tables"
    );
    let refused = tables(&lab.host);
    assert_eq!(refused.err(), Some(PagedError::OtherPlatform), "P8: a unit");
    machine.shut_down().expect("off");
    assert_eq!(
        (own.frames_in_use(), lab.host.frames_in_use()),
        (0, used),
        "P10"
    );
    lab.end();
}

/// What an iterator of the driver does in the middle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trick {
    Panics,
    /// It yields another client's.
    Swaps,
    /// It maps, unmaps, drops, allocates, flushes, and ends a token by a batch within the batch.
    Reenters,
}

/// What takes the tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Taker {
    Batch,
    Start,
    Dropped,
}

const TOKENS: usize = 7;
const MIDDLE: usize = TOKENS / 2;

impl Lab {
    /// A token of the stranger's, which our client refuses.
    fn strange(&mut self, client: &Dev) -> Token {
        let stranger = self.stranger.clone();
        let given = self.give(&stranger, Fate::Lost);
        match client.take_back(given) {
            Err(DmaUnmapError::Foreign(token)) => *token,
            _ => panic!("{}: P8: it was ended elsewhere", self.what),
        }
    }
}

fn reenter(client: &Dev, spare: Token) {
    let buffer = client.buffer::<BothWays>(LEN).expect("memory");
    let given = client.give(buffer).expect("room");
    drop(client.take_back(given).expect("unmapped"));
    drop(client.alloc_coherent::<u64>(3).expect("memory"));
    client.dma().domain().flush().expect("the unit answers");
    let ended = client.unmap_batch(&mut [spare].into_iter(), drop);
    ended.expect("its own");
}

fn tricked(lab: &mut Lab, client: &Dev, trick: Trick, by: Taker) {
    let tokens: Vec<_> = (0..TOKENS).map(|_| lab.token(client)).collect();
    let places = tokens
        .iter()
        .map(|token| (token.iova(), token.is_bounced()));
    let places: Vec<_> = places.collect();
    let mut spare = match trick {
        Trick::Panics => None,
        Trick::Swaps => Some(lab.strange(client)),
        Trick::Reenters => Some(lab.token(client)),
    };
    let mut rest = tokens.into_iter();
    let mut yielded = 0;
    let mut tokens = std::iter::from_fn(|| {
        yielded += 1;
        match (trick, spare.take_if(|_| yielded > MIDDLE)) {
            (Trick::Panics, _) => assert!(yielded <= MIDDLE, "the driver panics"),
            (Trick::Swaps, Some(spare)) => return Some(spare),
            (Trick::Reenters, Some(spare)) => reenter(client, spare),
            _ => {}
        }
        rest.next()
    });
    let take = || match by {
        Taker::Batch => client.unmap_batch(&mut tokens, drop).is_ok(),
        Taker::Start => client.unmap_start(&mut tokens).finish(drop).is_ok(),
        Taker::Dropped => {
            drop(client.unmap_start(&mut tokens));
            trick == Trick::Reenters
        }
    };
    let done = catch_unwind(AssertUnwindSafe(take));
    let expected = match trick {
        Trick::Panics => None,
        Trick::Swaps => Some(false),
        Trick::Reenters => Some(true),
    };
    assert_eq!(done.ok(), expected, "{}", lab.what);
    for (at, bounced) in &places[..MIDDLE] {
        lab.ended(*at, *bounced);
    }
    for token in rest {
        client.unmap(token).expect("it was not taken");
    }
}

#[test]
fn iterators() {
    for trick in [Trick::Panics, Trick::Swaps, Trick::Reenters] {
        for by in [Taker::Batch, Taker::Start, Taker::Dropped] {
            for (mut lab, client, _) in cases() {
                lab.what += &format!(", {trick:?}, {by:?}");
                tricked(&mut lab, &client, trick, by);
                drop(client);
                lab.end();
            }
        }
    }
}

/// Two tokens that were given up, of one client; and one whose address is the first one's again.
#[test]
fn addresses() {
    for (mut lab, client, _) in cases() {
        let what = lab.what.clone();
        let (one, held) = (lab.token(&client), lab.token(&client));
        let (at, len) = client.into_raw(one).expect("memory");
        let unmap = |at: u64, len: u64| client.unmap_raw(Iova(at), ByteCount(len), BOTH);
        let wrong = [
            (at.0, len.0 + 1),
            (at.0, len.0 - 1),
            (at.0, GRANULE),
            (at.0, u64::MAX),
            (at.0, 0),
            (at.0 + GRANULE, len.0 - GRANULE),
            (at.0 - GRANULE, len.0 + GRANULE),
            (at.0 + 1, len.0),
            (u64::MAX, len.0),
            (held.iova().0, len.0), // its token is held
        ];
        for (at, len) in wrong {
            assert!(unmap(at, len).is_err(), "{what}: P8: {len} bytes at {at:x}");
        }
        for other in [&lab.stranger, &lab.victims.client] {
            let refused = other.unmap_raw(at, len, BOTH);
            assert_eq!(refused, Err(RawDmaError::NotMapped(at)), "{what}: P8");
        }
        assert!(lab.reaches(at) && lab.reaches(held.iova()), "{what}: P14");
        assert_eq!(unmap(at.0, len.0), Ok(()), "{what}");
        assert_eq!(
            unmap(at.0, len.0),
            Err(RawDmaError::NotMapped(at)),
            "{what}: P8"
        );
        // until some mapping has the address again, by its token
        lab.domain.flush().expect("the unit answers");
        let more: Vec<_> = (0..4).map(|_| lab.token(&client)).collect();
        for (at, len) in wrong.into_iter().chain([(at.0, len.0)]) {
            assert!(unmap(at, len).is_err(), "{what}: P8: {len} bytes at {at:x}");
            let refused = lab.domain.unmap_raw(Iova(at), ByteCount(len));
            assert!(refused.is_err(), "{what}: P8: {len} bytes at {at:x}");
        }
        assert!(
            more.iter().all(|token| lab.reaches(token.iova())),
            "{what}: P14"
        );
        for token in more.into_iter().chain([held]) {
            client.unmap(token).expect("unmapped");
        }
        drop(client);
        lab.end();
    }
}

/// The domain's own addresses: one that was given up and ended is another mapping's next, whose
/// token is held.
#[test]
fn addresses_of_the_domain() {
    for policy in POLICIES {
        let mut lab = Lab::new(policy);
        let client = lab.client(Placement::Never);
        let frames: Vec<_> = (0..PAGES)
            .map(|_| lab.host.frame_alloc().expect("memory"))
            .collect();
        let list: Vec<_> = frames
            .iter()
            .map(|frame| PhysRange::page(frame.page()))
            .collect();
        lab.lost.extend(frames.iter().map(|frame| frame.page()));
        let mapping = lab.domain.map_list(&list, BOTH).expect("room");
        lab.tell(mapping.iova());
        let (at, len) = lab.domain.into_raw(mapping).expect("its own");
        lab.domain.unmap_raw(at, len).expect("it was given up");
        lab.domain.flush().expect("the unit answers");
        let given: Vec<_> = (0..2).map(|_| lab.give(&client, Fate::Free)).collect();
        let same = given.iter().any(|given| given.iova() == at);
        assert!(same, "{}: or it would be refused anyway", lab.what);
        for len in [
            len,
            LEN,
            ByteCount(GRANULE),
            ByteCount(0),
            ByteCount(u64::MAX),
        ] {
            let refused = lab.domain.unmap_raw(at, len);
            assert!(refused.is_err(), "{}: P8: {len}", lab.what);
        }
        assert!(given.iter().all(|given| lab.reaches(given.iova())), "P14");
        for given in given {
            client.take_back(given).expect("unmapped");
        }
        drop(client);
        lab.end();
    }
}

#[test]
fn outside_of_buffers_and_views() {
    for placement in PLACEMENTS {
        let mut lab = Lab::new(PolicyConfig::Strict);
        let client = lab.client(placement);
        let buffer = client.buffer::<BothWays>(LEN).expect("memory");
        buffer.write(ByteCount(0), &[7; 100]).expect("inside");
        let before = bytes(&buffer);
        let outside = |read: &dyn Fn(u64, usize) -> bool, len: u64| {
            let at = HUGE.map(|at| at as u64).into_iter();
            for at in at.chain([u64::MAX - 3, len + 1]) {
                assert!([0, 1, 64].iter().all(|bytes| !read(at, *bytes)), "P7: {at}");
            }
            assert!(
                !read(len, 1) && !read(len - 3, 4) && !read(0, len as usize + 1),
                "P7"
            );
            assert!(
                read(len, 0) && read(0, 0) && read(len - 4, 4),
                "the last bytes"
            );
        };
        let read = |at, len| buffer.read(ByteCount(at), &mut vec![0; len]).is_ok();
        outside(&read, LEN.0);
        let write = |at, len| buffer.write(ByteCount(at), &vec![0; len]).is_ok();
        outside(&write, LEN.0);
        assert!(bytes(&buffer) == before, "P7: memory was written");

        let mut given = lab.give_this(&client, buffer, Fate::Free);
        for (at, len) in [(0, LEN.0 + 1), (LEN.0, 1), (u64::MAX, 2), (1, u64::MAX)] {
            let span = Span::new(ByteCount(at), ByteCount(len));
            let lent = client.with_cpu(&mut given, span, |_| ());
            assert_eq!(lent, Err(SyncError::Outside { span, len: LEN }), "P7");
        }
        let span = Span::new(ByteCount(GRANULE - 8), ByteCount(16));
        let lent = client.with_cpu(&mut given, span, |view| {
            outside(
                &|at, len| view.read(ByteCount(at), &mut vec![0; len]).is_ok(),
                16,
            );
            outside(
                &|at, len| view.write(ByteCount(at), &vec![0; len]).is_ok(),
                16,
            );
        });
        assert_eq!(lent, Ok(()));
        let mut expected = before;
        // which the device wrote when it was told
        for page in 0..PAGES {
            expected[page * PAGE] = DEVICE;
        }
        let back = client.take_back(given).expect("unmapped");
        assert!(bytes(&back) == expected, "P7: {placement:?}: other bytes");
        drop((back, client));
        lab.end();
    }
}

#[test]
fn outside_of_arrays() {
    let mut lab = Lab::new(PolicyConfig::Strict);
    let client = lab.client(Placement::Never);
    let mut ring = client.alloc_coherent::<[u32; 3]>(5).expect("memory");
    (0..5).for_each(|nth| ring.write(nth, [nth as u32; 3]));
    lab.told.push(ring.iova().page());
    for index in HUGE.into_iter().chain([5]) {
        assert!(panics(|| ring.read(index)), "P7: element {index}");
        assert!(panics(|| ring.iova_of(index)), "P7: element {index}");
        assert!(panics(|| ring.write(index, [9; 3])), "P7: element {index}");
        assert!(
            panics(|| ring.read_field::<u32>(index, 0)),
            "P7: element {index}"
        );
        assert!(
            panics(|| ring.write_field(index, 0, 9u8)),
            "P7: element {index}"
        );
        assert!(
            panics(|| ring.read_field::<u8>(4, index.max(12))),
            "P7: byte {index}"
        );
        assert!(
            panics(|| ring.write_field(4, index.max(12), 9u8)),
            "P7: byte {index}"
        );
    }
    for offset in [1, 2, 3, 9, 10, 11] {
        assert!(
            panics(|| ring.read_field::<u32>(4, offset)),
            "P7: byte {offset}"
        );
    }
    assert!(
        panics(|| ring.write_field(4, 0, [9u8; 13])),
        "P7: more than an element"
    );
    assert!(
        panics(|| ring.read_field::<u64>(1, 0)),
        "an element begins at a multiple of 4"
    );
    ring.read_field::<[u32; 0]>(4, 12);
    assert!(
        (0..5).all(|nth| ring.read(nth) == [nth as u32; 3]),
        "P7: it was written"
    );
    drop((ring, client));
    lab.end();
}

#[test]
fn sizes() {
    for (lab, client, _) in cases() {
        let before = lab.host.frames_in_use();
        for len in HUGE.into_iter().chain([0, FRAMES * PAGE + 1]) {
            let buffer = client.buffer::<ToDevice>(ByteCount(len as u64));
            assert!(buffer.is_none(), "P10: a buffer of {len} bytes");
            assert!(
                client.alloc_coherent::<u8>(len).is_err(),
                "P10: {len} bytes"
            );
            assert!(
                client.alloc_coherent::<[u64; 5]>(len).is_err(),
                "P10: {len}"
            );
            let memory = lab.domain.alloc_consistent(ByteCount(len as u64));
            assert!(memory.is_err(), "P10: {len} bytes");
        }
        assert_eq!(lab.host.frames_in_use(), before, "P10: frames are kept");
        drop(client);
        lab.end();
    }
}

/// Two clients share a pool, and so their tokens. One maps where the buffer is; the other, which
/// always bounces, takes it back: the device has seen it nevertheless.
#[test]
fn a_buffer_is_taken_back_by_a_client_that_bounces() {
    for policy in POLICIES {
        let mut lab = Lab::new(policy);
        let giver = lab.client(Placement::Below(ByteCount(0)));
        let taker = lab.client(Placement::Always);
        let given = lab.give(&giver, Fate::Free);
        assert!(!given.is_bounced());
        drop(taker.take_back(given).expect("they share a pool"));
        drop((giver, taker));
        lab.end();
    }
}
