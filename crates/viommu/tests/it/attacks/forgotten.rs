// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What is forgotten, dropped out of order or on another thread, or left by a panic: it stays with
//! the device, or comes back whole.
#![forbid(unsafe_code)]

use super::*;
use ioatlas_dma::translator::Translator;
use std::{
    mem::forget,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Under every policy and placement. An attack returns how many mappings it never ends.
fn everywhere(attack: impl Fn(&mut Lab, &Dev) -> usize) {
    for (mut lab, client, placement) in cases() {
        let mapped = attack(&mut lab, &client);
        drop(client);
        lab.judge();
        // the third page of each is a copy of its own where the placement makes such
        let copies = match placement {
            Placement::SingleUse | Placement::Untrusted { .. } => mapped,
            _ => 0,
        };
        let lost = lab.lost.len() + copies;
        lab.end_with(lost);
    }
}

impl Lab {
    /// Three tokens, not ended yet.
    fn burst(&mut self, client: &Dev) -> std::vec::IntoIter<Token> {
        let tokens: Vec<_> = (0..3).map(|_| self.token(client)).collect();
        tokens.into_iter()
    }
    /// A loan for ever.
    fn loan(&mut self, client: &Dev) -> Lent<Arc<[PhysRange]>> {
        client.unmap(self.token(client)).expect("unmapped")
    }
}

#[test]
fn buffers() {
    everywhere(|lab, client| {
        forget(lab.give(client, Fate::Lost));
        drop(lab.give(client, Fate::Lost));
        2
    });
}

#[test]
fn tokens_and_guards() {
    everywhere(|lab, client| {
        forget(lab.token(client));
        drop(lab.token(client));
        let guard = lab.loan(client);
        let guard = client.map_guarded(guard, BOTH).expect("room");
        lab.tell(guard.iova());
        forget(guard);
        let guard = lab.loan(client);
        let guard = client.map_guarded(guard, BOTH).expect("room");
        let (at, bounced) = (guard.iova(), guard.is_bounced());
        lab.tell(at);
        drop(guard);
        lab.ended(at, bounced);
        3
    });
}

/// Of the driver's own memory, which stays its own.
#[test]
fn slices() {
    const OURS: u8 = 7;
    const BYTES: usize = LEN.0 as usize;
    for (mut lab, client, placement) in cases() {
        let (mut one, mut other) = ([OURS; BYTES], vec![OURS; BYTES]);
        let lost = client.map_slice(&mut one[..], BOTH).expect("room");
        lab.tell(lost.iova());
        forget(lost);
        let dropped = client.map_slice(&mut other[..], BOTH).expect("room");
        lab.tell(dropped.iova());
        drop(dropped);
        let ended = client.map_slice([OURS; BYTES], BOTH).expect("room");
        lab.tell(ended.iova());
        let ended = ended.finish().expect("unmapped");
        drop(client);
        lab.judge();
        assert_eq!((&one[..], &other[..]), (&[OURS; BYTES][..], &one[..]), "P7");
        assert_eq!((ended[0], &ended[1..]), (DEVICE, &one[1..]), "P7");
        // without a pool, a copy has frames of its own
        let of_it = match placement {
            Placement::Never => PAGES,
            _ => 0,
        };
        lab.end_with(of_it);
    }
}

/// They end with mappings alive.
#[test]
fn streams() {
    everywhere(|lab, client| {
        let mut stream = client.stream(PageCount(8));
        let loan = lab.loan(client);
        let kept = client.map_in(&mut stream, loan, BOTH).expect("room");
        lab.tell(kept.iova());
        let loan = lab.loan(client);
        let dropped = client.map_in(&mut stream, loan, BOTH).expect("room");
        lab.tell(dropped.iova());
        drop((stream, dropped));
        client.unmap(kept).expect("unmapped");
        1
    });
}

/// One is forgotten at once, one when it is done, one is finished where it is dropped.
#[test]
fn unmaps_that_have_begun() {
    everywhere(|lab, client| {
        forget(client.unmap_start(&mut lab.burst(client)));
        let mut tokens = lab.burst(client);
        let mut pending = client.unmap_start(&mut tokens);
        assert!(pending.is_done(), "the unit answers at once");
        forget(pending);
        let mut tokens = lab.burst(client);
        let at = tokens
            .as_slice()
            .iter()
            .map(|token| (token.iova(), token.is_bounced()));
        let at: Vec<_> = at.collect();
        drop(client.unmap_start(&mut tokens));
        at.iter().for_each(|(at, bounced)| lab.ended(*at, *bounced));
        0
    });
}

#[test]
fn looks_that_panic() {
    everywhere(|lab, client| {
        let mut given = lab.give(client, Fate::Free);
        let whole = Span::new(ByteCount(0), LEN);
        let look = || client.with_cpu(&mut given, whole, |_| panic!("the driver panics"));
        assert!(catch_unwind(AssertUnwindSafe(look)).is_err());
        drop(client.take_back(given).expect("unmapped"));
        0
    });
}

/// At each of their calls in turn; then a watch that is on and off by turns.
#[test]
fn clocks_and_watches_that_panic() {
    for (mut lab, client, _) in cases() {
        for mood in (0..12).map(Mood::Bomb).chain([Mood::Fickle; 4]) {
            let buffer = client.buffer::<BothWays>(LEN).expect("memory");
            let list = buffer.list().clone();
            let work = || {
                MOOD.set(mood);
                let given = client.give(buffer).expect("room");
                let at: Vec<_> = given.segments().collect();
                (at, client.take_back(given).expect("unmapped"))
            };
            let done = catch_unwind(AssertUnwindSafe(work));
            MOOD.set(Mood::Quiet);
            match done {
                Ok((at, buffer)) => {
                    lab.told.extend(at.iter().map(|at| at.page()));
                    drop(buffer);
                }
                // it may be mapped, or not
                Err(_) => lab.lost.extend(list.iter().map(|at| at.addr.page())),
            }
        }
        assert!(!lab.lost.is_empty(), "nothing panicked");
        // what the device was not told lies where the aperture ends
        let end = lab.domain.translator().aperture().end().0;
        lab.told.extend((end - 128..end).map(IovaPage));
        drop(client);
        lab.judge();
    }
}

/// By the domain's own interface.
#[test]
fn mappings_chunks_and_arrays() {
    for policy in POLICIES {
        let mut lab = Lab::new(policy);
        let domain = lab.domain.clone();
        let own = |lab: &mut Lab| {
            let frame = lab.host.frame_alloc().expect("memory").publish();
            lab.lost.push(frame.page());
            PhysRange::page(frame.page())
        };
        let page = own(&mut lab);
        let mapping = domain.map(page, BOTH).expect("room");
        lab.tell(mapping.iova());
        drop(mapping); // which ends nothing
        let mut chunk = domain.chunk(PageCount(8)).expect("room");
        for _ in 0..3 {
            let page = own(&mut lab);
            let piece = chunk.map(page, BOTH).expect("room");
            lab.tell(piece.iova());
        }
        forget(chunk);
        let ring = domain.alloc_consistent(ByteCount(GRANULE)).expect("memory");
        lab.tell(ring.iova());
        lab.lost.push(ring.frames()[0].page());
        forget(ring);
        forget(domain.unmap_start(&mut {
            let page = own(&mut lab);
            let mapping = domain.map(page, BOTH).expect("room");
            lab.tell(mapping.iova());
            [mapping].into_iter()
        }));
        drop(domain);
        lab.judge();
        lab.end();
    }
}

/// They keep the domain, which is never ended then.
#[test]
fn what_keeps_its_domain() {
    for policy in POLICIES {
        let mut lab = Lab::new(policy);
        let client = lab.client(Placement::Never);
        let rings = [(); 3].map(|()| client.alloc_coherent::<u32>(7).expect("memory"));
        for ring in &rings {
            lab.tell(ring.iova());
        }
        let [forgotten, leaked, dropped] = rings;
        lab.lost
            .extend([&forgotten, &leaked].map(|ring| ring.frames().first));
        let given = lab.give(&client, Fate::Lost);
        forget(client.take_back(given).expect("unmapped"));
        let at = dropped.iova();
        let mut stream = client.stream(PageCount(8));
        let loan = lab.loan(&client);
        let piece = client.map_in(&mut stream, loan, BOTH).expect("room");
        lab.tell(piece.iova());
        forget((stream, piece));
        forget(forgotten);
        leaked.leak();
        drop((client, dropped));
        lab.ended(at, false);
        lab.judge();
        let (lost, host) = (lab.lost.len(), lab.host.clone());
        let Lab {
            domain,
            dma,
            stranger,
            victims,
            ..
        } = lab;
        drop((dma, stranger, victims));
        domain.flush().expect("the unit answers");
        let tables = domain.audit().expect("P10").census.frames as usize;
        assert!(
            host.frames_in_use() >= lost + tables,
            "P10: what is lost stays"
        );
    }
}

/// Everything that a driver holds, dropped in every order.
#[test]
fn every_order() {
    for policy in [POLICIES[0], POLICIES[1]] {
        for order in 0..120 {
            let mut lab = Lab::new(policy);
            lab.what += &format!(", order {order}");
            let client = lab.client([Placement::Never, Placement::Always][order % 2]);
            let given = lab.give(&client, Fate::Lost);
            let seen = lab.give(&client, Fate::Free);
            let seen = client.take_back(seen).expect("unmapped");
            let ring = client.alloc_coherent::<u64>(9).expect("memory");
            lab.tell(ring.iova());
            let again = lab.dma.clone();
            let mut things: Vec<Box<dyn std::any::Any>> = vec![
                Box::new(given),
                Box::new(seen),
                Box::new(ring),
                Box::new(client),
                Box::new(again),
            ];
            let mut rest = order;
            while !things.is_empty() {
                let left = things.len();
                drop(things.remove(rest % left));
                rest /= left;
                lab.strike();
            }
            lab.end();
        }
    }
}

/// A clone of the client on another thread ends what this one maps, and drops it there.
#[test]
fn on_another_thread() {
    everywhere(|lab, client| {
        let (to_other, from_here) = std::sync::mpsc::channel::<Given>();
        let (to_here, from_other) = std::sync::mpsc::channel();
        let clone = client.clone();
        let other = move || {
            for given in from_here {
                let buffer = clone.take_back(given).expect("unmapped");
                to_here.send(buffer).expect("the receiver is there");
            }
        };
        let other = std::thread::spawn(other);
        for _ in 0..4 {
            for _ in 0..2 {
                to_other
                    .send(lab.give(client, Fate::Free))
                    .expect("it lives");
            }
            drop(from_other.recv());
            let buffer = from_other.recv().expect("two were sent");
            to_other
                .send(lab.give_this(client, buffer, Fate::Free))
                .expect("it lives");
            drop(from_other.recv());
        }
        drop(to_other);
        other.join().expect("no panic");
        0
    });
}
