/* Spark queries and how they are doing: the last progress that each reported to the topic `emberq.pipelines`. */

import { paintSparkline } from "./chart.js";
import { h, setAttribute, setText } from "./dom.js";
import * as format from "./format.js";
import { Live } from "./live.js";
import { banner, warn } from "./notice.js";
import { content, loaded } from "./panel.js";

const BATCHES_KEPT = 40;

export function start() {
  const list = h("div", { class: "pipelines" });
  const nothing = h(
    "p",
    { class: "empty", hidden: true },
    "No pipeline has reported yet. Queries report their progress while they run.",
  );
  const cards = new Map();
  content.append(list, nothing);
  new Live(
    "pipelines",
    {},
    {
      onDocument(document_) {
        const pipelines = document_.pipelines ?? [];
        warn(document_);
        for (const progress of pipelines) {
          const key = nameOf(progress);
          if (!cards.has(key)) {
            cards.set(key, new PipelineCard(key));
            list.append(cards.get(key).element);
          }
          cards.get(key).show(progress);
        }
        const reported = new Set(pipelines.map(nameOf));
        for (const [key, card] of cards) {
          if (!reported.has(key)) {
            card.element.remove();
            cards.delete(key);
          }
        }
        setAttribute(nothing, "hidden", pipelines.length > 0);
        loaded();
      },
      onProblem: (text) => {
        banner("problem", text);
        loaded();
      },
    },
  ).start();
}

const FIGURES = [
  ["in", "Rows/s in", (progress) => format.rate(progress.inputRowsPerSecond)],
  ["out", "Rows/s out", (progress) => format.rate(progress.processedRowsPerSecond)],
  ["lag", "Lag", (progress) => format.integer(progress.lag)],
  ["batch", "Last batch", (progress) => format.duration(batchNs(progress))],
  ["number", "Batch", (progress) => format.integer(progress.batchId)],
  ["at", "Reported", (progress) => format.moment(Date.parse(progress.timestamp))],
];

class PipelineCard {
  #values = new Map();
  #state = h("span", { class: "label" });
  #error = h("p", { class: "problem", hidden: true });
  #spark = h("div", { class: "batch-spark" });
  #durations = [];
  #lastBatch = null;

  constructor(name) {
    const figures = FIGURES.map(([id, title]) => {
      const value = h("dd", {}, "–");
      this.#values.set(id, value);
      return h("div", {}, h("dt", {}, title), value);
    });
    this.element = h(
      "article",
      { class: "pipeline" },
      h("header", {}, h("h2", {}, name), this.#state),
      h("dl", { class: "facts" }, figures),
      this.#spark,
      this.#error,
    );
  }

  show(progress) {
    for (const [id, , text] of FIGURES) setText(this.#values.get(id), text(progress));
    const error = progress.error ?? progress.exception ?? "";
    setText(this.#error, error);
    setAttribute(this.#error, "hidden", error === "");
    setText(this.#state, error ? "failed" : (progress.state ?? "running"));
    setAttribute(this.#state, "data-kind", error ? "problem" : "good");
    if (progress.batchId !== this.#lastBatch && batchNs(progress) !== null) {
      this.#lastBatch = progress.batchId;
      this.#durations = [...this.#durations, batchNs(progress)].slice(-BATCHES_KEPT);
      if (this.#durations.length > 1) paintSparkline(this.#spark, this.#durations);
    }
  }
}

function nameOf(progress) {
  return progress.name || progress.id || "unnamed";
}

function batchNs(progress) {
  const milliseconds = progress.batchDuration ?? progress.durationMs?.triggerExecution;
  return milliseconds === undefined ? null : milliseconds * 1e6;
}
