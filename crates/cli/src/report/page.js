// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
"use strict";

// Bits of a cell and the colour variables that show them, later ones on top.
const LAYERS = [[2, "--streaming"], [1, "--consistent"], [16, "--map"], [32, "--unmap"], [8, "--other"], [4, "--miss"]];
const MISSES = 64, FIRST = 4, OTHER = 8;
const LEFT = 74, BOTTOM = 26, TOP = 12;
const WHOLE = [0, 1, 0, 1];

// Pairs of a row number and a name, one a line.
function pairs(text) {
  return text.split("\n").filter(Boolean).map((line) => {
    const space = line.indexOf(" ");
    return [Number(line.slice(0, space)), line.slice(space + 1)];
  });
}

// Distances in base 128, bytes of flags and numbers of sets, as atlas.rs writes them.
function decode(base64) {
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const cells = [], flags = [], sets = [];
  let cell = 0, i = 0;
  const number = () => {
    let value = 0, scale = 1;
    while (bytes[i] >= 128) { value += (bytes[i++] - 128) * scale; scale *= 128; }
    return value + bytes[i++] * scale;
  };
  while (i < bytes.length) {
    cell += number();
    cells.push(cell);
    const flag = bytes[i++];
    flags.push(flag);
    sets.push(flag & MISSES ? number() : -1);
  }
  return { cells: Uint32Array.from(cells), flags: Uint8Array.from(flags), sets: Int32Array.from(sets) };
}

const atlases = [...document.querySelectorAll(".atlas canvas")].map((canvas) => ({
  canvas,
  name: canvas.closest("figure").dataset.file,
  columns: Number(canvas.dataset.columns),
  rows: Number(canvas.dataset.rows),
  events: Number(canvas.dataset.events),
  devices: pairs(canvas.dataset.devices),
  ticks: pairs(canvas.dataset.ticks),
  combinations: canvas.dataset.combinations.split(" "),
  misses: canvas.dataset.misses.split(" ").map(Number),
  pairsOfSets: canvas.dataset.sets.split(";").map((pair) => pair.split(" ").map((hex) => parseInt(hex, 16))),
  ...decode(canvas.dataset.cells),
  view: WHOLE,
}));
const boxes = [...document.querySelectorAll(".layers input[data-bit]")];
const radios = [...document.querySelectorAll("input[name=strategy]")];
const parts = [...document.querySelectorAll("input[data-part]")];

// The strategy chosen, by the name that the simulator gives it.
function combination() {
  const chosen = radios.find((radio) => radio.checked)?.value ?? "baseline";
  if (chosen !== "own") return chosen;
  const on = new Set(parts.filter((part) => part.checked).map((part) => part.dataset.part));
  // Superpages are a picture of their own; alh has all that sd-alh has; without
  // prefetching there is nothing in the buffer.
  if (on.has("superpage")) return "superpage";
  const sum = [on.has("alh") ? "alh" : on.has("sd-alh") ? "sd-alh" : "", on.has("mpre") ? "mpre" : ""].filter(Boolean);
  if (sum.length && on.has("8-prefetch")) sum.push("8-prefetch");
  if (on.has("descending")) sum.push("descending");
  return sum.join("+") || "baseline";
}

// What a cell shows under a combination: its flags, misses being those that are left.
function shownFlags(atlas, i, bit) {
  let flags = atlas.flags[i] & ~(FIRST | OTHER | MISSES);
  if (atlas.sets[i] < 0 || bit < 0) return flags;
  const [first, other] = atlas.pairsOfSets[atlas.sets[i]];
  if (first >>> bit & 1) flags |= FIRST;
  if (other >>> bit & 1) flags |= OTHER;
  return flags;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Draws with a pen of text(words, x, y, anchor), rect(x, y, width, height) and colour(name).
// Gives the number of cells with a miss.
function drawOn(atlas, pen, width, height) {
  const { columns, rows, events, devices, ticks, cells } = atlas;
  const [x0, x1, y0, y1] = atlas.view;
  const right = width - 4, bottom = height - BOTTOM;
  const x = (column) => LEFT + (column / columns - x0) / (x1 - x0) * (right - LEFT);
  const y = (row) => bottom - (row / rows - y0) / (y1 - y0) * (bottom - TOP);
  pen.colour("--line");
  for (const [left, top, w, h] of [[LEFT - 3, TOP - 2, right - LEFT + 5, 1], [LEFT - 3, bottom + 2, right - LEFT + 5, 1],
    [LEFT - 3, TOP - 2, 1, bottom - TOP + 4], [right + 2, TOP - 2, 1, bottom - TOP + 5]]) pen.rect(left, top, w, h);
  pen.colour("--faint");
  let last = Infinity;
  for (const [row, name] of ticks) {
    const at = y(row);
    if (last - at < 14 || at > bottom + 1 || at < TOP) continue;
    pen.text(name, LEFT - 8, at + 2, "end");
    last = at;
  }
  for (const part of width > 500 ? [0, .25, .5, .75, 1] : [0, .5, 1]) {
    const label = Math.round(events * (x0 + part * (x1 - x0))).toLocaleString("en") + (part === 1 ? " events" : "");
    pen.text(label, LEFT + part * (right - LEFT), height - 8, part === 0 ? "start" : part === 1 ? "end" : "middle");
  }
  const shown = boxes.reduce((bits, box) => bits | (box.checked ? Number(box.dataset.bit) : 0), 0);
  const bit = atlas.combinations.indexOf(combination());
  const dotWidth = Math.max(1, (right - LEFT) / columns / (x1 - x0)), dotHeight = Math.max(1.2, (bottom - TOP) / rows / (y1 - y0));
  const flags = Uint8Array.from(cells, (_, i) => shownFlags(atlas, i, bit) & shown);
  let dots = 0;
  for (const [layer, name] of LAYERS) {
    if (!(shown & layer)) continue;
    pen.colour(name);
    // Misses lie on top of accesses, which stay visible around them.
    const grow = layer === 1 || layer === 2 ? 1.4 : .3;
    for (let i = 0; i < cells.length; i++) {
      if (!(flags[i] & layer)) continue;
      const column = Math.floor(cells[i] / rows), row = cells[i] % rows;
      const left = Math.max(x(column) - grow / 2, LEFT), top = Math.max(y(row + 1) - grow / 2, TOP - 1);
      const end = Math.min(x(column) + dotWidth + grow / 2, right + 1), low = Math.min(y(row + 1) + dotHeight + grow / 2, bottom + 1);
      if (end <= left || low <= top) continue;
      pen.rect(left, top, end - left, low - top);
      if (layer === FIRST || (layer === OTHER && !(flags[i] & FIRST))) dots++;
    }
  }
  if (devices.length < 2) return dots;
  for (const [row, name] of devices) {
    const at = y(row);
    if (at < TOP + 12 || at > bottom + 1) continue;
    pen.colour("--paper");
    pen.rect(LEFT, at - 18, 8 + name.length * 7, 17);
    pen.colour("--ink");
    pen.rect(LEFT - 3, at, right - LEFT + 5, .6);
    pen.text(name, LEFT + 4, at - 5, "start");
  }
  return dots;
}

function draw(atlas) {
  const { canvas } = atlas;
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const paint = canvas.getContext("2d");
  paint.scale(ratio, ratio);
  paint.font = "12px system-ui, sans-serif";
  canvas.dataset.dots = drawOn(atlas, {
    colour: (name) => { paint.fillStyle = colour(name); },
    rect: (x, y, w, h) => paint.fillRect(x, y, w, h),
    text: (words, x, y, anchor) => { paint.textAlign = anchor === "middle" ? "center" : anchor; paint.fillText(words, x, y); },
  }, width, height);
  const name = combination(), misses = atlas.misses[atlas.combinations.indexOf(name)], all = atlas.misses[0];
  const percent = (misses / all - 1) * 100, size = Math.abs(percent);
  // As everywhere on the page: what is little or nearly all does not look like none or all.
  const nearlyAll = percent < -99 && percent > -100;
  const digits = nearlyAll ? (Math.trunc(percent * 10) / 10).toFixed(1) : percent.toFixed(size > 0 && size < .95 ? 1 : 0);
  const change = all ? ` (${percent > 0 ? "+" : ""}${digits} %)` : "";
  canvas.parentElement.querySelector("output").textContent = `${name}: ${misses.toLocaleString("en")} misses` +
    (name === "baseline" ? "" : ` of ${all.toLocaleString("en")}${change}`) + ", simulated";
}

const drawAll = () => atlases.forEach(draw);

// The view in the address: strategy, parts, layers, and where a picture is zoomed.
function keep() {
  const kept = new URLSearchParams();
  const chosen = radios.find((radio) => radio.checked)?.value;
  if (chosen && chosen !== "baseline") kept.set("s", chosen);
  const on = parts.filter((part) => part.checked).map((part) => part.dataset.part);
  if (on.length) kept.set("p", on.join("."));
  if (boxes.some((box) => box.checked !== box.defaultChecked)) {
    kept.set("l", boxes.reduce((bits, box) => bits | (box.checked ? Number(box.dataset.bit) : 0), 0));
  }
  atlases.forEach(({ view }, i) => {
    if (view !== WHOLE) kept.set("v" + i, view.map((part) => Number(part.toFixed(4))).join("_"));
  });
  history.replaceState(null, "", "#" + kept);
}

function restore() {
  const kept = new URLSearchParams(location.hash.slice(1));
  const chosen = kept.get("s") ?? "baseline";
  if (radios.some((radio) => radio.value === chosen)) radios.forEach((radio) => { radio.checked = radio.value === chosen; });
  const on = (kept.get("p") ?? "").split(".");
  parts.forEach((part) => { part.checked = on.includes(part.dataset.part); });
  boxes.forEach((box) => { box.checked = kept.has("l") ? (Number(kept.get("l")) & Number(box.dataset.bit)) !== 0 : box.defaultChecked; });
  atlases.forEach((atlas, i) => {
    const view = (kept.get("v" + i) ?? "").split("_").map(Number);
    const [x0, x1, y0, y1] = view;
    atlas.view = view.length === 4 && 0 <= x0 && x0 < x1 && x1 <= 1 && 0 <= y0 && y0 < y1 && y1 <= 1 ? view : WHOLE;
  });
  drawAll();
}

function zoom(atlas) {
  const { canvas } = atlas;
  const frame = document.createElement("div");
  frame.className = "frame";
  canvas.after(frame);
  let start = null;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [Math.min(Math.max(event.clientX - box.left, LEFT), box.width - 4), Math.min(Math.max(event.clientY - box.top, TOP), box.height - BOTTOM)];
  };
  const show = (view) => { atlas.view = view; draw(atlas); keep(); };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.pointerType === "touch") return;
    start = place(event);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!start) return;
    const [x, y] = place(event);
    frame.style.cssText = `display:block;left:${canvas.offsetLeft + Math.min(x, start[0])}px;top:${canvas.offsetTop + Math.min(y, start[1])}px;` +
      `width:${Math.abs(x - start[0])}px;height:${Math.abs(y - start[1])}px`;
  });
  canvas.addEventListener("pointerup", (event) => {
    if (!start) return;
    const [ax, ay] = start, [bx, by] = place(event), [x0, x1, y0, y1] = atlas.view;
    start = null;
    frame.style.cssText = "";
    if (Math.abs(ax - bx) < 4 || Math.abs(ay - by) < 4) return;
    const width = canvas.clientWidth - 4 - LEFT, height = canvas.clientHeight - BOTTOM - TOP;
    const atX = (x) => x0 + (x - LEFT) / width * (x1 - x0), atY = (y) => y0 + (TOP + height - y) / height * (y1 - y0);
    const view = [atX(Math.min(ax, bx)), atX(Math.max(ax, bx)), atY(Math.max(ay, by)), atY(Math.min(ay, by))];
    // No closer than the address can tell.
    if (view[1] - view[0] < .001 || view[3] - view[2] < .001) return;
    show(view);
  });
  canvas.addEventListener("pointercancel", () => { start = null; frame.style.cssText = ""; });
  canvas.addEventListener("dblclick", () => show(WHOLE));
  // Without a mouse: + and - around the middle, arrows move, 0 or Escape is the whole.
  canvas.addEventListener("keydown", (event) => {
    const [x0, x1, y0, y1] = atlas.view;
    const scale = { "+": .5, "=": .5, "-": 2 }[event.key];
    const move = { ArrowLeft: [-.25, 0], ArrowRight: [.25, 0], ArrowDown: [0, -.25], ArrowUp: [0, .25] }[event.key];
    if (event.key === "0" || event.key === "Escape") return show(WHOLE);
    if (!scale && !move) return;
    event.preventDefault();
    const axis = (from, to, by) => {
      const size = Math.min(Math.max((to - from) * (scale ?? 1), .01), 1);
      const start = Math.min(Math.max((from + to - size) / 2 + by * size, 0), 1 - size);
      return [start, start + size];
    };
    const view = [...axis(x0, x1, move?.[0] ?? 0), ...axis(y0, y1, move?.[1] ?? 0)];
    show(view[1] - view[0] >= 1 && view[3] - view[2] >= 1 ? WHOLE : view);
  });
}

atlases.forEach(zoom);
for (const input of [...boxes, ...radios]) input.addEventListener("change", () => { drawAll(); keep(); });
for (const part of parts) part.addEventListener("change", () => {
  // To add something up is to choose one's own.
  radios.forEach((radio) => { radio.checked = radio.value === "own"; });
  drawAll();
  keep();
});
window.addEventListener("resize", drawAll);
window.addEventListener("hashchange", restore);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
restore();

for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.querySelectorAll("th")];
  headings.forEach((heading, column) => {
    const button = heading.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const up = heading.getAttribute("aria-sort") !== "ascending";
      headings.forEach((other) => other.hasAttribute("aria-sort") && other.setAttribute("aria-sort", "none"));
      heading.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => {
        const cell = row.cells[column], number = cell.querySelector("data");
        // A cell without a number (no wait, no window) is less than any.
        return number ? Number(number.value) : column === 0 ? cell.textContent : -Infinity;
      };
      const compare = (a, b) => (key(a) > key(b)) - (key(a) < key(b));
      const rows = [...table.tBodies[0].rows].sort((a, b) => up ? compare(a, b) : compare(b, a));
      table.tBodies[0].append(...rows);
    });
  });
}
