// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
"use strict";

// What a reader takes away: each plot as SVG and CSV, the page as Markdown.

const svgElement = () => {
  // A parser knows the name space.
  const template = document.createElement("template");
  template.innerHTML = "<svg></svg>";
  return template.content.firstChild;
};

function add(parent, name, attributes, words) {
  const child = document.createElementNS(parent.namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) child.setAttribute(key, value);
  if (words !== undefined) child.textContent = words;
  parent.append(child);
  return child;
}

function sheet(width, height) {
  const svg = svgElement();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("width", width);
  svg.setAttribute("height", height);
  svg.setAttribute("font-family", "system-ui, sans-serif");
  add(svg, "rect", { width, height, fill: colour("--paper") });
  return svg;
}

// A drawing of the page, with the colours that its style gives it.
function styled(drawing) {
  const [, , width, height] = drawing.getAttribute("viewBox").split(" ");
  const svg = sheet(width, height);
  const copy = drawing.cloneNode(true);
  const from = drawing.querySelectorAll("*"), to = copy.querySelectorAll("*");
  from.forEach((element, i) => {
    const style = getComputedStyle(element);
    to[i].removeAttribute("class");
    for (const key of ["fill", "stroke", "stroke-width", "stroke-dasharray", "paint-order"]) to[i].setAttribute(key, style.getPropertyValue(key));
  });
  const group = add(svg, "g", { "font-size": getComputedStyle(drawing).fontSize });
  group.append(...copy.childNodes);
  return svg;
}

// The picture of a trace as it is shown: a path a colour.
function picture(atlas) {
  const width = 1000, height = 380, svg = sheet(width, height);
  let fill, path = null;
  add(svg, "title", {}, `${atlas.name}, ${combination()}`);
  drawOn(atlas, {
    colour: (name) => { fill = colour(name); path = null; },
    rect: (x, y, w, h) => {
      path ??= { element: add(svg, "path", { fill }), steps: [] };
      const [a, b, c, d] = [x, y, w, h].map((at) => Math.round(at * 10) / 10);
      path.steps.push(`M${a} ${b}h${c}v${d}h${-c}z`);
      path.element.steps = path.steps;
    },
    text: (words, x, y, anchor) => add(svg, "text", { x, y, fill, "text-anchor": anchor, "font-size": 12 }, words),
  }, width, height);
  for (const element of svg.querySelectorAll("path")) element.setAttribute("d", element.steps.join(""));
  return svg;
}

// Bars of shares: they are boxes of the page.
function stacked(figure) {
  const causes = [...figure.querySelectorAll(".cause")];
  const width = 620, step = 52, svg = sheet(width, causes.length * step + 24);
  causes.forEach((cause, row) => {
    const [name, bar, numbers] = cause.children;
    add(svg, "text", { x: 8, y: row * step + 16, "font-size": 12, fill: colour("--ink") }, name.textContent);
    let left = 8;
    for (const span of bar.children) {
      const share = Number(span.style.flexGrow) / 100 * (width - 16);
      add(svg, "rect", { x: left, y: row * step + 21, width: share, height: 14, fill: getComputedStyle(span).backgroundColor });
      left += share;
    }
    add(svg, "text", { x: 8, y: row * step + 47, "font-size": 11, fill: colour("--faint") }, numbers.textContent);
  });
  ["first", "capacity", "conflict"].forEach((name, i) => {
    const y = causes.length * step + 10;
    add(svg, "rect", { x: 8 + i * 110, y, width: 10, height: 10, fill: colour("--" + name) });
    add(svg, "text", { x: 22 + i * 110, y: y + 9, "font-size": 11, fill: colour("--faint") }, name === "first" ? "first touch" : name);
  });
  return svg;
}

// The cells in view, under the strategy chosen.
function cellsOf(atlas) {
  const { columns, rows, events, cells } = atlas;
  const bit = atlas.combinations.indexOf(combination());
  const lines = ["from event,row of pages,consistent,streaming,miss: first touch,miss: other,map,unmap,strategy"];
  for (let i = 0; i < cells.length; i++) {
    if (!inView(atlas, i)) continue;
    const column = Math.floor(cells[i] / rows), row = cells[i] % rows;
    const flags = shownFlags(atlas, i, bit);
    const bits = [1, 2, 4, 8, 16, 32].map((layer) => flags & layer ? 1 : 0);
    lines.push([Math.ceil(column * events / columns), row, ...bits, combination()].join(","));
  }
  return lines.join("\n");
}

function save(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text + "\n"], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

for (const button of document.querySelectorAll("button[data-take]")) {
  const figure = button.closest("figure"), file = figure.dataset.file;
  button.addEventListener("click", () => {
    const atlas = atlases.find(({ canvas }) => figure.contains(canvas));
    if (button.dataset.take === "csv") {
      save(file + ".csv", "text/csv", atlas ? cellsOf(atlas) : figure.dataset.csv);
      return;
    }
    const drawing = figure.querySelector("svg");
    const svg = atlas ? picture(atlas) : drawing ? styled(drawing) : stacked(figure);
    save(file + ".svg", "image/svg+xml", new XMLSerializer().serializeToString(svg));
  });
}

// The words of an element on one line, as Markdown takes them.
function words(element) {
  let text = "";
  for (const node of element.childNodes) {
    if (node.nodeType === Node.TEXT_NODE) text += node.data.replace(/[\\`*_<>|#\[\]]/g, "\\$&");
    else if (node.nodeName === "BR") text += " ";
    else if (node.nodeName === "CODE") text += "`" + node.textContent.replace(/`/g, "'") + "`";
    else if (node.className && String(node.className).startsWith("tag")) text += ` (${node.textContent})`;
    else if (node.nodeName !== "I" && !(node.classList?.contains("take"))) text += words(node);
  }
  return text.replace(/\s+/g, " ");
}

// What is shown, without what is folded.
function markdown(element) {
  const blocks = [];
  for (const child of element.children) {
    const name = child.nodeName;
    if (child.matches(".take, .how") || ["FIELDSET", "NOSCRIPT", "SCRIPT", "SVG", "svg", "CANVAS"].includes(name)) continue;
    if (name === "DETAILS" && !child.open) blocks.push(words(child.querySelector("summary")).trim() + ": on the page.");
    else if (/^H[1-6]$/.test(name)) blocks.push("#".repeat(Number(name[1])) + " " + words(child).trim());
    else if (name === "P" || name === "SUMMARY" || name === "FIGCAPTION") blocks.push((name === "FIGCAPTION" ? "Plot: " : "") + words(child).trim());
    else if (name === "UL" || name === "OL") blocks.push([...child.children].map((item) => (name === "OL" ? "1. " : "- ") + words(item).trim()).join("\n"));
    else if (name === "DL") {
      const items = [...child.children].map((item) => item.nodeName === "DT" ? "- " + words(item).trim() + ": " : words(item).trim() + "\n");
      blocks.push(items.join("").trim());
    } else if (name === "TABLE") {
      const rows = [...child.rows].map((row) => "| " + [...row.cells].map((cell) => words(cell).trim()).join(" | ") + " |");
      rows.splice(1, 0, "|" + " --- |".repeat(child.rows[0].cells.length));
      blocks.push(rows.join("\n"));
    } else if (child.classList.contains("cause")) blocks.push("- " + [child.children[0], child.children[2]].map((part) => words(part).trim()).join(": "));
    else blocks.push(markdown(child));
  }
  return blocks.filter(Boolean).join("\n\n");
}

const copy = document.getElementById("markdown");
copy.addEventListener("click", async () => {
  const text = markdown(document.body) + "\n";
  try {
    await navigator.clipboard.writeText(text);
    copy.textContent = "copied";
  } catch {
    // A browser that lets no page write there: the reader can.
    const area = document.querySelector("textarea.take") ?? document.createElement("textarea");
    area.className = "take";
    area.readOnly = true;
    area.value = text;
    copy.parentElement.after(area);
    area.select();
  }
  setTimeout(() => { copy.textContent = "copy as Markdown"; }, 2000);
});
