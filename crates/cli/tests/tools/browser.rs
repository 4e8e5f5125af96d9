// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The report's page in a real browser. Ignored unless asked for: `ci/full.sh browser`.

use libtest_mimic::{Failed, Trial};
use serde_json::Value;
use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Output},
};

const IGNORED: &str = "starts a browser: ci/full.sh browser";
const INSTALL: &str = "needs a browser: ci/install-browser.sh";

pub fn trials() -> Vec<Trial> {
    let trial = |name: &str, test: fn(&Path) -> Result<(), Failed>| {
        let run = move || test(&browser().ok_or(INSTALL)?);
        Trial::test(format!("browser: {name}"), run)
            .with_kind(IGNORED)
            .with_ignored_flag(true)
    };
    vec![
        trial("the page draws every atlas without complaint", draws),
        trial("the page looks different in the dark", dark),
        trial("misses that a strategy saves go out", strategies),
        trial("the address keeps the view", address),
        trial("plots and page can be taken away", taken),
    ]
}

/// Put before and after what a test does on the page: it ends with an element that says what was
/// found.
const ACT: [&str; 2] = [
    "<script>\"use strict\";(async () => { let found; try { ",
    " } catch (error) { found = { error: String(error) }; }
      const said = document.createElement(\"pre\");
      said.id = \"found\";
      said.textContent = JSON.stringify(found);
      document.body.append(said);
    })();</script></body>",
];

/// Runs `script`, which sets `found`, on `page`, with `#fragment` in its address; gives what was
/// found.
fn act(browser: &Path, page: &Path, fragment: &str, script: &str) -> Result<Value, Failed> {
    let html = std::fs::read_to_string(page)?;
    let acted = page.with_file_name("acted.html");
    let act = ACT.join(script);
    let html = html.replacen("</body>", &act, 1);
    std::fs::write(&acted, html)?;
    let address = acted.display().to_string() + fragment;
    let opened = open(browser, Path::new(&address), &["--dump-dom"])?;
    silent(&opened)?;
    let document = String::from_utf8_lossy(&opened.stdout);
    let found = document
        .rsplit_once("<pre id=\"found\">")
        .and_then(|(_, rest)| rest.split_once("</pre>"))
        .ok_or_else(|| {
            let said = String::from_utf8_lossy(&opened.stderr);
            format!("the script did not end; the browser: {said}")
        })?
        .0;
    let found = found
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&");
    let found: Value = serde_json::from_str(&found)?;
    match found.get("error") {
        Some(error) => Err(error.to_string().into()),
        None => Ok(found),
    }
}

/// Fails if the page said anything on the console.
fn silent(opened: &Output) -> Result<(), Failed> {
    let complaints = String::from_utf8_lossy(&opened.stderr);
    let complaints: Vec<&str> = complaints
        .lines()
        .filter(|line| line.contains("CONSOLE"))
        .collect();
    if complaints.is_empty() {
        Ok(())
    } else {
        Err(complaints.join("\n").into())
    }
}

fn strategies(browser: &Path) -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let page = page(directory.path())?;
    let script = r#"
        found = { dots: {}, words: {} };
        const note = (name) => {
          found.dots[name] = atlases.map(({ canvas }) => Number(canvas.dataset.dots));
          found.words[name] = document.querySelector(".atlas output").textContent;
        };
        note("at first");
        for (const name of ["alh", "sd-alh", "mpre", "baseline"]) {
          document.querySelector(`input[value="${name}"]`).click();
          note(name);
        }
        for (const part of ["alh", "mpre", "8-prefetch"]) document.querySelector(`[data-part="${part}"]`).click();
        note("own");"#;
    let found = act(browser, &page, "", script)?;
    let dots = |name: &str| -> Vec<u64> {
        let dots = found["dots"][name].as_array().map(Vec::as_slice);
        dots.unwrap_or_default()
            .iter()
            .flat_map(Value::as_u64)
            .collect()
    };
    let before = dots("at first");
    assert_eq!(before.len(), 3);
    assert_eq!(dots("baseline"), before);
    for strategy in ["alh", "sd-alh", "mpre", "own"] {
        let left = dots(strategy);
        assert_eq!(left.len(), 3);
        for (left, before) in left.iter().zip(&before) {
            assert!(left < before, "{strategy}: {left} of {before} dots");
        }
    }
    let words = |name: &str| found["words"][name].as_str().unwrap_or_default().to_owned();
    assert_eq!(
        words("alh"),
        "alh: 4,197 misses of 9,492 (-56 %), simulated"
    );
    assert_eq!(
        words("own"),
        "alh+mpre+8-prefetch: 2,806 misses of 9,492 (-70 %), simulated"
    );
    Ok(())
}

fn address(browser: &Path) -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let page = page(directory.path())?;
    let state = "const state = () => ({ view: atlases[0].view, other: atlases[1].view, strategy: combination(), \
        maps: boxes.find((box) => box.dataset.bit === \"16\").checked, dots: atlases[0].canvas.dataset.dots, hash: location.hash });";
    let choose = r#"
        const canvas = atlases[0].canvas, box = canvas.getBoundingClientRect();
        const drag = (type, x, y) => canvas.dispatchEvent(new PointerEvent(type,
          { clientX: box.left + x, clientY: box.top + y, button: 0, bubbles: true }));
        canvas.setPointerCapture = () => {}; // there is no pointer
        drag("pointerdown", 150, 60);
        drag("pointermove", 250, 160);
        drag("pointerup", 350, 260);
        document.querySelector('[data-part="sd-alh"]').click();
        document.querySelector('[data-part="mpre"]').click();
        boxes.find((box) => box.dataset.bit === "16").click();
        found = state();"#;
    let chosen = act(browser, &page, "", &format!("{state}{choose}"))?;
    let view: Vec<f64> = chosen["view"]
        .as_array()
        .ok_or("no view")?
        .iter()
        .flat_map(Value::as_f64)
        .collect();
    assert!(
        view[0] > 0.0 && view[1] < 1.0 && view[2] > 0.0 && view[3] < 1.0,
        "{view:?}"
    );
    assert_eq!(chosen["strategy"], "sd-alh+mpre");
    assert_eq!(chosen["maps"], true);
    let hash = chosen["hash"].as_str().ok_or("no address")?;
    let restored = act(browser, &page, hash, &format!("{state} found = state();"))?;
    for part in ["other", "strategy", "maps"] {
        assert_eq!(restored[part], chosen[part], "{part}, {hash}");
    }
    for (at, was) in view.iter().enumerate() {
        let is = restored["view"][at].as_f64().ok_or("no view")?;
        assert!((is - was).abs() < 1e-4, "{restored} {chosen}");
    }
    // What does not fit is the whole, not an error.
    let odd = act(
        browser,
        &page,
        "#v0=9_1_x&s=nonsense&l=1e9",
        &format!("{state} found = state();"),
    )?;
    assert_eq!(
        (&odd["strategy"], &odd["view"]),
        (&"baseline".into(), &serde_json::json!([0, 1, 0, 1]))
    );
    Ok(())
}

fn taken(browser: &Path) -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let page = page(directory.path())?;
    // What a blob holds is noted where it is made: to read it back takes other processes, which the
    // browser's virtual time does not wait for.
    let script = r#"
        const files = [], texts = [];
        const encoded = (text) => new TextEncoder().encode(text).length;
        window.Blob = class extends Blob {
          constructor(parts, options) {
            super(parts, options);
            this.text = parts.join("");
            if (this.size !== encoded(this.text)) throw new Error("a blob of other bytes");
          }
        };
        URL.createObjectURL = (blob) => { texts.push(blob.text); return "about:blank"; };
        HTMLAnchorElement.prototype.click = function () { files.push(this.download); };
        let markdown = "";
        Object.defineProperty(navigator, "clipboard", { value: { writeText: async (text) => { markdown = text; } } });
        for (const button of document.querySelectorAll("button[data-take]")) button.click();
        document.getElementById("markdown").click();
        const whole = (text) => !new DOMParser().parseFromString(text, "image/svg+xml").querySelector("parsererror");
        found = { markdown, plots: document.querySelectorAll("figure.plot").length,
          files: files.map((name, i) => ({ name, lines: texts[i].split("\n").length, bytes: texts[i].length,
            start: texts[i].slice(0, 60), whole: name.endsWith(".svg") && whole(texts[i]),
            styled: /(fill|stroke)="(rgb|#)/.test(texts[i]) })) };"#;
    let found = act(browser, &page, "", script)?;
    let files = found["files"].as_array().ok_or("no files")?;
    // Three pictures of traces, causes, sizes, cost.
    assert_eq!(found["plots"], 6);
    assert_eq!(files.len(), 12);
    for file in files {
        let name = file["name"].as_str().ok_or("no name")?;
        if name.ends_with(".svg") {
            assert!(file["whole"] == true && file["styled"] == true, "{file}");
            assert!(file["bytes"].as_u64() > Some(1000), "{file}");
        } else {
            assert!(name.ends_with(".csv"), "{file}");
            assert!(file["lines"].as_u64() > Some(4), "{file}");
            assert!(
                file["start"]
                    .as_str()
                    .is_some_and(|start| start.contains(',')),
                "{file}"
            );
        }
    }
    let markdown = found["markdown"].as_str().ok_or("no Markdown")?;
    for needed in [
        "# ioatlas report",
        "## What to do",
        "What needs code",
        "| --- |",
        "\\n- ",
        "9,492",
    ] {
        assert!(
            markdown.contains(&needed.replace("\\n", "\n")),
            "{needed} in {markdown}"
        );
    }
    assert!(!markdown.contains("copy as Markdown"));
    Ok(())
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

/// Times that a browser may come to nothing before that is a failure.
const STARTS: usize = 3;

/// Opens `page`; the browser ends by itself once the page has settled. One that ends with nothing
/// of the page, neither in the document nor as the picture that it is asked for, is started again:
/// that tells of the browser alone.
fn open(browser: &Path, page: &Path, options: &[&str]) -> Result<Output, Failed> {
    let picture = options.iter().find_map(|o| o.strip_prefix("--screenshot="));
    let mut said = String::new();
    for _ in 0..STARTS {
        let profile = tempfile::tempdir()?;
        let output = Command::new(browser)
            // root, as in a container, has no sandbox; the page is our own file
            .args(["--headless", "--no-sandbox", "--disable-gpu"])
            // whose shared memory may be small
            .arg("--disable-dev-shm-usage")
            .args(["--enable-logging=stderr", "--virtual-time-budget=5000"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .args(options)
            .arg(format!("file://{}", page.display()))
            .output()?;
        let came = match picture {
            Some(picture) => Path::new(picture).is_file(),
            None => String::from_utf8_lossy(&output.stdout).contains("ioatlas"),
        };
        if came {
            return Ok(output);
        }
        said = format!(
            "{}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Err(format!("the browser came to nothing {STARTS} times: {said}").into())
}

fn draws(browser: &Path) -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let page = page(directory.path())?;
    let opened = open(browser, &page, &["--dump-dom"])?;
    silent(&opened)?;
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
