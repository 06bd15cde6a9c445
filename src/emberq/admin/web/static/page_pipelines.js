/* Spark queries and how they are doing, as each reports to the topic `emberq.pipelines`: a card for every query.
 *
 * A query that runs reports with every batch, and every two seconds while no batch ends. A query that says nothing for
 * longer was killed, or its machine cannot be reached: the card says since when. Else it says how old the figures are.
 */

import { paintSparkline } from "./chart.js";
import { h, setAttribute, setText } from "./dom.js";
import { follow } from "./follow.js";
import * as format from "./format.js";
import { content } from "./panel.js";

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
  content.append(list, nothing);
  follow("pipelines", {}, ({ pipelines, time }) => {
    const queries = new Map((pipelines ?? []).map((query) => [nameOf(query), query]));
    for (const [name, query] of queries) {
      if (!cards.has(name)) cards.set(name, new QueryCard(name));
      cards.get(name).show(query, time);
    }
    for (const name of [...cards.keys()].filter((each) => !queries.has(each))) cards.delete(name);
    const elements = [...queries.keys()].map((name) => cards.get(name).element);
    if (elements.some((element, index) => list.children[index] !== element) || list.children.length > elements.length) {
      list.replaceChildren(...elements);
    }
    setAttribute(nothing, "hidden", queries.size > 0);
  });
}

/** Each is [id, title, text(query), what it means]. */
const FIGURES = [
  ["in", "Rows/s in", (query) => format.rate(current(query, "rows_in_per_second")), "As they arrive"],
  ["out", "Rows/s out", (query) => format.rate(current(query, "rows_out_per_second")), "As they are written"],
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

  constructor(name) {
    const figures = FIGURES.map(([id, title, , meaning]) => {
      const value = h("dd", { "data-figure": id }, "–");
      this.#values.set(id, value);
      return h("div", { title: meaning }, h("dt", {}, title), value);
    });
    this.element = h(
      "article",
      { class: "pipeline", "aria-label": name },
      h("header", {}, h("h2", {}, name), this.#state, this.#heard),
      h("dl", { class: "facts" }, figures),
      h("div", { class: "batches" }, this.#spark, this.#sparkText),
      this.#error,
    );
  }

  show(query, now) {
    for (const [id, , text] of FIGURES) setText(this.#values.get(id), text(query));
    setAttribute(this.#values.get("bad"), "data-kind", query.bad_count > 0 ? "warning" : null);
    this.#showState(query, now);
    this.#showBatches((query.recent ?? []).map((batch) => batch.duration_ms));
    const { error, time } = query.last_error ?? {};
    setText(this.#error, error ? `Failed at ${format.moment(Date.parse(time))}: ${error}` : "");
    setAttribute(this.#error, "hidden", !error);
  }

  #showState({ state, received }, now) {
    const isSilent = state === "running" && now - received > SILENCE_S;
    const kind = isSilent ? "warning" : { running: "good", failed: "problem" }[state];
    setText(this.#state, isSilent ? "silent" : (state ?? "running"));
    setAttribute(this.#state, "data-kind", kind ?? null);
    const heard = `${isSilent ? "not heard of since" : "reported"} ${format.moment(received * 1000)}`;
    const age = `figures are ${Math.max(Math.round(now - received), 0)} s old`;
    setText(this.#heard, state === "running" && !isSilent ? age : heard);
  }

  #showBatches(durations) {
    setAttribute(this.#sparkText.parentElement, "hidden", durations.length < 2);
    if (durations.length < 2) return;
    paintSparkline(this.#spark, durations);
    const [shortest, longest] = [Math.min(...durations), Math.max(...durations)];
    const span = `${format.duration(shortest * NS_PER_MS)} to ${format.duration(longest * NS_PER_MS)}`;
    setText(this.#sparkText, `The last ${durations.length} batches took ${span}.`);
  }
}

function nameOf(query) {
  return `${query.pipeline} / ${query.query}`;
}

/** A rate is of the present: a query that does not run has none, whatever it reported last. */
function current(query, figure) {
  return (query.state ?? "running") === "running" ? query[figure] : null;
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
