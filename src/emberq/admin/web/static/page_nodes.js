/* All nsqds that the cluster knows. */

import { path } from "./api.js";
import { figureColumn, nameColumn, rateColumn } from "./column.js";
import { config } from "./config.js";
import { h, setAttribute, setText } from "./dom.js";
import { exportButtons } from "./export.js";
import { follow } from "./follow.js";
import * as format from "./format.js";
import { content, label, searchField, section } from "./panel.js";
import { DataTable } from "./table.js";

export function start() {
  const table = nodeTable();
  const count = h("span", { class: "count" });
  const settings = h("a", { href: path("settings") }, "Their settings");
  const controls = [count, settings, searchField(table, "nodes"), exportButtons(table, "nsq-nodes")];
  content.append(section("All nodes", { controls }, table.element));
  follow("nodes", {}, ({ nodes }) => {
    table.setRows(nodes ?? []);
    setText(count, format.counted((nodes ?? []).length, "node"));
  });
}

/** How the cluster names a node: IPv6 addresses stand in brackets. */
function nameOf(node) {
  const host = node.broadcast_address.includes(":") ? `[${node.broadcast_address}]` : node.broadcast_address;
  return `${host}:${node.http_port}`;
}

const hostColumn = nameColumn({
  id: "host",
  label: "Host",
  name: (node) => node.hostname || nameOf(node),
  href: (node) => path("nodes", nameOf(node)),
});

/** On a phone the address stands beside the name, for there is no room for a column of its own. */
function paintHost(cell, node) {
  hostColumn.paint(cell, node);
  const aside = cell.querySelector(".aside") ?? cell.appendChild(h("span", { class: "aside on-phone" }));
  setText(aside, node.hostname ? nameOf(node) : "");
}

/** What a node is in a word, how grave that is, and what it means. */
function stateOf(node) {
  if (node.state === "gone" && node.was_draining) return { text: "drained", kind: null, title: "It has stopped" };
  if (node.state === "gone") return { text: "gone", kind: "problem", title: "nsqlookupd lists it no more" };
  if (node.state === "silent") return { text: "silent", kind: "problem", title: "It does not answer" };
  if (!node.is_healthy) return { text: "not well", kind: "problem", title: node.health };
  if (node.is_draining) return { text: "draining", kind: "warning", title: "It takes no messages, and stops when empty" };
  return { text: "ready", kind: "good", title: "Live, and takes messages" };
}

function paintState(cell, node) {
  const { text, kind, title } = stateOf(node);
  const mark = cell.firstElementChild?.classList.contains("label") ? cell.firstElementChild : label("");
  if (mark.parentNode === null) cell.replaceChildren(mark);
  setText(mark, text);
  setAttribute(mark, "data-kind", kind);
  setAttribute(cell, "title", title);
}

function nodeTable() {
  return new DataTable({
    label: "Nodes",
    noun: "node",
    empty: "No nodes: no nsqd has registered.",
    key: nameOf,
    sort: "host",
    remembersInAddress: true,
    columns: [
      { ...hostColumn, paint: paintHost },
      {
        id: "state",
        label: "State",
        title: "ready: it takes messages; draining: it takes none, and stops when it is empty",
        value: (node) => stateOf(node).text,
        paint: paintState,
        isSearched: true,
      },
      {
        id: "address",
        label: "Broadcast address",
        value: (node) => node.broadcast_address,
        isSearched: true,
        priority: 2,
      },
      { id: "tcp", label: "TCP", value: (node) => node.tcp_port, isNumeric: true, priority: 3 },
      { id: "http", label: "HTTP", value: (node) => node.http_port, isNumeric: true, priority: 3 },
      {
        id: "version",
        label: "Version",
        value: (node) => node.version,
        isSearched: true,
        paint: paintVersion,
        priority: 2,
      },
      { id: "region", label: "Region", value: (node) => node.topology_region ?? "", isSearched: true, priority: 3 },
      { id: "zone", label: "Zone", value: (node) => node.topology_zone ?? "", isSearched: true, priority: 3 },
      { ...rateColumn, priority: 2 },
      figureColumn("depth", "Depth"),
      { ...figureColumn("client_count", "Consumers"), priority: 3 },
      {
        id: "lookupds",
        label: "Lookupds",
        value: lookupdCount,
        paint: paintLookupds,
        isNumeric: true,
        priority: 2,
        title: "nsqlookupds that know this node",
      },
      {
        id: "topics",
        label: "Topics",
        value: topicCount,
        paint: paintTopics,
        isNumeric: true,
      },
    ],
  });
}

function paintVersion(cell, node) {
  setText(cell.firstElementChild ?? cell.appendChild(h("span", {})), node.version);
  const mark = cell.querySelector(".label");
  if (node.out_of_date && mark === null) cell.append(label("out of date", "warning"));
  if (!node.out_of_date) mark?.remove();
}

function lookupdCount(node) {
  return (node.remote_addresses ?? []).length;
}

function paintLookupds(cell, node) {
  const expected = config.lookupds.length;
  const isListed = expected > 0 && node.state !== "gone";
  setText(cell, isListed ? `${lookupdCount(node)} of ${expected}` : format.MISSING);
  setAttribute(cell, "data-kind", isListed && lookupdCount(node) !== expected ? "warning" : null);
  setAttribute(cell, "title", (node.remote_addresses ?? []).join("\n"));
}

function topicCount(node) {
  return node.registered_count ?? 0;
}

function paintTopics(cell, node) {
  const dead = node.tombstoned_count ?? 0;
  const count = node.state === "gone" ? null : topicCount(node);
  setText(cell, format.integer(count) + (dead ? ` (${dead} tombstoned)` : ""));
}
