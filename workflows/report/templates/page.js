"use strict";
// What every page of a run can do by itself: sort its tables, save them as CSV and its charts as SVG, and be light or
// dark. Without scripts all of it can still be read.

function element(name, attributes = {}, ...inside) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...inside);
  return made;
}

function button(text, label, does, kind = "save") {
  const made = element("button", { type: "button", class: kind, "aria-label": label, title: label }, text);
  made.addEventListener("click", does);
  return made;
}

function save(name, type, text) {
  const link = element("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const words = (node) => node.textContent.replace(/\s+/g, " ").trim();
const slug = (text) => text.toLowerCase().replace(/[^\p{L}\p{N}@+]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 80) || "page";
const fileName = (what, end) => `${slug(document.title.replace(" · Sparring", ""))}-${slug(what)}.${end}`;

// Tables: a cell's `data-value` is its number in full; other `data-` attributes are columns of the CSV of their own.

const headings = (table) => [...table.tHead.rows[0].cells];
const EMPTY = new Set(["", "–", "-"]);

function number(cell) {
  if (!cell) return NaN;
  if (cell.dataset.value !== undefined) return cell.dataset.value === "" ? NaN : Number(cell.dataset.value);
  const found = words(cell).replaceAll(",", "").replace("−", "-").match(/^[+-]?\d*\.?\d+(e[+-]?\d+)?/i);
  return found ? Number(found[0]) : NaN;
}

function sortTable(table, at, order) {
  const body = table.tBodies[0];
  const rows = [...body.rows].filter((row) => !row.classList.contains("total"));
  const missing = (row) => !row.cells[at] || row.cells[at].dataset.value === "" || EMPTY.has(words(row.cells[at]));
  const numeric = rows.every((row) => missing(row) || !Number.isNaN(number(row.cells[at])));
  const sign = order === "descending" ? -1 : 1;
  const apart = (a, b) => numeric ? number(a.cells[at]) - number(b.cells[at])
    : words(a.cells[at]).localeCompare(words(b.cells[at]), undefined, { numeric: true });
  rows.sort((a, b) => order === "none" ? a.dataset.place - b.dataset.place
    : missing(a) || missing(b) ? missing(a) - missing(b) : sign * apart(a, b) || a.dataset.place - b.dataset.place);
  body.prepend(...rows);
  headings(table).forEach((cell, here) => cell.setAttribute("aria-sort", here === at ? order : "none"));
  return numeric;
}

function makeSortable(table) {
  const rows = [...table.tBodies[0].rows];
  rows.forEach((row, place) => { row.dataset.place = place; });
  if (rows.filter((row) => !row.classList.contains("total")).length < 2) return;
  headings(table).forEach((cell, at) => {
    const turn = element("button", { type: "button", class: "sort" });
    turn.append(...cell.childNodes);
    cell.append(turn);
    cell.setAttribute("aria-sort", "none");
    turn.addEventListener("click", () => {
      const now = cell.getAttribute("aria-sort");
      const first = at > 0 && !cell.classList.contains("words") ? "descending" : "ascending";
      const second = first === "descending" ? "ascending" : "descending";
      sortTable(table, at, now === "none" ? first : now === first ? second : "none");
    });
  });
}

function csv(table) {
  const rows = [...table.tBodies[0].rows];
  const columns = headings(table).flatMap((cell, at) => {
    const told = new Set(rows.flatMap((row) => Object.keys(row.cells[at]?.dataset ?? {})));
    told.delete("value");
    return [[words(cell), at, null], ...[...told].map((key) => [`${words(cell)} ${key}`, at, key])];
  });
  const text = (cell, key) => key ? cell.dataset[key] ?? ""
    : cell.dataset.value ?? (EMPTY.has(words(cell)) ? "" : words(cell).replaceAll("−", "-"));
  const quoted = (value) => /[",\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value;
  const lines = rows.map((row) => columns.map(([, at, key]) => row.cells[at] ? text(row.cells[at], key) : ""));
  return [columns.map(([name]) => name), ...lines].map((line) => line.map(quoted).join(",")).join("\r\n") + "\r\n";
}

function titleOf(node) {
  const before = [...document.querySelectorAll("h1, h2, h3, summary")].filter(
    (one) => one.compareDocumentPosition(node) & Node.DOCUMENT_POSITION_FOLLOWING && !one.closest(".example"));
  return words(before.at(-1) ?? document.body.firstElementChild);
}

for (const table of document.querySelectorAll("table")) {
  if (!table.tHead || !table.tBodies.length) continue;
  makeSortable(table);
  const title = titleOf(table);
  (table.closest(".scroll") ?? table).after(
    button("CSV", `Save the table “${title}” as CSV`, () => save(fileName(title, "csv"), "text/csv", csv(table))));
}

// Charts: colours come from the page, so a chart that leaves it takes them along, the light ones.

const KEPT = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "opacity",
  "font-family", "font-size", "font-weight", "paint-order"];

function standalone(drawn) {
  const root = document.documentElement, scheme = root.style.colorScheme;
  root.style.colorScheme = "light";
  const copy = drawn.cloneNode(true);
  const from = [drawn, ...drawn.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((one, at) => {
    const style = getComputedStyle(one);
    for (const key of KEPT) if (one !== drawn && one.tagName !== "title") to[at].setAttribute(key, style.getPropertyValue(key));
    to[at].removeAttribute("class");
    to[at].removeAttribute("tabindex");
  });
  root.style.colorScheme = scheme;
  const [, , width, height] = drawn.getAttribute("viewBox").split(" ");
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  copy.setAttribute("style", "background: #fff");
  return new XMLSerializer().serializeToString(copy);
}

for (const figure of document.querySelectorAll("figure")) {
  const caption = figure.querySelector("figcaption");
  const title = () => [titleOf(figure), caption ? words(caption) : ""].join(" ");
  figure.append(button("SVG", `Save the chart “${caption ? words(caption) : titleOf(figure)}” as SVG`,
    () => save(fileName(title(), "svg"), "image/svg+xml", standalone(figure.querySelector("svg")))));
}

// Light or dark: the system's, until the button says otherwise.

{
  const root = document.documentElement, system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.style.colorScheme || (system.matches ? "dark" : "light")) === "dark";
  const name = () => { turn.textContent = dark() ? "Light" : "Dark"; turn.title = `Show the page ${dark() ? "light" : "dark"}`; };
  const turn = button("", "Light or dark", () => { root.style.colorScheme = dark() ? "light" : "dark"; name(); }, "theme");
  turn.removeAttribute("aria-label");
  system.addEventListener("change", name);
  name();
  document.querySelector("main").prepend(turn);
}
