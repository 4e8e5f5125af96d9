// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
"use strict";

// Bits of a cell and the colour variables that show them, later ones on top.
const LAYERS = [[2, "--streaming"], [1, "--consistent"], [16, "--map"], [32, "--unmap"], [8, "--other"], [4, "--miss"]];
const MISSES = 64, SEVERAL = 128, FIRST = 4, OTHER = 8;
const LEFT = 74, TOP = 12;
const WHOLE = [0, 1, 0, 1];

// Pairs of a row number and a name, one a line.
function pairs(text) {
  return text.split("\n").filter(Boolean).map((line) => {
    const space = line.indexOf(" ");
    return [Number(line.slice(0, space)), line.slice(space + 1)];
  });
}

// Numbers in base 128 and bytes, as atlas.rs writes them.
function reader(base64) {
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  let i = 0;
  const number = () => {
    let value = 0, scale = 1;
    while (bytes[i] >= 128) { value += (bytes[i++] - 128) * scale; scale *= 128; }
    return value + bytes[i++] * scale;
  };
  return { number, byte: () => bytes[i++], more: () => i < bytes.length };
}

// Cells by their distances, with flags and the numbers of sets that each has.
function decode(base64) {
  const read = reader(base64);
  const cells = [], flags = [], sets = [], from = [];
  let cell = 0;
  while (read.more()) {
    cell += read.number();
    cells.push(cell);
    const flag = read.byte();
    flags.push(flag);
    from.push(sets.length);
    for (let left = flag & SEVERAL ? read.number() : flag & MISSES ? 1 : 0; left > 0; left--) sets.push(read.number());
  }
  from.push(sets.length);
  return { cells: Uint32Array.from(cells), flags: Uint8Array.from(flags), sets: Uint32Array.from(sets), from: Uint32Array.from(from) };
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
  ...lies(canvas.dataset),
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
  let flags = atlas.flags[i] & ~(FIRST | OTHER | MISSES | SEVERAL);
  for (let at = atlas.from[i]; bit >= 0 && at < atlas.from[i + 1]; at++) {
    const [first, other] = atlas.pairsOfSets[atlas.sets[at]];
    if (first >>> bit & 1) flags |= FIRST;
    if (other >>> bit & 1) flags |= OTHER;
  }
  return flags;
}

// First touches and other misses of a cell that are left under a combination.
function missesOf(atlas, i, bit) {
  const left = [0, 0];
  for (let at = atlas.from[i]; bit >= 0 && at < atlas.from[i + 1]; at++) {
    atlas.pairsOfSets[atlas.sets[at]].forEach((set, kind) => { left[kind] += set >>> bit & 1; });
  }
  return left;
}

function inView({ columns, rows, cells, view: [x0, x1, y0, y1] }, i) {
  const column = Math.floor(cells[i] / rows), row = cells[i] % rows;
  return (column + 1) / columns > x0 && column / columns < x1 && (row + 1) / rows > y0 && row / rows < y1;
}

const grouped = (number) => number.toLocaleString("en");

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Draws with a pen of text(words, x, y, anchor), rect(x, y, width, height) and colour(name).
// Gives the number of cells with a miss.
function drawOn(atlas, pen, width, height) {
  const { columns, rows, events, devices, ticks, cells, times } = atlas;
  const [x0, x1, y0, y1] = atlas.view;
  const right = width - 4, bottom = height - bottomOf(atlas);
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
    const at = x0 + part * (x1 - x0), anchor = part === 0 ? "start" : part === 1 ? "end" : "middle";
    const label = grouped(Math.round(events * at)) + (part === 1 ? " events" : "");
    pen.text(label, LEFT + part * (right - LEFT), bottom + 18, anchor);
    if (times) pen.text(spelled(timeAt(times, at), 3), LEFT + part * (right - LEFT), bottom + 33, anchor);
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
    if (!name || at < TOP + 12 || at > bottom + 1) continue;
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
  const name = combination(), bit = atlas.combinations.indexOf(name), misses = atlas.misses[bit], all = atlas.misses[0];
  const percent = (misses / all - 1) * 100, size = Math.abs(percent);
  // As everywhere on the page: what is little or nearly all does not look like none or all.
  const nearlyAll = percent < -99 && percent > -100;
  const digits = nearlyAll ? (Math.trunc(percent * 10) / 10).toFixed(1) : percent.toFixed(size > 0 && size < .95 ? 1 : 0);
  const change = all ? ` (${percent > 0 ? "+" : ""}${digits} %)` : "";
  const figure = canvas.parentElement, whole = atlas.view === WHOLE;
  figure.querySelector("output").textContent = `${name}: ${grouped(misses)} misses` +
    (name === "baseline" ? "" : ` of ${grouped(all)}${change}`) + ", simulated" + (whole ? "" : `; ${seen(atlas, bit)}`);
  figure.querySelector(".whole").hidden = whole;
}

// How many of the misses are in view; of a picture without room for each, in how many of its cells.
function seen(atlas, bit) {
  let misses = 0;
  for (let i = 0; i < atlas.cells.length; i++) {
    if (atlas.from[i] < atlas.from[i + 1] && inView(atlas, i)) {
      const [first, other] = missesOf(atlas, i, bit);
      misses += atlas.isExact ? first + other : Number(first + other > 0);
    }
  }
  return `in view: ${grouped(misses)} ${atlas.isExact ? "misses" : "cells with misses"}`;
}

const drawAll = () => atlases.forEach(draw);

// The view in the address: strategy, parts, layers, and where a picture is zoomed. `how` is a method
// of the history: Back undoes what is pushed.
function keep(how) {
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
  history[how](null, "", "#" + kept);
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

atlases.forEach(zoom);
for (const input of [...boxes, ...radios]) input.addEventListener("change", () => { drawAll(); keep("replaceState"); });
for (const part of parts) part.addEventListener("change", () => {
  // To add something up is to choose one's own.
  radios.forEach((radio) => { radio.checked = radio.value === "own"; });
  drawAll();
  keep("replaceState");
});
window.addEventListener("resize", drawAll);
window.addEventListener("popstate", restore);
for (const media of ["(prefers-color-scheme: dark)", "print"]) matchMedia(media).addEventListener("change", drawAll);
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
