// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Fetches packages into the cache where the tests look for them, or with `--into NAME` into
//! another beside it; of a kernel's metapackage the newest that is there, else the one that it
//! stands for today:
//! `cargo run -p ioatlas-guest --example fetch -- linux-image-6.12-cloud-amd64 busybox-static`

use ioatlas_guest::Cache;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let mut directory =
        Cache::default_directory().ok_or("neither XDG_CACHE_HOME nor HOME is set")?;
    let mut names = std::env::args().skip(1).peekable();
    if names.next_if_eq("--into").is_some() {
        directory.set_file_name(names.next().ok_or("--into needs a name")?);
    }
    let cache = Cache::open(&directory)?;
    for name in names {
        let package = match name.starts_with("linux-image-") {
            true => cache.kernel_of(&name)?,
            false => name,
        };
        for package in cache.tree(&[&package])?.packages {
            println!("{package}");
        }
    }
    Ok(())
}
