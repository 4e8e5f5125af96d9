// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The files of `cargo lab papers`: each appears whole or not at all, the page, which needs none of
//! the others, last.

use super::{About, Made, Papers, page};
use crate::error::Error;
use crate::output::Target;
use ioatlas_cli::Error as FileError;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Name of the page within the directory.
pub(super) const PAGE: &str = "index.html";

/// A directory in which every file can be written.
pub(super) struct Directory {
    path: PathBuf,
    page: Target,
    /// Made here, so removed if nothing comes of it.
    new: bool,
}

impl Directory {
    /// Makes the directory if there is none, and checks that the page and the tables of `abouts`
    /// can be written there.
    ///
    /// # Errors
    /// [`Error::NotADirectory`], and of files [`FileError::StandardOutput`], [`FileError::Output`],
    /// [`FileError::NotAFile`].
    pub fn prepare(path: &Path, abouts: &[About]) -> Result<Self, Error> {
        if path == Path::new("-") {
            return Err(FileError::StandardOutput.into());
        }
        let new = match fs::metadata(path) {
            Ok(found) if found.is_dir() => false,
            Ok(_) => return Err(Error::NotADirectory { path: path.into() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            Err(source) => return Err(failed(path, source)),
        };
        if new {
            fs::create_dir(path).map_err(|source| failed(path, source))?;
        }
        let all = abouts.iter().map(|about| about.stem() + ".csv");
        let checked = all
            .map(|name| Target::prepare(&path.join(name)))
            .collect::<Result<Vec<_>, _>>()
            .and_then(|_| Target::prepare(&path.join(PAGE)));
        match checked {
            Ok(page) => Ok(Self {
                path: path.into(),
                page,
                new,
            }),
            Err(error) => {
                if new {
                    let _ = fs::remove_dir(path);
                }
                Err(error.into())
            }
        }
    }

    /// Writes everything; returns the names of the files.
    ///
    /// # Errors
    /// [`FileError::Output`], [`FileError::NotAFile`]. Files written before are whole.
    pub fn write(self, papers: &Papers, command: &[OsString]) -> Result<Vec<String>, Error> {
        let mut names = Vec::new();
        for Made { about, shown, .. } in &papers.exhibits {
            let stem = about.stem();
            let mut files = vec![(format!("{stem}.csv"), shown.table.csv())];
            for plot in &shown.plots {
                let name = format!("{stem}{}", plot.suffix);
                files.push((format!("{name}.svg"), plot.file()));
                if !plot.suffix.is_empty() {
                    files.push((format!("{name}.csv"), plot.csv()));
                }
            }
            for (name, text) in files {
                let target = Target::prepare(&self.path.join(&name))?;
                target.replace(|file| file.write_all(text.as_bytes()))?;
                names.push(name);
            }
        }
        let page = page::page(papers, command);
        self.page.replace(|file| file.write_all(page.as_bytes()))?;
        names.push(PAGE.into());
        Ok(names)
    }
}

/// Where nothing was written, nothing is left.
impl Drop for Directory {
    fn drop(&mut self) {
        if self.new {
            // refused, and rightly, where it holds anything
            let _ = fs::remove_dir(&self.path);
        }
    }
}

fn failed(path: &Path, source: io::Error) -> Error {
    let path = path.into();
    FileError::Output { path, source }.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::exhibits;

    fn abouts() -> Vec<About> {
        exhibits().iter().map(|exhibit| exhibit.about()).collect()
    }

    #[test]
    fn a_new_directory_goes_again_if_nothing_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("papers");
        let directory = Directory::prepare(&path, &abouts()).unwrap();
        assert!(path.is_dir());
        drop(directory);
        assert!(!path.exists());
    }

    #[test]
    fn a_name_that_is_a_directory_is_found_before_the_work() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("atc15-table-2.csv")).unwrap();
        let error = Directory::prepare(dir.path(), &abouts()).err().unwrap();
        assert!(
            matches!(error, Error::Command(FileError::NotAFile { .. })),
            "{error}"
        );
        assert!(dir.path().is_dir(), "it was there before");
    }
}
