// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Planted bugs, to prove that the tests bite.
//!
//! Compiled in under `--cfg ioatlas_mutants` only; one build holds them all, and the environment variable
//! `IOATLAS_MUTANT` chooses one at run time. Without the cfg, [`active`] is the constant `false`.

/// A planted bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Mutant {
    /// An invalidation is reported done and never submitted.
    SkipFlush = 1,
    /// A completion settles what was retired after it began.
    SettleOlder,
    /// A completion settles pages that it did not cover.
    SettleUncovered,
    /// Undoing a half-made map gives the IOVA back at once.
    UndoWithoutFlush,
    /// Unmap gives the IOVA back at once.
    ReleaseAtRetire,
    /// A detached table is freed at once.
    FreeTableAtOnce,
    /// Invalidations do not ask for what is in flight to be drained.
    ForgetDrain,
    /// Retire does not fence between clearing and stamping.
    DropRetireFence,
    /// A magazine hands out an IOVA and keeps it.
    MagazineTwice,
    /// A changed context entry is not flushed from the context cache.
    SkipContextFlush,
    /// The driver leaves the IOTLB alone.
    SkipIotlbFlush,
    /// An invalidation that was submitted counts as done.
    SkipWait,
    /// Write buffers of the unit are not flushed.
    SkipWriteBufferFlush,
    /// Devices keep what is in their own TLBs.
    SkipDeviceTlbFlush,
    /// Device TLBs are flushed before the IOTLB.
    DeviceTlbFirst,
    /// Context entries are not written back for a unit that does not snoop.
    SkipWriteBack,
    /// Walk caches keep pointers to tables that were detached.
    KeepWalkCaches,
    /// A map is not flushed on a unit that caches absent entries.
    SkipFlushOnMap,
    /// The count of a shared leaf wraps where it is full.
    WrapCount,
    /// The last but one unmap of a shared leaf clears it.
    ReleaseSharedEarly,
    /// A large leaf takes the place of a table that walk caches may still point to.
    StaleWalkPromotion,
    /// Identity maps every page in the region of buffers to read.
    ForgetPermissionRegion,
    /// A map that met a full count keeps the pages that it had counted.
    LoseFallbackUndo,
    /// Every domain of a unit begins at the same page.
    ColourOverlap,
    /// CPUs go on using leaf tables that were detached.
    KeepKnownTables,
    /// Bounce buffers are handed on with what earlier users left.
    SkipBounceZero,
    /// The rest of a slot is copied back with the buffer.
    CopyWholeSlotBack,
    /// A slot goes to its next user before the bytes are copied back.
    ReturnSlotEarly,
    /// Slots are taken from the list of another permission.
    WrongSlotList,
    /// The tail of a split buffer is not copied.
    ForgetSplitTail,
    /// A device IOTLB merges neighbours whose host addresses are not contiguous.
    MergeElsewhere,
    /// An invalidation of a device IOTLB is done while a burst goes on.
    AckInBurst,
    /// The runner of a device acknowledges an invalidation without waiting for bursts.
    AckUnawaited,
    /// An update of a device IOTLB wins over an invalidation that races with it.
    UpdateBeats,
    /// A lookup that misses returns the base of another piece.
    ForeignBase,
    /// A device IOTLB evicts what is pinned.
    EvictRing,
    /// Address and length of an access wrap around unseen.
    WrapLength,
    /// What was looked up in a burst is used after it was left.
    KeepLookedUp,
    /// An unmap that the kernel refused is reported done.
    StuckUntold,
    /// A full kernel is asked again with everything still pending.
    KeepPendingWhenFull,
    /// A detached device stays a bus master, and is not reset.
    DetachUnquiet,
    /// Shared pages that nobody has any more stay in the kernel.
    SkipIdle,
    /// A shared page that is taken again is ended with the idle ones.
    KeepIdle,
    /// Two mappings end by one call with what lies between them.
    StretchOverGap,
    /// What a refused install had mapped is not recorded.
    ForgetPartial,
}

impl Mutant {
    /// Every planted bug.
    pub const ALL: [Mutant; 45] = [
        Mutant::SkipFlush,
        Mutant::SettleOlder,
        Mutant::SettleUncovered,
        Mutant::UndoWithoutFlush,
        Mutant::ReleaseAtRetire,
        Mutant::FreeTableAtOnce,
        Mutant::ForgetDrain,
        Mutant::DropRetireFence,
        Mutant::MagazineTwice,
        Mutant::SkipContextFlush,
        Mutant::SkipIotlbFlush,
        Mutant::SkipWait,
        Mutant::SkipWriteBufferFlush,
        Mutant::SkipDeviceTlbFlush,
        Mutant::DeviceTlbFirst,
        Mutant::SkipWriteBack,
        Mutant::KeepWalkCaches,
        Mutant::SkipFlushOnMap,
        Mutant::WrapCount,
        Mutant::ReleaseSharedEarly,
        Mutant::StaleWalkPromotion,
        Mutant::ForgetPermissionRegion,
        Mutant::LoseFallbackUndo,
        Mutant::ColourOverlap,
        Mutant::KeepKnownTables,
        Mutant::SkipBounceZero,
        Mutant::CopyWholeSlotBack,
        Mutant::ReturnSlotEarly,
        Mutant::WrongSlotList,
        Mutant::ForgetSplitTail,
        Mutant::MergeElsewhere,
        Mutant::AckInBurst,
        Mutant::AckUnawaited,
        Mutant::UpdateBeats,
        Mutant::ForeignBase,
        Mutant::EvictRing,
        Mutant::WrapLength,
        Mutant::KeepLookedUp,
        Mutant::StuckUntold,
        Mutant::KeepPendingWhenFull,
        Mutant::DetachUnquiet,
        Mutant::SkipIdle,
        Mutant::KeepIdle,
        Mutant::StretchOverGap,
        Mutant::ForgetPartial,
    ];

    /// The name by which `IOATLAS_MUTANT` chooses it.
    pub fn name(self) -> &'static str {
        match self {
            Mutant::SkipFlush => "skip-flush",
            Mutant::SettleOlder => "settle-older",
            Mutant::SettleUncovered => "settle-uncovered",
            Mutant::UndoWithoutFlush => "undo-without-flush",
            Mutant::ReleaseAtRetire => "release-at-retire",
            Mutant::FreeTableAtOnce => "free-table-at-once",
            Mutant::ForgetDrain => "forget-drain",
            Mutant::DropRetireFence => "drop-retire-fence",
            Mutant::MagazineTwice => "magazine-twice",
            Mutant::SkipContextFlush => "skip-context-flush",
            Mutant::SkipIotlbFlush => "skip-iotlb-flush",
            Mutant::SkipWait => "skip-wait",
            Mutant::SkipWriteBufferFlush => "skip-write-buffer-flush",
            Mutant::SkipDeviceTlbFlush => "skip-device-tlb-flush",
            Mutant::DeviceTlbFirst => "device-tlb-first",
            Mutant::SkipWriteBack => "skip-write-back",
            Mutant::KeepWalkCaches => "keep-walk-caches",
            Mutant::SkipFlushOnMap => "skip-flush-on-map",
            Mutant::WrapCount => "wrap-count",
            Mutant::ReleaseSharedEarly => "release-shared-early",
            Mutant::StaleWalkPromotion => "stale-walk-promotion",
            Mutant::ForgetPermissionRegion => "forget-permission-region",
            Mutant::LoseFallbackUndo => "lose-fallback-undo",
            Mutant::ColourOverlap => "colour-overlap",
            Mutant::KeepKnownTables => "keep-known-tables",
            Mutant::SkipBounceZero => "skip-bounce-zero",
            Mutant::CopyWholeSlotBack => "copy-whole-slot-back",
            Mutant::ReturnSlotEarly => "return-slot-early",
            Mutant::WrongSlotList => "wrong-slot-list",
            Mutant::ForgetSplitTail => "forget-split-tail",
            Mutant::MergeElsewhere => "merge-elsewhere",
            Mutant::AckInBurst => "ack-in-burst",
            Mutant::AckUnawaited => "ack-unawaited",
            Mutant::UpdateBeats => "update-beats",
            Mutant::ForeignBase => "foreign-base",
            Mutant::EvictRing => "evict-ring",
            Mutant::WrapLength => "wrap-length",
            Mutant::KeepLookedUp => "keep-looked-up",
            Mutant::StuckUntold => "stuck-untold",
            Mutant::KeepPendingWhenFull => "keep-pending-when-full",
            Mutant::DetachUnquiet => "detach-unquiet",
            Mutant::SkipIdle => "skip-idle",
            Mutant::KeepIdle => "keep-idle",
            Mutant::StretchOverGap => "stretch-over-gap",
            Mutant::ForgetPartial => "forget-partial",
        }
    }
}

/// Whether `mutant` is the one chosen for this run.
#[cfg(not(ioatlas_mutants))]
#[inline(always)]
pub const fn active(_mutant: Mutant) -> bool {
    false
}

#[cfg(ioatlas_mutants)]
pub use planted::active;

#[cfg(ioatlas_mutants)]
mod planted {
    use super::Mutant;
    use std::sync::OnceLock;

    static CHOSEN: OnceLock<Option<Mutant>> = OnceLock::new();

    /// Whether `mutant` is the one that `IOATLAS_MUTANT` names.
    ///
    /// # Panics
    /// If the variable names none that exists: a typo must not pass for a survivor.
    pub fn active(mutant: Mutant) -> bool {
        *CHOSEN.get_or_init(|| {
            let name = std::env::var("IOATLAS_MUTANT").ok()?;
            let known = Mutant::ALL.into_iter().find(|m| m.name() == name);
            Some(known.unwrap_or_else(|| panic!("IOATLAS_MUTANT={name}: no such mutant")))
        }) == Some(mutant)
    }
}
