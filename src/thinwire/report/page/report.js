"use strict";
// Draws the contents of a study (report/html.py says what is in them) into the page.

let data = JSON.parse(document.getElementById("contents").textContent);
const state = { hidden: new Set(), axis: null, logX: null, logY: false, logSent: false, target: null, sort: null, picked: {}, clicked: [null, 0], alone: null };
const page = document.getElementById("page");
const dark = matchMedia("(prefers-color-scheme: dark)");
let printing = false;

const LIGHT = ["#4477aa", "#ee6677", "#228833", "#b39b00", "#2aa5c9", "#aa3377", "#777777", "#000000", "#dd8833", "#7755cc"];
const DARK = ["#6ea6e0", "#ff8a94", "#5fc46f", "#e0d060", "#7fdcf5", "#dd7fbb", "#aaaaaa", "#ffffff", "#f0a860", "#a893ee"];
const DASHES = ["solid", "dash", "dot", "dashdot"];
const PARTS = ["#4477aa", "#99bbdd", "#cc6644", "#eebb99"]; // up and down, each with its headers

const theme = () => {
  const night = dark.matches && !printing;
  return {
    colours: night ? DARK : LIGHT,
    ink: night ? "#e6e9ec" : "#1c2024",
    line: night ? "#323941" : "#e4e8ec",
    card: night ? "#1a1e22" : "#ffffff",
    blank: night ? "#22272c" : "#f1f3f5",
  };
};
const colour = (i) => theme().colours[i % LIGHT.length];
const dash = (i) => DASHES[Math.floor(i / LIGHT.length) % DASHES.length];
const narrow = () => page.clientWidth < 640;

// -- elements ---------------------------------------------------------------------

/** An element with attributes ("on..." are listeners) and children, of which strings are text. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null));
  return element;
}

/** Text in which `words` are code. */
const prose = (text) => text.split("`").map((part, i) => (i % 2 ? make("code", {}, part) : part));

/** An expression, which may be broken where a part of it begins. */
const code = (text) => make("span", { class: "code" },
  text.split(/(?<=[(=,])/).flatMap((part, i) => (i ? [make("wbr"), part] : [part])));

const swatch = (i) => make("span", {
  class: "swatch",
  style: { borderColor: colour(i), borderTopStyle: { solid: "solid", dot: "dotted" }[dash(i)] || "dashed" },
});

const section = (id, title, ...children) => make("section", { id }, make("h2", {}, title), ...children);
const empty = (id, title) => section(id, title, make("p", { class: "soft" }, "The legend hides every method that this part shows."));

const drawn = new Map(); // charts by name: they stay when the page is made anew, with their zoom
function chart(name, title, height) {
  if (!drawn.has(name)) {
    const div = make("div", { "data-chart": name });
    drawn.set(name, { div, frame: make("div", { class: "chart" }, make("h3", {}, title), div) });
  }
  const { div, frame } = drawn.get(name);
  frame.firstChild.textContent = title;
  div.style.height = `${height}px`;
  return { div, frame };
}

/** Those of methods that the legend shows, of a list whose entries have a `method`. */
const listed = (entries) => entries.filter((entry) => !state.hidden.has(entry.method));

// What is chosen in a list is remembered by method, and by seed or way: entries come and go with the legend.
const mark = (entry) => `${entry.method} ${entry.seed ?? entry.way}`;
const picked = (name, entries) => entries.find((entry) => mark(entry) === state.picked[name]) || entries[0];

/** A choice among methods, where a section shows one at a time. */
function choice(name, entries, label, redraw) {
  const select = make("select", { onchange: () => { state.picked[name] = mark(entries[select.selectedIndex]); redraw(); } },
    entries.map((entry) => make("option", { selected: entry === picked(name, entries) }, label(entry))));
  return make("div", { class: "controls" }, make("label", {}, "Method", select));
}

// -- numbers ----------------------------------------------------------------------

const UNITS = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [0, "B"]];
function bytes(x) {
  const [factor, unit] = UNITS.find(([factor]) => Math.abs(x) >= factor);
  return `${digits(factor ? x / factor : x)} ${unit}`;
}
function digits(x) {
  if (x === null || !isFinite(x)) return "-";
  return Math.abs(x) >= 1000 ? Math.round(x).toLocaleString("en") : String(Number(x.toPrecision(3)));
}
const mean = (values) => values.reduce((sum, x) => sum + x, 0) / values.length;

/**
 * Ticks of a logarithmic axis: the first choice that has three. `ticks` of report/plots.py are the same.
 * These are powers of ten; 1, 2 and 5 of each decade; and even steps, the longest first.
 */
function ticks(low, high) {
  const count = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => from + i);
  const decades = count(Math.floor(Math.log10(low)), Math.ceil(Math.log10(high)));
  const every = high > 1e6 * low ? 2 : 1;
  const size = 10 ** Math.floor(Math.log10(high - low));
  const even = (step) => count(Math.ceil(low / step), Math.floor(high / step)).map((n) => n * step);
  const choices = [
    decades.filter((k) => k % every === 0).map((k) => 10 ** k),
    decades.flatMap((k) => [1, 2, 5].map((digit) => digit * 10 ** k)),
    ...[2 * size, size, size / 2, size / 4].map(even),
  ];
  return choices.map((choice) => choice.filter((x) => x >= low && x <= high)).find((found) => found.length >= 3);
}
/** All digits of a tick. Two neighbours may differ in the last one. */
function written(x) {
  const [factor, unit] = x >= 1e9 ? [1e9, "G"] : x >= 1e6 ? [1e6, "M"] : x >= 1e4 ? [1e3, "k"] : [1, ""];
  const exact = Number((x / factor).toPrecision(12));
  return exact >= 1e-3 ? `${exact}${unit}` : exact.toExponential();
}
function logAxis(low, high) {
  const values = ticks(low, high);
  return { type: "log", tickmode: "array", tickvals: values, ticktext: values.map(written) };
}

// -- plotting ---------------------------------------------------------------------

const OPTIONS = { responsive: true, displaylogo: false, modeBarButtons: [["toImage", "resetScale2d"]] };

function layout(more) {
  const { ink, line } = theme();
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, tickcolor: line, automargin: true, title: { standoff: 8 } };
  const { xaxis = {}, yaxis = {}, ...rest } = more;
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
    font: { color: ink, size: narrow() ? 11 : 12, family: getComputedStyle(document.body).fontFamily },
    margin: { l: 48, r: 14, t: narrow() ? 8 : 30, b: 42 }, hovermode: "closest", uirevision: "kept",
    hoverlabel: { bgcolor: theme().card, bordercolor: line, font: { color: ink }, align: "left" },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: line, activecolor: ink },
    ...rest, xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis },
  };
}

const see = (hex, opacity) => `rgba(${[1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)).join(",")},${opacity})`;
const folded = (text) => (text.match(/.{1,44}/g) || []).map((part) => part.replace(/&/g, "&amp;").replace(/</g, "&lt;")).join("<br>");
// On paper a chart is as large as its frame; on a screen plotly.js follows the frame.
const plot = (div, traces, more, options = {}) => Plotly.react(div, traces, layout({ ...more, ...(printing ? { width: div.clientWidth, height: div.clientHeight } : {}) }), { ...OPTIONS, displayModeBar: narrow() ? false : "hover", ...options });

/** Lines with their bands; `get` gives x, y, low, high of a method, or nothing. */
function lines(name, title, height, get, words) {
  const { div, frame } = chart(name, title, height);
  const draw = () => {
    const traces = [], seen = { x: [], y: [] };
    data.methods.forEach((method, i) => {
      const found = get(i);
      if (!found) return;
      const visible = !state.hidden.has(i);
      if (visible) { seen.x.push(...found.x); seen.y.push(...found.y, ...(found.low || []), ...(found.high || [])); }
      if (found.low) {
        traces.push({
          x: [...found.x, ...found.x.slice().reverse()], y: [...found.high, ...found.low.slice().reverse()], visible,
          fill: "toself", fillcolor: see(colour(i), 0.16), line: { width: 0 }, mode: "lines", hoverinfo: "skip",
        });
      }
      traces.push({
        x: found.x, y: found.y, visible, name: method.label, mode: found.x.length === 1 ? "markers" : "lines",
        line: { color: colour(i), dash: dash(i), width: 2 }, marker: { color: colour(i) },
        customdata: found.x.map((_, k) => (found.low ? ` (${digits(found.low[k])} to ${digits(found.high[k])})` : "")),
        hovertemplate: `<b>${folded(method.label)}</b><br>${words.y} %{y:.4~g}%{customdata}<br>${words.x} %{x:,.4~g}<extra></extra>`,
      });
    });
    const along = (log, values) => {
      const positive = values.filter((x) => x > 0);
      if (!log || !positive.length) return { type: "linear", tickmode: "auto", exponentformat: "SI", nticks: narrow() ? 5 : 8 };
      const [low, high] = [Math.min(...positive), Math.max(...positive)];
      const room = Math.max(1.02, (high / low) ** 0.03);
      return { ...logAxis(low / room, high * room), range: [Math.log10(low / room), Math.log10(high * room)] };
    };
    const x = { ...along(words.logX, seen.x), title: { text: words.x, standoff: 8 } };
    const y = { ...along(words.logY, seen.y), title: { text: "" } };
    const revision = `${words.x}${words.logX}${words.logY}`;
    plot(div, traces, { xaxis: { ...x, ...words.xaxis }, yaxis: y, uirevision: revision, shapes: words.shapes || [] });
    div.removeAllListeners("plotly_relayout");
    div.on("plotly_relayout", (changed) => zoomed(div, changed));
  };
  return { frame, draw };
}

/** New ticks where a logarithmic axis was zoomed. */
function zoomed(div, changed) {
  for (const name of ["xaxis", "yaxis"]) {
    const axis = div.layout[name];
    if (axis.type !== "log" || !Object.keys(changed).some((key) => key.startsWith(`${name}.range`) || key === `${name}.autorange`)) continue;
    const { tickvals, ticktext } = logAxis(10 ** axis.range[0], 10 ** axis.range[1]);
    if (JSON.stringify(tickvals) !== JSON.stringify(axis.tickvals)) {
      Plotly.relayout(div, { [`${name}.tickvals`]: tickvals, [`${name}.ticktext`]: ticktext });
    }
  }
}

// -- sections ---------------------------------------------------------------------

function heading() {
  const about = `thinwire ${data.version}, ${data.made}${data.live ? ", drawn anew while it trains" : ""}`;
  return make("header", {}, make("h1", {}, data.title), make("p", { class: "soft", id: "about" }, about));
}

const settings = () => section("setting", "Setting",
  make("dl", {}, data.setting.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)])));

const warnings = () => (data.warnings.length ? make("section", { class: "warnings", id: "warnings" },
  make("h2", {}, "Before you compare"), make("ul", {}, data.warnings.map((text) => make("li", {}, prose(text))))) : null);

function legend() {
  const chip = (method, i) => make("button", {
    class: "chip", type: "button", "aria-pressed": String(!state.hidden.has(i)),
    title: "Show or hide this method. Double click: this one alone.",
    onclick: (event) => {
      // Two clicks on one name: the page was made anew between them, so that no double click is heard.
      const [last, at] = state.clicked;
      const twice = last === i && event.timeStamp - at < 400;
      if (twice) state.hidden = state.alone === i ? new Set() : new Set(data.methods.map((_, k) => k).filter((k) => k !== i));
      else if (state.hidden.has(i)) state.hidden.delete(i);
      else state.hidden.add(i);
      if (twice) state.alone = state.hidden.size ? i : null;
      redraw();
      state.clicked = twice ? [null, 0] : [i, performance.now()]; // drawing may take longer than a double click
    },
  }, swatch(i), code(method.label));
  return make("div", { id: printing ? null : "legend", class: "legend", role: "group", "aria-label": "Methods" }, data.methods.map(chip));
}

/** What a cell counts as: the number that it begins with; what has none is last. */
const worth = (text) => { const x = parseFloat(text.replace(/,/g, "")); return isNaN(x) ? null : x; };

function table() {
  const { head, rows, note } = data.table;
  const order = rows.map((_, i) => i);
  if (state.sort) {
    const { column, down } = state.sort;
    order.sort((a, b) => {
      if (!column) return rows[a][0].localeCompare(rows[b][0]) * (down ? -1 : 1);
      const [x, y] = [worth(rows[a][column]), worth(rows[b][column])];
      return x === y ? 0 : x === null ? 1 : y === null ? -1 : (x - y) * (down ? -1 : 1);
    });
  }
  const sort = (column) => () => {
    const again = state.sort && state.sort.column === column;
    state.sort = { column, down: again ? !state.sort.down : column > 0 && column < 3 };
    redraw();
  };
  const above = (name, i) => make("th", {
    scope: "col", "aria-sort": state.sort && state.sort.column === i ? (state.sort.down ? "descending" : "ascending") : "none",
  }, make("button", { type: "button", onclick: sort(i) }, name));
  const cell = (text, i, row) => make("td", {}, i ? text.replaceAll(/(?<=\d) %/g, "\u00a0%") : make("span", {}, swatch(row), code(text)));
  return section("table", "Table", make("div", { class: "wide", tabindex: "0" }, make("table", {},
    make("thead", {}, make("tr", {}, head.map(above))),
    make("tbody", {}, order.map((row) => make("tr", { class: state.hidden.has(row) ? "off" : null },
      rows[row].map((text, i) => cell(text, i, row))))))), make("p", { class: "soft", style: { marginTop: "8px" } }, note));
}

function curves() {
  const names = Object.keys(data.axes);
  const values = Object.keys(data.values);
  if (!values.length) return null;
  if (!names.includes(state.axis)) state.axis = names[Math.min(2, names.length - 1)];
  const far = state.axis !== names[0]; // bytes and seconds: methods are decades apart
  const logX = state.logX === null ? far : state.logX;
  const redrawn = (change) => (event) => { change(event.target); redraw(); };
  const radio = (name) => make("label", {}, make("input", {
    type: "radio", name: "axis", value: name, checked: name === state.axis, onchange: redrawn(() => { state.axis = name; state.logX = null; }),
  }), data.axes[name]);
  const check = (text, id, on, change) => make("label", {}, make("input", { type: "checkbox", id, checked: on, onchange: redrawn(change) }), text);
  const made = values.map((value) => lines(`curve-${value}`, data.values[value], narrow() ? 300 : printing ? 280 : 380, (i) => {
    const found = data.curves[i][value];
    return found && { ...found, x: found.x[state.axis] };
  }, { x: data.axes[state.axis], y: data.values[value].replace(/, %$/, " %"), logX, logY: state.logY && value.endsWith("loss") }));
  later.push(...made.map((one) => one.draw));
  const seeds = Math.max(...data.curves.flatMap((by) => Object.values(by).map((one) => one.seeds)));
  return section("curves", "Curves",
    make("div", { class: "controls" }, "Against", names.map(radio)),
    make("div", { class: "controls" }, check("logarithmic below", "log-x", logX, (box) => { state.logX = box.checked; }),
      check("logarithmic losses", "log-y", state.logY, (box) => { state.logY = box.checked; })),
    make("p", { class: "soft" }, seeds > 1 ? "A line is the mean over seeds, its band is from the lowest to the highest."
      : "One seed: there are no bands.", make("span", { class: "screen" }, " Drag to zoom, double click to see all.")),
    printing ? legend() : null,
    make("div", { class: `charts ${made.length === 4 ? "pairs" : "several"}` }, made.map((one) => one.frame)));
}

/** What had been sent after each round or step: a chart for each way to count it. */
function sent() {
  const names = Object.keys(data.counted).filter((name) => data.sent.some((by) => by[name]));
  if (!names.length) return null;
  const words = { x: Object.values(data.axes)[0], logX: false, logY: state.logSent };
  const made = names.map((name) => lines(`sent-${name}`, data.counted[name], narrow() || printing ? 260 : 320,
    (i) => data.sent[i][name], { ...words, y: data.counted[name] }));
  later.push(...made.map((one) => one.draw));
  const box = make("input", { type: "checkbox", id: "log-sent", checked: state.logSent, onchange: () => { state.logSent = box.checked; redraw(); } });
  return section("sent", `Sent by ${data.unit}`,
    make("p", { class: "soft" }, `All that was sent from the beginning to a ${data.unit}. Bytes have headers in them.`),
    make("div", { class: "controls" }, make("label", {}, box, "logarithmic")),
    make("div", { class: "charts several" }, made.map((one) => one.frame)));
}

function targets() {
  const all = data.targets.flat().flatMap((seed) => seed.accuracy);
  if (!all.length) return null;
  const best = data.targets.map((seeds) => Math.max(0, ...seeds.flatMap((seed) => seed.accuracy)));
  const low = Math.floor(Math.min(...all));
  const high = Math.max(low, Math.floor(Math.max(...best) * 10) / 10); // which somebody reaches
  if (state.target === null) { // so high that half of the methods reach it
    state.target = Math.max(low, Math.floor(best.slice().sort((a, b) => b - a)[Math.floor((best.length - 1) / 2)] - 0.5));
  }
  state.target = Math.min(state.target, high);
  const shown = make("output", { id: "target-shown" });
  const body = make("tbody", {});
  const names = Object.keys(data.axes);
  const fill = () => {
    shown.textContent = `${state.target.toFixed(1)} %`;
    const costs = data.targets.map((seeds) => {
      const reached = seeds.map((seed) => [seed, seed.accuracy.findIndex((x) => x >= state.target)]).filter(([, at]) => at >= 0);
      return { seeds: seeds.length, reached: reached.length, of: (name) => mean(reached.map(([seed, at]) => seed[name][at])) };
    });
    const most = Math.max(...costs.filter((cost, i) => cost.reached && !state.hidden.has(i)).map((cost) => cost.of("bytes_total")));
    body.replaceChildren(...costs.map((cost, i) => {
      const label = make("td", {}, make("span", {}, swatch(i), code(data.methods[i].label)));
      const off = state.hidden.has(i) ? "off" : null;
      if (!cost.reached) return make("tr", { class: off }, label, make("td", { colspan: names.length + 1, class: "soft left" }, "not reached"));
      const share = cost.of("bytes_total") / most;
      const bar = make("td", { style: { width: "30%", minWidth: "90px" } }, off ? null : make("div", { class: "track" },
        make("i", { style: { width: `${100 * share}%`, background: colour(i) } })));
      return make("tr", { class: off }, label, ...names.map((name) => make("td", {}, digits(cost.of(name))
        + (name === names[0] && cost.reached < cost.seeds ? ` (${cost.reached} of ${cost.seeds} seeds)` : ""))), bar);
    }));
  };
  const slider = make("input", {
    type: "range", id: "target", min: low, max: high, step: 0.1, value: state.target, "aria-label": `Target ${data.measure}, %`,
    oninput: () => { state.target = Number(slider.value); fill(); },
  });
  fill();
  return section("targets", `Cost of a target ${data.measure}`,
    make("p", { class: "soft" }, `What it took until a test ${data.measure} was first reached, in the mean over the seeds that reached it. Bars: ${data.axes.bytes_total}.`),
    make("div", { class: "controls" }, make("label", { class: "slider" }, "Target", slider, shown)),
    make("div", { class: "wide", tabindex: "0" }, make("table", {},
      make("thead", {}, make("tr", {}, ["method", ...names.map((name) => data.axes[name]), ""].map((text) => make("th", { scope: "col" }, text)))),
      body)));
}

/** A stacked bar: segments of [value, colour, title], of `most` in all. */
const bar = (name, value, segments, most) => make("div", { class: "bar" },
  make("div", { class: "name" }, name, make("span", {}, value)),
  make("div", { class: "track" }, segments.filter(([size]) => size > 0).map(([size, fill, title]) => make("i", { title, style: { width: `${(100 * size) / most}%`, background: fill } }))));

const key = (pairs) => make("div", { class: "key" }, pairs.map(([fill, text]) => make("span", {}, make("i", { style: { background: fill } }), text)));

function directions() {
  const methods = listed(data.methods.map(({ label }, method) => ({ label, method })));
  if (!methods.length) return empty("bytes", "Bytes by direction");
  const total = (i) => data.bytes.reduce((sum, part) => sum + part.values[i], 0);
  const most = Math.max(...methods.map(({ method }) => total(method)), 1);
  const fills = data.bytes.length === 4 ? PARTS : [PARTS[0], PARTS[1], PARTS[2]];
  return section("bytes", "Bytes by direction",
    make("p", { class: "soft" }, data.bytes_said),
    key(data.bytes.map((part, k) => [fills[k], part.name])),
    make("div", { class: "bars" }, methods.map(({ label, method: i }) => bar(code(label), bytes(total(i)),
      data.bytes.map((part, k) => [part.values[i], fills[k], `${part.name}: ${bytes(part.values[i])}`]), most))));
}

function layers() {
  if (!data.layers) return null;
  const entries = listed(data.layers);
  if (!entries.length) return empty("layers", "Bytes by layer");
  const body = make("div", { class: "bars" });
  const fill = () => {
    const { bytes: sizes, way, rest: [smaller, size] } = picked("layers", entries);
    const most = Math.max(...Object.values(sizes), size, 1);
    const one = (name, size) => bar(make("span", { class: "code" }, name.endsWith("*") ? `${name.slice(0, -1)}all layers as one, and structure` : name),
      bytes(size), [[size, PARTS[way === "up" ? 0 : 2], bytes(size)]], most);
    body.replaceChildren(...Object.entries(sizes).map(([name, size]) => one(name, size)),
      ...(smaller ? [one(`${smaller} smaller ones`, size)] : []));
  };
  const pick = choice("layers", entries, (entry) => `${data.methods[entry.method].label}, ${entry.way}`, fill);
  fill();
  return section("layers", "Bytes by layer", make("p", { class: "soft" },
    "Payload of a run, in the mean over seeds: up of replies that were taken, down of all calls."), pick, body);
}

function clients() {
  if (!data.clients) return null;
  const by = new Map(data.clients.map((entry) => [entry.method, entry]));
  const { frame, draw } = lines("clients", `${data.measure} on a client's own test, %`, narrow() || printing ? 280 : 340, (i) => by.get(i), { x: `clients in the order of their ${data.measure}, %`, y: `${data.measure} %`, logX: false, logY: false, xaxis: { range: [0, 100] },
    shapes: [{ type: "rect", xref: "x", yref: "paper", x0: 0, x1: 10, y0: 0, y1: 1, line: { width: 0 }, fillcolor: "rgba(200,90,40,.12)" }] });
  later.push(draw);
  const row = (entry) => make("tr", { class: state.hidden.has(entry.method) ? "off" : null },
    make("td", {}, make("span", {}, swatch(entry.method), code(data.methods[entry.method].label))),
    [entry.mean, entry.median, entry.lowest_tenth, entry.worst].map((x) => make("td", {}, x === null ? "-" : `${x.toFixed(1)} %`)),
    make("td", {}, entry.clients));
  return section("clients", `${data.measure[0].toUpperCase()}${data.measure.slice(1)} by client`,
    make("p", { class: "soft" }, "At the last evaluation, over the clients of a seed, in the mean over seeds, as in the table above. "
      + "Lowest tenth: the 10th percentile. A line has a seed's clients from the worst to the best, its band is from the lowest seed to the highest. Shaded: a tenth of the clients."),
    make("div", { class: "charts several" }, frame, make("div", { class: "wide", tabindex: "0", style: { alignSelf: "start" } }, make("table", {},
      make("thead", {}, make("tr", {}, ["method", "mean", "median", "lowest tenth", "worst client", "clients"].map((text) => make("th", { scope: "col" }, text)))),
      make("tbody", {}, data.clients.map(row))))));
}

/** Two lists, of methods and of the seeds of the one that is chosen. A method that is chosen keeps the seed if it has it. */
function whose(name, entries, redraw) {
  const of = (number) => entries.filter((entry) => entry.method === number);
  const numbers = [...new Set(entries.map((entry) => entry.method))];
  const take = (entry) => { state.picked[name] = mark(entry); refill(); redraw(); };
  const seed = make("select", { onchange: () => take(of(picked(name, entries).method)[seed.selectedIndex]) });
  const refill = () => {
    const chosen = picked(name, entries);
    seed.replaceChildren(...of(chosen.method).map((entry) => make("option", { selected: entry === chosen }, String(entry.seed))));
  };
  const method = make("select", { onchange: () => {
    const own = of(numbers[method.selectedIndex]);
    take(own.find((entry) => entry.seed === picked(name, entries).seed) || own[0]);
  } }, numbers.map((number) => make("option", { selected: number === picked(name, entries).method }, data.methods[number].label)));
  refill();
  return make("div", { class: "controls" }, make("label", {}, "Method", method), make("label", {}, "Seed", seed));
}

const LEVELS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"; // of a cell, as in report/heat.py
const WHOLE = 60; // the level of a share of 1

/** What a cell stands for where it is several clients, or layers, and rounds. */
function shared([together, rounds], what, shows) {
  const parts = [together > 1 ? `${together} ${what}` : null, rounds > 1 ? `${rounds} rounds` : null].filter(Boolean);
  return parts.length ? ` A cell is ${parts.join(" and ")}, and shows ${shows}.` : "";
}

/** A heat map of one run at a time. */
function heat(id, title, words, all, describe, options) {
  if (!all) return null;
  const entries = listed(all);
  if (!entries.length) return empty(id, title);
  const { div, frame } = chart(id, "", 360);
  const said = make("p", { class: "soft" });
  const fill = () => {
    const entry = picked(id, entries);
    const [together, rounds] = entry.by;
    const value = (character) => (character === "." ? null : LEVELS.indexOf(character) / options.steps);
    const z = entry.cells.map((row) => Array.from(row, value));
    const when = z[0].map((_, i) => (rounds > 1 ? `rounds ${1 + i * rounds} to ${Math.min((i + 1) * rounds, entry.size[1])}` : `round ${i + 1}`));
    const names = entry.rows || z.map((_, i) => (together > 1 ? `clients ${i * together} to ${Math.min((i + 1) * together, entry.size[0]) - 1}` : `client ${i}`));
    const short = names.map((name) => (name.length > (narrow() ? 14 : 34) ? `…${name.slice(narrow() ? -13 : -33)}` : name));
    const height = Math.max(170, Math.min(620, 70 + z.length * (entry.rows ? 22 : 14)));
    div.style.height = `${height}px`;
    frame.firstChild.textContent = `${data.methods[entry.method].label}, seed ${entry.seed}`;
    said.textContent = describe(entry);
    const rows = entry.rows ? { tickmode: "array", tickvals: names.map((_, i) => i), ticktext: short } : { title: { text: "client", standoff: 8 }, nticks: 10 };
    plot(div, [{
      type: "heatmap", z, x: z[0].map((_, i) => 1 + i * rounds), y: entry.rows ? names.map((_, i) => i) : names.map((_, i) => i * together),
      text: z.map((row, i) => row.map((x, k) => `${when[k]}<br>${folded(names[i])}<br>${options.hover(x)}`)), hovertemplate: "%{text}<extra></extra>",
      xgap: z[0].length < 80 ? 1 : 0, ygap: z.length < 60 ? 1 : 0, showscale: false, zmin: options.low, zmax: options.high, colorscale: options.scale(), hoverongaps: false,
    }], { xaxis: { title: { text: "round", standoff: 8 }, showgrid: false, zeroline: false, nticks: narrow() ? 5 : 12 },
      yaxis: { autorange: "reversed", showgrid: false, zeroline: false, ...rows }, uirevision: mark(entry) });
  };
  const pick = whose(id, entries, fill);
  later.push(fill);
  return section(id, title, make("p", { class: "soft" }, words), pick, key(options.key()), said, frame);
}

const STATES = ["not called", "answered", "lost", "too late"];
const stateFills = () => [theme().blank, "#5b9bd5", "#d1495b", "#edae49"];
const takingPart = () => heat("taking-part", "Who took part",
  "Clients that were called in a round, and what became of it.", data.taking_part,
  (entry) => `${entry.answered.toLocaleString("en")} answers, ${entry.lost.toLocaleString("en")} lost, ${entry.late.toLocaleString("en")} too late.`
    + shared(entry.by, "clients", "the worst of them"),
  { low: -0.5, high: 3.5, steps: 1, hover: (x) => STATES[x],
    scale: () => stateFills().flatMap((fill, i) => [[i / 4, fill], [(i + 1) / 4, fill]]), key: () => stateFills().map((fill, i) => [fill, STATES[i]]) });

const shade = () => [[0, theme().blank], [1, "#cc6644"]];
const share = (x) => (x === null ? "" : `${Math.round(100 * x)} % of its layers recycled`);
const unsent = () => heat("unsent", "Layers that were not sent",
  "What replies left out in each round, such as the layers that LUAR recycles.", data.unsent,
  (entry) => shared(entry.by, "layers", "whether one of them was not sent in one of the rounds"),
  { low: 0, high: 1, steps: WHOLE, hover: (x) => (x ? "not sent" : "sent"), scale: shade, key: () => [[theme().blank, "sent"], ["#cc6644", "not sent"]] });
const recycled = () => heat("recycled", "Clients whose updates were recycled",
  "The share of a client's layers for which LBGM sent one number.", data.recycled,
  (entry) => shared(entry.by, "clients", "the largest share"),
  { low: 0, high: 1, steps: WHOLE, hover: share, scale: shade, key: () => [[theme().blank, "sent whole"], ["#cc6644", "all layers recycled"]] });

function expressions() {
  const copy = (text) => async (event) => {
    const button = event.target;
    try {
      await navigator.clipboard.writeText(text);
    } catch { // a file may not reach the clipboard
      const area = make("textarea", {}, text);
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  };
  return section("expressions", "Complete expressions",
    make("p", { class: "soft" }, "With every field, as they can be given to thinwire again."),
    listed(data.expressions).map((method) => make("div", { class: "expression" }, code(method.expression),
      make("button", { class: "plain", type: "button", onclick: copy(method.expression) }, "Copy"))));
}

const missing = () => (data.missing.length ? section("missing", "Not recorded",
  make("ul", { class: "missing" }, data.missing.map((text) => make("li", {}, prose(text))))) : null);

// -- the page ---------------------------------------------------------------------

let later = []; // what draws charts, once they have a width
function redraw() {
  later = [];
  // What has the focus is made anew too: it is found again by its place in the part of the page that has an id.
  const active = document.activeElement, part = active && active.closest("[id]");
  const within = (element) => [...element.querySelectorAll("button, input, select, [tabindex]")];
  const at = part ? within(part).indexOf(active) : -1;
  page.replaceChildren(...[heading, warnings, settings, legend, table, curves, sent, targets, directions, layers, clients,
    takingPart, unsent, recycled, expressions, missing].map((part) => part()).filter((part) => part !== null));
  const again = part && document.getElementById(part.id);
  if (again) (at < 0 ? again : within(again)[at])?.focus({ preventScroll: true });
  later.forEach((draw) => draw());
}

/** plotly.js, which lies compressed in the page. */
async function load() {
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = make("script", {}, await new Response(stream).text());
  document.head.append(script);
}

/** Whether a list is open, which would close if the page were made anew. Older browsers cannot tell. */
const choosing = () => CSS.supports("selector(select:open)") && document.querySelector("select:open") !== null;

async function follow() {
  if (choosing()) return;
  try {
    const answer = await fetch(`contents.json?known=${encodeURIComponent(data.changed)}`);
    if (answer.status === 200) {
      data = { ...(await answer.json()), live: true };
      redraw();
    }
  } catch {
    document.getElementById("about").textContent = "The server has ended: this is what there was.";
  }
}

load().then(() => {
  redraw();
  dark.addEventListener("change", redraw);
  const print = (on) => () => {
    printing = on;
    document.documentElement.classList.toggle("printed", on);
    redraw();
    if (!on) for (const { div } of drawn.values()) if (div.isConnected) Plotly.relayout(div, { autosize: true, width: null, height: null });
  };
  addEventListener("beforeprint", print(true));
  addEventListener("afterprint", print(false));
  let width = page.clientWidth;
  addEventListener("resize", () => { if ((width < 640) !== narrow()) redraw(); width = page.clientWidth; });
  if (data.live) setInterval(follow, 2000);
  document.documentElement.dataset.drawn = "yes";
});
