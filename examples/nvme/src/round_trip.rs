// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One page to the device, back to another page, and no further: the smallest whole use of a
//! [`Domain`], for whatever is below it.
//!
//! `examples/everywhere` runs this very function over a software unit, over QEMU's VT-d unit driven
//! by our driver, and over VFIO.

use crate::{
    edu::{Edu, EduError},
    memory::OWNER,
    pattern,
    window::RegisterWindow,
};
use ioatlas_dma::{
    domain::{Domain, MapError, UnmapError},
    platform::{CopyMemory, NotMemoryError, Platform},
    translator::{AttachError, Translator},
    units::*,
};
use ioatlas_host::Host;
use serde::Serialize;

/// What was seen of a page that went to the device and came back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct RoundTrip {
    /// Bytes that went to the device and came back.
    pub bytes: u64,
    /// Of those, the wrong ones.
    pub wrong_bytes: u64,
    /// Bytes that the device changed after the unmap.
    pub stray_bytes: u64,
}

impl RoundTrip {
    /// Whether all is as it should be.
    pub fn is_good(&self) -> bool {
        self.bytes > 0 && self.wrong_bytes == 0 && self.stray_bytes == 0
    }
}

/// Why it was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // its variants say it
pub enum RoundTripError {
    /// The domain does not take the device, or not let go of it.
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error(transparent)]
    Map(#[from] MapError),
    #[error(transparent)]
    Unmap(#[from] UnmapError),
    #[error(transparent)]
    Edu(#[from] EduError),
    /// The pages are no memory.
    #[error(transparent)]
    NotMemory(#[from] NotMemoryError),
    /// There are no pages.
    #[error("no memory for two pages")]
    NoMemory,
}

/// Makes it. The device is attached already.
///
/// # Errors
/// [`RoundTripError`]; what is mapped then stays so.
pub fn round_trip<T: Translator<Host>>(
    domain: &Domain<Host, T>,
    edu: &Edu<impl RegisterWindow>,
) -> Result<RoundTrip, RoundTripError> {
    const BYTES: ByteCount = ByteCount(1024);
    let host = domain.platform();
    let out = host.frame_alloc().ok_or(RoundTripError::NoMemory)?;
    let Some(back) = host.frame_alloc() else {
        host.frame_free(OWNER, out);
        return Err(RoundTripError::NoMemory);
    };
    let [from, to] = [&out, &back].map(|frame| PhysRange::new(frame.page().addr(), BYTES));
    pattern::plant(OWNER, &**host, 1, from)?;

    let reading = domain.map(from, Direction::ToDevice)?;
    let writing = domain.map(to, Direction::FromDevice)?;
    edu.begin_read(reading.iova(), BYTES)?.wait()?;
    edu.begin_write(writing.iova(), BYTES)?.wait()?;
    let mut bytes = [vec![0; BYTES.0 as usize], vec![0; BYTES.0 as usize]];
    host.read(OWNER, from.addr, &mut bytes[0])?;
    host.read(OWNER, to.addr, &mut bytes[1])?;
    let wrong = bytes[0].iter().zip(&bytes[1]).filter(|(a, b)| a != b);
    let wrong = wrong.count() as u64;

    let stale = writing.iova();
    domain.unmap(writing)?;
    domain.unmap(reading)?;
    pattern::plant(OWNER, &**host, 2, to)?;
    edu.begin_write(stale, BYTES)?.wait()?;
    let stray = pattern::changed(OWNER, &**host, 2, to)? as u64;
    host.frame_free(OWNER, out);
    host.frame_free(OWNER, back);
    Ok(RoundTrip {
        bytes: BYTES.0,
        wrong_bytes: wrong,
        stray_bytes: stray,
    })
}
