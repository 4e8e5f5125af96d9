// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The report's page in a real browser. Without one the tests show as ignored, with what installs it.

use libtest_mimic::{Arguments, Failed, Trial};
use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Output},
};

const INSTALL: &str = "needs a browser: ci/install-browser.sh";

fn main() -> ExitCode {
    let browser = browser();
    let trial = |name: &str, test: fn(&Path) -> Result<(), Failed>| {
        let (browser, missing) = (browser.clone(), browser.is_none());
        let run = move || test(&browser.ok_or(INSTALL)?);
        let kind = if missing { INSTALL } else { "" };
        Trial::test(name, run)
            .with_kind(kind)
            .with_ignored_flag(missing)
    };
    let trials = vec![
        trial("the page draws every atlas without complaint", draws),
        trial("the page looks different in the dark", dark),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn browser() -> Option<PathBuf> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let directories: Vec<PathBuf> = env::split_paths(&env::var_os("PATH")?).collect();
    let candidates = names
        .iter()
        .flat_map(|name| directories.iter().map(move |dir| dir.join(name)));
    candidates.into_iter().find(|path| path.is_file())
}

/// Writes the page of the bundled traces into `directory`.
fn page(directory: &Path) -> Result<PathBuf, Failed> {
    let page = directory.join("report.html");
    let made = Command::new(env!("CARGO_BIN_EXE_ioatlas"))
        .args(["report", "-o"])
        .arg(&page)
        .output()?;
    if made.status.success() {
        return Ok(page);
    }
    Err(String::from_utf8_lossy(&made.stderr).into_owned().into())
}

/// Opens `page`; the browser ends by itself once the page has settled.
fn open(browser: &Path, page: &Path, options: &[&str]) -> Result<Output, Failed> {
    let profile = tempfile::tempdir()?;
    let output = Command::new(browser)
        // root, as in a container, has no sandbox; the page is our own file
        .args(["--headless", "--no-sandbox", "--disable-gpu"])
        .args(["--enable-logging=stderr", "--virtual-time-budget=5000"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(options)
        .arg(format!("file://{}", page.display()))
        .output()?;
    Ok(output)
}

fn draws(browser: &Path) -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let page = page(directory.path())?;
    let opened = open(browser, &page, &["--dump-dom"])?;
    let complaints = String::from_utf8_lossy(&opened.stderr);
    let complaints: Vec<&str> = complaints
        .lines()
        .filter(|line| line.contains("CONSOLE"))
        .collect();
    if !complaints.is_empty() {
        return Err(complaints.join("\n").into());
    }
    let document = String::from_utf8_lossy(&opened.stdout);
    let canvases: Vec<&str> = document.split("<canvas").skip(1).collect();
    // drawing sets the size of the canvas, which the page as written does not
    let drawn = canvases.iter().filter(|tag| {
        let tag = tag.split('>').next().unwrap_or("");
        tag.contains(" width=\"")
    });
    match (drawn.count(), canvases.len()) {
        (3, 3) => Ok(()),
        (drawn, all) => Err(format!("{drawn} of {all} atlases are drawn, want 3").into()),
    }
}

fn dark(browser: &Path) -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let page = page(directory.path())?;
    let mut pictures = Vec::new();
    for scheme in ["0", "1"] {
        let picture = directory.path().join(scheme).with_extension("png");
        let shot = format!("--screenshot={}", picture.display());
        let scheme = format!("--blink-settings=preferredColorScheme={scheme}");
        open(browser, &page, &["--window-size=800,1200", &shot, &scheme])?;
        pictures.push(std::fs::read(&picture)?);
    }
    if pictures[0] == pictures[1] {
        return Err("light and dark are the same picture".into());
    }
    Ok(())
}
