// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The translator with tables of its own: a radix table, a remapping unit that walks it, and the id
//! that the unit knows it by.

use super::*;
use crate::table::{
    Format, LeafTable, Lifetime, Reclaim, Table, TableConfig, TableShape, TableView,
};

/// Our own radix table under a remapping unit.
pub struct Paged<P: Platform, F: Format, U: RemappingUnit<P>> {
    table: Table<P, F>,
    unit: U,
    id: DomainId,
    platform: Arc<P>,
}

/// Why a translator with tables of its own cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PagedError {
    /// No frame for the root table.
    #[error("no frame for the root table")]
    NoFrame,
    /// The unit has no domain id left, or gives none before it is activated (a live take-over).
    #[error("the unit has no domain id left")]
    NoDomainId,
    /// The unit walks memory of another platform.
    #[error("the unit walks memory of another platform")]
    OtherPlatform,
    /// The unit does not walk such tables: it would take them for something else.
    #[error("the unit does not walk {0}")]
    Shape(TableShape),
}

impl<P: Platform, F: Format, U: RemappingUnit<P>> Paged<P, F, U> {
    /// An empty table under `unit`, in memory of `platform`: that of the unit, and of the domain.
    ///
    /// # Errors
    /// [`PagedError`], if the unit is another platform's, does not walk such tables or has no
    /// domain id left, or there is no frame for the root.
    pub fn new(platform: &Arc<P>, unit: U, config: TableConfig) -> Result<Self, PagedError> {
        if unit.platform().is_some_and(|its| !same(its, platform)) {
            return Err(PagedError::OtherPlatform);
        }
        let shape = TableShape::of::<F>();
        if !unit.walks(shape) {
            return Err(PagedError::Shape(shape));
        }
        let p = &**platform;
        let config = TableConfig {
            largest_leaf: config.largest_leaf.clamp(1, unit.largest_leaf()),
            ..config
        };
        let id = unit.domain_id(p).ok_or(PagedError::NoDomainId)?;
        match Table::new(p, config) {
            Some(table) => Ok(Paged {
                table,
                unit,
                id,
                platform: platform.clone(),
            }),
            None => {
                unit.release_domain_id(OURS, p, id);
                Err(PagedError::NoFrame)
            }
        }
    }
    /// The table, to be looked at:
    ///
    /// ```
    /// # use ioatlas_dma::{iova::*, table::{fmt::*, *}, translator::*, units::*};
    /// # use ioatlas_host::*;
    /// # let p = std::sync::Arc::new(Host::new(HostConfig::default().frames(64)));
    /// # let paged = Paged::<_, VtdSecond48, _>::new(&p, Uncached::<Host>::new(), TableConfig::default())?;
    /// # let range = IovaRange::new(IovaPage(9), PageCount(1));
    /// assert_eq!(paged.table().walk(&p, range.first), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// And not to be changed, which [`Translator`] does for code that has the [`Authority`]:
    ///
    /// ```compile_fail,E0599
    /// # use ioatlas_dma::{iova::*, table::{fmt::*, *}, translator::*, units::*};
    /// # use ioatlas_host::*;
    /// # let p = std::sync::Arc::new(Host::new(HostConfig::default().frames(64)));
    /// # let paged = Paged::<_, VtdSecond48, _>::new(&p, Uncached::<Host>::new(), TableConfig::default())?;
    /// # let range = IovaRange::new(IovaPage(9), PageCount(1));
    /// paged.table().clear(&*p, range, AllocKind::Dynamic, drop);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn table(&self) -> TableView<'_, P, F> {
        self.table.view()
    }
    /// `leaf` without what the unit does not take.
    #[inline]
    fn allowed(&self, leaf: LeafAttrs) -> LeafAttrs {
        let lifetime = match leaf.lifetime {
            Lifetime::Transient if self.unit.transient_hint() == TransientHint::Reserved => {
                Lifetime::Normal
            }
            lifetime => lifetime,
        };
        LeafAttrs { lifetime, ..leaf }
    }
}

#[allow(unsafe_code)] // a promise
// SAFETY: the table's own, where nothing has to follow an installation.
unsafe impl<P: Platform, F: Format, U: RemappingUnit<P>> FastPath<P> for Paged<P, F, U> {
    #[inline]
    fn knows(&self, _: Authority, cpu: &Cpu<'_>, first: IovaPage) -> Option<LeafTable> {
        match self.unit.on_map() {
            OnMap::Nothing => self.table.knows(cpu, first),
            OnMap::FlushWriteBuffers | OnMap::Invalidate => None,
        }
    }
    fn get_to_know(
        &self,
        _: Authority,
        p: &P,
        cpu: &Cpu<'_>,
        first: IovaPage,
    ) -> Option<LeafTable> {
        match self.unit.on_map() {
            OnMap::Nothing => self.table.get_to_know(p, cpu, first),
            OnMap::FlushWriteBuffers | OnMap::Invalidate => None,
        }
    }
    #[inline(always)] // on the fast path, which calls nothing
    fn install_known<const MOST: usize>(
        &self,
        _: Authority,
        p: &P,
        range: IovaRange,
        to: PhysPage,
        leaf: LeafAttrs,
        table: LeafTable,
    ) -> bool {
        let leaf = self.allowed(leaf);
        self.table.install_known::<MOST>(p, range, to, leaf, table)
    }
    #[inline]
    fn learn(
        &self,
        _: Authority,
        p: &P,
        cpu: &Cpu<'_>,
        range: IovaRange,
        kind: AllocKind,
    ) -> Option<LeafTable> {
        self.table.learn(p, cpu, range, kind)
    }
    #[inline]
    fn leaves_in<'p>(
        &self,
        _: Authority,
        p: &'p P,
        range: IovaRange,
        table: LeafTable,
    ) -> Option<&'p [P::A64]> {
        Table::<P, F>::leaves_in(p, range, table)
    }
    #[inline(always)]
    fn clear_known<const MOST: usize>(&self, _: Authority, p: &P, leaves: &[P::A64]) -> bool {
        Table::<P, F>::clear_known::<MOST>(p, leaves)
    }
}

#[allow(unsafe_code)] // a promise
// SAFETY: the table is this translator's alone and does what its theory says; unit and id never
// change.
unsafe impl<P: Platform, F: Format, U: RemappingUnit<P>> Translator<P> for Paged<P, F, U> {
    type Unit = U;
    #[inline]
    fn unit(&self) -> &U {
        &self.unit
    }
    fn platform(&self) -> Option<&Arc<P>> {
        Some(&self.platform)
    }
    fn id(&self) -> DomainId {
        self.id
    }
    fn aperture(&self) -> IovaRange {
        F::aperture()
    }
    #[inline]
    fn install(
        &self,
        by: Authority,
        p: &P,
        range: IovaRange,
        runs: impl Iterator<Item = PhysRun>,
        leaf: LeafAttrs,
    ) -> Result<(), InstallError> {
        self.table.install(by, p, range, runs, self.allowed(leaf))
    }
    #[inline]
    fn may_promote(&self, range: IovaRange) -> bool {
        self.table.may_promote(range)
    }
    fn make_room(
        &self,
        by: Authority,
        p: &P,
        range: IovaRange,
        runs: impl Iterator<Item = PhysRun>,
        detached: impl FnMut(TableFrame),
    ) {
        self.table.make_room(by, p, range, runs, detached)
    }
    #[inline]
    fn clear(
        &self,
        by: Authority,
        p: &P,
        range: IovaRange,
        kind: AllocKind,
        detached: impl FnMut(TableFrame),
    ) -> Cleared {
        self.table.clear(by, p, range, kind, detached)
    }
    fn next_table(&self, p: &P, after: Option<IovaRange>) -> Option<TableSpan> {
        match self.table.config().reclaim {
            Reclaim::Emptied => self.table.next_table(p, after),
            Reclaim::Covered | Reclaim::Never => None,
        }
    }
    fn give_up(&self, by: Authority, p: &P, page: IovaPage) {
        self.table.give_up(by, p, page)
    }
    fn claim(&self, by: Authority, p: &P, range: IovaRange) -> Result<AllocKind, RawError> {
        self.table.claim(by, p, range)
    }
    fn attach(&self, by: Authority, p: &P, device: SourceId) -> Result<(), AttachError> {
        self.unit
            .attach(by, p, device, self.id, self.table.root(), F::LEVELS)
    }
    fn detach(&self, by: Authority, p: &P, device: SourceId) -> Result<(), AttachError> {
        self.unit.detach(by, p, device, self.id)
    }
    fn mappings(&self, p: &P, within: IovaRange, each: impl FnMut(IovaRange, AllocKind)) {
        self.table.mappings(p, within, each)
    }
    fn dismantle(&mut self, by: Authority, p: &P, detached: impl FnMut(TableFrame)) {
        self.table.dismantle(by, p, detached)
    }
    fn retire_id(&self, by: Authority, p: &P) {
        self.unit.release_domain_id(by, p, self.id)
    }
    fn audit(&self, p: &P, shared: Option<IovaRange>) -> Result<Census, alloc::string::String> {
        self.table.audit(p, shared)
    }
}
