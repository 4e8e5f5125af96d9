// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! IOTLB messages on the wire: one struct, three envelopes.
//!
//! `struct vhost_iotlb_msg` (`linux/vhost_types.h`) is 32 bytes of the machine's own byte order:
//! IOVA, size, front-end address, permission, type, six bytes of padding. The vhost-user protocol
//! puts the 12 bytes of its message header before it; vhost in the kernel puts it into a
//! `struct vhost_msg_v2` of 72 bytes. `vhost`'s own types name the values; its parser trusts the
//! kernel, so bytes from a front end are checked here.
//!
//! An update that cannot be understood is refused. An invalidation is never refused for what it
//! covers: size 0 and ranges that wrap mean everything from their start, since a device IOTLB may
//! always forget more than it was asked to (P13).

use ioatlas_dma::units::*;
pub use vhost::{VhostAccess, VhostIotlbType};

/// Bytes of a vhost-user message header: request, flags, size of the payload.
pub const HEADER_BYTES: usize = 12;
/// Bytes of a `struct vhost_iotlb_msg`.
pub const IOTLB_BYTES: usize = 32;
/// Bytes of a `struct vhost_msg_v2`: type, address space, and a union padded to 64 bytes.
pub const KERNEL_BYTES: usize = 72;

/// `VHOST_IOTLB_MSG_V2` of `linux/vhost_types.h`: the type in a `struct vhost_msg_v2`.
const KERNEL_V2: u32 = 2;
/// Where the union of a `struct vhost_msg_v2` begins.
const KERNEL_UNION: usize = 8;

/// Version 1 in bits 0 and 1 of a header's flags.
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// An address in the front end's memory, as it calls it:
/// what `SET_MEM_TABLE` names `userspace_addr`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FrontAddr(pub u64);

/// One `struct vhost_iotlb_msg`, decoded; which fields mean something depends on the type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IotlbMessage {
    /// Its type, which says what the other fields mean.
    pub kind: VhostIotlbType,
    /// The first address that it is about.
    pub iova: Iova,
    /// How many bytes; 0 in misses.
    pub len: ByteCount,
    /// Where an update maps `iova` to.
    pub front: FrontAddr,
    /// The permission granted (update) or wanted (miss, access failure).
    pub access: VhostAccess,
}

/// Why bytes are not an IOTLB message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MessageError {
    /// The payload has another length than the struct.
    #[error("IOTLB message of {0} bytes, not {IOTLB_BYTES}")]
    Length(usize),
    /// Not one of `VHOST_IOTLB_MISS` to `VHOST_IOTLB_BATCH_END`.
    #[error("IOTLB message of unknown type {0}")]
    Kind(u8),
    /// Not one of `VHOST_ACCESS_RO`, `_WO`, `_RW` (or 0, where it does not matter).
    #[error("IOTLB message with unknown permission {0}")]
    Access(u8),
    /// An envelope of the kernel that is not `VHOST_IOTLB_MSG_V2`.
    #[error("message of type {0} from vhost in the kernel, not an IOTLB message")]
    Envelope(u32),
    /// An update of no bytes.
    #[error("update of no bytes at IOVA {:#x}", .0.0)]
    Empty(Iova),
    /// An update whose end is beyond the last address, in IOVAs or in the front end.
    #[error("update of {:#x} bytes at IOVA {:#x} wraps around", .1.0, .0.0)]
    Wraps(Iova, ByteCount),
    /// An update that grants nothing.
    #[error("update at IOVA {:#x} without permission", .0.0)]
    NoAccess(Iova),
}

impl IotlbMessage {
    /// A miss at `iova` for an access that needs `perm`. Its size is 0: the front end knows
    /// how much it maps.
    pub fn miss(iova: Iova, perm: Perm) -> Self {
        Self::about(VhostIotlbType::Miss, iova, ByteCount(0), access_of(perm))
    }

    /// An access of `len` bytes at `iova` that the front end's answer did not permit.
    pub fn access_fail(iova: Iova, len: ByteCount, perm: Perm) -> Self {
        Self::about(VhostIotlbType::AccessFail, iova, len, access_of(perm))
    }

    /// `len` bytes at `iova` are at `front` and may be used as `perm` says.
    pub fn update(iova: Iova, len: ByteCount, front: FrontAddr, perm: Perm) -> Self {
        let about = Self::about(VhostIotlbType::Update, iova, len, access_of(perm));
        IotlbMessage { front, ..about }
    }

    /// Forget `len` bytes at `iova`.
    pub fn invalidate(iova: Iova, len: ByteCount) -> Self {
        Self::about(VhostIotlbType::Invalidate, iova, len, VhostAccess::No)
    }

    fn about(kind: VhostIotlbType, iova: Iova, len: ByteCount, access: VhostAccess) -> Self {
        IotlbMessage {
            kind,
            iova,
            len,
            front: FrontAddr(0),
            access,
        }
    }

    /// Reads a `struct vhost_iotlb_msg`.
    ///
    /// # Errors
    /// Another length, an unknown type or permission.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let raw: &[u8; IOTLB_BYTES] = bytes
            .try_into()
            .map_err(|_| MessageError::Length(bytes.len()))?;
        let word = |at: usize| u64::from_ne_bytes(raw[at..at + 8].try_into().expect("eight bytes"));
        Ok(IotlbMessage {
            iova: Iova(word(0)),
            len: ByteCount(word(8)),
            front: FrontAddr(word(16)),
            access: match raw[24] {
                0 => VhostAccess::No,
                1 => VhostAccess::ReadOnly,
                2 => VhostAccess::WriteOnly,
                3 => VhostAccess::ReadWrite,
                other => return Err(MessageError::Access(other)),
            },
            kind: match raw[25] {
                1 => VhostIotlbType::Miss,
                2 => VhostIotlbType::Update,
                3 => VhostIotlbType::Invalidate,
                4 => VhostIotlbType::AccessFail,
                5 => VhostIotlbType::BatchBegin,
                6 => VhostIotlbType::BatchEnd,
                other => return Err(MessageError::Kind(other)),
            },
        })
    }

    /// Writes a `struct vhost_iotlb_msg`, padding zeroed.
    pub fn encode(&self) -> [u8; IOTLB_BYTES] {
        let mut raw = [0; IOTLB_BYTES];
        raw[0..8].copy_from_slice(&self.iova.0.to_ne_bytes());
        raw[8..16].copy_from_slice(&self.len.0.to_ne_bytes());
        raw[16..24].copy_from_slice(&self.front.0.to_ne_bytes());
        raw[24] = self.access as u8;
        raw[25] = self.kind as u8;
        raw
    }

    /// Reads a `struct vhost_msg_v2`.
    ///
    /// # Errors
    /// Another length, another type of envelope, and those of [`decode`](Self::decode).
    pub fn decode_kernel(bytes: &[u8]) -> Result<Self, MessageError> {
        if bytes.len() != KERNEL_BYTES {
            return Err(MessageError::Length(bytes.len()));
        }
        match u32::from_ne_bytes(bytes[..4].try_into().expect("four bytes")) {
            KERNEL_V2 => Self::decode(&bytes[KERNEL_UNION..KERNEL_UNION + IOTLB_BYTES]),
            other => Err(MessageError::Envelope(other)),
        }
    }

    /// Writes a `struct vhost_msg_v2` of address space 0.
    pub fn encode_kernel(&self) -> [u8; KERNEL_BYTES] {
        let mut raw = [0; KERNEL_BYTES];
        raw[..4].copy_from_slice(&KERNEL_V2.to_ne_bytes());
        raw[KERNEL_UNION..KERNEL_UNION + IOTLB_BYTES].copy_from_slice(&self.encode());
        raw
    }

    /// What an update maps, checked.
    ///
    /// # Errors
    /// It maps nothing, permits nothing, or wraps around.
    pub fn as_update(&self) -> Result<(Iova, ByteCount, FrontAddr, Perm), MessageError> {
        let last = match self.len.0.checked_sub(1) {
            None => return Err(MessageError::Empty(self.iova)),
            Some(last) => last,
        };
        if self.iova.0.checked_add(last).is_none() || self.front.0.checked_add(last).is_none() {
            return Err(MessageError::Wraps(self.iova, self.len));
        }
        let perm = perm_of(self.access).ok_or(MessageError::NoAccess(self.iova))?;
        Ok((self.iova, self.len, self.front, perm))
    }

    /// First and last address that an invalidation covers.
    pub fn invalidated(&self) -> (Iova, Iova) {
        let last = match self.len.0.checked_sub(1) {
            None => u64::MAX,
            Some(rest) => self.iova.0.saturating_add(rest),
        };
        (self.iova, Iova(last))
    }
}

/// The protocol's name of a permission.
pub fn access_of(perm: Perm) -> VhostAccess {
    match perm {
        Perm::Read => VhostAccess::ReadOnly,
        Perm::Write => VhostAccess::WriteOnly,
        Perm::ReadWrite => VhostAccess::ReadWrite,
    }
}

/// The permission that the protocol names so, if it permits anything.
pub fn perm_of(access: VhostAccess) -> Option<Perm> {
    match access {
        VhostAccess::No => None,
        VhostAccess::ReadOnly => Some(Perm::Read),
        VhostAccess::WriteOnly => Some(Perm::Write),
        VhostAccess::ReadWrite => Some(Perm::ReadWrite),
    }
}

/// The header of a vhost-user message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Which message: `FrontendReq` on the front end's socket, `BackendReq` on the back channel.
    pub request: u32,
    flags: u32,
    /// Bytes of payload that follow.
    pub size: u32,
}

impl Header {
    /// A request, with `size` bytes of payload, that asks for no reply.
    pub fn request(request: u32, size: usize) -> Self {
        Header {
            request,
            flags: VERSION,
            size: size as u32,
        }
    }

    /// The same, which asks for a reply.
    pub fn request_with_reply(request: u32, size: usize) -> Self {
        let quiet = Self::request(request, size);
        Header {
            flags: quiet.flags | NEED_REPLY,
            ..quiet
        }
    }

    /// The reply to `self`.
    pub fn reply(&self, size: usize) -> Self {
        Header {
            request: self.request,
            flags: VERSION | REPLY,
            size: size as u32,
        }
    }

    /// Reads a header; every pattern of bits is one.
    pub fn decode(raw: &[u8; HEADER_BYTES]) -> Self {
        let word = |at: usize| u32::from_ne_bytes(raw[at..at + 4].try_into().expect("four bytes"));
        Header {
            request: word(0),
            flags: word(4),
            size: word(8),
        }
    }

    /// The header's bytes, in the byte order of the machine.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut raw = [0; HEADER_BYTES];
        raw[0..4].copy_from_slice(&self.request.to_ne_bytes());
        raw[4..8].copy_from_slice(&self.flags.to_ne_bytes());
        raw[8..12].copy_from_slice(&self.size.to_ne_bytes());
        raw
    }

    /// Whether it is a request of the protocol's only version.
    pub fn is_request(&self) -> bool {
        self.flags & !NEED_REPLY == VERSION
    }

    /// Whether it answers `request`.
    pub fn answers(&self, request: &Header) -> bool {
        self.request == request.request && self.flags == VERSION | REPLY
    }

    /// Whether its sender waits for a reply.
    pub fn needs_reply(&self) -> bool {
        self.flags & NEED_REPLY != 0
    }
}
