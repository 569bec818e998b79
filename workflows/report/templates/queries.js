// Any two systems, query by query, from the data that the page carries.

const { pair, places } = JSON.parse(document.getElementById("queries-data").textContent);
const section = document.getElementById("queries");
const [about, figure] = [section.querySelector("[aria-live]"), section.querySelector("figure")];
const [picks, list] = [section.querySelector(".pick"), section.querySelector(".list")];
const EACH = 8, HEIGHT = 230, LEFT = 44, TOP = 8;
const count = (value) => value.toLocaleString("en");
const three = (value) => (value / 1000).toFixed(3);
const signed = (value) => (value < 0 ? "−" : "+") + three(Math.abs(value));
// Student's t at .975, as 26.7.5 of Abramowitz and Stegun has it: within .02 from 3 degrees of freedom on.
const quantile = (df) => {
  const z = 1.959964;
  return z + (z ** 3 + z) / (4 * df) + (5 * z ** 5 + 16 * z ** 3 + 3 * z) / (96 * df ** 2) +
    (3 * z ** 7 + 19 * z ** 5 + 17 * z ** 3 - 15 * z) / (384 * df ** 3);
};
const rankText = (value) => value === null ? "not retrieved" : `rank ${count(value)}`;

function pick(name, options, chosen) {
  const select = element("select");
  options.forEach((text, at) => select.append(new Option(text, at, false, at === chosen)));
  select.addEventListener("change", () => show());
  picks.append(element("label", {}, name, select));
  return select;
}

let controls, place, limit = EACH, opened = null;

function choose(at) {
  place = places[at];
  picks.replaceChildren();
  controls = {};
  if (places.length > 1) {
    controls.place = pick("collection", places.map((one) => `${one.collection}, ${one.split}`), at);
    controls.place.addEventListener("change", () => choose(Number(controls.place.value)));
  }
  const named = (name, other) => Math.max(0, place.systems.indexOf(name) < 0 ? other : place.systems.indexOf(name));
  controls.one = pick("system", place.systems, named(pair?.[0], place.systems.length - 1));
  controls.two = pick("against", place.systems, named(pair?.[1], 0));
  controls.measure = pick("measure", place.measures, 0);
  controls.order = pick("list", ["won first", "lost first", "in order"], 0);
  controls.search = element("input", { type: "search", placeholder: "words of a query" });
  controls.search.addEventListener("input", () => show());
  picks.append(element("label", {}, "only queries with", controls.search));
  show();
}

function compared() {
  const [one, two, measure] = [controls.one, controls.two, controls.measure].map((select) => Number(select.value));
  const words = controls.search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const [a, b] = [place.values[one][measure], place.values[two][measure]];
  const rows = place.queries.map((text, at) => ({ at, text, one, two, a: a[at], b: b[at], difference: a[at] - b[at] }));
  return rows.filter((row) => row.a !== null && row.b !== null && words.every((word) => row.text.toLowerCase().includes(word)));
}

function show(keep = false) {
  if (!keep) { limit = EACH; opened = null; }
  const rows = compared(), sorted = [...rows].sort((x, y) => y.difference - x.difference || x.at - y.at);
  const [one, two] = [place.systems[controls.one.value], place.systems[controls.two.value]];
  const measure = place.measures[controls.measure.value];
  const tally = (test) => rows.filter((row) => test(row.difference)).length;
  const [won, lost] = [tally((d) => d > 0), tally((d) => d < 0)];
  const mean = rows.length ? rows.reduce((sum, row) => sum + row.difference, 0) / rows.length : 0;
  const spread = rows.reduce((sum, row) => sum + (row.difference - mean) ** 2, 0) / Math.max(1, rows.length - 1);
  const half = rows.length > 1 ? ` ± ${three(quantile(rows.length - 1) * Math.sqrt(spread / rows.length))}` : "";
  about.textContent = `${one} is better than ${two} on ${count(won)} queries, worse on ${count(lost)}, and equal on ` +
    `${count(rows.length - won - lost)}: ${measure} ${signed(mean)}${half} on average.` +
    (place.queries.length < place.measured ? ` These are a random sample of ${count(place.queries.length)} of the ${count(place.measured)} measured queries.` : "") +
    (place.shown < place.queries.length ? ` Documents are shown for the ${count(place.shown)} queries on which the systems differ most.` : "");
  figure.querySelector("figcaption").textContent = `${measure}: ${one} against ${two}`;
  draw(sorted, `${measure}, ${one} minus ${two}, by query: ${won} better, ${lost} worse`);
  const order = [sorted, [...sorted].reverse(), rows][controls.order.value];
  const top = order.filter((row) => row.at === opened), rest = order.filter((row) => row.at !== opened);
  const shown = [...top, ...rest].slice(0, limit);
  list.replaceChildren(...shown.map((row) => entry(row, one, two)));
  if (limit < rows.length) {
    list.append(button("Show more", "Show more queries", () => {
      limit += 3 * EACH;
      const before = list.querySelectorAll("details").length;
      show(true);
      list.querySelectorAll("summary")[before]?.focus();
    }, "more"));
  }
}

function draw(rows, label) {
  const make = (name, attributes, ...inside) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...inside);
    return made;
  };
  const most = Math.max(1, ...rows.map((row) => Math.abs(row.difference)));
  const high = rows.some((row) => row.difference > 0) ? most : most / 10, low = rows.some((row) => row.difference < 0) ? -most : -most / 10;
  const y = (value) => TOP + (HEIGHT - 2 * TOP) * (high - value) / (high - low);
  const WIDTH = Math.max(300, Math.min(1020, section.clientWidth || 1020));
  const wide = (WIDTH - LEFT) / Math.max(1, rows.length);
  const svg = make("svg", { class: "chart wide", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  for (const mark of [high, high / 2, 0, low / 2, low].filter((mark) => mark === 0 || Math.abs(mark) >= most / 2)) {
    svg.append(make("path", { class: "grid", d: `M${LEFT} ${y(mark)}H${WIDTH}` }));
    svg.append(make("text", { class: "tick", x: LEFT - 6, y: y(mark) + 4, "text-anchor": "end" }, mark ? signed(mark).slice(0, 5) : "0"));
  }
  const bars = make("g", { class: "pairs" });
  rows.forEach((row, at) => {
    const from = Math.min(y(row.difference), y(0)), tall = Math.max(1, Math.abs(y(row.difference) - y(0)));
    const kind = row.difference > 0 ? "won" : row.difference < 0 ? "lost" : "level";
    const bar = make("rect", { class: `bar ${kind}${row.at === opened ? " chosen" : ""}`, x: (LEFT + at * wide).toFixed(2),
      y: from.toFixed(1), width: Math.max(.6, wide > 3 ? wide - 1 : wide).toFixed(2), height: tall.toFixed(1) },
      // The marks isolate a text from right to left, which would turn the numbers around.
      make("title", {}, `\u2068${row.text}\u2069: ${three(row.a)} against ${three(row.b)}`));
    bar.addEventListener("click", () => { opened = row.at; show(true); list.querySelector("summary")?.focus({ preventScroll: true }); });
    bars.append(bar);
  });
  svg.append(bars);
  figure.querySelector("svg")?.remove();
  figure.querySelector("figcaption").after(svg);
}

function entry(row, one, two) {
  const kind = row.difference > 0 ? "better" : row.difference < 0 ? "worse" : "soft";
  const made = element("details", { class: "found" }, element("summary", {}, element("b", {}, row.text),
    element("span", { class: kind }, `${three(row.a)} against ${three(row.b)}`)));
  const fill = () => {
    if (made.querySelector(".examples") || !made.open) return;
    const columns = [[one, row.one], [two, row.two]].map(([name, system]) => element("div", {},
      element("h4", {}, `${name}: ${rankText(place.ranks[system][row.at])}`), ...documents(system, row.at)));
    made.append(element("div", { class: "examples" }, ...columns), ...missed(row));
  };
  made.addEventListener("toggle", fill);
  if (row.at === opened) { made.open = true; fill(); }
  return made;
}

function passage(at, mark) {
  const [title, text] = place.documents[at];
  const made = element("p", { class: "document" });
  if (mark) made.append(element("span", { class: "which" }, mark), " ");
  if (title) made.append(element("b", {}, title), " ");
  made.append(text);
  return made;
}

function documents(system, query) {
  const first = place.first[system][query];
  if (!first) return [element("p", { class: "document" }, "The page leaves out the documents of this query to stay small.")];
  return first.map((at, place_) => passage(at, place.right[query].includes(at) ? `${place_ + 1}, relevant` : String(place_ + 1)));
}

function missed(row) {
  const seen = [row.one, row.two].flatMap((system) => place.first[system][row.at] ?? []);
  return (place.right[row.at] ?? []).filter((at) => !seen.includes(at)).map((at) => passage(at, "relevant"));
}

section.hidden = false;
choose(0);
addEventListener("resize", () => show(true));
