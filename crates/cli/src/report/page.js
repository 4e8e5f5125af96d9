// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
"use strict";

// Bits of a cell and the colour variables that show them, later ones on top.
const LAYERS = [[2, "--streaming"], [1, "--consistent"], [16, "--map"], [32, "--unmap"], [8, "--other"], [4, "--miss"]];
const LEFT = 74, BOTTOM = 26, TOP = 12;

// Pairs of a row number and a name, one a line.
function pairs(text) {
  return text.split("\n").filter(Boolean).map((line) => {
    const space = line.indexOf(" ");
    return [Number(line.slice(0, space)), line.slice(space + 1)];
  });
}

// Distances in base 128 and bytes of flags, as atlas.rs writes them.
function decode(base64) {
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const cells = [], flags = [];
  let cell = 0;
  for (let i = 0; i < bytes.length; i++) {
    let distance = 0, scale = 1;
    while (bytes[i] >= 128) { distance += (bytes[i++] - 128) * scale; scale *= 128; }
    cell += distance + bytes[i++] * scale;
    cells.push(cell);
    flags.push(bytes[i]);
  }
  return { cells: Uint32Array.from(cells), flags: Uint8Array.from(flags) };
}

const atlases = [...document.querySelectorAll(".atlas canvas")].map((canvas) => ({
  canvas,
  columns: Number(canvas.dataset.columns),
  rows: Number(canvas.dataset.rows),
  events: Number(canvas.dataset.events),
  devices: pairs(canvas.dataset.devices),
  ticks: pairs(canvas.dataset.ticks),
  ...decode(canvas.dataset.cells),
}));
const boxes = [...document.querySelectorAll(".layers input")];

function draw({ canvas, columns, rows, events, devices, ticks, cells, flags }) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const paint = canvas.getContext("2d");
  paint.scale(ratio, ratio);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const right = width - 4, bottom = height - BOTTOM;
  const x = (column) => LEFT + column / columns * (right - LEFT);
  const y = (row) => bottom - row / rows * (bottom - TOP);
  paint.font = "12px system-ui, sans-serif";
  paint.fillStyle = colour("--faint");
  paint.strokeStyle = colour("--line");
  paint.strokeRect(LEFT - 3, TOP - 2, right - LEFT + 5, bottom - TOP + 4);
  paint.textAlign = "right";
  let last = Infinity;
  for (const [row, name] of ticks) {
    const at = y(row);
    if (last - at < 14) continue;
    paint.fillText(name, LEFT - 8, at + 2);
    last = at;
  }
  for (const part of width > 500 ? [0, .25, .5, .75, 1] : [0, .5, 1]) {
    paint.textAlign = part === 0 ? "left" : part === 1 ? "right" : "center";
    const label = Math.round(events * part).toLocaleString("en") + (part === 1 ? " events" : "");
    paint.fillText(label, LEFT + part * (right - LEFT), height - 8);
  }
  const shown = boxes.reduce((bits, box) => bits | (box.checked ? Number(box.dataset.bit) : 0), 0);
  const dotWidth = Math.max(1, (right - LEFT) / columns), dotHeight = Math.max(1.2, (bottom - TOP) / rows);
  for (const [bit, name] of LAYERS) {
    if (!(shown & bit)) continue;
    paint.fillStyle = colour(name);
    // Misses lie on top of accesses, which stay visible around them.
    const grow = bit === 1 || bit === 2 ? 1.4 : .3;
    for (let i = 0; i < cells.length; i++) {
      if (!(flags[i] & bit)) continue;
      const column = Math.floor(cells[i] / rows), row = cells[i] % rows;
      paint.fillRect(x(column) - grow / 2, y(row + 1) - grow / 2, dotWidth + grow, dotHeight + grow);
    }
  }
  if (devices.length < 2) return;
  paint.textAlign = "left";
  for (const [row, name] of devices) {
    paint.fillStyle = colour("--ink");
    paint.fillRect(LEFT - 3, y(row), right - LEFT + 5, .6);
    paint.fillText(name, LEFT + 4, y(row) - 5);
  }
}

const drawAll = () => atlases.forEach(draw);
boxes.forEach((box) => box.addEventListener("change", drawAll));
window.addEventListener("resize", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
drawAll();

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
