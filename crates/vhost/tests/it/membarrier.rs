// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A process under a seccomp filter that refuses `membarrier`, as a back end installs that
//! sandboxes itself: no invalidation may seem done that is not.
//!
//! A filter cannot be removed, so each case is a process of its own: this very program, which is
//! told by a variable what to do.

use crate::common::*;
use ioatlas_dma::units::*;
use ioatlas_host::Host;
use ioatlas_vhost::{
    server::{FrontEnd, PageMap},
    *,
};
use std::{
    os::unix::process::ExitStatusExt,
    process::{Command, Output, Stdio},
};

const CASE: &str = "IOATLAS_MEMBARRIER_CASE";
const WENT_ON: &str = "the child went on to its end";

/// Which commands of `membarrier` a filter refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refuse {
    All,
    /// That which fences, not that which registers for it.
    Fences,
}

/// Runs `body` in a process of its own, for `test` of this module and `case` of that. `None`: this
/// is such a process, for another case.
fn child(test: &str, case: usize, body: impl FnOnce()) -> Option<Output> {
    match std::env::var(CASE) {
        Ok(asked) if asked == case.to_string() => {
            body();
            eprintln!("{WENT_ON}");
            std::process::exit(0);
        }
        Ok(_) => return None,
        Err(_) => (),
    }
    let test = format!("membarrier::{test}");
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &test, "--nocapture", "--test-threads", "1"])
        .env(CASE, case.to_string())
        .stdin(Stdio::null())
        .output();
    Some(child.unwrap())
}

fn went_on(child: &Output) -> bool {
    child.status.success() && said(child).contains(WENT_ON)
}
fn said(child: &Output) -> String {
    String::from_utf8_lossy(&child.stderr).into_owned()
}

/// Installs a filter for all threads of the process, under which `membarrier` fails with `errno`.
fn install(refuse: Refuse, errno: i32) {
    let statement = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let word = |offset: usize| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset as u32);
    let verdict = |verdict: u32| statement(libc::BPF_RET | libc::BPF_K, verdict);
    // Goes on where the word is `value`, else `skip` further.
    let unless = |value: u32, skip: u8| libc::sock_filter {
        jf: skip,
        ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value)
    };
    let number = libc::SYS_membarrier as u32;
    let mut program = vec![word(std::mem::offset_of!(libc::seccomp_data, nr))];
    match refuse {
        Refuse::All => program.push(unless(number, 1)),
        Refuse::Fences => {
            // the low half of the first argument, which is the command
            let command = word(std::mem::offset_of!(libc::seccomp_data, args));
            let fences = libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED as u32;
            program.extend([unless(number, 3), command, unless(fences, 1)]);
        }
    }
    program.push(verdict(libc::SECCOMP_RET_ERRNO | errno as u32));
    program.push(verdict(libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: takes plain numbers, and changes only what this thread may do.
    let quiet = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(quiet, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the filter and its program live until the call returns; the kernel copies them.
    let installed = unsafe {
        let (mode, all) = (
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
        );
        libc::syscall(libc::SYS_seccomp, mode, all, &raw const filter)
    };
    assert_eq!(installed, 0, "{}", std::io::Error::last_os_error());
}

/// Puts a page in, and takes it out again under the eyes of a reader.
fn invalidate(cache: &RadixIotlb) {
    let (iova, len) = (Iova(0x5000), ByteCount(GRANULE));
    let entry = Entry {
        iova,
        len,
        host: HostAddr(0x7f00_0000_0000),
        perm: Perm::ReadWrite,
    };
    assert_eq!(cache.update(entry), Ok(Updated::Done));
    cache.invalidate(iova, len);
}

#[test]
fn a_fence_that_fails_ends_the_process_with_a_sentence() {
    for (case, errno) in [libc::EPERM, libc::ENOSYS].into_iter().enumerate() {
        let test = "a_fence_that_fails_ends_the_process_with_a_sentence";
        let ran = child(test, case, || {
            let cache = RadixIotlb::new(Limits::default());
            let _reader = cache.reader().unwrap();
            invalidate(&cache);
            install(Refuse::All, errno);
            invalidate(&cache);
        });
        let Some(ran) = ran else { continue };
        assert!(
            !went_on(&ran),
            "P12: an invalidation was said to be done without a fence against readers: {ran:?}"
        );
        assert_eq!(ran.status.signal(), Some(libc::SIGABRT), "{ran:?}");
        assert!(said(&ran).contains("has to allow membarrier"), "{ran:?}");
    }
}

/// Then readers fence themselves, and there is nothing to be refused.
#[test]
fn a_filter_that_comes_first_is_lived_with() {
    for (case, refuse) in [Refuse::All, Refuse::Fences].into_iter().enumerate() {
        let ran = child("a_filter_that_comes_first_is_lived_with", case, || {
            install(refuse, libc::EPERM);
            let host = Host::new(Default::default());
            host.heavy_fence();
            host.light_fence();
            let cache = RadixIotlb::new(Limits::default());
            let _reader = cache.reader().unwrap();
            invalidate(&cache);
        });
        let Some(ran) = ran else { continue };
        assert!(went_on(&ran), "{refuse:?}: {ran:?}");
    }
}

/// A runner whose front end has a frame to move; ends with what moves it.
fn served_front_end(back: &Back) -> (FrontEnd<PageMap>, Driver) {
    let mut front = front_end(back, front_config(WITH_IOMMU));
    map(&front, FROM, FROM, 0x1000, Perm::Read);
    map(&front, TO, TO, 0x1000, Perm::Write);
    let driver = Driver::by_iova(&mut front, 0);
    (front, driver)
}

fn exchange((front, driver): &mut (FrontEnd<PageMap>, Driver)) {
    let got = driver.invert(front, (FROM, FROM), (TO, TO), b"over there");
    assert_eq!(got, inverted(b"over there"));
}

const FROM: u64 = GUEST + 0x10_0000;
const TO: u64 = GUEST + 0x20_0000;

fn radix_back_end() -> Back {
    let mut back = None;
    with_cache(Cache::Radix, || back = Some(Back::new(patient())));
    back.expect("made just now")
}

#[test]
fn a_back_end_under_a_filter_that_came_first_serves() {
    for (case, refuse) in [Refuse::All, Refuse::Fences].into_iter().enumerate() {
        let test = "a_back_end_under_a_filter_that_came_first_serves";
        let ran = child(test, case, || {
            install(refuse, libc::EPERM);
            let back = radix_back_end();
            for _ in 0..2 {
                let mut served = served_front_end(&back);
                exchange(&mut served);
                let server = served.0.server().clone();
                server.table().unmap(Iova(FROM), ByteCount(0x1000));
                server.invalidate(Iova(FROM), ByteCount(0x1000)).unwrap();
            }
        });
        let Some(ran) = ran else { continue };
        assert!(went_on(&ran), "{refuse:?}: {ran:?}");
    }
}

/// An acknowledgement would be a lie.
#[test]
fn a_back_end_that_may_not_fence_any_more_ends_with_a_sentence() {
    let test = "a_back_end_that_may_not_fence_any_more_ends_with_a_sentence";
    let ran = child(test, 0, || {
        let back = radix_back_end();
        let mut served = served_front_end(&back);
        exchange(&mut served);
        install(Refuse::All, libc::EPERM);
        let server = served.0.server().clone();
        server.table().unmap(Iova(FROM), ByteCount(0x1000));
        let _ = server.invalidate(Iova(FROM), ByteCount(0x1000));
    });
    let Some(ran) = ran else { return };
    assert!(!went_on(&ran), "P12: it was acknowledged: {ran:?}");
    assert_eq!(ran.status.signal(), Some(libc::SIGABRT), "{ran:?}");
    assert!(said(&ran).contains("has to allow membarrier"), "{ran:?}");
}
