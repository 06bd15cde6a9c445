/* Spark queries and how they are doing, as each reports to the topic `emberq.pipelines`: a graph for every pipeline, and
 * a card for every query.
 *
 * A query that runs reports with every batch, and every two seconds while no batch ends. A query that says nothing for
 * longer was killed, or its machine cannot be reached: the card says since when. Else it says how old the figures are.
 */

import { apiPath, get } from "./api.js";
import { paintSparkline } from "./chart.js";
import { h, setAttribute, setText } from "./dom.js";
import { follow } from "./follow.js";
import * as format from "./format.js";
import { button, content } from "./panel.js";
import { PipelineGraph } from "./pipeline_graph.js";

const SILENCE_S = 15;
const NS_PER_MS = 1e6;

export function start() {
  const list = h("div", { class: "pipelines" });
  const nothing = h(
    "p",
    { class: "empty", hidden: true },
    "No pipeline has reported yet. Queries report their progress while they run.",
  );
  const cards = new Map();
  const graphs = new Map();
  content.append(list, nothing);
  follow("pipelines", {}, ({ pipelines, time }) => {
    const queries = new Map((pipelines ?? []).map((query) => [nameOf(query), query]));
    const byPipeline = Map.groupBy(queries.values(), ({ pipeline }) => pipeline);
    for (const [name, query] of queries) {
      if (!cards.has(name)) cards.set(name, new QueryCard(name));
      cards.get(name).show(query, time);
    }
    for (const [pipeline, found] of byPipeline) {
      if (!graphs.has(pipeline)) graphs.set(pipeline, new PipelineGraph(pipeline));
      const listed = found.map((query) => ({ query, cardId: cards.get(nameOf(query)).element.id }));
      graphs.get(pipeline).show(listed, (query) => stateOf(query, time));
    }
    for (const name of [...cards.keys()].filter((each) => !queries.has(each))) cards.delete(name);
    for (const name of [...graphs.keys()].filter((each) => !byPipeline.has(each))) graphs.delete(name);
    const elements = [...byPipeline].flatMap(([pipeline, found]) => [
      graphs.get(pipeline).element,
      ...found.map((query) => cards.get(nameOf(query)).element),
    ]);
    if (elements.some((element, index) => list.children[index] !== element) || list.children.length > elements.length) {
      list.replaceChildren(...elements);
    }
    setAttribute(nothing, "hidden", queries.size > 0);
  });
}

/** Each is [id, title, text(query, isCurrent), what it means]. */
const FIGURES = [
  ["in", "Rows/s in", (query, isCurrent) => rate(isCurrent, query.rows_in_per_second), "As they arrive"],
  ["out", "Rows/s out", (query, isCurrent) => rate(isCurrent, query.rows_out_per_second), "As they are written"],
  ["lag", "Lag", (query) => format.integer(query.lag), "Messages that wait in the journals it reads"],
  ["batch", "Last batch", (query) => format.duration(lastDurationNs(query)), "How long it took"],
  ["number", "Batch", (query) => format.integer(query.batch), "Its number"],
  ["rows", "Rows", (query) => format.integer(query.row_count), "Read since nsqadmin follows the query"],
  ["bad", "Bad records", (query) => format.integer(query.bad_count), "Set aside since nsqadmin follows the query"],
  ["state", "State rows", (query) => format.integer(query.state_rows), "Kept for windows and duplicates"],
  ["watermark", "Watermark", (query) => format.moment(watermarkMs(query)), "What is older comes too late"],
];

class QueryCard {
  #values = new Map();
  #state = h("span", { class: "label" });
  #heard = h("span", { class: "aside" });
  #error = h("p", { class: "problem", hidden: true });
  #spark = h("div", { class: "batch-spark" });
  #sparkText = h("p", { class: "hint" });
  #lagSpark = h("div", { class: "batch-spark" });
  #lagText = h("p", { class: "hint" });
  #failures;

  constructor(name) {
    const figures = FIGURES.map(([id, title, , meaning]) => {
      const value = h("dd", { "data-figure": id }, "–");
      this.#values.set(id, value);
      return h("div", { title: meaning }, h("dt", {}, title), value);
    });
    this.#failures = new Failures(name);
    this.element = h(
      "article",
      { class: "pipeline", id: `query-${name.replaceAll(/[^\w-]+/g, "-")}`, "aria-label": name },
      h("header", {}, h("h2", {}, name), this.#state, this.#heard),
      h("dl", { class: "facts" }, figures),
      h("div", { class: "batches" }, this.#spark, this.#sparkText),
      h("div", { class: "batches" }, this.#lagSpark, this.#lagText),
      this.#failures.element,
      this.#error,
    );
  }

  show(query, now) {
    const { isCurrent } = stateOf(query, now);
    for (const [id, , text] of FIGURES) setText(this.#values.get(id), text(query, isCurrent));
    setAttribute(this.#values.get("bad"), "data-kind", query.bad_count > 0 ? "warning" : null);
    this.#showState(query, now);
    const recent = query.recent ?? [];
    const durations = recent.map((batch) => batch.duration_ms);
    showSpark(this.#spark, this.#sparkText, durations, (shortest, longest) => {
      const span = `${format.duration(shortest * NS_PER_MS)} to ${format.duration(longest * NS_PER_MS)}`;
      return `The last ${durations.length} batches took ${span}.`;
    });
    const lags = recent.map((batch) => batch.lag).filter((lag) => typeof lag === "number");
    const told = (least, most) => {
      const [low, high] = [least, most].map(format.integer);
      return `Lag behind the last batches: ${low === high ? low : `${low} to ${high}`}.`;
    };
    showSpark(this.#lagSpark, this.#lagText, lags, told);
    this.#failures.show(query);
    const { error, time } = query.last_error ?? {};
    setText(this.#error, error ? `Failed at ${format.moment(Date.parse(time))}: ${error}` : "");
    setAttribute(this.#error, "hidden", !error);
  }

  #showState(query, now) {
    const { text, kind, isSilent, age } = stateOf(query, now);
    setText(this.#state, text);
    setAttribute(this.#state, "data-kind", kind);
    const heard = `${isSilent ? "not heard of since" : "reported"} ${format.serverMoment(query.received)}`;
    setText(this.#heard, query.state === "running" && !isSilent ? `figures are ${age} s old` : heard);
  }
}

/** The rules that rows did not meet, and the sources that had bad records, since nsqadmin follows the query. */
class Failures {
  #query = null;
  #shown = "";
  #rows = h("tbody");
  #samples = h("div", { class: "samples", "aria-live": "polite" });

  constructor(name) {
    const titles = ["What failed", "Then", "Rows", "Since", "Last"].map((title) => h("th", { scope: "col" }, title));
    const head = h("thead", {}, h("tr", {}, titles));
    const table = h("table", { class: "failures", "aria-label": `What failed in ${name}` }, head, this.#rows);
    const show = button("Show samples", { permission: "peek", kind: "quiet" }, () => this.#showSamples());
    this.element = h("div", { hidden: true }, table, show, this.#samples);
  }

  show(query) {
    this.#query = query;
    const failures = query.failures ?? [];
    setAttribute(this.element, "hidden", failures.length === 0);
    const shown = JSON.stringify([failures, query.rules]);
    if (shown === this.#shown) return;
    this.#shown = shown;
    this.#rows.replaceChildren(...failures.map((failure) => this.#row(failure, query.rules?.[failure.name])));
  }

  #row({ name, count, since, last }, rule) {
    const what = rule ? [h("strong", {}, name), " ", h("code", {}, String(rule.sql))] : [h("strong", {}, name)];
    const then = rule ? { warn: "kept", drop: "dropped", fail: "ends the query" }[rule.action] : "bad records";
    const moments = [since, last].map((moment) => h("td", {}, format.moment(Date.parse(moment))));
    return h("tr", {}, h("th", { scope: "row" }, what), h("td", {}, then), h("td", {}, format.integer(count)), moments);
  }

  async #showSamples() {
    const { pipeline, query } = this.#query;
    try {
      const { failures } = await get(`${apiPath("pipelines", "samples")}?${new URLSearchParams({ pipeline, query })}`);
      const found = failures.filter(({ samples }) => samples.length > 0);
      const listed = found.flatMap(({ name, samples }) => [h("h3", {}, name), h("pre", {}, samples.join("\n"))]);
      this.#samples.replaceChildren(...(listed.length > 0 ? listed : [h("p", { class: "hint" }, "There are none.")]));
    } catch (failure) {
      this.#samples.replaceChildren(h("p", { class: "problem" }, failure.message));
    }
  }
}

function showSpark(drawing, text, values, told) {
  setAttribute(drawing.parentElement, "hidden", values.length < 2);
  if (values.length < 2) return;
  paintSparkline(drawing, values);
  setText(text, told(Math.min(...values), Math.max(...values)));
}

/** How a query is, in a word, and how old its figures are. */
function stateOf({ state, received }, now) {
  const isSilent = state === "running" && now - received > SILENCE_S;
  return {
    text: isSilent ? "silent" : (state ?? "running"),
    kind: (isSilent ? "warning" : { running: "good", failed: "problem" }[state]) ?? null,
    age: Math.max(Math.round(now - received), 0),
    isSilent,
    isCurrent: (state ?? "running") === "running" && !isSilent,
  };
}

function nameOf(query) {
  return `${query.pipeline} / ${query.query}`;
}

/** A rate is of the present: a query that does not run, or is silent, has none, whatever it reported last. */
function rate(isCurrent, figure) {
  return format.rate(isCurrent ? figure : null);
}

function lastDurationNs(query) {
  const last = (query.recent ?? []).at(-1);
  return last === undefined ? null : last.duration_ms * NS_PER_MS;
}

/** null while there is none; before it has seen a message Spark calls it the year 1970. */
function watermarkMs(query) {
  const milliseconds = Date.parse(query.watermark);
  return milliseconds > 0 ? milliseconds : null;
}
