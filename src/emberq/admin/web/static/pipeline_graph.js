/* A pipeline drawn as it flows: sources and tables, the views made of them, the sinks; each with its figures of now.
 *
 * Every sink is a query that reads its sources for itself, and reports what leads to it. The graph joins what all
 * queries of a pipeline report. Boxes are elements in columns, from left to right; lines are drawn behind them. A line
 * that passes a column has a place of its own there, or it would run behind a box and seem to lead to it.
 */

import { h, s, setAttribute, setText } from "./dom.js";
import * as format from "./format.js";

/** Enough for any pipeline; a report that is made up could name thousands. */
const MAX_BOXES = 200;

export class PipelineGraph {
  #boxes = new Map();
  #lanes = [];
  #shape = "";
  #lines = s("svg", { class: "graph-lines", "aria-hidden": "true" });
  #columns = h("ol", { class: "graph-columns" });

  constructor(pipeline) {
    const frame = h("div", { class: "graph-frame" }, this.#lines, this.#columns);
    const label = `What ${pipeline} is made of, from sources to sinks`;
    const region = { class: "graph", role: "region", "aria-label": label, tabindex: "0" };
    this.element = h("div", region, h("h2", {}, pipeline), frame);
    new ResizeObserver(() => this.#draw()).observe(frame);
  }

  /** `queries` are those of one pipeline; `stateOf` tells how one of them is: { text, kind, age }. */
  show(queries, stateOf) {
    const nodes = joined(queries);
    const shape = JSON.stringify([...nodes.values()].map(({ name, kind, detail, uses }) => [name, kind, detail, uses]));
    if (shape !== this.#shape) this.#arrange(nodes);
    this.#shape = shape;
    for (const [id, node] of nodes) this.#boxes.get(id).show(node, stateOf);
    setAttribute(this.element, "hidden", nodes.size === 0);
    this.#draw();
  }

  #arrange(nodes) {
    this.#boxes = new Map([...nodes].map(([id, node]) => [id, new Box(node)]));
    const columns = columnsOf(nodes).map((ids) => ids.map((id) => this.#boxes.get(id).element));
    const columnOf = (box) => columns.findIndex((column) => column.includes(box));
    this.#lanes = [...this.#boxes.values()].flatMap(({ element, uses }) =>
      uses
        .filter((id) => this.#boxes.has(id))
        .map((id) => {
          const from = this.#boxes.get(id).element;
          const passed = columns.slice(columnOf(from) + 1, Math.max(columnOf(element), columnOf(from) + 1));
          return [from, ...passed.map(placeIn), element];
        }),
    );
    this.#columns.replaceChildren(...columns.map((column) => h("li", {}, h("ul", {}, column))));
  }

  #draw() {
    const { clientWidth: width, clientHeight: height } = this.#columns;
    if (width === 0) return;
    setAttribute(this.#lines, "viewBox", `0 0 ${width} ${height}`);
    setAttribute(this.#lines, "width", width);
    setAttribute(this.#lines, "height", height);
    const origin = this.#columns.getBoundingClientRect();
    const paths = this.#lanes.map((lane) => curve(lane, origin));
    const drawn = [...this.#lines.children].map((line) => line.getAttribute("d"));
    if (paths.join() !== drawn.join()) this.#lines.replaceChildren(...paths.map((d) => s("path", { d })));
  }
}

class Box {
  #title;
  #figures = h("span", { class: "graph-figures" });
  #age = h("span", { class: "graph-age" });
  #state = h("span", { class: "label", hidden: true });

  constructor({ name, kind, detail, uses, cardId }) {
    this.uses = uses.map((each) => `part ${each}`);
    this.#title = cardId ? h("a", { href: `#${cardId}` }, name) : h("span", {}, name);
    const from = uses.length > 0 ? h("span", { class: "unseen" }, `made of ${uses.join(", ")}`) : null;
    this.element = h(
      "li",
      { class: "graph-box", "data-kind": kind },
      h("span", { class: "graph-kind" }, kind),
      h("strong", {}, this.#title),
      detail ? h("span", { class: "graph-detail", title: detail }, detail) : null,
      from,
      this.#state,
      this.#figures,
      this.#age,
    );
  }

  show({ kind, queries, name }, stateOf) {
    const states = queries.map((query) => stateOf(query));
    const running = queries.filter((_, index) => states[index].isCurrent);
    setText(this.#figures, figuresOf(kind, name, running, queries));
    setText(this.#age, kind === "table" ? "" : `${Math.min(...states.map(({ age }) => age))} s old`);
    setAttribute(this.#state, "hidden", kind !== "sink");
    if (kind === "sink") {
      setText(this.#state, states[0].text);
      setAttribute(this.#state, "data-kind", states[0].kind);
    }
  }
}

/** The figures of a box in a line. Each query of a source reads it for itself, so the fastest and the last one tell. */
function figuresOf(kind, name, running, queries) {
  if (kind === "source") {
    const alone = running.filter((query) => sourcesOf(query).length === 1);
    const rate = highest(alone.map((query) => query.rows_in_per_second));
    return `${format.rate(rate)} rows/s · lag ${format.integer(highest(running.map((query) => query.lag)))}`;
  }
  if (kind === "view") {
    const failed = queries.map((query) => failuresOf(query, name).reduce((sum, each) => sum + each.count, 0));
    const most = highest(failed) ?? 0;
    return most > 0 ? `${format.integer(most)} rows fail rules` : "";
  }
  return kind === "sink" ? `${format.rate(running[0]?.rows_out_per_second)} rows/s` : "";
}

function failuresOf(query, view) {
  return (query.failures ?? []).filter(({ name }) => name.startsWith(`${view}.`));
}

function sourcesOf(query) {
  return partsOf(query).filter(({ kind }) => kind === "source");
}

function highest(values) {
  const known = values.filter((value) => typeof value === "number");
  return known.length > 0 ? Math.max(...known) : null;
}

/** The parts that a query reports, without what is none: anyone may have published it. */
function partsOf(query) {
  const parts = Array.isArray(query.graph) ? query.graph : [];
  return parts
    .filter((part) => typeof part?.name === "string" && ["source", "table", "view", "sink"].includes(part.kind))
    .map(({ name, kind, detail, uses }) => ({
      name,
      kind,
      detail: typeof detail === "string" ? detail : "",
      uses: Array.isArray(uses) ? uses.map(String) : [],
    }));
}

/** The parts of all queries by an id of their own, each with the queries that it belongs to. */
function joined(queries) {
  const nodes = new Map();
  for (const { query, cardId } of queries) {
    for (const part of partsOf(query)) {
      const isSink = part.kind === "sink";
      const id = `${isSink ? "sink" : "part"} ${part.name}`;
      if (!nodes.has(id) && nodes.size === MAX_BOXES) continue;
      if (!nodes.has(id)) nodes.set(id, { ...part, queries: [], cardId: isSink ? cardId : null });
      nodes.get(id).queries.push(query);
    }
  }
  return nodes;
}

/** The ids by column: sources are first, sinks last, and a view stands behind all that it is made of. */
function columnsOf(nodes) {
  const parts = [...nodes].filter(([, { kind }]) => kind !== "sink");
  const depths = new Map(parts.map(([id]) => [id, 0]));
  for (let round = 0, isSettled = false; round < parts.length && !isSettled; round += 1) {
    isSettled = true;
    for (const [id, { uses }] of parts) {
      const depth = Math.max(0, ...uses.map((name) => 1 + (depths.get(`part ${name}`) ?? -1)));
      if (depth > depths.get(id)) isSettled = false;
      depths.set(id, Math.max(depth, depths.get(id)));
    }
  }
  const columns = Map.groupBy(depths.keys(), (id) => depths.get(id));
  const sinks = [...nodes.keys()].filter((id) => !depths.has(id));
  return [...[...columns].sort(([one], [other]) => one - other).map(([, ids]) => ids), sinks];
}

/** A place in a column where a line passes. */
function placeIn(column) {
  const place = h("li", { class: "graph-place", "aria-hidden": "true" });
  column.push(place);
  return place;
}

/** From the right side of the first element to the left side of the last, through the others. */
function curve(elements, origin) {
  const places = elements.map((element) => {
    const { left, right, top, bottom } = element.getBoundingClientRect();
    return { left: left - origin.left, right: right - origin.left, y: (top + bottom) / 2 - origin.top };
  });
  const [first, ...others] = places;
  const parts = others.map(({ left, y }, index) => {
    const from = places[index];
    const bend = (from.right + left) / 2;
    const [a, b, c, d, e] = [from.right, from.y, bend, y, left].map((value) => value.toFixed(1));
    return `L${a},${b}C${c},${b} ${c},${d} ${e},${d}`;
  });
  return `M${first.right.toFixed(1)},${first.y.toFixed(1)}${parts.join("")}`;
}
