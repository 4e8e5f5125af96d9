// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The right to change what devices reach, and what is in memory.

/// The right to change what devices reach: to write translations and to remove them, to attach and
/// to detach, to give ids back; to read and write memory by its physical address; and to have the
/// words of a frame, or to free one, at the platform that it is of. It is nothing at run time.
///
/// A domain has it, and hands it down to its translator, which hands it to its unit, with each
/// call. So what a domain shows ([`Domain::translator`], [`Domain::unit`]) can be looked at by all,
/// and changed by the domain alone: whatever else writes a leaf has no allocation of the page, and
/// whatever else clears one retires nothing.
///
/// ```
/// # use ioatlas_dma::{domain::*, iova::*, table::{fmt::*, *}, platform::*, translator::*, units::*};
/// # use ioatlas_host::*;
/// # let p = std::sync::Arc::new(Host::new(HostConfig::default().frames(64)));
/// # let table = Paged::<_, VtdSecond48, _>::new(&p, Uncached::<Host>::new(), TableConfig::default())?;
/// # let domain = Domain::new(p.clone(), table, DomainConfig::default())?;
/// # let range = IovaRange::new(IovaPage(9), PageCount(1));
/// # let run = std::iter::once(PhysRun::new(PhysPage(5), range.pages));
/// # let leaf = LeafAttrs::new(Perm::ReadWrite, AllocKind::Dynamic);
/// // SAFETY: an example; no device is attached.
/// let by = unsafe { Authority::assume() };
/// domain.translator().install(by, &*p, range, run, leaf)?;
/// # domain.translator().clear(by, &*p, range, AllocKind::Dynamic, drop);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It is not had by asking:
///
/// ```compile_fail,E0133
/// # use ioatlas_dma::{domain::*, iova::*, table::{fmt::*, *}, platform::*, translator::*, units::*};
/// # use ioatlas_host::*;
/// # let p = std::sync::Arc::new(Host::new(HostConfig::default().frames(64)));
/// # let table = Paged::<_, VtdSecond48, _>::new(&p, Uncached::<Host>::new(), TableConfig::default())?;
/// # let domain = Domain::new(p.clone(), table, DomainConfig::default())?;
/// # let range = IovaRange::new(IovaPage(9), PageCount(1));
/// # let run = std::iter::once(PhysRun::new(PhysPage(5), range.pages));
/// # let leaf = LeafAttrs::new(Perm::ReadWrite, AllocKind::Dynamic);
/// let by = Authority::assume();
/// domain.translator().install(by, &*p, range, run, leaf)?;
/// # domain.translator().clear(by, &*p, range, AllocKind::Dynamic, drop);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// And nothing is changed without it:
///
/// ```compile_fail,E0061
/// # use ioatlas_dma::{domain::*, iova::*, table::{fmt::*, *}, platform::*, translator::*, units::*};
/// # use ioatlas_host::*;
/// # let p = std::sync::Arc::new(Host::new(HostConfig::default().frames(64)));
/// # let table = Paged::<_, VtdSecond48, _>::new(&p, Uncached::<Host>::new(), TableConfig::default())?;
/// # let domain = Domain::new(p.clone(), table, DomainConfig::default())?;
/// # let range = IovaRange::new(IovaPage(9), PageCount(1));
/// # let run = std::iter::once(PhysRun::new(PhysPage(5), range.pages));
/// # let leaf = LeafAttrs::new(Perm::ReadWrite, AllocKind::Dynamic);
/// domain.translator().install(&*p, range, run, leaf)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`Domain::translator`]: crate::domain::Domain::translator
/// [`Domain::unit`]: crate::domain::Domain::unit
#[derive(Clone, Copy, Debug)]
pub struct Authority(());

impl Authority {
    /// For code that has a translator or a unit without a domain, or memory without the DMA API,
    /// such as a test of just that.
    ///
    /// # Safety
    /// Each call that it is given to is one that a domain might make at that moment. Above
    /// all: pages are installed and cleared by the only owner of their range; what was
    /// cleared, and frames that came out, are not used again before the unit has flushed them;
    /// a device is attached to a root that is a live table, under an id that is that table's,
    /// until it is detached; an id is given back after its last flush; a
    /// `LeafTable` serves as long as its mapping lives; bytes are read
    /// and written, and words shown, where they are the caller's, or lent to it; a frame is one of
    /// the platform that it is shown or given back to.
    #[allow(unsafe_code)] // a promise of its caller's
    pub const unsafe fn assume() -> Self {
        Authority(())
    }
}

/// That of a domain over its translator, whose allocations it has.
pub(crate) const OURS: Authority = Authority(());
