/* Pieces that pages are made of: figures in a row, a section with a heading, a search field. */

import { may } from "./config.js";
import { h, setAttribute, setText } from "./dom.js";
import * as format from "./format.js";
import { rememberInAddress } from "./table.js";

/** How often figures that no stream brings are asked for. */
const RENEW_MS = 5_000;

/** Where a page puts what it shows. */
export const content = document.getElementById("content");

/** Takes away the sign that data is on its way. */
export function loaded() {
  document.getElementById("loading")?.remove();
  content.removeAttribute("aria-busy");
}

/** A part of the page with a heading and, beside it, its controls. */
export function section(title, { controls = [], note = null } = {}, ...children) {
  const id = `section-${title.toLowerCase().replaceAll(" ", "-")}`;
  const heading = h("h2", { id }, title);
  const head = h("div", { class: "section-head" }, heading, h("div", { class: "controls" }, controls));
  return h("section", { "aria-labelledby": id }, head, note ? h("p", { class: "hint" }, note) : null, children);
}

/** The figures that matter most, large. Each is { id, label, text(document), detail?(document), kind?(document) },
 *  where the kind is "warning" or "problem" for a figure that must not be overlooked. */
export class Tiles {
  #tiles;
  #values = new Map();

  constructor(tiles) {
    this.#tiles = tiles;
    this.element = h(
      "dl",
      { class: "tiles" },
      tiles.map((tile) => this.#tile(tile)),
    );
  }

  show(figures) {
    for (const tile of this.#tiles) {
      const { value, detail } = this.#values.get(tile.id);
      const text = tile.text(figures);
      setText(value, text);
      setAttribute(value, "data-unknown", text === format.MISSING);
      if (tile.detail) setText(detail, tile.detail(figures));
      if (tile.kind) setAttribute(value, "data-kind", tile.kind(figures));
    }
  }

  #tile({ id, label }) {
    const value = h("span", { class: "tile-value", "data-figure": id }, "–");
    const detail = h("span", { class: "tile-detail" });
    this.#values.set(id, { value, detail });
    return h("div", { class: "tile" }, h("dt", {}, label), h("dd", {}, value, detail));
  }
}

/** How long messages take, as a tile of a topic or a channel. */
export const latencyTile = {
  id: "latency",
  label: "End to end",
  text: (all) => format.duration(worstLatency(all.e2e_processing_latency)),
  detail: (all) => latencyText(all.e2e_processing_latency),
};

/** Calls when the element comes into sight, and then at intervals, but not while it is out of sight or the tab hidden. */
export function whileInSight(element, action) {
  let isInSight = false;
  new IntersectionObserver((entries) => {
    const was = isInSight;
    isInSight = entries.at(-1).isIntersecting;
    if (isInSight && !was) action();
  }).observe(element);
  setInterval(() => isInSight && !document.hidden && action(), RENEW_MS);
}

/** A search field for a table; what is typed stands in the page's address too, and `onSearch` hears of it. */
export function searchField(table, noun, onSearch = () => {}) {
  const field = h("input", {
    type: "search",
    id: "search",
    placeholder: `Search ${noun}…`,
    "aria-label": `Search ${noun}`,
    autocomplete: "off",
    spellcheck: "false",
    value: new URLSearchParams(location.search).get("q") ?? "",
  });
  field.addEventListener("input", () => {
    table.search(field.value);
    rememberInAddress("q", field.value);
    onSearch(field.value);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    field.value = ""; // as the browser does, but without telling
    field.dispatchEvent(new Event("input"));
  });
  table.search(field.value);
  return field;
}

/** A choice of which rows a table shows; filters are { id: { label, admits(row) } }. What is chosen stands in the page's
 *  address. */
export function filterField(table, label_, filters) {
  const options = Object.entries(filters).map(([value, { label: text }]) => h("option", { value }, text));
  const field = h("select", { "aria-label": label_ }, options);
  const choose = () => table.filter(filters[field.value].admits);
  field.value = new URLSearchParams(location.search).get("show") ?? "all";
  if (field.selectedIndex < 0) field.value = "all";
  choose();
  field.addEventListener("change", () => {
    choose();
    rememberInAddress("show", field.value === "all" ? "" : field.value);
  });
  return field;
}

/** A button; none for readers who may not do what it does. */
export function button(label, { kind = null, permission = null, title = null }, action) {
  if (permission !== null && !may(permission)) return null;
  const element = h("button", { type: "button", class: kind, title }, label);
  element.addEventListener("click", () => action(element));
  return element;
}

/** A word or two in a frame: `paused`, `TLS`. */
export function label(text, kind = null) {
  return h("span", { class: "label", "data-kind": kind }, text);
}

/** The highest percentile that is tracked, on the node where it is highest, in nanoseconds; null when none is, or no
 *  message was measured. */
export function worstLatency(latency) {
  const percentiles = measured(latency);
  if (percentiles.length === 0) return null;
  const worst = percentiles.reduce((a, b) => (b.quantile > a.quantile ? b : a));
  return worst.max ?? worst.value ?? null;
}

/** `p99 12 ms · p95 3 ms` */
function latencyText(latency) {
  return measured(latency)
    .map((each) => `p${+(each.quantile * 100).toFixed(2)} ${format.duration(each.max ?? each.value)}`)
    .map((each) => each.replaceAll(" ", "\u00a0")) // a figure and its unit stay on one line
    .join(" · ");
}

/** The percentiles, unless they stand for no message at all: then nsqd calls them 0. */
function measured(latency) {
  return latency?.count > 0 ? (latency.percentiles ?? []) : [];
}
