// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Files of huge pages, and a pool without any.

use ioatlas_vhost::server::Sealed;
use rustix::fs::{FlockOperation, MemfdFlags, SealFlags};
use std::fs::File;
use vm_memory::{FileOffset, MmapRegion};

/// A file of huge pages, and the length of one.
pub fn huge_file(name: &str, pages: u64, sealed: Sealed) -> (File, u64) {
    let flags = MemfdFlags::HUGETLB | MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
    let file = File::from(rustix::fs::memfd_create(name, flags).unwrap());
    let page = rustix::fs::fstat(&file).unwrap().st_blksize as u64;
    file.set_len(pages * page).unwrap();
    if sealed == Sealed::Yes {
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    }
    (file, page)
}

/// All huge pages that nothing has reserved, so that there are none for anybody else. The pool is
/// the machine's; other runs of these tests wait meanwhile.
pub struct Drained {
    _pages: Vec<MmapRegion<()>>,
    _alone: File,
}

impl Drained {
    pub fn new() -> Self {
        /// More than this would take too long.
        const MOST: usize = 1 << 14;
        let path = std::env::temp_dir().join("ioatlas-huge-pages.lock");
        let mut options = File::options();
        let made = options.create(true).truncate(false).write(true).open(&path);
        // Another user's can be read.
        let alone = made.or_else(|_| File::open(&path)).unwrap();
        rustix::fs::flock(&alone, FlockOperation::LockExclusive).unwrap();
        let mut pages = Vec::new();
        let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        loop {
            // A mapping reserves its page.
            let (file, page) = huge_file("drained", 1, Sealed::No);
            let page = page as usize;
            match MmapRegion::build(Some(FileOffset::new(file, 0)), page, access, shared) {
                Ok(region) => pages.push(region),
                Err(_) => break,
            }
            assert!(pages.len() < MOST, "more than {MOST} huge pages");
        }
        Drained {
            _pages: pages,
            _alone: alone,
        }
    }
}
