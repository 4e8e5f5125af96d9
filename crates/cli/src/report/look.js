// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
"use strict";

// Pointing at a picture: what lies there, and zooming with mouse, fingers and keys. page.js draws.

const CONSISTENT = 1, READS = 2, WRITES = 4, KIND = 8;
const KINDS = ["", " (alloc)", " (page)", " (sg)"];
// No closer than the address of the page can tell.
const CLOSEST = .001;
// Pixels up to which a frame has no width, or no height: it is of time, or of pages, alone.
const THIN = 10;

// What lies where, as atlas/mappings.rs writes it.
function lies({ pages, mappings, tasks, times, exact, kept }) {
  const found = { isExact: exact === "true", pages: [], mappings: [], tasks: tasks ? tasks.split("\n") : [], times: null, areAll: kept === "all" };
  for (const read = reader(pages); read.more();) {
    const first = read.number();
    found.pages.push([first, first + read.number()]);
  }
  let at = 0;
  for (const read = reader(mappings); read.more();) {
    at += read.number();
    const lived = read.number(), row = read.number(), last = row + read.number(), first = found.pages[row][0] + read.number();
    const [count, bytes, flags, task, ns] = Array.from({ length: 5 }, read.number);
    found.mappings.push({ at, end: lived ? at + lived : Infinity, row, last, first, count, bytes, flags, task, ns });
  }
  if (times) {
    let ns = 0;
    found.times = [];
    for (const read = reader(times); read.more();) found.times.push(ns += read.number());
  }
  return found;
}

// Pixels below a picture: a line of numbers for events, and one for times.
const bottomOf = (atlas) => atlas.times ? 41 : 26;

// Nanoseconds at a part of the picture, between the times that are known.
function timeAt(times, part) {
  const at = Math.min(Math.max(part, 0), 1) * (times.length - 1), below = Math.floor(at);
  const next = times[Math.min(below + 1, times.length - 1)];
  return times[below] + (at - below) * (next - times[below]);
}

// A time with so many digits behind the point of its unit.
function spelled(ns, digits) {
  const [unit, size] = [["s", 1e9], ["ms", 1e6], ["us", 1e3]].find(([, size]) => ns >= size) ?? ["ns", 1];
  return `${(ns / size).toFixed(unit === "ns" ? 0 : digits)} ${unit}`;
}

// What lies at a place, given as parts of the whole picture, and the mapping that is meant, if any.
function told(atlas, across, up) {
  const { columns, rows, events, devices, times, mappings } = atlas;
  const column = Math.min(Math.floor(across * columns), columns - 1), row = Math.min(Math.floor(up * rows), rows - 1);
  const from = Math.ceil(column * events / columns), to = Math.max(from, Math.ceil((column + 1) * events / columns) - 1);
  const range = (what, a, b) => a === b ? `${what} ${a}` : `${what}s ${a} to ${b}`;
  const hex = (page) => page.toString(16);
  const [first, last] = atlas.pages[row];
  const device = devices.filter(([begin]) => begin <= row).pop()?.[1] || "another device";
  const lines = [(devices.length > 1 ? device + ", " : "") + range("page", hex(first), hex(last)) + ", " +
    range("event", grouped(from), grouped(to)) + (times ? `, at about ${spelled(timeAt(times, across), 3)}` : "")];
  // Of several the one that is there for longest.
  const here = mappings.filter((one) => one.row <= row && row <= one.last && one.at <= to && one.end >= from);
  const stays = (one) => Math.min(one.end, to + 1) - Math.max(one.at, from);
  const mapping = here.reduce((best, one) => best && stays(best) >= stays(one) ? best : one, undefined);
  if (mapping) lines.push(...described(atlas, mapping));
  else lines.push(atlas.areAll ? "not mapped" : "not mapped, or too small a mapping for this page");
  if (here.length > 1) lines.push(`and ${grouped(here.length - 1)} more mappings in this cell`);
  const bit = atlas.combinations.indexOf(combination());
  const i = atlas.cells.indexOf(column * rows + row);
  const [touches, others] = i < 0 ? [0, 0] : missesOf(atlas, i, bit);
  const misses = [[touches, "first touch"], [others, "capacity or conflict"]].filter(([count]) => count > 0);
  const counts = misses.map(([count, words]) => atlas.isExact ? `${words}: ${grouped(count)}` : words);
  if (counts.length) lines.push(`misses (${combination()}), simulated: ${counts.join(", ")}`);
  return { text: lines.join("\n"), mapping };
}

function described({ tasks, events }, { at, end, first, count, bytes, flags, task, ns }) {
  const pages = count === 1 ? `page ${first.toString(16)}` : `${grouped(count)} pages from ${first.toString(16)}`;
  const may = flags & READS ? flags & WRITES ? "read and written" : "read" : "written";
  const by = task ? ` by ${tasks[task - 1] ?? "another task"}` : "";
  return [
    `${pages}${bytes ? `, ${grouped(bytes - 1)} bytes` : ""}: ${flags & CONSISTENT ? "consistent" : "streaming"}${KINDS[Math.floor(flags / KIND)] ?? ""}, ${may}`,
    end === Infinity ? `mapped${by} at event ${grouped(at)}, up to the end` :
      `mapped${by} for ${ns ? `${spelled(ns - 1, 1)}, ` : ""}${grouped(end - at)} of ${grouped(events)} events`,
  ];
}

function zoom(atlas) {
  const { canvas, columns, rows, events } = atlas;
  const add = (name) => {
    const element = document.createElement("div");
    element.className = name;
    canvas.after(element);
    return element;
  };
  // The part chosen, the mapping pointed at, the place of the keys, and words.
  const [frame, outline, mark, hint] = ["frame", "outline", "mark", "hint"].map(add);
  const box = (element, left, top, width, height) => {
    element.style.cssText = `display:block;left:${canvas.offsetLeft + left}px;top:${canvas.offsetTop + top}px;width:${width}px;height:${height}px`;
  };
  const still = () => { for (const element of [outline, mark, hint]) element.style.cssText = ""; };
  const area = () => [LEFT, TOP, canvas.clientWidth - 4, canvas.clientHeight - bottomOf(atlas)];
  const within = (at, from, to) => Math.min(Math.max(at, from), to);
  const place = (event) => {
    const { left, top } = canvas.getBoundingClientRect(), [x0, y0, x1, y1] = area();
    return [within(event.clientX - left, x0, x1), within(event.clientY - top, y0, y1)];
  };
  // From pixels to parts of the whole, and back.
  const part = ([x, y]) => {
    const [left, top, right, bottom] = area(), [x0, x1, y0, y1] = atlas.view;
    return [x0 + (x - left) / (right - left) * (x1 - x0), y0 + (bottom - y) / (bottom - top) * (y1 - y0)];
  };
  const pixel = (across, up) => {
    const [left, top, right, bottom] = area(), [x0, x1, y0, y1] = atlas.view;
    return [left + within((across - x0) / (x1 - x0), 0, 1) * (right - left), bottom - within((up - y0) / (y1 - y0), 0, 1) * (bottom - top)];
  };
  // Of a view along an axis: of this size, with `at` at the part `of` of it.
  const axis = (size, at, of) => {
    const long = within(size, CLOSEST, 1), begin = within(at - of * long, 0, 1 - long);
    return [begin, begin + long];
  };
  const whole = (view) => view[1] - view[0] >= 1 && view[3] - view[2] >= 1 ? WHOLE : view;
  const show = (view, how) => {
    if (view.every((at, i) => at === atlas.view[i])) return;
    atlas.view = view;
    still();
    draw(atlas);
    keep(how);
  };

  const tell = (across, up, live) => {
    const { text, mapping } = told(atlas, across, up), [x, y] = pixel(across, up);
    outline.style.cssText = "";
    if (mapping) {
      const [left, top] = pixel(mapping.at / events, (mapping.last + 1) / rows);
      const [right, bottom] = pixel(Math.min(mapping.end, events) / events, mapping.row / rows);
      box(outline, left - 1, top - 1, Math.max(right - left, 1) + 2, Math.max(bottom - top, 1) + 2);
    }
    hint.setAttribute("aria-live", live);
    hint.textContent = text;
    hint.style.cssText = "display:block";
    // Beside the place, where there is more room.
    const left = x < canvas.clientWidth / 2 ? x + 14 : x - 14 - hint.offsetWidth;
    const top = y + 16 + hint.offsetHeight < canvas.clientHeight ? y + 16 : y - 12 - hint.offsetHeight;
    hint.style.left = `${canvas.offsetLeft + within(left, 0, canvas.clientWidth - hint.offsetWidth)}px`;
    hint.style.top = `${canvas.offsetTop + top}px`;
  };

  const fingers = new Map();
  let start = null, pinch = null, asked = 0;
  const between = ([ax, ay], [bx, by]) => {
    const [left, top, right, bottom] = area();
    const [x0, x1] = Math.abs(ax - bx) < THIN ? [left, right] : [Math.min(ax, bx), Math.max(ax, bx)];
    const [y0, y1] = Math.abs(ay - by) < THIN ? [top, bottom] : [Math.min(ay, by), Math.max(ay, by)];
    return [x0, y0, x1, y1];
  };
  const isStill = ([ax, ay], [bx, by]) => Math.abs(ax - bx) < THIN && Math.abs(ay - by) < THIN;
  const squeeze = () => {
    const now = [...fingers.values()], [x0, x1, y0, y1] = pinch.view, [left, top, right, bottom] = area();
    const apart = ([a, b]) => Math.max(Math.hypot(a[0] - b[0], a[1] - b[1]), 1);
    const middle = ([a, b], i) => (a[i] + b[i]) / 2;
    const scale = apart(pinch.from) / apart(now);
    atlas.view = whole([
      ...axis((x1 - x0) * scale, middle(pinch.parts, 0), (middle(now, 0) - left) / (right - left)),
      ...axis((y1 - y0) * scale, middle(pinch.parts, 1), (bottom - middle(now, 1)) / (bottom - top)),
    ]);
    asked ||= requestAnimationFrame(() => { asked = 0; draw(atlas); });
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    fingers.set(event.pointerId, place(event));
    canvas.setPointerCapture(event.pointerId);
    still();
    frame.style.cssText = "";
    const from = [...fingers.values()];
    start = from.length === 1 ? from[0] : null;
    pinch = from.length === 2 ? { from, parts: from.map(part), view: atlas.view } : null;
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) return tell(...part(place(event)), "off");
    fingers.set(event.pointerId, place(event));
    if (pinch) return squeeze();
    if (!start || isStill(start, place(event))) return;
    const [x0, y0, x1, y1] = between(start, place(event));
    box(frame, x0, y0, x1 - x0, y1 - y0);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (!fingers.delete(event.pointerId)) return;
    frame.style.cssText = "";
    if (pinch) {
      const moved = pinch.view.some((at, i) => at !== atlas.view[i]);
      pinch = null;
      if (moved) keep("pushState");
    } else if (start) {
      const end = place(event), from = start;
      start = null;
      if (isStill(from, end)) return tell(...part(end), "off");
      const [x0, y0, x1, y1] = between(from, end), [ax, ay] = part([x0, y1]), [bx, by] = part([x1, y0]);
      if (bx - ax >= CLOSEST && by - ay >= CLOSEST) show([ax, bx, ay, by], "pushState");
    }
  });
  canvas.addEventListener("pointercancel", (event) => {
    fingers.delete(event.pointerId);
    start = pinch = null;
    frame.style.cssText = "";
  });
  canvas.addEventListener("dblclick", () => show(WHOLE, "pushState"));
  canvas.parentElement.querySelector(".whole").addEventListener("click", () => show(WHOLE, "pushState"));

  // Without a mouse: arrows point, + and - zoom around that place, 0 or Escape is the whole.
  let keys = null;
  const point = () => {
    keys ??= [(atlas.view[0] + atlas.view[1]) / 2, (atlas.view[2] + atlas.view[3]) / 2];
    tell(...keys, "polite");
    box(mark, ...pixel(...keys), 0, 0);
  };
  canvas.addEventListener("pointerleave", (event) => {
    // A finger that is gone still points.
    if (event.pointerType === "mouse") still();
  });
  canvas.addEventListener("focus", () => { if (canvas.matches(":focus-visible")) point(); });
  canvas.addEventListener("blur", () => { keys = null; still(); });
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const [x0, x1, y0, y1] = atlas.view;
    const scale = { "+": .5, "=": .5, "-": 2 }[event.key];
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowDown: [0, -1], ArrowUp: [0, 1] }[event.key];
    if (event.key === "0" || event.key === "Escape") show(WHOLE, "pushState");
    if (!scale && !move) return;
    event.preventDefault();
    const [across, up] = keys ?? [(x0 + x1) / 2, (y0 + y1) / 2];
    if (scale) {
      keys = [across, up];
      show(whole([...axis((x1 - x0) * scale, across, .5), ...axis((y1 - y0) * scale, up, .5)]), "pushState");
      return point();
    }
    const step = (at, by, size, cells) => within(at + by * Math.max(size / 40, 1 / cells), 0, 1);
    keys = [step(across, move[0], x1 - x0, columns), step(up, move[1], y1 - y0, rows)];
    // A place that leaves the view takes it along.
    const along = (from, to, at) => at < from || at > to ? axis(to - from, at, .5) : [from, to];
    show([...along(x0, x1, keys[0]), ...along(y0, y1, keys[1])], "replaceState");
    point();
  });
}
