// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Descriptors and capabilities, bit by bit, against numbers written out from the specification's
//! figures.

use ioatlas_dma::units::{DomainId, IovaPage, PhysAddr, SourceId};
use ioatlas_vtd::layout::*;

fn bits(words: Words) -> (u64, u64) {
    (words.low, words.high)
}

fn iotlb(target: IotlbTarget, drain: Drain) -> (u64, u64) {
    bits(IotlbInvalidate { target, drain }.encode())
}

#[test]
fn context_invalidation_has_its_type_granularity_and_ids() {
    assert_eq!(bits(ContextInvalidate::Global.encode()), (0x11, 0));
    for id in 0..=u16::MAX {
        let domain = ContextInvalidate::Domain(DomainId(id));
        assert_eq!(bits(domain.encode()), (u64::from(id) * 0x1_0000 + 0x21, 0));
        let device = ContextInvalidate::Device {
            domain: DomainId(!id),
            device: SourceId(id),
            functions: FunctionMask::Exact,
        };
        let low = u64::from(id) * 0x1_0000_0000 + u64::from(!id) * 0x1_0000 + 0x31;
        assert_eq!(bits(device.encode()), (low, 0));
    }
    for (functions, low) in [
        (FunctionMask::Exact, 0x31),
        (FunctionMask::Bit2, 0x0001_0000_0000_0031),
        (FunctionMask::Bits21, 0x0002_0000_0000_0031),
        (FunctionMask::All, 0x0003_0000_0000_0031),
    ] {
        let device = ContextInvalidate::Device {
            domain: DomainId(0),
            device: SourceId(0),
            functions,
        };
        assert_eq!(bits(device.encode()), (low, 0), "{functions:?}");
    }
}

#[test]
fn iotlb_invalidation_has_its_granularity_domain_and_drains() {
    let both = Drain::READS.with(Drain::WRITES);
    for (drain, extra) in [
        (Drain::NONE, 0),
        (Drain::WRITES, 0x40),
        (Drain::READS, 0x80),
        (both, 0xc0),
    ] {
        assert_eq!(iotlb(IotlbTarget::Global, drain), (0x12 + extra, 0));
        for id in [0, 1, 0x8000, 0xffff] {
            let want = (u64::from(id) * 0x1_0000 + 0x22 + extra, 0);
            assert_eq!(iotlb(IotlbTarget::Domain(DomainId(id)), drain), want);
        }
    }
}

#[test]
fn page_invalidation_has_every_address_bit_mask_and_hint() {
    let pages = |first, lg2, hint| {
        let target = IotlbTarget::Pages {
            domain: DomainId(0),
            first: IovaPage(first),
            mask: AddressMask::new(lg2).unwrap(),
            hint,
        };
        iotlb(target, Drain::NONE)
    };
    for bit in 0..52 {
        let want = (0x32, 1u64 << (bit + 12));
        assert_eq!(pages(1 << bit, 0, LeafHint::Anything), want);
    }
    for lg2 in 0..64 {
        assert_eq!(pages(0, lg2, LeafHint::Anything), (0x32, u64::from(lg2)));
        let hinted = (0x32, 0x40 + u64::from(lg2));
        assert_eq!(pages(0, lg2, LeafHint::LeavesOnly), hinted);
    }
    assert_eq!(AddressMask::new(64), None, "AM has six bits");
}

#[test]
fn a_wait_descriptor_has_its_data_address_and_fence() {
    let wait = |address, data, order| {
        let address = PhysAddr(address);
        bits(
            StatusWait {
                address,
                data,
                order,
            }
            .encode(),
        )
    };
    assert_eq!(wait(0, 0, WaitOrder::Unfenced), (0x25, 0));
    assert_eq!(wait(0, 0, WaitOrder::Fenced), (0x65, 0));
    for bit in 0..32 {
        let want = ((1u64 << (bit + 32)) + 0x25, 0);
        assert_eq!(wait(0, 1 << bit, WaitOrder::Unfenced), want);
    }
    for bit in 2..52 {
        let want = (0x25, 1 << bit);
        assert_eq!(wait(1 << bit, 0, WaitOrder::Unfenced), want);
    }
}

/// One bit of CAP at a time changes one answer, and no other.
#[test]
fn each_single_bit_of_the_capabilities_answers_one_question() {
    type Question = (u32, fn(&Capabilities) -> bool);
    let cap: [Question; 9] = [
        (4, Capabilities::needs_write_buffer_flush),
        (5, Capabilities::protected_low_memory),
        (6, Capabilities::protected_high_memory),
        (7, Capabilities::caching_mode),
        (22, Capabilities::zero_length_reads),
        (39, Capabilities::page_selective),
        (54, Capabilities::drains_writes),
        (55, Capabilities::drains_reads),
        (63, Capabilities::root_pointer_flushes),
    ];
    let ecap: [Question; 7] = [
        (0, Capabilities::coherent_walks),
        (1, Capabilities::queued_invalidation),
        (2, Capabilities::device_tlb),
        (3, Capabilities::interrupt_remapping),
        (6, Capabilities::pass_through),
        (7, Capabilities::snoop_control),
        (43, Capabilities::scalable_mode),
    ];
    for bit in 0..64 {
        let (in_cap, in_ecap) = (
            Capabilities::new(1 << bit, 0),
            Capabilities::new(0, 1 << bit),
        );
        for (mine, ask) in cap {
            assert_eq!(ask(&in_cap), bit == mine, "CAP bit {bit}, asked {mine}");
            assert!(!ask(&in_ecap));
        }
        for (mine, ask) in ecap {
            assert_eq!(ask(&in_ecap), bit == mine, "ECAP bit {bit}, asked {mine}");
            assert!(!ask(&in_cap));
        }
        let leaves = (in_cap.leaves_2m(), in_cap.leaves_1g());
        assert_eq!(leaves, (bit == 34, bit == 35), "CAP bit {bit}");
    }
}

#[test]
fn each_number_of_the_capabilities_has_its_own_bits() {
    for nd in 0..8u64 {
        let ids = [16, 64, 256, 1024, 4096, 16384, 65536].get(nd as usize);
        assert_eq!(Capabilities::new(nd, 0).domain_ids(), ids.copied());
    }
    for bit in 0..64 {
        let unit = Capabilities::new(1 << bit, 1 << bit);
        let at = |low: u32, high: u32| {
            if (low..=high).contains(&bit) {
                1u32 << (bit - low)
            } else {
                0
            }
        };
        assert_eq!(unit.iova_bits(), at(16, 21) + 1, "MGAW, bit {bit}");
        assert_eq!(unit.fault_offset(), at(24, 33) as u16 * 16, "FRO {bit}");
        assert_eq!(unit.fault_records(), at(40, 47) + 1, "NFR, bit {bit}");
        assert_eq!(unit.iotlb_offset(), at(8, 17) as u16 * 16, "IRO {bit}");
        let widths = AddressWidth::ALL.map(|w| unit.supports_width(w));
        assert_eq!(widths, [bit == 9, bit == 10, bit == 11], "SAGAW {bit}");
        let psi = Capabilities::new(1 << bit | 1 << 39, 0);
        let mask = psi.max_address_mask().map(|m| m.pages_lg2());
        assert_eq!(mask, Some(at(48, 53)), "MAMV, bit {bit}");
    }
    let without = Capabilities::new(0x3f << 48, 0);
    assert_eq!(without.max_address_mask(), None, "MAMV needs PSI");
}

/// Read from QEMU 7.2 over its test socket, `aw-bits=48`; the facts are those of its documentation
/// and source.
#[test]
fn qemus_unit_is_read_as_it_is() {
    let unit = Capabilities::new(0x00d2_008c_222f_0606, 0xf42);
    assert_eq!(unit.domain_ids(), Some(65536));
    assert_eq!(unit.iova_bits(), 48);
    assert_eq!(unit.fault_offset(), 0x220);
    assert_eq!(unit.iotlb_offset(), 0xf0);
    assert_eq!(unit.drains(), Drain::READS.with(Drain::WRITES));
}
