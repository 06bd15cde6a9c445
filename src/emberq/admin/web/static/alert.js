/* What is wrong by the rules, as a list: the gravest first, each with what it is about, and since when. */

import { path } from "./api.js";
import { h, setText } from "./dom.js";
import * as format from "./format.js";
import { label, section } from "./panel.js";

/** The alerts that are firing, on the first page; it is not there while nothing is wrong. */
export class AlertList {
  #rows = new AlertRows();
  #more = h("p", { class: "hint" });

  constructor() {
    this.element = section("What is wrong", { controls: h("a", { href: path("alerts") }, "All alerts and rules") });
    this.element.append(this.#rows.element, this.#more);
    this.element.hidden = true;
  }

  show({ alerts = [], alert_count: count = 0, silenced_count: silencedCount = 0 }) {
    this.element.hidden = count + silencedCount === 0;
    this.#rows.show(alerts);
    const more = [
      count > alerts.length && `and ${format.integer(count - alerts.length)} more`,
      silencedCount > 0 && `${format.integer(silencedCount)} silenced`,
    ];
    setText(this.#more, more.filter(Boolean).join(", "));
  }
}

/** Alerts, one below the other. A row stays while its alert does: it costs no layout, is not read aloud again, and what
 *  `control` makes for it keeps the focus. */
export class AlertRows {
  #rows = new Map();
  #none;
  #control;
  element = h("ul", { class: "plain alerts" });

  constructor({ empty = "", control = () => null } = {}) {
    this.#none = empty ? [h("li", { class: "empty" }, empty)] : [];
    this.#control = control;
  }

  show(alerts) {
    this.#rows = new Map(alerts.map((alert) => [keyOf(alert), this.#row(alert)]));
    const items = this.#rows.size > 0 ? [...this.#rows.values()].map(({ item }) => item) : this.#none;
    const old = this.element.children;
    const isOther = items.length !== old.length || items.some((item, index) => item !== old[index]);
    if (isOther) this.element.replaceChildren(...items);
  }

  #row(alert) {
    const row = this.#rows.get(keyOf(alert)) ?? this.#newRow(alert);
    const { severity, text, until } = alert;
    const shown = JSON.stringify([severity, text, until]);
    if (row.shown !== shown) row.told.replaceChildren(...parts(alert));
    row.shown = shown;
    return row;
  }

  #newRow(alert) {
    const told = h("span", { class: "told" });
    return { told, item: h("li", {}, told, this.#control(alert)), shown: "" };
  }
}

function keyOf({ rule, topic, channel, node, since, silence }) {
  return JSON.stringify([rule, topic, channel, node, since, silence?.id]);
}

/** What is told of an alert. */
function parts(alert) {
  const { rule, severity, text, since, until, silence } = alert;
  const time = until ? `${format.serverMoment(since)} to ${format.serverMoment(until)}` : `since ${format.serverMoment(since)}`;
  const kind = severity === "critical" ? "problem" : "warning";
  return [
    label(severity, until || silence ? null : kind),
    h("span", {}, h("strong", {}, rule), ": ", subject(alert), ", ", text),
    ...(silence ? [label(`silenced until ${format.serverMoment(silence.until)}: ${silence.reason}`)] : []),
    h("span", { class: "since" }, time),
  ];
}

/** A link to what it is about. A node that is gone has no page of its own. */
function subject({ topic, channel, node }) {
  if (node) return h("a", { href: path("nodes") }, node);
  return h("a", { href: path("topics", topic, channel) }, `${topic} / ${channel}`);
}
