/* Lines over time, drawn as SVG: a sparkline for a table's cell, and a chart with a scale and a readout. */

import { h, s, setAttribute, setText } from "./dom.js";
import { instant } from "./format.js";

const SPARK_WIDTH = 80;
const SPARK_HEIGHT = 20;
const CHART_HEIGHT = 120;
const PADDING = { top: 8, right: 4, bottom: 18, left: 44 };
/** Between two points that lie this much further apart than they should, a look was not taken, or lacked a node: the
 *  line is broken there. */
const GAP_STEPS = 1.25;

/** Draws values into a cell, or renews the drawing that is there. Decoration: the figure stands beside it. */
export function paintSparkline(cell, values) {
  let line = cell.querySelector("polyline");
  if (line === null) {
    line = s("polyline", { class: "spark-line" });
    const size = { viewBox: `0 0 ${SPARK_WIDTH} ${SPARK_HEIGHT}`, preserveAspectRatio: "none" };
    cell.prepend(s("svg", { class: "spark", ...size, "aria-hidden": "true" }, line));
  }
  setAttribute(line, "points", sparkPoints(values));
}

export function sparkPoints(values) {
  if (values.length < 2) return "";
  const top = Math.max(...values, 1e-9);
  const step = SPARK_WIDTH / (values.length - 1);
  return values
    .map(
      (value, index) =>
        `${(index * step).toFixed(1)},${(SPARK_HEIGHT - 1 - (value / top) * (SPARK_HEIGHT - 2)).toFixed(1)}`,
    )
    .join(" ");
}

/** One or two figures over time. Series are { id, label }; points { time (s), [id]: number or null }, oldest first.
 *  The scale reaches up to `least` even if all figures are smaller. */
export class Chart {
  #title;
  #format;
  #series;
  #points = [];
  /** How far apart the points lie at most, in seconds, while none is missing. */
  #stepS;
  #isProvisional = false;
  #marks = [];
  #picked = null;
  #parts;
  #keepS;
  #isFull = false;
  #least;

  constructor({ title, hint = null, format, series, keepMs, stepMs, least = 2, kind = null }) {
    this.#title = title;
    this.#format = format;
    this.#series = series;
    this.#keepS = keepMs / 1000;
    this.#stepS = stepMs / 1000;
    this.#least = least;
    this.#parts = this.#build(kind, hint);
    this.element = this.#parts.root;
    this.#listen();
  }

  /** What the server remembers, a point for every step at the latest, goes before what the page has seen itself. */
  prepend(points, stepMs) {
    this.#stepS = stepMs / 1000;
    const last = points.at(-1)?.time ?? -Infinity;
    this.#points = [...points, ...this.#points.filter((point) => point.time > last)];
    if (this.#points.at(-1)?.time === last) this.#isProvisional = false;
    this.#draw();
  }

  /** Begins anew, with points that reach back so far. A range that the reader has chosen is drawn in full, even if
   *  less is known. */
  reset(keepMs, { isFull = false } = {}) {
    this.#keepS = keepMs / 1000;
    this.#isFull = isFull;
    this.#points = [];
    this.#isProvisional = false;
    this.#picked = null;
  }

  /** The newest one. A provisional point makes room for the next one. */
  add(point, { isProvisional = false } = {}) {
    if (this.#isProvisional) this.#points.pop();
    if (this.#points.length > 0 && point.time <= this.#points.at(-1).time) return;
    this.#isProvisional = isProvisional;
    this.#points.push(point);
    while (this.#points[0].time < point.time - this.#keepS) this.#points.shift();
    this.#draw();
  }

  /** Things that happened, { time, text }: a line through the chart. */
  mark(marks) {
    this.#marks = marks;
    this.#draw();
  }

  #build(kind, hint) {
    const lines = this.#series.map((_, index) => s("path", { class: "chart-line", "data-series": index }));
    const area = s("path", { class: "chart-area" });
    const grid = s("g", { class: "chart-grid" });
    const marker = s("line", { class: "chart-marker", visibility: "hidden" });
    const described = { role: "img", tabindex: "0", "aria-label": `${this.#title}: no figures yet` };
    const drawing = s("svg", { class: "chart-drawing", ...described }, grid, area, lines, marker);
    const values = this.#series.map(() => h("span", { class: "chart-value" }, "–"));
    const labelled = this.#series.map(({ label }, index) =>
      h(
        "span",
        { class: "chart-series" },
        label ? h("span", { class: "chart-key", "data-series": index }, label) : null,
        values[index],
      ),
    );
    const when = h("span", { class: "chart-when" });
    const caption = h("figcaption", { title: hint }, h("span", { class: "chart-title" }, this.#title), when, labelled);
    return {
      root: h("figure", { class: "chart", "data-kind": kind }, caption, drawing),
      area,
      lines,
      grid,
      marker,
      drawing,
      values,
      when,
    };
  }

  #listen() {
    const { drawing } = this.#parts;
    const pick = (index) => {
      this.#picked = index;
      this.#draw();
    };
    drawing.addEventListener("pointermove", (event) => {
      const plotted = drawing.clientWidth - PADDING.left - PADDING.right;
      pick(this.#nearest((event.clientX - drawing.getBoundingClientRect().left - PADDING.left) / plotted));
    });
    drawing.addEventListener("pointerleave", () => pick(null));
    drawing.addEventListener("blur", () => pick(null));
    drawing.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step === undefined || this.#points.length === 0) return;
      event.preventDefault();
      const last = this.#points.length - 1;
      pick(Math.min(Math.max((this.#picked ?? last + 1) + step, 0), last));
    });
    new ResizeObserver(() => this.#draw()).observe(drawing);
  }

  #span() {
    const first = this.#isFull ? this.#points.at(-1).time - this.#keepS : this.#points[0].time;
    return [first, Math.max(this.#points.at(-1).time, first + 1)];
  }

  #nearest(fraction) {
    if (this.#points.length === 0) return null;
    const [start, end] = this.#span();
    const time = start + fraction * (end - start);
    let best = 0;
    this.#points.forEach((point, index) => {
      if (Math.abs(point.time - time) < Math.abs(this.#points[best].time - time)) best = index;
    });
    return best;
  }

  #draw() {
    const { drawing, area, lines, grid } = this.#parts;
    const width = drawing.clientWidth;
    if (width === 0 || this.#points.length === 0) return;
    setAttribute(drawing, "viewBox", `0 0 ${width} ${CHART_HEIGHT}`);
    const [start, end] = this.#span();
    const highest = this.#highest();
    const top = niceCeiling(Math.max(highest, this.#least));
    const plotted = width - PADDING.left - PADDING.right;
    const x = (time) => PADDING.left + ((time - start) / (end - start)) * plotted;
    const y = (figure) => PADDING.top + (1 - figure / top) * (CHART_HEIGHT - PADDING.top - PADDING.bottom);
    this.#series.forEach(({ id }, index) => {
      const runs = unbroken(this.#points, id, this.#stepS);
      setAttribute(lines[index], "d", runs.map((run) => path(run, id, x, y)).join(""));
      if (index > 0) return;
      const closed = runs.map((run) => `${path(run, id, x, y)}V${y(0)}H${x(run[0].time).toFixed(1)}Z`);
      setAttribute(area, "d", closed.join(""));
    });
    const inSight = this.#marks.filter(({ time }) => time >= start && time <= end);
    this.#drawGrid(grid, { width, top, x, y, start, end, marks: inSight });
    this.#drawReadout(x, y, end - start);
    const newest = this.#format(this.#points.at(-1)[this.#series[0].id]);
    const summary = `${this.#title}: now ${newest}, at most ${this.#format(highest)} since ${instant(start * 1000, end - start)}`;
    const events = inSight.map(({ time, text }) => `; ${text} at ${instant(time * 1000, end - start)}`).join("");
    setAttribute(drawing, "aria-label", summary + events);
  }

  #highest() {
    return Math.max(0, ...this.#series.flatMap(({ id }) => this.#points.map((point) => point[id] ?? 0)));
  }

  #drawReadout(x, y, spanS) {
    const { marker, values, when } = this.#parts;
    const isPicked = this.#picked !== null;
    const point = this.#points[Math.min(this.#picked ?? Infinity, this.#points.length - 1)];
    setAttribute(marker, "visibility", isPicked ? "visible" : "hidden");
    for (const end of ["x1", "x2"]) setAttribute(marker, end, x(point.time).toFixed(1));
    setAttribute(marker, "y1", PADDING.top);
    setAttribute(marker, "y2", y(0));
    this.#series.forEach(({ id }, index) => setText(values[index], this.#format(point[id])));
    setText(when, isPicked ? instant(point.time * 1000, spanS) : "");
  }

  #drawGrid(grid, { width, top, x, y, start, end, marks }) {
    const lines = [0, top / 2, top].map((figure) =>
      s("line", { x1: PADDING.left, x2: width - PADDING.right, y1: y(figure), y2: y(figure) }),
    );
    const scale = [0, top / 2, top].map((figure) =>
      s("text", { x: PADDING.left - 6, y: y(figure) + 3.5, "text-anchor": "end" }, this.#format(figure)),
    );
    const times = [
      s("text", { x: PADDING.left, y: CHART_HEIGHT - 4 }, instant(start * 1000, end - start)),
      s("text", { x: width - PADDING.right, y: CHART_HEIGHT - 4, "text-anchor": "end" }, instant(end * 1000, end - start)),
    ];
    const events = marks.map(({ time, text }) => {
      const place = { x1: x(time).toFixed(1), x2: x(time).toFixed(1), y1: PADDING.top, y2: y(0) };
      return s("line", { class: "chart-event", ...place }, s("title", {}, `${instant(time * 1000, end - start)} ${text}`));
    });
    grid.replaceChildren(...lines, ...scale, ...times, ...events);
  }
}

function path(run, id, x, y) {
  return run
    .map((point, index) => `${index ? "L" : "M"}${x(point.time).toFixed(1)} ${y(point[id]).toFixed(1)}`)
    .join("");
}

/** The points in runs that may be joined by a line. Steps may differ, for what is long ago is kept more coarsely. */
function unbroken(points, id, stepS) {
  const steps = points.slice(1).map((point, index) => point.time - points[index].time);
  const isGap = (index) => steps[index] > GAP_STEPS * Math.max(stepS, steps[index - 1] ?? 0, steps[index + 1] ?? 0);
  const runs = [];
  let isJoined = false;
  points.forEach((point, index) => {
    const isKnown = point[id] !== null && point[id] !== undefined;
    if (isKnown) {
      if (!isJoined || isGap(index - 1)) runs.push([]);
      runs.at(-1).push(point);
    }
    isJoined = isKnown;
  });
  return runs;
}

/** The next of 2, 5, 10, 20, … that is not below the value; half of it is a whole number or nearly so. */
function niceCeiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 5, 10].find((step) => step * power >= value);
}
