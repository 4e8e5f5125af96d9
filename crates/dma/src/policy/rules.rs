// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The invalidation rules: *what* must be invalidated, whatever the policy that says *when*.
//!
//! # The table
//!
//! One row a situation, one test a row (`crates/viommu/tests/it/suite/rules.rs` has those that the
//! software unit can show). Sections are those of VT-d 4.1; §3.3 and §5 alone are ATC'15's. *Core*
//! is this crate, *driver* is `ioatlas-vtd`.
//!
//! | | situation | what must be done | where | source |
//! |---|---|---|---|---|
//! | R1 | leaves cleared, no entry above them changed | invalidate the pages in the IOTLB alone: page-selective, IH = 1 | core: [`Scope::leaves`], from `domain::fast_path`, `policy::unmap_batch`, `policy::round` and the queues; driver: `plan` | §6.5.2.3, IH |
//! | R2 | a non-leaf entry changed, or a table (or consistent memory) freed | the walk caches too: IH = 0, before the frame is freed | core: [`Scope::tables`], from `Batch::add_frame` and `Round::add_frame`; driver: `plan` | §6.5.2.3; ATC'15 §3.3 |
//! | R3 | a range larger than the largest address mask | a domain-selective invalidation | driver: `plan` | §6.5.2.3, AM; §11.4.2, MAMV |
//! | R4 | no page-selective invalidation | a domain-selective one | driver: `plan` | §11.4.2, PSI |
//! | R5 | the unit has several things to forget at once (a batch) | one domain-selective invalidation, IH = 0 by its nature; or, where the pages are known, as many page-selective ones as cost no more | core: [`Scope::DOMAIN`], from `policy::queue`; ranges, from `policy::round`; driver: `plan::Blocks` | §6.5.2.3, G; ATC'15 §3.2 |
//! | R6 | accesses are in flight that were translated before | drain reads and writes, where offered, with every invalidation that frees something | driver: `plan` | §6.5.2.3, DR and DW |
//! | R7 | an IOVA is given out again, or a table freed | not before an invalidation that began after the unmap is complete | core: [`crate::invalidation`] | ATC'15 §5 |
//! | R8 | caching mode: an absent entry becomes present | invalidate the pages, walk caches too, before map returns; undo the map if that fails | core: `Domain::install` by [`OnMap::Invalidate`] | §6.1 |
//! | R9 | caching mode: a context entry becomes present | invalidate the context cache for domain id 0 and the device, then the IOTLB; id 0 is never a domain's | driver: attach, `Ids` | §6.1 |
//! | R10 | RWBF: an entry becomes present | flush the unit's write buffers before map, or attach, returns | core: `Domain::install` by [`OnMap::FlushWriteBuffers`]; driver: attach | §6.8 |
//! | R11 | RWBF: an entry is cleared | nothing more: the unit flushes its write buffers before it carries out an invalidation | (the unit) | §6.8 |
//! | R12 | the unit does not snoop: any entry, leaf, table or context, is written | write the line back before the unit is told, or may look | core: [`Platform::publish`] from [`crate::table`]; driver: contexts, queue | §11.4.3, C |
//! | R13 | a context entry changes or goes | context cache, device-selective, then IOTLB, domain-selective, then wait | driver: `flush_context` | §6.5.2.1 |
//! | R14 | a device has a TLB of its own (ATS) | IOTLB, then each device's TLB, then wait for all; a device that does not answer is fenced | driver: `plan`, in this order into one queue | §6.5.2.5 |
//! | R15 | a domain id is used again | a domain-selective invalidation since the last translation of the old owner went | core: the flush of `Domain::close`, before [`Translator::retire_id`] | §6.5.2.3 |
//! | R16 | a larger leaf takes an emptied table's place, or a table a larger leaf's | walk caches and IOTLB of that span are flushed first, or live mappings fault or go astray | core: the allocation of the span is freed after R2 and in no other way; promotion over an empty table that is still linked: `domain::promote` | §6.5.2.3, IH; P14 |
//! | R17 | an invalidation fails or is never done | what it should have freed is never used again, and is counted; the error is said | core: `Quarantine`; driver: out of service | §11.4.7.1 |
//! | R18 | permissions are narrowed, or a leaf's target changes | unmap (R1), and only after it map again: no entry that is present is ever changed but by unmap, or in its ignored bits | core: [`crate::table`] | §6.1 |
//!
//! # How rules and policies fit
//!
//! A policy may ask for more than a rule (a batch flushes the domain where R1 asks for pages),
//! never for less: [`Retired::need`] holds what the rule says, and [`Retired::complete`] refuses a
//! completion that does not cover it. A unit may do more than it was asked for (R3, R4), never
//! less.
//!
//! `freebsd` makes R1 and R2 a page at a time; [`crate::invalidation`] argues why the pieces prove
//! the whole. `solaris` moves R1 to the next map of the range, and keeps R2 at unmap.
//!
//! [`Translator::retire_id`]: crate::translator::Translator::retire_id
//! [`OnMap::Invalidate`]: crate::invalidation::OnMap::Invalidate
//! [`OnMap::FlushWriteBuffers`]: crate::invalidation::OnMap::FlushWriteBuffers

#[cfg(doc)]
use crate::{invalidation::*, platform::Platform};
