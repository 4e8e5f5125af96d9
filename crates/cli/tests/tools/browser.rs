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
        trial("pointing tells what lies there", pointing),
        trial("mouse, fingers and keys zoom, and Back undoes it", zooming),
        trial("nothing is cut on any screen, nor on paper", whole),
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
    act_on(browser, &html, fragment, "--window-size=1280,1000", script)
}

/// The same on a page that is given as text, with an option for the browser.
fn act_on(
    browser: &Path,
    html: &str,
    fragment: &str,
    option: &str,
    script: &str,
) -> Result<Value, Failed> {
    let directory = tempfile::tempdir()?;
    let acted = directory.path().join("acted.html");
    let act = ACT.join(script);
    std::fs::write(&acted, html.replacen("</body>", &act, 1))?;
    let address = acted.display().to_string() + fragment;
    let opened = open(browser, Path::new(&address), &["--dump-dom", option])?;
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

/// Events of a pointer on the first picture, at places in its pixels.
const POINTER: &str = r#"
    const { canvas } = atlases[0], box = canvas.getBoundingClientRect(), figure = canvas.closest("figure");
    canvas.setPointerCapture = () => {}; // there is no pointer
    const pointer = (type, x, y, more) => canvas.dispatchEvent(new PointerEvent(type,
      { clientX: box.left + x, clientY: box.top + y, button: 0, pointerType: "mouse", bubbles: true, ...more }));
    const text = (name) => figure.querySelector(name).textContent;
    const shown = (name) => getComputedStyle(figure.querySelector(name)).display !== "none";"#;

fn pointing(browser: &Path) -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let script = r#"
        const places = [], [first] = atlases;
        for (let x = LEFT; x < canvas.clientWidth; x += 20) for (let y = TOP; y < canvas.clientHeight - 45; y += 10) {
          pointer("pointermove", x, y);
          places.push(text(".hint"));
        }
        const right = canvas.clientWidth - 4, bottom = canvas.clientHeight - bottomOf(first), misses = [];
        for (let i = 0; misses.length < 50 && i < first.cells.length; i++) if (first.from[i] < first.from[i + 1] && missesOf(first, i, 0).some(Boolean)) {
          const column = Math.floor(first.cells[i] / first.rows) + .5, row = first.cells[i] % first.rows + .5;
          pointer("pointermove", LEFT + column / first.columns * (right - LEFT), bottom - row / first.rows * (bottom - TOP));
          misses.push(text(".hint").includes("misses (baseline), simulated: "));
        }
        const hinted = shown(".hint");
        const inside = (name) => { const a = figure.querySelector(name).getBoundingClientRect(), b = figure.getBoundingClientRect();
          return a.left >= b.left - 1 && a.right <= b.right + 1; };
        const fits = inside(".hint");
        pointer("pointerleave", 0, 0);
        const count = (words) => places.filter((place) => place.includes(words)).length;
        found = { hinted, fits, left: shown(".hint"), all: places.length, pages: count("page"), events: count("event"),
          streaming: count(": streaming (page), written"), lived: count("mapped for "), consistent: count(": consistent (alloc)"),
          up: count("up to the end"), misses: misses.filter(Boolean).length, at: count(", at about "), lifetimes: places.filter((place) => / for [\d.]+ (ns|us|ms|s), /.test(place)).length,
          times: first.times?.length ?? 0, mappings: first.mappings.length };"#;
    let script = format!("{POINTER}{script}");
    let found = act(browser, &page(directory.path())?, "", &script)?;
    let count = |of: &Value, name: &str| of[name].as_u64().unwrap_or_default();
    assert!(
        found["hinted"] == true && found["fits"] == true && found["left"] == false,
        "{found}"
    );
    assert!(count(&found, "all") > 1000, "{found}");
    for always in ["pages", "events"] {
        assert_eq!(count(&found, always), count(&found, "all"), "{found}");
    }
    for often in ["streaming", "lived", "consistent", "up"] {
        assert!(count(&found, often) > 10, "{often}: {found}");
    }
    assert_eq!(count(&found, "misses"), 50, "{found}");
    assert_eq!(count(&found, "mappings"), 3438);
    assert_eq!(
        (count(&found, "times"), count(&found, "at")),
        (0, 0),
        "{found}"
    );
    // of one that has times
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces");
    let timed = traces.join("virtio-net-4q-stream.trace.zst");
    let found = act(browser, &page_of(directory.path(), &[&timed])?, "", &script)?;
    assert_eq!(count(&found, "at"), count(&found, "all"), "{found}");
    assert!(
        count(&found, "times") > 200 && count(&found, "lifetimes") > 10,
        "{found}"
    );
    Ok(())
}

fn zooming(browser: &Path) -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let script = r#"
        const noted = { views: {}, words: {}, steps: {} }, start = history.length;
        const note = (name) => {
          noted.views[name] = [...atlases[0].view];
          noted.words[name] = text("output") + (figure.querySelector(".whole").hidden ? "" : " zoomed");
          noted.steps[name] = history.length - start;
        };
        const back = async () => {
          const gone = new Promise((resolve) => addEventListener("popstate", resolve, { once: true }));
          history.back();
          await gone;
        };
        const finger = (type, id, x, y) => pointer(type, x, y, { pointerId: id, pointerType: "touch", isPrimary: id === 1 });
        pointer("pointerdown", 150, 60); pointer("pointermove", 250, 160); pointer("pointerup", 350, 260);
        note("drag");
        pointer("pointerdown", 150, 60); pointer("pointerup", 152, 61);
        note("click");
        pointer("pointerdown", 150, 60); pointer("pointermove", 300, 62); pointer("pointerup", 450, 61);
        note("flat");
        await back(); note("back");
        await back(); note("twice back");
        finger("pointerdown", 1, 300, 150); finger("pointerdown", 2, 400, 150);
        finger("pointermove", 1, 250, 150); finger("pointermove", 2, 450, 150);
        finger("pointerup", 1, 250, 150); finger("pointerup", 2, 450, 150);
        note("pinch");
        figure.querySelector(".whole").click();
        note("whole");
        finger("pointerdown", 1, 300, 150); finger("pointermove", 1, 320, 152); finger("pointercancel", 1, 320, 152);
        note("scrolled");
        const key = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
        key("ArrowRight"); key("+");
        noted.marked = shown(".mark") && shown(".hint");
        note("keys");
        key("0");
        note("zero");
        atlases[0].view = [0, 1, 0, 1];
        noted.all = seen(atlases[0], 0);
        noted.touch = getComputedStyle(canvas).touchAction;
        found = noted;"#;
    let script = format!("{POINTER}{script}");
    let found = act(browser, &page(directory.path())?, "", &script)?;
    let view = |name: &str| -> Vec<f64> {
        let numbers = found["views"][name].as_array().map(Vec::as_slice);
        numbers
            .unwrap_or_default()
            .iter()
            .flat_map(Value::as_f64)
            .collect()
    };
    let (all, whole) = (vec![0.0, 1.0, 0.0, 1.0], |name: &str| {
        view(name) == [0.0, 1.0, 0.0, 1.0]
    });
    let long = |name: &str| (view(name)[1] - view(name)[0], view(name)[3] - view(name)[2]);
    assert!(!whole("drag") && view("click") == view("drag"), "{found}");
    assert_eq!(view("flat")[2..], view("drag")[2..], "{found}");
    assert!(long("flat").0 < long("drag").0, "{found}");
    // but for the digits that the address keeps
    for (is, was) in view("back").iter().zip(view("drag")) {
        assert!((is - was).abs() < 1e-4, "{found}");
    }
    assert!(
        whole("twice back") && whole("whole") && whole("scrolled") && whole("zero"),
        "{found}"
    );
    let (along, up) = long("pinch");
    assert!(
        (along - 0.5).abs() < 1e-6 && (up - 0.5).abs() < 1e-6,
        "{found}"
    );
    assert_eq!(long("keys"), (0.5, 0.5), "{found}");
    assert_eq!(found["marked"], true);
    // each zoom is a step of the history, and nothing else is
    assert_eq!(
        [&found["steps"]["drag"], &found["steps"]["flat"]],
        [1, 2],
        "{found}"
    );
    assert_eq!(
        found["steps"]["scrolled"], found["steps"]["whole"],
        "{found}"
    );
    let words = |name: &str| found["words"][name].as_str().unwrap_or_default().to_owned();
    assert_eq!(words("whole"), "baseline: 9,492 misses, simulated");
    assert!(
        words("drag").contains(", simulated; in view: ") && words("drag").ends_with("zoomed"),
        "{found}"
    );
    assert_eq!(found["all"], "in view: 9,492 misses", "{all:?}");
    assert_eq!(found["touch"], "pan-y");
    Ok(())
}

/// A capture of two devices, with times, tasks and bytes, and names as long as names can be.
fn capture(directory: &Path) -> Result<PathBuf, Failed> {
    let mut text = String::from("# ioatlas-trace 2\n");
    let name =
        "a-device-with-a-name-that-is-as-long-as-it-may-be-and-has-no-place-to-break".repeat(3);
    for n in 0..2000u64 {
        let (at, cpu, page) = (n * n * 7 + n * 900, n % 16, n % 40);
        let task = ["iperf3", "swapper/3", "kworker/u32:4-events_unbound"][n as usize % 3];
        let (bytes, disk) = (1 << (n % 12), 1000 + n % 7 * 64);
        text +=
            &format!("# at {at} {cpu} {task}\nM 0000:5e:00.0 {page:x} 1 w {n:x} page 64+{bytes}\n");
        text += &format!(
            "M {name} {disk:x} 32 r {n:x} sg 0+131072\n# at {} {cpu} softirq\n",
            at + 400
        );
        text += &format!("U 0000:5e:00.0 {page:x} 1\nU {name} {disk:x} 32\n");
    }
    let path = directory.join("capture.trace");
    std::fs::write(&path, text)?;
    Ok(path)
}

/// Widths of screens, in pixels: telephones, a tablet, laptops.
const WIDTHS: [u32; 5] = [360, 390, 768, 1280, 1400];
/// Of what is printed on a sheet of A4, between the margins.
const PAPER: [u32; 1] = [718];

fn whole(browser: &Path) -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let capture = capture(directory.path())?;
    for traces in [&[][..], &[capture.as_path()]] {
        let html = std::fs::read_to_string(page_of(directory.path(), traces)?)?;
        // what is for paper only, on a screen as wide as paper
        let printed = html.replace("@media print", "@media all");
        assert!(printed != html);
        for (html, widths) in [(&html, &WIDTHS[..]), (&printed, &PAPER)] {
            let cut = cut(browser, html, widths)?;
            assert!(cut.is_empty(), "{} are cut: {cut:#?}", cut.len());
        }
    }
    Ok(())
}

/// What reaches out of a page, or out of what hides it, in windows of these widths, with all that
/// is folded unfolded. The windows are frames: the browser's own cannot be as narrow.
fn cut(browser: &Path, html: &str, widths: &[u32]) -> Result<Vec<Value>, Failed> {
    let page = serde_json::to_string(html)?.replace("</", "<\\/");
    let outer = "<!doctype html><title>ioatlas</title><body></body>";
    let script = r#"
        const cut = [], frame = document.createElement("iframe");
        frame.style.cssText = "border: 0; height: 2000px";
        frame.srcdoc = PAGE;
        const loaded = new Promise((resolve) => { frame.onload = resolve; });
        document.body.append(frame);
        await loaded;
        const inner = frame.contentDocument;
        for (const details of inner.querySelectorAll("details")) details.open = true;
        for (const width of WIDTHS) {
          frame.style.width = width + "px";
          await new Promise((resolve) => setTimeout(resolve, 50));
          if (inner.documentElement.clientWidth !== width) throw new Error("a window of another width");
          for (const element of inner.body.querySelectorAll("*")) {
            const { left, right, width: wide } = element.getBoundingClientRect();
            const drawing = element.ownerSVGElement?.getBoundingClientRect() ?? { left: 0, right: width };
            const hides = left < drawing.left - 1 || right > drawing.right + 1 || getComputedStyle(element).overflowX !== "visible" && element.scrollWidth > element.clientWidth + 1;
            if (wide > 0 && hides) cut.push(`${width}: ${element.tagName} ` +
              `${element.getAttribute("class")}, ${Math.round(left)} to ${Math.round(right)}: ${element.textContent.slice(0, 60)}`);
          }
        }
        found = { cut };"#;
    let script = script
        .replace("WIDTHS", &format!("{widths:?}"))
        .replace("PAGE", &page);
    let found = act_on(browser, outer, "", "--hide-scrollbars", &script)?;
    Ok(found["cut"].as_array().ok_or("no list")?.clone())
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
    page_of(directory, &[])
}

/// Writes the page of `traces` into `directory`.
fn page_of(directory: &Path, traces: &[&Path]) -> Result<PathBuf, Failed> {
    let page = directory.join("report.html");
    let made = Command::new(env!("CARGO_BIN_EXE_ioatlas"))
        .args(["report", "-o"])
        .arg(&page)
        .args(traces)
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
