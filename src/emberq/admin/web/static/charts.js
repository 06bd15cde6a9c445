/* The charts of a page: what the server remembers, continued by what the page sees itself.
 *
 * The server keeps a point every so often, with the mean of each rate since the one before. The page sees more: so its
 * newest point is provisional until it is as old as the server's would be, and its rates are means over the same length
 * of time. What a look lacks of that is taken from the point before; or two seconds would stand beside ten, and a burst
 * would look larger than it is.
 */

import { apiPath, ApiError, get } from "./api.js";
import { Chart } from "./chart.js";
import { config } from "./config.js";
import { h } from "./dom.js";
import * as format from "./format.js";
import { rememberInAddress } from "./table.js";

const CHARTS = {
  flow: {
    title: "Messages/s",
    hint: "A message counts once for each channel, on its way in and on its way out",
    format: format.compact,
    series: [
      { id: "in_rate", label: "in" },
      { id: "finish_rate", label: "out" },
    ],
  },
  failures: {
    title: "Failures/s",
    kind: "failures",
    format: format.compact,
    series: [
      { id: "dead_letter_rate", label: "dead" },
      { id: "requeue_rate", label: "requeued" },
    ],
  },
  count_rate: { title: "Messages/s, to all channels", format: format.compact, series: [{ id: "in_rate" }] },
  depth: { title: "Depth", format: format.compact, series: [{ id: "depth" }] },
  in_flight: { title: "In flight", format: format.compact, series: [{ id: "in_flight" }] },
  memory: {
    title: "Memory",
    format: format.bytes,
    least: 1e6,
    series: [
      { id: "heap_in_use_bytes", label: "used" },
      { id: "heap_idle_bytes", label: "idle" },
    ],
  },
  gc_pause: {
    title: "Longest collector pause",
    format: (microseconds) => format.duration(microseconds === null ? null : microseconds * 1000),
    least: 2_000,
    series: [{ id: "gc_pause_usec_100" }],
  },
  e2e_p99: { title: "Slowest, end to end", format: format.duration, least: 2e6, series: [{ id: "e2e_p99" }] },
};

const everyChart = [];
const marks = new Map();

/** Marks what happened in all charts, each once and in order: { time, text } or, of a node, { time, node, state }. */
export function markCharts(more) {
  const count = marks.size;
  for (const { time, text, node, state } of more) {
    const said = text ?? `${node} ${state}`;
    const key = `${time} ${said}`;
    if (!marks.has(key)) marks.set(key, { time, text: said });
  }
  if (marks.size === count) return;
  const inOrder = [...marks.values()].sort((one, other) => one.time - other.time);
  for (const chart of everyChart) chart.mark(inOrder);
}

/** How far charts can reach back, in seconds; the first is what the page begins with. */
const RANGES = { 3600: "1 hour", 21600: "6 hours", 86400: "1 day", 604800: "7 days", 2592000: "30 days" };

/** The charts of these names, in a row, and how far they reach back. */
export class Charts {
  #charts;
  #parameters = {};
  /** In seconds; null for what the server holds in memory. */
  #rangeS = null;
  /** How far apart the server's points are; without any, points are kept as often as they come. */
  #intervalS = 0;
  #isRecalling = false;
  /** The last point that stays as it is. */
  #kept = null;
  /** What the page has seen since. */
  #looks = [];

  constructor(...names) {
    const kept = { keepMs: config.historyMs, stepMs: longestStep(config.liveIntervalMs) };
    this.#charts = names.map((name) => new Chart({ ...CHARTS[name], ...kept }));
    everyChart.push(...this.#charts);
    const row = h(
      "div",
      { class: "charts" },
      this.#charts.map((chart) => chart.element),
    );
    this.element = h("div", {}, this.#rangeField(), row);
    document.addEventListener("acted", () => this.#renewMarks());
  }

  /** A choice of how far to look back, for as long as there is a history on disk; the page's address remembers it. */
  #rangeField() {
    const reachS = config.retentionMs / 1000;
    if (reachS === 0) return null;
    const longer = Object.entries(RANGES).filter(([seconds]) => seconds * 1000 > config.historyMs && seconds <= reachS);
    const usual = h("option", { value: "" }, `last ${format.period(config.historyMs)}`);
    const options = [usual, ...longer.map(([seconds, text]) => h("option", { value: seconds }, `last ${text}`))];
    const field = h("select", { "aria-label": "How far charts reach back" }, options);
    field.value = new URLSearchParams(location.search).get("range") ?? "";
    if (field.selectedIndex < 0) field.value = "";
    this.#setRange(field.value);
    field.addEventListener("change", () => {
      rememberInAddress("range", field.value);
      this.#setRange(field.value);
      this.recall(this.#parameters);
    });
    return h("div", { class: "range" }, field);
  }

  #setRange(seconds) {
    this.#rangeS = seconds === "" ? null : Number(seconds);
    const isFull = this.#rangeS !== null;
    for (const chart of this.#charts) chart.reset(isFull ? this.#rangeS * 1000 : config.historyMs, { isFull });
    this.#kept = null;
    this.#looks = [];
  }

  /** What was done on this page is marked at once. */
  async #renewMarks() {
    try {
      const { topic, channel } = this.#parameters;
      const query = new URLSearchParams({ ...(topic && { topic }), ...(channel && { channel }) });
      markCharts((await get(`${apiPath("marks")}?${query}`)).marks ?? []);
    } catch (failure) {
      if (!(failure instanceof ApiError)) throw failure;
    }
  }

  /** What happened before the page was opened. Without it the charts begin now. */
  async recall(parameters = {}) {
    this.#isRecalling = true;
    this.#parameters = parameters;
    const rangeS = this.#rangeS;
    const query = new URLSearchParams({ ...parameters, ...(rangeS !== null && { range: rangeS }) });
    try {
      const { interval, points, marks: past } = await get(`${apiPath("history")}?${query}`);
      if (rangeS !== this.#rangeS) return; // the reader has chosen another one since
      this.#continue(interval ?? 0, points ?? []);
      markCharts(past ?? []);
    } catch (failure) {
      if (!(failure instanceof ApiError)) throw failure;
    }
    this.#isRecalling = false;
  }

  #continue(interval, points) {
    for (const chart of this.#charts) chart.prepend(points, longestStep(interval * 1000));
    if (points.length === 0) return;
    this.#intervalS = interval;
    this.#kept = points.at(-1);
    this.#looks = this.#looks.filter((look) => look.time > this.#kept.time);
    const newest = this.#looks.pop();
    if (newest !== undefined) this.add(newest);
  }

  /** The figures that were just seen: { time, depth, in_flight, in_rate, … }, as many as are known. If a node is
   *  missing from them they are a gap: a line that falls would tell of messages that were worked off. */
  add({ isIncomplete = false, ...figures }) {
    const look = isIncomplete ? { time: figures.time } : figures;
    if (look.time <= (this.#looks.at(-1) ?? this.#kept ?? { time: -Infinity }).time) return;
    this.#looks.push(look);
    const point = this.#mean(look);
    const isProvisional =
      this.#isRecalling || (this.#kept !== null && look.time - this.#kept.time < this.#intervalS);
    for (const chart of this.#charts) chart.add(point, { isProvisional });
    if (isProvisional) return;
    this.#kept = point;
    this.#looks = [];
  }

  /** The newest look with the means of its rates. */
  #mean(newest) {
    const point = { ...newest };
    for (const figure of Object.keys(newest).filter((name) => name.endsWith("rate"))) {
      if (isKnown(newest[figure])) point[figure] = this.#meanOf(figure);
    }
    return point;
  }

  #meanOf(figure) {
    let [covered, sum, before] = [0, 0, this.#kept?.time ?? null];
    for (const look of this.#looks) {
      const length = before === null ? config.liveIntervalMs / 1000 : look.time - before;
      before = look.time;
      if (!isKnown(look[figure])) continue;
      covered += length;
      sum += length * look[figure];
    }
    const lacking = isKnown(this.#kept?.[figure]) ? Math.max(this.#intervalS - covered, 0) : 0;
    return (sum + lacking * (this.#kept?.[figure] ?? 0)) / (covered + lacking);
  }
}

/** How far apart two points lie at most that are due every so often: a look may come a moment too early for one, which the
 *  next look then makes. */
function longestStep(intervalMs) {
  return Math.max(intervalMs, config.liveIntervalMs) + config.liveIntervalMs;
}

function isKnown(figure) {
  return typeof figure === "number" && Number.isFinite(figure);
}
