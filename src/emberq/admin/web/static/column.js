/* Columns that several tables share; see table.js for what a column is. */

import { path } from "./api.js";
import { paintSparkline } from "./chart.js";
import { h, setAttribute, setText } from "./dom.js";
import * as format from "./format.js";
import { label } from "./panel.js";
import { linkCell } from "./table.js";
import { netOf, signed } from "./trend.js";

/** A count straight from the document. */
export function figureColumn(id, text, priority = null) {
  return {
    id,
    label: text,
    priority,
    isNumeric: true,
    value: (row) => row[id] ?? 0,
    text: (row) => format.integer(row[id]),
  };
}

/** A figure with the line of what it was; `recent` knows the row's last figures. */
export function paintWithSparkline(recent, text) {
  return (cell, row) => {
    const figure = cell.querySelector(".figure") ?? cell.appendChild(h("span", { class: "figure" }));
    setText(figure, text(row));
    paintSparkline(cell, recent.of(row));
  };
}

/** How many entries a list of the document has. */
export function countColumn(id, text, { priority = null, title = null } = {}) {
  const value = (row) => (row[id] ?? []).length;
  return { id, label: text, title, priority, isNumeric: true, value, text: (row) => format.integer(value(row)) };
}

export const rateColumn = {
  id: "rate",
  label: "Msgs/s",
  isNumeric: true,
  value: (row) => row.rate ?? -1,
  text: (row) => format.rate(row.rate),
};

/** How fast the backlog grows or shrinks. */
export const netColumn = {
  id: "net",
  label: "Net/s",
  title: "What comes in, less what is finished or given up: the backlog grows by it",
  isNumeric: true,
  priority: 2,
  value: (row) => netOf(row) ?? 0,
  text: (row) => signed(netOf(row)),
};

/** A rate that ought to be 0: coloured while it is not. */
function failureColumn(id, text, kind, { priority, title }) {
  return {
    id,
    label: text,
    title,
    priority,
    isNumeric: true,
    value: (row) => row[id] ?? 0,
    paint(cell, row) {
      setText(cell, format.rate(row[id]));
      setAttribute(cell, "data-kind", row[id] > 0 ? kind : null);
    },
  };
}

/** Messages that are given up. */
export const deadLetterColumn = failureColumn("dead_letter_rate", "Dead/s", "problem", {
  priority: 2,
  title: "Messages that are given up, and go to the dead-letter topic",
});

/** Deliveries that fail. */
export const requeueColumn = failureColumn("requeue_rate", "Requeued/s", "warning", {
  priority: 4,
  title: "Messages that consumers give back, or let time out",
});

/** For how long the oldest message has waited: `3m 20s` as nsqd tells it, `≈ 3m 20s` as nsqadmin reckons it from what came
 *  in, `> 1h 0m` if it waits since before the history began. */
export const oldestColumn = {
  id: "oldest",
  label: "Oldest",
  title: "How long ago the message that is next in line was published; ≈ where that is reckoned from what came in",
  isNumeric: true,
  value: (row) => row.oldest_s ?? -1,
  text({ oldest_s: seconds, is_older: isOlder, is_reckoned: isReckoned }) {
    if (typeof seconds !== "number") return format.MISSING;
    return `${isOlder ? "> " : isReckoned ? "≈ " : ""}${format.duration(seconds * 1e9)}`;
  },
};

/** Where the messages wait. */
export const storageColumn = {
  id: "storage",
  label: "Memory + disk",
  isNumeric: true,
  priority: 3,
  value: (row) => row.backend_depth,
  text: (row) => `${format.integer(row.memory_depth)} + ${format.integer(row.backend_depth)}`,
};

/** What a row is about: a link to its page, and whether it is paused. */
export function nameColumn({ label: text, id = "name", name, href }) {
  const link = linkCell(href, name);
  return {
    id,
    label: text,
    className: "name",
    isSearched: true,
    value: name,
    paint(cell, row) {
      link(cell, row);
      paintPaused(cell, row.paused);
    },
  };
}

const nodeLink = linkCell(
  (row) => path("nodes", row.node),
  (row) => row.hostname || row.node,
);

/** The node's host name, or its address where it has none, with the address beside it. */
export const nodeColumn = {
  id: "node",
  label: "Node",
  className: "name",
  isSearched: true,
  value: (row) => `${row.hostname ?? ""} ${row.node}`,
  paint(cell, row) {
    nodeLink(cell, row);
    const aside = cell.querySelector(".aside") ?? cell.appendChild(h("span", { class: "aside" }));
    setText(aside, row.hostname ? row.node : "");
    paintPaused(cell, row.paused);
  },
};

function paintPaused(cell, isPaused) {
  const mark = cell.querySelector(".label");
  if (isPaused && mark === null) cell.append(label("paused", "warning"));
  if (!isPaused) mark?.remove();
}

/** What columns of buttons have in common. */
const ACTION = {
  isUnsortable: true,
  isSilent: true,
  priority: 2,
  className: "row-action",
  value: () => "",
};

/** A button on every row that pauses or unpauses it on that node; the table's onAction hears of it. */
export const pauseColumn = {
  id: "pause",
  label: "Pause on this node",
  ...ACTION,
  paint(cell, row) {
    const button =
      cell.firstElementChild ??
      cell.appendChild(h("button", { type: "button", class: "quiet", "data-action": "pause" }));
    const verb = row.paused ? "Unpause" : "Pause";
    setText(button, `${verb}…`);
    setAttribute(button, "aria-label", `${verb} on ${row.node}`);
  },
};

/** A button on every row; the table's onAction hears of it. */
export const tombstoneColumn = {
  id: "tombstone",
  label: "Tombstone",
  ...ACTION,
  paint(cell, row) {
    const button =
      cell.firstElementChild ??
      cell.appendChild(h("button", { type: "button", class: "quiet", "data-action": "tombstone" }, "Tombstone…"));
    setAttribute(button, "aria-label", `Tombstone on ${row.node ?? ""} ${row.topic_name ?? ""}`.trim());
  },
};

/** What there is to know of a consumer's connection, as labels. */
export function attributesOf(client) {
  return [
    client.sample_rate > 0 && `sampled ${client.sample_rate}%`,
    client.tls && (client.tls_version ? `TLS ${client.tls_version.replace(/^TLSv?/i, "")}` : "TLS"),
    client.deflate && "Deflate",
    client.snappy && "Snappy",
    locality(client),
  ].filter(Boolean);
}

function locality(client) {
  const { topology_region: region, topology_zone: zone } = client;
  if (!region && !zone) return null;
  const isSameRegion = region === client.node_topology_region;
  const near = isSameRegion && zone === client.node_topology_zone ? "same zone" : isSameRegion ? "same region" : null;
  return [[region, zone].filter(Boolean).join("/"), near].filter(Boolean).join(", ");
}
