// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What needs a program that a machine may not have. Where it is missing the test is ignored, with
//! the package that has it as the reason.

use ioatlas_guest::Cache;
use libtest_mimic::{Arguments, Failed, Trial};
use std::{
    fs,
    process::{Command, ExitCode},
};

fn main() -> ExitCode {
    let missing = Command::new("xz").arg("--version").output().is_err();
    let kind = match missing {
        true => "no xz: apt-get install xz-utils",
        false => "",
    };
    let trial = Trial::test("a compressed module is decompressed", decompressed)
        .with_kind(kind)
        .with_ignored_flag(missing);
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}

/// `printf ELF | xz -9 --check=crc32`
const XZ: [u8; 56] = [
    253, 55, 122, 88, 90, 0, 0, 1, 105, 34, 222, 54, 2, 0, 33, 1, 28, 0, 0, 0, 16, 207, 88, 204, 1,
    0, 2, 69, 76, 70, 0, 0, 149, 114, 99, 74, 0, 1, 23, 3, 7, 96, 12, 188, 144, 66, 153, 13, 1, 0,
    0, 0, 0, 1, 89, 90,
];

fn decompressed() -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    // as the cache has it
    let package = directory.path().join("linux_1_amd64.unpacked-4");
    let modules = package.join("files/lib/modules");
    fs::create_dir_all(&modules)?;
    fs::write(package.join("control"), "Package: linux\n")?;
    fs::write(modules.join("virtio-iommu.ko.xz"), XZ)?;
    fs::write(modules.join("broken.ko.xz"), &XZ[..20])?;
    let tree = Cache::open(directory.path())?.tree(&["linux"])?;
    let module = tree.module("virtio_iommu")?;
    if module != b"ELF" {
        return Err(format!("decompressed to {module:?}").into());
    }
    match tree.module("broken") {
        Err(error) if error.to_string().contains("broken.ko.xz") => Ok(()),
        other => Err(format!("a file that ends too early: {other:?}").into()),
    }
}
