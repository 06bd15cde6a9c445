/* The cluster's odometer: all messages that channels were given, counting up between two documents at their rate. */

import { Charts } from "./charts.js";
import { h, setText } from "./dom.js";
import { follow } from "./follow.js";
import * as format from "./format.js";
import { content, section } from "./panel.js";
import { DataTable } from "./table.js";
import { figureColumn } from "./column.js";

const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;

export function start() {
  const figure = h("p", { class: "odometer", "data-figure": "total" }, "–");
  const rate = h("p", { class: "hint" });
  const charts = new Charts("count_rate");
  const table = counterTable();
  const odometer = new Odometer(figure);
  let previous = null;
  content.append(
    h("div", { class: "counter" }, figure, h("p", {}, "messages given to channels"), rate),
    charts.element,
    section("By channel and node", {}, table.element),
  );
  follow("counter", {}, ({ stats, time, is_incomplete: isIncomplete }) => {
    const counters = Object.values(stats ?? {});
    const total = counters.reduce((sum, counter) => sum + counter.message_count, 0);
    const perSecond = isIncomplete ? null : rateSince(previous, { time, total });
    // What a silent node has counted is missing now, and comes back with it: neither is a rate.
    previous = isIncomplete ? null : { time, total };
    odometer.show(total, perSecond ?? 0);
    setText(rate, `${format.rate(perSecond)} per second`);
    if (perSecond !== null || isIncomplete) charts.add({ time, isIncomplete, in_rate: perSecond });
    table.setRows(counters);
  });
  charts.recall();
}

/** Runs on at the last known rate until the next document corrects it. */
class Odometer {
  #element;
  #total = 0;
  #perMs = 0;
  #since = 0;
  #isRunning = false;

  constructor(element) {
    this.#element = element;
  }

  show(total, perSecond) {
    this.#total = total;
    this.#perMs = isStill ? 0 : perSecond / 1000;
    this.#since = performance.now();
    if (this.#isRunning) return;
    this.#isRunning = true;
    this.#run();
  }

  #run() {
    const elapsedMs = performance.now() - this.#since;
    setText(this.#element, format.integer(Math.floor(this.#total + elapsedMs * this.#perMs)));
    this.#isRunning = this.#perMs > 0;
    if (this.#isRunning) requestAnimationFrame(() => this.#run());
  }
}

function rateSince(previous, now) {
  if (previous === null || now.time <= previous.time) return null;
  return Math.max(0, (now.total - previous.total) / (now.time - previous.time));
}

function counterTable() {
  return new DataTable({
    label: "Counters",
    noun: "counter",
    empty: "No channels yet.",
    key: (row) => `${row.topic_name}:${row.channel_name}:${row.node}`,
    sort: "-message_count",
    columns: [
      { id: "topic", label: "Topic", value: (row) => row.topic_name, className: "name" },
      { id: "channel", label: "Channel", value: (row) => row.channel_name },
      { id: "node", label: "Node", value: (row) => row.node, priority: 2 },
      figureColumn("message_count", "Messages"),
    ],
  });
}
