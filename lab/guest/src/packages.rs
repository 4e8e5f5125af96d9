// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Debian packages as a supply of files: fetched, unpacked into a cache, never installed.
//!
//! `apt-get download` fetches what the machine's own lists say; `dpkg-deb` takes the package apart.
//! Of each package only programs, libraries, the kernel and some of its modules are kept; modules
//! that are compressed, as they are since Linux 6.10, stay so until they are read. A package that
//! is in the cache is not fetched again, so that a second guest needs no network; which version it
//! was fetched in, its directory's name says.
//!
//! A directory appears in the cache by a rename, so one that is there is whole.

use crate::GuestError;
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Parts of a kernel's tree of modules that a guest may need.
const MODULE_DIRECTORIES: [&str; 14] = [
    "kernel/arch/",
    "kernel/block/",
    "kernel/crypto/",
    "kernel/lib/",
    "kernel/net/core/",
    "kernel/fs/",
    "kernel/drivers/net/ethernet/intel/e1000/",
    "kernel/drivers/virtio/",
    "kernel/drivers/scsi/",
    "kernel/drivers/nvme/",
    "kernel/drivers/ata/",
    "kernel/drivers/vfio/",
    "kernel/drivers/iommu/",
    "kernel/virt/",
];
const MODULE_FILES: [&str; 2] = [
    "kernel/drivers/net/virtio_net.ko",
    "kernel/drivers/net/net_failover.ko",
];

/// The kernel itself, where it stands among its modules: since Linux 7.3 or so, in a package of its
/// own that `linux-image-` depends on.
const KERNEL_FILE: &str = "vmlinuz";

/// End of an unpacked package's name. The number is to grow when more of a package is kept.
const UNPACKED: &str = ".unpacked-4";

/// A directory that packages are fetched and unpacked into.
#[derive(Debug)]
pub struct Cache {
    directory: PathBuf,
}

/// Unpacked packages, as one tree.
#[derive(Debug, Default)]
pub struct Tree {
    /// By file name: programs and libraries are looked for so.
    files: BTreeMap<String, Vec<PathBuf>>,
    /// Package and version, in order.
    pub packages: BTreeSet<String>,
}

impl Cache {
    /// The cache in `directory`, which is made if there is none.
    pub fn open(directory: &Path) -> Result<Self, GuestError> {
        fs::create_dir_all(directory).map_err(|source| GuestError::file(directory, source))?;
        Ok(Self {
            directory: directory.into(),
        })
    }

    /// The kernel's package: the newest in the cache, else the one that Debian's
    /// `linux-image-amd64` stands for today.
    pub fn kernel(&self) -> Result<String, GuestError> {
        self.kernel_of("linux-image-amd64")
    }

    /// The same of another metapackage, of a series, a flavour or
    /// both, such as `linux-image-6.12-cloud-amd64`.
    pub fn kernel_of(&self, meta: &str) -> Result<String, GuestError> {
        let wanted = KernelName::of(meta).ok_or_else(|| GuestError::Package {
            package: meta.into(),
            detail: "no kernel's name".into(),
        })?;
        let here = fs::read_dir(&self.directory)
            .map_err(|source| GuestError::file(&self.directory, source))?;
        let names: Vec<String> = here
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.ends_with(UNPACKED))
            .collect();
        let packages = names.iter().filter_map(|name| name.split_once('_'));
        if let Some(newest) = newest(packages.map(|(name, _)| name), &wanted) {
            return Ok(newest.into());
        }
        let shown = apt("apt-cache", &["show", "--no-all-versions", meta])?;
        let stated = depends(&String::from_utf8_lossy(&shown.stdout));
        let image = stated
            .into_iter()
            .find(|name| name.starts_with("linux-image-"));
        image.ok_or_else(|| GuestError::Package {
            package: meta.into(),
            detail: "not in this machine's package lists (Debian has it; apt-get update)".into(),
        })
    }

    /// The packages and the libraries that they need, fetched and unpacked.
    pub fn tree(&self, packages: &[&str]) -> Result<Tree, GuestError> {
        let mut tree = Tree::default();
        let mut wanted: Vec<String> = packages.iter().map(|name| (*name).into()).collect();
        let mut seen = BTreeSet::new();
        while !wanted.is_empty() {
            let mut batch = std::mem::take(&mut wanted);
            batch.retain(|name| seen.insert(name.clone()));
            let absent: Vec<&str> = batch
                .iter()
                .filter(|name| self.unpacked(name).is_none())
                .map(String::as_str)
                .collect();
            self.fetch(&absent)?;
            for name in &batch {
                let directory = self.unpacked(name).ok_or_else(|| GuestError::Package {
                    package: name.clone(),
                    detail: "it was fetched, but is not in the cache".into(),
                })?;
                wanted.extend(tree.add(&directory)?);
            }
        }
        Ok(tree)
    }

    /// Whether it has a package of this name, `busybox-static` or
    /// `linux-image-6.1.0-56-amd64`, in whatever version.
    #[must_use]
    pub fn has(&self, package: &str) -> bool {
        self.unpacked(package).is_some()
    }

    /// The directory for packages where none is named: `ioatlas/packages` in
    /// `$XDG_CACHE_HOME`, else in `~/.cache`.
    #[must_use]
    pub fn default_directory() -> Option<PathBuf> {
        let home = || Some(PathBuf::from(env::var_os("HOME")?).join(".cache"));
        let base = || {
            let base = PathBuf::from(env::var_os("XDG_CACHE_HOME")?);
            // the specification ignores relative ones
            base.is_absolute().then_some(base)
        };
        Some(base().or_else(home)?.join("ioatlas/packages"))
    }

    /// The package's directory, if the cache has it.
    fn unpacked(&self, package: &str) -> Option<PathBuf> {
        let prefix = format!("{package}_");
        let mut found: Vec<PathBuf> = fs::read_dir(&self.directory)
            .ok()?
            .filter_map(|entry| entry.ok())
            .filter(|entry| {
                let name = entry.file_name();
                name.to_str()
                    .is_some_and(|name| name.starts_with(&prefix) && name.ends_with(UNPACKED))
            })
            .map(|entry| entry.path())
            .collect();
        found.sort();
        found.pop()
    }

    /// Fetches packages and unpacks them.
    fn fetch(&self, packages: &[&str]) -> Result<(), GuestError> {
        if packages.is_empty() {
            return Ok(());
        }
        let temporary = tempfile::Builder::new()
            .prefix("fetch-")
            .suffix(".tmp")
            .tempdir_in(&self.directory)
            .map_err(|source| GuestError::file(&self.directory, source))?;
        let fetched = run(Command::new("apt-get")
            .args(["-o", "Acquire::Retries=3"])
            .args(["download", "--quiet", "--quiet"])
            .args(packages)
            .current_dir(temporary.path()))?;
        if !fetched.status.success() {
            return Err(GuestError::Package {
                package: packages.join(" "),
                detail: format!(
                    "apt-get download: {} (are the lists up to date? apt-get update)",
                    last_lines(&fetched.stderr)
                ),
            });
        }
        let failed = |source| GuestError::file(temporary.path(), source);
        for entry in fs::read_dir(temporary.path()).map_err(failed)? {
            let archive = entry.map_err(failed)?.path();
            let Some(stem) = archive.file_stem().and_then(|stem| stem.to_str()) else {
                continue;
            };
            if archive.extension().is_none_or(|end| end != "deb") {
                continue;
            }
            let into = self.directory.join(format!("{stem}{UNPACKED}"));
            let half = temporary.path().join(stem);
            unpack(&archive, &half)?;
            match fs::rename(&half, &into) {
                // another process was faster
                Err(_) if into.is_dir() => {}
                done => done.map_err(|source| GuestError::file(&into, source))?,
            }
        }
        Ok(())
    }
}

impl Tree {
    /// Adds an unpacked package; returns the libraries that it needs, and the parts of a kernel.
    fn add(&mut self, directory: &Path) -> Result<Vec<String>, GuestError> {
        let failed = |source| GuestError::file(directory, source);
        let control = fs::read_to_string(directory.join("control")).map_err(failed)?;
        if let Some(name) = directory.file_stem().and_then(|name| name.to_str()) {
            self.packages.insert(name.replacen('_', " ", 1));
        }
        let mut directories = vec![directory.join("files")];
        while let Some(next) = directories.pop() {
            for entry in fs::read_dir(&next).map_err(failed)? {
                let path = entry.map_err(failed)?.path();
                if path.is_dir() && !path.is_symlink() {
                    directories.push(path);
                } else if let Some(name) = path.file_name().and_then(|name| name.to_str()) {
                    self.files.entry(name.into()).or_default().push(path);
                }
            }
        }
        let mut needs = depends(&control);
        let is_of_kernel = |name: &str| {
            let parts = ["linux-binary-", "linux-modules-"];
            parts.iter().any(|part| name.starts_with(part))
        };
        // zlib1g among the libraries; what is only built with is not
        let is_library = |name: &str| name.contains("lib") && !name.ends_with("-dev");
        needs.retain(|name| is_library(name) || is_of_kernel(name));
        Ok(needs)
    }

    /// The content of the file of this name.
    ///
    /// # Errors
    ///
    /// [`GuestError::NoFile`], or [`GuestError::File`] where it cannot be read.
    pub fn read(&self, name: &str) -> Result<Vec<u8>, GuestError> {
        let paths = self.files.get(name);
        // a link to nothing is of a package that was not asked for
        let path = paths.and_then(|paths| paths.iter().find(|path| path.is_file()));
        let path = path.ok_or_else(|| GuestError::NoFile { name: name.into() })?;
        fs::read(path).map_err(|source| GuestError::file(path, source))
    }

    /// The only file whose name begins so.
    pub fn only(&self, prefix: &str) -> Result<&Path, GuestError> {
        let found = self.files.range(prefix.to_owned()..).next();
        match found {
            Some((name, paths)) if name.starts_with(prefix) => Ok(&paths[0]),
            _ => Err(GuestError::NoFile {
                name: format!("{prefix}*"),
            }),
        }
    }

    /// The kernel module, by its name without `.ko`; files may have either of `-` and `_` in it.
    pub fn module(&self, name: &str) -> Result<Vec<u8>, GuestError> {
        let plain = |name: &str| name.replace('-', "_");
        let wanted = format!("{}.ko", plain(name));
        let is_it = |file: &&String| {
            let file = plain(file);
            file.strip_suffix(".xz").unwrap_or(&file) == wanted
        };
        let found = self.files.keys().find(is_it).unwrap_or(&wanted);
        let bytes = self.read(found)?;
        match found.ends_with(".xz") {
            true => decompress(found, &bytes),
            false => Ok(bytes),
        }
    }
}

/// What the name of a kernel's package says: `linux-image-6.12.117+deb12-cloud-amd64`.
#[derive(Clone, PartialEq, Eq, Debug)]
struct KernelName<'a> {
    /// `6.12.117+deb12`; of a metapackage the series, or nothing.
    version: &'a str,
    /// What follows the version, such as `cloud-amd64`.
    flavour: &'a str,
}

impl<'a> KernelName<'a> {
    fn of(package: &'a str) -> Option<Self> {
        let rest = package.strip_prefix("linux-image-")?;
        // the flavour begins at the first part that begins with a letter
        let mut from = 0;
        for part in rest.split('-') {
            if part.starts_with(|first: char| first.is_ascii_alphabetic()) {
                let version = rest[..from].trim_end_matches('-');
                let flavour = &rest[from..];
                return Some(KernelName { version, flavour });
            }
            from += part.len() + 1;
        }
        None
    }
    /// Its numbers, in order: versions are compared by them, since 6.9 is older than 6.12.
    fn numbers(&self) -> Vec<u64> {
        let digits = self.version.split(|c: char| !c.is_ascii_digit());
        digits.filter_map(|number| number.parse().ok()).collect()
    }
    /// Whether it is of the series and the flavour that a metapackage names.
    fn is_of(&self, meta: &Self) -> bool {
        self.flavour == meta.flavour && self.numbers().starts_with(&meta.numbers())
    }
}

/// The newest kernel of a metapackage.
fn newest<'a>(names: impl Iterator<Item = &'a str>, meta: &KernelName<'_>) -> Option<&'a str> {
    let kernels = names.filter_map(|name| Some((KernelName::of(name)?, name)));
    let ours = kernels.filter(|(kernel, _)| kernel.is_of(meta));
    let newest = ours.max_by_key(|(kernel, _)| kernel.numbers());
    newest.map(|(_, name)| name)
}

/// Takes a package apart into `into`: `control`, and below `files` what may be of use.
fn unpack(archive: &Path, into: &Path) -> Result<(), GuestError> {
    let failed = |source: io::Error| GuestError::file(archive, source);
    fs::create_dir_all(into.join("files")).map_err(failed)?;
    let control = run(Command::new("dpkg-deb").arg("--field").arg(archive))?;
    if !control.status.success() {
        return Err(failed(io::Error::other(last_lines(&control.stderr))));
    }
    fs::write(into.join("control"), control.stdout).map_err(failed)?;
    let mut taking = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(archive)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|source| GuestError::tool("dpkg-deb", source))?;
    let unpacked = taking.stdout.take().map_or(Ok(()), |stream| {
        let mut files = tar::Archive::new(stream);
        files.set_preserve_permissions(false);
        for entry in files.entries()? {
            let mut entry = entry?;
            if is_of_use(&entry.path()?.to_string_lossy()) {
                entry.unpack_in(into.join("files"))?;
            }
        }
        // dpkg-deb is not to die of a closed pipe
        io::copy(&mut files.into_inner(), &mut io::sink()).map(|_| ())
    });
    let ended = taking.wait().map_err(failed)?;
    unpacked.map_err(failed)?;
    if ended.success() {
        return Ok(());
    }
    Err(failed(io::Error::other(format!("dpkg-deb: {ended}"))))
}

/// What `xz` makes of the file `name`.
fn decompress(name: &str, bytes: &[u8]) -> Result<Vec<u8>, GuestError> {
    // by a file, since a pipe that is not emptied blocks
    let mut compressed = tempfile::tempfile().map_err(|e| GuestError::file(Path::new(name), e))?;
    let rewound = compressed
        .write_all(bytes)
        .and_then(|()| compressed.rewind());
    rewound.map_err(|e| GuestError::file(Path::new(name), e))?;
    let done = Command::new("xz")
        .args(["--decompress", "--stdout", "--quiet"])
        .stdin(compressed)
        .output()
        .map_err(|source| GuestError::tool("xz", source))?;
    match done.status.success() {
        true => Ok(done.stdout),
        false => Err(GuestError::BadFile {
            name: name.into(),
            detail: last_lines(&done.stderr),
        }),
    }
}

/// Whether a file of a package is worth its room.
fn is_of_use(path: &str) -> bool {
    let path = path.trim_start_matches("./");
    if let Some((_, module)) = path.split_once("lib/modules/") {
        let below = module.split_once('/').map_or("", |(_, below)| below);
        let module = below.strip_suffix(".xz").unwrap_or(below);
        return below == KERNEL_FILE
            || MODULE_FILES.contains(&module)
            || module.ends_with(".ko")
                && MODULE_DIRECTORIES
                    .iter()
                    .any(|directory| module.starts_with(directory));
    }
    let programs = ["bin/", "sbin/", "usr/bin/", "usr/sbin/"];
    path.starts_with("boot/vmlinuz-")
        || programs.iter().any(|directory| path.starts_with(directory))
        || path.contains("lib") && (path.ends_with(".so") || path.contains(".so."))
}

/// Names of the packages that a control file depends on, the first of each choice.
fn depends(control: &str) -> Vec<String> {
    let lines = control.lines().filter_map(|line| {
        line.strip_prefix("Depends:")
            .or(line.strip_prefix("Pre-Depends:"))
    });
    lines
        .flat_map(|line| line.split(','))
        .filter_map(|choice| choice.split(['|', '(', ':']).next())
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect()
}

fn apt(tool: &'static str, arguments: &[&str]) -> Result<Output, GuestError> {
    run(Command::new(tool).args(arguments))
}

fn run(command: &mut Command) -> Result<Output, GuestError> {
    let tool = command.get_program().to_string_lossy().into_owned();
    command
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(|source| GuestError::tool(&tool, source))
}

/// The end of what a program said, in one line.
fn last_lines(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let lines: Vec<&str> = said
        .lines()
        .filter(|line| !line.starts_with("W:"))
        .collect();
    lines[lines.len().saturating_sub(3)..].join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_dependency_the_first_choice_without_version_counts() {
        let control = "Package: x\nDepends: libc6 (>= 2.34), libext2fs2 (= 1.47), a | b,\nPre-Depends: libgcc-s1:any\nSuggests: c\n";
        assert_eq!(depends(control), ["libc6", "libext2fs2", "a", "libgcc-s1"]);
    }

    #[test]
    fn the_newest_kernel_is_so_by_numbers_and_of_its_flavour() {
        let names = [
            "linux-image-6.1.0-9-amd64",
            "linux-image-6.1.0-56-amd64",
            "linux-image-6.1.0-8-amd64",
            "linux-image-6.1.0-60-cloud-amd64",
            "linux-image-6.12.117+deb12-cloud-amd64",
            "linux-image-6.12.99+deb12-cloud-amd64",
            "linux-image-6.9.100+deb12-rt-amd64",
            "linux-image-none",
            "busybox-static",
        ];
        let newest_of = |meta| newest(names.into_iter(), &KernelName::of(meta).unwrap());
        for (meta, expected) in [
            ("linux-image-amd64", Some("linux-image-6.1.0-56-amd64")),
            ("linux-image-6.1-amd64", Some("linux-image-6.1.0-56-amd64")),
            (
                "linux-image-cloud-amd64",
                Some("linux-image-6.12.117+deb12-cloud-amd64"),
            ),
            (
                "linux-image-6.1-cloud-amd64",
                Some("linux-image-6.1.0-60-cloud-amd64"),
            ),
            (
                "linux-image-6.12-cloud-amd64",
                Some("linux-image-6.12.117+deb12-cloud-amd64"),
            ),
            ("linux-image-6.12-amd64", None),
        ] {
            assert_eq!(newest_of(meta), expected, "{meta}");
        }
        assert_eq!(KernelName::of("linux-image-6.12"), None);
    }

    #[test]
    fn of_a_package_only_what_may_run_is_kept() {
        for kept in [
            "./boot/vmlinuz-6.1.0-56-amd64",
            "./bin/busybox",
            "./usr/lib/x86_64-linux-gnu/libaio.so.1.0.1",
            "./usr/lib/x86_64-linux-gnu/ceph/libceph-common.so.2",
            "./lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
            "./lib/modules/6.1.0-56-amd64/kernel/drivers/net/ethernet/intel/e1000/e1000.ko",
            "./lib/modules/6.1.0-56-amd64/kernel/drivers/net/virtio_net.ko",
            "./usr/lib/modules/6.12.1/kernel/fs/ext4/ext4.ko",
            "./lib/modules/6.12.117+deb12-cloud-amd64/kernel/drivers/iommu/virtio-iommu.ko.xz",
            "./lib/modules/6.12.117+deb12-cloud-amd64/kernel/drivers/net/virtio_net.ko.xz",
            "./usr/lib/modules/7.3.4+deb13-amd64/vmlinuz",
        ] {
            assert!(is_of_use(kept), "{kept}");
        }
        for left in [
            "./boot/System.map-6.1.0-56-amd64",
            "./usr/share/doc/busybox/copyright",
            "./lib/modules/6.1.0-56-amd64/kernel/drivers/gpu/drm/amd/amdgpu/amdgpu.ko",
            "./etc/ld.so.conf",
        ] {
            assert!(!is_of_use(left), "{left}");
        }
    }

    #[test]
    fn a_module_is_found_by_either_spelling() {
        let directory = tempfile::tempdir().unwrap();
        let modules = directory.path().join("files/lib/modules");
        fs::create_dir_all(&modules).unwrap();
        fs::write(directory.path().join("control"), "Package: linux\n").unwrap();
        fs::write(modules.join("vfio-pci.ko"), "hyphen").unwrap();
        fs::write(modules.join("virtio_net.ko"), "underscore").unwrap();
        let mut tree = Tree::default();
        tree.add(directory.path()).unwrap();
        for (name, content) in [
            ("vfio_pci", "hyphen"),
            ("vfio-pci", "hyphen"),
            ("virtio-net", "underscore"),
        ] {
            assert_eq!(tree.module(name).unwrap(), content.as_bytes(), "{name}");
        }
        let missing = tree.module("virtio_pci").unwrap_err().to_string();
        assert!(missing.contains("virtio_pci.ko"), "{missing}");
    }

    #[test]
    fn without_xz_the_package_that_has_it_is_named() {
        let none = GuestError::tool("xz", io::ErrorKind::NotFound.into()).to_string();
        assert!(none.contains("xz-utils"), "{none}");
    }

    #[test]
    fn a_package_in_the_cache_is_found_by_its_whole_name() {
        let directory = tempfile::tempdir().unwrap();
        let unpacked = directory
            .path()
            .join(format!("libfoo1_1.2_amd64{UNPACKED}"));
        fs::create_dir_all(unpacked.join("files/usr/lib")).unwrap();
        fs::write(unpacked.join("control"), "Package: libfoo1\n").unwrap();
        fs::write(unpacked.join("files/usr/lib/libfoo.so.1"), "ELF").unwrap();
        let cache = Cache::open(directory.path()).unwrap();
        // of an earlier version, which kept less
        fs::create_dir(directory.path().join("libold_1_amd64.unpacked")).unwrap();
        assert!(!cache.has("libold") && !cache.has("libfoo"));
        assert_eq!(cache.unpacked("libfoo1"), Some(unpacked));
        let tree = cache.tree(&["libfoo1"]).unwrap();
        assert_eq!(tree.read("libfoo.so.1").unwrap(), b"ELF");
        assert!(
            tree.packages.contains("libfoo1 1.2_amd64"),
            "{:?}",
            tree.packages
        );
        let missing = tree.read("libbar.so.1").unwrap_err().to_string();
        assert!(missing.contains("libbar.so.1"), "{missing}");
    }
}
