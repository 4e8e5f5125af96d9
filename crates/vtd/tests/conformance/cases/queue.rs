// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The queue: descriptors taken and refused, the wait descriptor's fields, wrap, error and recovery
//! (VT-d 4.1 §6.5.2).
//!
//! Avoided by name: a wait descriptor with status write and interrupt, on which QEMU aborts; one
//! with neither, which the specification allows (§6.5.2.8) and QEMU refuses.

use super::*;

pub fn cases() -> Vec<Case> {
    let mut all: Vec<Case> = vec![
        wrap(),
        full_ring(),
        tail_again(),
        off_and_on(),
        neither_status_nor_interrupt(),
    ];
    all.extend([1, 2, 3, 17, 255].map(batch));
    all.extend((0..32).map(status_data_bit));
    all.extend([4, 8, 0x7c, 0xffc].map(status_address));
    all.extend([WaitOrder::Unfenced, WaitOrder::Fenced].map(fence));
    all.extend((0..16).filter(|kind| !(1..=5).contains(kind)).map(bad_type));
    all.extend(refused());
    all.extend(interrupts());
    all
}

/// A page that a descriptor behind the tail would take away.
fn stale_page(run: &mut Run<'_>) -> Tables {
    let tables = begin(run);
    run.map(tables, PAGE, A, Perm::Read);
    run.reads("mapped", PAGE, A);
    run.unmap(tables, PAGE);
    tables
}

fn batch(count: usize) -> Case {
    Case::new(
        format!("{count} descriptors in one submission"),
        move |run| {
            stale_page(run);
            let mut words = vec![whole(DOMAIN ^ 1).encode(); count - 1];
            words.push(pages(DOMAIN, PAGE, 0).encode());
            if count == 255 {
                words.remove(0); // room for the wait descriptor
            }
            let done = run.submit(&words);
            run.see("done", done, true);
            run.blocked("flushed", PAGE);
        },
    )
}

fn wrap() -> Case {
    Case::new("the ring wraps", |run| {
        let tables = begin(run);
        for round in 0..130 {
            run.map(tables, PAGE, A, Perm::Read);
            let round = format!("round {round}");
            run.reads(&round, PAGE, A);
            run.unmap(tables, PAGE);
            let done = run.submit(&[pages(DOMAIN, PAGE, 0).encode()]);
            run.see(&round, done, true);
            run.blocked(&round, PAGE);
        }
        let head = run.registers().read64(IQH);
        run.see("the head", head, (260 % 256) << 4);
    })
}

fn full_ring() -> Case {
    Case::new("255 descriptors, twice", |run| {
        stale_page(run);
        for _ in 0..2 {
            let words = vec![whole(DOMAIN).encode(); 254];
            let done = run.submit(&words);
            run.see("done", done, true);
        }
        run.blocked("flushed", PAGE);
    })
}

fn tail_again() -> Case {
    Case::new("the tail is written again", |run| {
        stale_page(run);
        let wait = run.next_wait();
        run.push(wait);
        run.push(pages(DOMAIN, PAGE, 0).encode());
        run.tail -= 1;
        run.ring_tail();
        run.ring_tail();
        let arrived = run.arrived();
        run.see("the wait is done", arrived, true);
        run.reads("what is behind the tail is not", PAGE, A);
        run.tail += 1;
        run.ring_tail();
        run.blocked("until the tail moves", PAGE);
    })
}

fn off_and_on() -> Case {
    Case::new("the queue off and on again, elsewhere", |run| {
        stale_page(run);
        let done = run.submit(&[]);
        run.see("empty", done, true);
        let off = run.command(GCMD_QIE, false);
        run.see("off", off, true);
        let head = run.registers().read64(IQH);
        run.see("the head", head, 0);
        run.ring = run.frame();
        run.start_queue();
        run.reads("nothing is flushed by that", PAGE, A);
        run.invalidate(&[pages(DOMAIN, PAGE, 0)]);
        run.blocked("flushed", PAGE);
    })
}

fn status_data_bit(bit: u32) -> Case {
    Case::new(format!("status data, bit {bit}"), move |run| {
        begin(run);
        let data = 1 << bit;
        let wait = |address| StatusWait {
            address,
            data,
            order: WaitOrder::Unfenced,
        };
        run.push(wait(run.status.addr()).encode());
        run.ring_tail();
        run.submit(&[]);
        // the second submission overwrites it: look at a word of its own
        let other = run.frame();
        run.push(wait(other.addr()).encode());
        run.ring_tail();
        let _ = run.arrived();
        let got = run.load(other, 0);
        run.see("written", format!("{got:#x}"), format!("{data:#x}"));
    })
}

fn status_address(offset: u64) -> Case {
    Case::new(format!("status at offset {offset:#x}"), move |run| {
        begin(run);
        let frame = run.frame();
        for word in 0..512 {
            run.store(frame, word, u64::MAX);
        }
        let address = PhysAddr(frame.addr().0 + offset);
        let (data, order) = (0x1357_9bdf, WaitOrder::Unfenced);
        run.push(
            StatusWait {
                address,
                data,
                order,
            }
            .encode(),
        );
        let done = run.submit(&[]);
        run.see("done", done, true);
        let at = (offset / 8) as usize;
        let want = match offset % 8 {
            0 => 0xffff_ffff_1357_9bdf,
            _ => 0x1357_9bdf_ffff_ffff_u64,
        };
        let got = run.load(frame, at);
        run.see("four bytes", format!("{got:#x}"), format!("{want:#x}"));
        let untouched = (0..512)
            .filter(|word| run.load(frame, *word) == u64::MAX)
            .count();
        run.see("words left alone", untouched, 511);
    })
}

fn fence(order: WaitOrder) -> Case {
    Case::new(format!("a wait in between, {order:?}"), move |run| {
        stale_page(run);
        let (address, data) = (run.status.addr(), 0);
        run.push(
            StatusWait {
                address,
                data,
                order,
            }
            .encode(),
        );
        run.invalidate(&[pages(DOMAIN, PAGE, 0)]);
        run.blocked("flushed", PAGE);
    })
}

/// What stops the queue, stops it there; and it goes on once the descriptor is another and the
/// error is cleared.
fn stops_at(run: &mut Run<'_>, bad: Words) {
    stale_page(run);
    let fine = whole(DOMAIN ^ 1).encode();
    let done = run.submit(&[fine, bad, pages(DOMAIN, PAGE, 0).encode()]);
    run.see("done", done, false);
    let r = run.registers();
    let error = r.read32(FSTS) & FSTS_QUEUE;
    run.see(
        "the queue's error",
        format!("{error:#x}"),
        format!("{FSTS_IQE:#x}"),
    );
    let head = r.read64(IQH) >> IQ_INDEX_SHIFT;
    run.see("the head is at the bad one", head, 1);
    run.reads("nothing behind it is done", PAGE, A);
    // another one in its place
    run.store(run.ring, 2, fine.low);
    run.store(run.ring, 3, fine.high);
    run.ring_tail();
    run.reads("nor is it while the error stands", PAGE, A);
    r.write32(FSTS, FSTS_IQE);
    let error = r.read32(FSTS) & FSTS_QUEUE;
    run.see("the error is cleared", error, 0);
    run.ring_tail();
    let arrived = run.arrived();
    run.see("and the queue goes on", arrived, true);
    run.blocked("flushed", PAGE);
    run.invalidate(&[CONTEXTS, whole(DOMAIN)]);
}

fn bad_type(kind: u64) -> Case {
    let case = Case::new(format!("a descriptor of type {kind}"), move |run| {
        stops_at(run, Words { low: kind, high: 0 });
    });
    if ![6, 7].contains(&kind) {
        return case;
    }
    let taken = [
        ("done", "true"),
        ("the queue's error", "0x0"),
        ("the head is at the bad one", "4"),
        ("nothing behind it is done", "blocked"),
        ("nor is it while the error stands", "blocked"),
    ];
    taken.into_iter().fold(case, |case, (what, got)| {
        case.differs(Differs {
            which: Which::Qemu,
            what,
            got,
            clause: "6.5.2 (types 6 and 7)",
            why: "invalidations by PASID belong to scalable mode; QEMU takes them in legacy mode and does nothing",
        })
    })
}

fn refused() -> Vec<Case> {
    let words = |low, high| Words { low, high };
    let table = [
        ("a context invalidation of granularity 0", words(0x1, 0)),
        (
            "a context invalidation with a reserved bit",
            words(0x11 | 1 << 6, 0),
        ),
        (
            "a context invalidation with a reserved high bit",
            words(0x11, 1),
        ),
        ("an IOTLB invalidation of granularity 0", words(0x2, 0)),
        (
            "an IOTLB invalidation with a reserved bit",
            words(0x12 | 1 << 8, 0),
        ),
        (
            "a page-selective one with a reserved bit",
            words(0x32, 1 << 7),
        ),
        ("a page-selective one beyond MAMV", words(0x32, 19)),
        (
            "a wait descriptor with a reserved bit",
            words(0x25 | 1 << 8, 0),
        ),
    ];
    let case = |(name, bad)| Case::new(name, move |run| stops_at(run, bad));
    table.into_iter().map(case).collect()
}

fn neither_status_nor_interrupt() -> Case {
    Case::new("a wait descriptor that reports nowhere", |run| {
        stale_page(run);
        let silent = Words { low: 5, high: 0 };
        let done = run.submit(&[silent, pages(DOMAIN, PAGE, 0).encode()]);
        run.see("done", done, true);
        let reached = run.access(NIC, PAGE, AccessKind::Read);
        run.see("flushed", reached, Reach::Blocked);
    })
    .differs(REFUSES)
    .differs(Differs {
        what: "flushed",
        got: "page 0x50000",
        ..REFUSES
    })
}

const REFUSES: Differs = Differs {
    which: Which::Qemu,
    what: "done",
    got: "false",
    clause: "6.5.2.8",
    why: "a wait descriptor may ask for neither status write nor interrupt; QEMU stops with a queue error",
};

/// QEMU takes them with interrupt remapping off, too; the software unit has none, and refuses the
/// type.
fn interrupts() -> Vec<Case> {
    let first = InterruptIndex(6);
    let all = [
        ("all interrupt entries", InterruptInvalidate::Global),
        (
            "two interrupt entries",
            InterruptInvalidate::covering(first, 2, 15),
        ),
    ];
    let case = |(name, what): (&'static str, InterruptInvalidate)| {
        Case::new(name, move |run| {
            begin(run);
            let done = run.submit(&[what.encode()]);
            run.see("done", done, true);
        })
        .only(Only {
            which: Which::Qemu,
            clause: "6.5.2.7, 11.4.3",
            why: "the software unit is made without interrupt remapping here (ECAP.IR = 0), as QEMU is, which takes the descriptor all the same",
        })
    };
    all.into_iter().map(case).collect()
}
