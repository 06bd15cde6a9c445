/* What is wrong by the rules, as a list: the gravest first, each with what it is about, and since when. */

import { path } from "./api.js";
import { h } from "./dom.js";
import * as format from "./format.js";
import { label, section } from "./panel.js";

/** The alerts that are firing, on the first page; it is not there while nothing is wrong. */
export class AlertList {
  #list = h("ul", { class: "plain alerts" });
  #more = h("p", { class: "hint" });
  #shown = "";

  constructor() {
    this.element = section("What is wrong", { controls: h("a", { href: path("alerts") }, "All alerts and rules") });
    this.element.append(this.#list, this.#more);
    this.element.hidden = true;
  }

  show({ alerts = [], alert_count: count = 0 }) {
    const text = JSON.stringify([alerts.map(({ value, ...lasting }) => lasting), count]);
    if (text === this.#shown) return; // an untouched list costs no layout, and is not read aloud again
    this.#shown = text;
    this.element.hidden = count === 0;
    this.#list.replaceChildren(...alerts.map((alert) => h("li", {}, ...parts(alert))));
    this.#more.textContent = count > alerts.length ? `and ${format.integer(count - alerts.length)} more` : "";
  }
}

/** What is told of an alert. */
export function parts(alert) {
  const { rule, severity, text, since, until } = alert;
  const time = until ? `${moment(since)} to ${moment(until)}` : `since ${moment(since)}`;
  const kind = severity === "critical" ? "problem" : "warning";
  return [
    label(severity, until ? null : kind),
    h("span", {}, h("strong", {}, rule), ": ", subject(alert), ", ", text),
    h("span", { class: "since" }, time),
  ];
}

/** A link to what it is about. A node that is gone has no page of its own. */
export function subject({ topic, channel, node }) {
  if (node) return h("a", { href: path("nodes") }, node);
  return h("a", { href: path("topics", topic, channel) }, `${topic} / ${channel}`);
}

function moment(seconds) {
  return format.moment(seconds * 1000);
}
