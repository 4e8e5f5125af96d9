// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Arrays that CPU and device share for long: rings, mailboxes, lists of descriptors.
//!
//! A [`Coherent`] array is memory of the domain's own, contiguous for the CPU and for the device,
//! and mapped both ways until it is freed. The CPU reads and writes whole elements or single fields
//! of them by volatile accesses, since the device changes them at any time; there never is a
//! reference to them. What an element may be is bounded, so that any bytes are one
//! ([`FromBytes`]), and none of the CPU's own go to the device unseen ([`IntoBytes`]: no padding).
//!
//! # Ordering
//!
//! Accesses of one CPU to arrays are compiled in the order of the program. What the device sees of
//! them, and the CPU of the device's, is in that order only with fences
//! ([`core::sync::atomic::fence`]): `Release` between the elements and what tells the device of
//! them (an index in memory; a doorbell takes what its register window has), `Acquire` between what
//! tells of the device's elements (a phase bit, an index) and the elements.

use super::*;
use crate::{
    domain::{Consistent, MapError, UnmapError},
    units::*,
};
use core::{mem::MaybeUninit, ptr::NonNull};
use zerocopy::{FromBytes, IntoBytes};

/// Memory that CPU and device share: `Coherent<[T]>` is an array.
///
/// Dropping it unmaps and frees it, with an error to [`Dma::drop_errors`] and
/// [`DmaConfig::on_drop_error`]; its frames go back to the platform after the flush, whatever the
/// domain's policy. It keeps its domain alive.
#[must_use = "dropped at once, it is mapped and unmapped"]
pub struct Coherent<S: ?Sized> {
    at: NonNull<S>,
    /// There until it ends.
    memory: Option<Consistent>,
    owner: Arc<dyn Owner>,
}

// SAFETY: it owns the memory, which no other CPU reaches but by the array.
#[allow(unsafe_code)]
unsafe impl<S: ?Sized + Send> Send for Coherent<S> {}
// SAFETY: by a shared reference it is read only.
#[allow(unsafe_code)]
unsafe impl<S: ?Sized + Sync> Sync for Coherent<S> {}

/// What ends an array, whatever its types are.
pub(super) trait Owner: Send + Sync {
    fn end(&self, memory: Consistent) -> Result<(), UnmapError>;
    fn end_dropped(&self, memory: Consistent);
}

impl<P: CopyMemory, T: Translator<P>, D: Watch<P>> Owner for Dma<P, T, D> {
    fn end(&self, memory: Consistent) -> Result<(), UnmapError> {
        self.domain.free_consistent(memory)
    }
    fn end_dropped(&self, memory: Consistent) {
        if let Err(error) = self.end(memory) {
            self.failed_on_drop(&error);
        }
    }
}

impl<P, T, D> Client<P, T, D>
where
    P: CopyMemory + ContiguousMemory,
    T: Translator<P>,
    D: Watch<P> + 'static,
{
    /// An array of `count` zeroed elements that CPU and device may use at any time, within the
    /// client's [address limits](ClientConfig::limits) and never bounced. It is whole granules, all
    /// of which the device reaches; it begins at one.
    ///
    /// ```
    /// use ioatlas_dma::{dma_api::*, domain::*, platform::*, translator::Uncached, units::*};
    /// use core::{mem::offset_of, sync::atomic::fence};
    /// use zerocopy::{FromBytes, IntoBytes};
    /// # use ioatlas_dma::{translator::{Paged, TableConfig, VtdSecond48}};
    /// # use ioatlas_host::*;
    /// # use std::sync::Arc;
    /// # let p = Arc::new(Host::new(HostConfig::default().frames(64)));
    /// # let table = Paged::<_, VtdSecond48, _>::new(&p, Uncached::<Host>::new(), TableConfig::default())?;
    /// # let domain = Arc::new(Domain::new(p.clone(), table, DomainConfig::default())?);
    /// # let dma = Arc::new(Dma::new(domain, DmaConfig::default()));
    /// # let disk = dma.client(ClientConfig::default())?;
    /// # fn write_register(_: u64) {}
    /// #[derive(FromBytes, IntoBytes)]
    /// #[repr(C, align(8))]
    /// struct Completion {
    ///     result: u32,
    ///     reserved: u32,
    ///     head: u16,
    ///     queue: u16,
    ///     id: u16,
    ///     status: u16,
    /// }
    ///
    /// let ring = disk.alloc_coherent::<Completion>(1024)?;
    /// write_register(ring.iova().0);
    /// // later: has the device written element 7? Its status is looked at first, and the rest of
    /// // it after that.
    /// if ring.read_field::<u16>(7, offset_of!(Completion, status)) & 1 == 1 {
    ///     fence(Ordering::Acquire);
    ///     let completion = ring.read(7);
    ///     println!("command {} is done", completion.id);
    /// }
    /// // ... when the device has forgotten the ring
    /// ring.free()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`MapError`]; nothing is allocated then.
    pub fn alloc_coherent<E: FromBytes + IntoBytes>(
        &self,
        count: usize,
    ) -> Result<Coherent<[E]>, MapError> {
        Coherent::array(count, |pages| self.shared(pages))
    }

    /// Memory for an array, and what ends it.
    pub(super) fn shared(&self, pages: PageCount) -> Result<Shared, MapError> {
        let limits = self.config().limits;
        let (memory, first) = self.dma.domain.alloc_contiguous(pages, limits)?;
        Ok((memory, first, self.dma.clone()))
    }
}

/// Memory, where its first byte is, and what ends it.
pub(super) type Shared = (Consistent, NonNull<u8>, Arc<dyn Owner>);

impl<E: FromBytes + IntoBytes> Coherent<[E]> {
    /// An array in what `memory` gives, which is zeroed, and so many granules.
    pub(super) fn array(
        count: usize,
        memory: impl FnOnce(PageCount) -> Result<Shared, MapError>,
    ) -> Result<Self, MapError> {
        const {
            assert!(size_of::<E>() > 0, "an element without bytes");
            assert!(align_of::<E>() as u64 <= GRANULE, "beyond a granule");
        }
        // what cannot be counted is more than there are addresses, and refused as such
        let bytes = (count as u64).saturating_mul(size_of::<E>() as u64);
        let (memory, first, owner) = memory(PageCount(bytes.div_ceil(GRANULE)))?;
        Ok(Coherent {
            at: NonNull::slice_from_raw_parts(first.cast(), count),
            memory: Some(memory),
            owner,
        })
    }
}

impl<S: ?Sized> Coherent<S> {
    fn memory(&self) -> &Consistent {
        self.memory.as_ref().expect("it has not ended")
    }

    /// Where the device finds the first byte.
    pub fn iova(&self) -> Iova {
        self.memory().iova()
    }

    /// Where the CPU finds it, for accesses of one's own: volatile, or atomic, and none once it has
    /// been freed.
    pub fn as_ptr(&self) -> NonNull<S> {
        self.at
    }

    /// Which frames of the platform it is.
    pub fn frames(&self) -> PhysRun {
        let frames = self.memory().frames();
        PhysRun::new(frames[0].page(), PageCount(frames.len() as u64))
    }

    /// Unmaps and frees it. The device has no use for it any more.
    ///
    /// # Errors
    /// [`UnmapError`], as from [`Domain::unmap`]; the memory is never used again then.
    pub fn free(mut self) -> Result<(), UnmapError> {
        match self.memory.take() {
            Some(memory) => self.owner.end(memory),
            None => Ok(()),
        }
    }

    /// Leaves it mapped, and its memory to the device, until the domain ends: for what a device
    /// that cannot be stopped still uses.
    pub fn leak(mut self) {
        self.memory = None;
    }
}

impl<E: FromBytes + IntoBytes> Coherent<[E]> {
    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.at.len()
    }
    /// Never: an array without elements is refused.
    pub fn is_empty(&self) -> bool {
        false
    }
    /// Where the device finds element `index`.
    ///
    /// # Panics
    /// If there is none.
    pub fn iova_of(&self, index: usize) -> Iova {
        let _ = self.element(index);
        Iova(self.iova().0 + (index * size_of::<E>()) as u64)
    }

    /// Reads element `index`, in words of its alignment, up to 8 bytes, from its first to its last.
    /// Each is read once and whole; what the device writes meanwhile may be in some of them and not
    /// in others.
    ///
    /// # Panics
    /// If there is none.
    pub fn read(&self, index: usize) -> E {
        // SAFETY: an element of memory that is ours until we are dropped.
        #[allow(unsafe_code)]
        unsafe {
            read(self.element(index))
        }
    }

    /// Writes element `index`, in words as [`read`](Self::read) does.
    ///
    /// # Panics
    /// If there is none.
    pub fn write(&mut self, index: usize, value: E) {
        // SAFETY: as above, and borrowed for writing.
        #[allow(unsafe_code)]
        unsafe {
            write(self.element(index), value)
        }
    }

    /// Reads the field that is `offset` bytes into element `index`
    /// ([`offset_of!`](core::mem::offset_of)), in words of *its* alignment.
    ///
    /// # Panics
    /// If there is no such element, or the field is not inside it, or not aligned.
    pub fn read_field<F: FromBytes>(&self, index: usize, offset: usize) -> F {
        // SAFETY: inside an element, and aligned.
        #[allow(unsafe_code)]
        unsafe {
            read(self.field(index, offset))
        }
    }

    /// Writes that field.
    ///
    /// # Panics
    /// As [`read_field`](Self::read_field).
    pub fn write_field<F: IntoBytes>(&mut self, index: usize, offset: usize, value: F) {
        // SAFETY: as above, and borrowed for writing.
        #[allow(unsafe_code)]
        unsafe {
            write(self.field(index, offset), value)
        }
    }

    fn element(&self, index: usize) -> NonNull<E> {
        let len = self.len();
        assert!(index < len, "element {index} of {len}");
        // SAFETY: inside.
        #[allow(unsafe_code)]
        unsafe {
            self.at.cast().add(index)
        }
    }

    fn field<F>(&self, index: usize, offset: usize) -> NonNull<F> {
        let (size, len) = (size_of::<E>(), size_of::<F>());
        let inside = offset <= size && len <= size - offset;
        assert!(inside, "{len} bytes at {offset} of an element of {size}");
        // SAFETY: inside.
        #[allow(unsafe_code)]
        let at = unsafe { self.element(index).byte_add(offset) }.cast::<F>();
        assert!(at.is_aligned(), "a field at {offset} that is not aligned");
        at
    }
}

impl<S: ?Sized> Drop for Coherent<S> {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.owner.end_dropped(memory);
        }
    }
}

impl<E> fmt::Debug for Coherent<[E]> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.at.len();
        write!(f, "Coherent([{len}] at {})", self.iova())
    }
}

/// Moves what `$from` points to, in words of `$t`'s alignment, by a function of two pointers to
/// words and their number.
macro_rules! in_words {
    ($t:ty, $words:ident, $from:expr, $to:expr) => {
        match align_of::<$t>() {
            1 => $words::<u8>($from.cast(), $to.cast(), size_of::<$t>()),
            2 => $words::<u16>($from.cast(), $to.cast(), size_of::<$t>() / 2),
            4 => $words::<u32>($from.cast(), $to.cast(), size_of::<$t>() / 4),
            _ => $words::<u64>($from.cast(), $to.cast(), size_of::<$t>() / 8),
        }
    };
}

/// # Safety
/// `from` points to as many bytes as a `V` has, aligned, which may be read by volatile accesses.
#[allow(unsafe_code)]
#[inline]
unsafe fn read<V: FromBytes>(from: NonNull<V>) -> V {
    let mut value = MaybeUninit::<V>::uninit();
    // SAFETY: the caller's for the source; the target is as large. All of its bytes have been
    // written then, and any bytes are a `V`.
    unsafe {
        in_words!(V, read_words, from.as_ptr(), value.as_mut_ptr());
        value.assume_init()
    }
}

/// # Safety
/// As [`read`], for writing.
#[allow(unsafe_code)]
#[inline]
unsafe fn write<V: IntoBytes>(to: NonNull<V>, value: V) {
    // SAFETY: the caller's for the target; each byte of the source is initialised.
    unsafe { in_words!(V, write_words, &raw const value, to.as_ptr()) }
}

/// # Safety
/// So many words at `from` may be read by volatile accesses, and as many at `to` written.
#[allow(unsafe_code)]
#[inline]
unsafe fn read_words<W: Copy>(from: *const W, to: *mut W, words: usize) {
    for nth in 0..words {
        // SAFETY: the caller's.
        unsafe { to.add(nth).write(from.add(nth).read_volatile()) }
    }
}

/// # Safety
/// So many words at `from` may be read, and as many at `to` written by volatile accesses.
#[allow(unsafe_code)]
#[inline]
unsafe fn write_words<W: Copy>(from: *const W, to: *mut W, words: usize) {
    for nth in 0..words {
        // SAFETY: the caller's.
        unsafe { to.add(nth).write_volatile(from.add(nth).read()) }
    }
}
