/* The tables that several pages have: topics, channels, nodes and consumers. Each page says what it wants of them. */

import { path } from "./api.js";
import {
  attributesOf,
  countColumn,
  deadLetterColumn,
  figureColumn,
  nameColumn,
  netColumn,
  nodeColumn,
  pauseColumn,
  rateColumn,
  requeueColumn,
  storageColumn,
  tombstoneColumn,
} from "./column.js";
import { may } from "./config.js";
import { h, setAttribute, setText, webAddress } from "./dom.js";
import * as format from "./format.js";
import { label, worstLatency } from "./panel.js";
import { DataTable, linkCell } from "./table.js";

/** What there is to know of a channel's work, on a node or over all. */
const WORK_COLUMNS = [
  figureColumn("depth", "Depth"),
  storageColumn,
  figureColumn("in_flight_count", "In flight", 2),
  figureColumn("deferred_count", "Deferred", 3),
  figureColumn("requeue_count", "Requeued", 3),
  figureColumn("timeout_count", "Timed out", 3),
  figureColumn("message_count", "Messages", 2),
  figureColumn("client_count", "Consumers", 2),
];

/** The same beside more figures: those that seldom matter make room first. */
const ON_A_NODE = WORK_COLUMNS.map((column) =>
  ["deferred_count", "requeue_count", "timeout_count"].includes(column.id) ? { ...column, priority: 4 } : column,
);

/** Where a channel's backlog goes, and what becomes of messages that fail. */
const FLOW_COLUMNS = [netColumn, deadLetterColumn, { ...requeueColumn, priority: 3 }];

/** What there is to know of a topic's part on a node. */
const PART_COLUMNS = [
  rateColumn,
  figureColumn("depth", "Depth"),
  storageColumn,
  figureColumn("message_count", "Messages", 2),
  countColumn("channels", "Channels", { priority: 2 }),
];

/** The topics of a node. */
export function topicTable({ empty, onTombstone }) {
  const name = (topic) => topic.topic_name;
  const link = nameColumn({ label: "Topic", name, href: (topic) => path("topics", name(topic)) });
  return new DataTable({
    label: "Topics",
    noun: "topic",
    empty,
    key: name,
    sort: "name",
    columns: withTombstone([link, ...PART_COLUMNS]),
    onAction: (_action, topic) => onTombstone(topic),
  });
}

/** Channels: of one topic, with their rates, or of many, with the topic of each. */
export function channelTable({ empty, ofManyTopics = false }) {
  const name = (channel) => channel.channel_name;
  const href = (channel) => path("topics", channel.topic_name, name(channel));
  const topicColumn = { id: "topic", label: "Topic", value: (channel) => channel.topic_name };
  return new DataTable({
    label: "Channels",
    noun: "channel",
    empty,
    key: (channel) => `${channel.topic_name} ${name(channel)}`,
    sort: ofManyTopics ? "topic" : "name",
    columns: [
      nameColumn({ label: "Channel", name, href }),
      ...(ofManyTopics ? [topicColumn] : [rateColumn, ...FLOW_COLUMNS]),
      ...WORK_COLUMNS,
    ],
  });
}

/** The nodes that have a topic. */
export function topicNodeTable({ onPause, onTombstone }) {
  return new DataTable({
    ...NODES,
    empty: "No node has this topic now.",
    columns: withTombstone(withPause([nodeColumn, ...PART_COLUMNS])),
    onAction: (action, node) => (action === "pause" ? onPause(node) : onTombstone(node)),
  });
}

/** The nodes that have a channel. */
export function channelNodeTable({ onPause }) {
  return new DataTable({
    ...NODES,
    empty: "No node has this channel now.",
    columns: withPause([nodeColumn, deliveryColumn, rateColumn, ...FLOW_COLUMNS, latencyColumn, ...ON_A_NODE]),
    onAction: (_action, node) => onPause(node),
  });
}

const NODES = { label: "Nodes", noun: "node", key: (node) => node.node, sort: "node" };

/** Consumers, one row for each connection: of one channel, with the node of each, or of one node, with the channel of
 *  each. */
export function clientTable({ empty, ofOneNode = false }) {
  const channelColumn = {
    id: "of",
    label: "Topic / channel",
    value: ofName,
    isSearched: true,
    priority: 2,
    className: "name",
    paint: linkCell((client) => path("topics", client.topic_name, client.channel_name), ofName),
  };
  return new DataTable({
    label: "Consumers",
    noun: "consumer",
    empty,
    key: (client) => `${client.node} ${client.remote_address} ${client.topic_name ?? ""} ${client.channel_name ?? ""}`,
    sort: "host",
    columns: [
      {
        id: "client",
        label: "Client",
        value: (client) => client.client_id || client.hostname || client.remote_address,
        isSearched: true,
        paint: paintClient,
        className: "name",
      },
      { id: "host", label: "Host", value: hostOf, isSearched: true, priority: 2 },
      {
        id: "address",
        label: "Address",
        value: (client) => client.remote_address,
        isSearched: true,
        priority: ofOneNode ? 4 : 3, // names of channels are longer than those of nodes
      },
      ofOneNode ? channelColumn : clientNodeColumn,
      ...PACE_COLUMNS,
      figureColumn("ready_count", "Ready", 4),
      figureColumn("finish_count", "Finished", 4),
      {
        id: "connected",
        label: "Connected",
        isNumeric: true,
        priority: 4,
        value: (client) => client.connected,
        text: (client) => format.duration(client.connected),
      },
      {
        id: "attributes",
        label: "Attributes",
        value: (client) => `${attributesOf(client).join(" ")} ${client.auth_identity} ${client.user_agent}`,
        isSearched: true,
        paint: paintAttributes,
        priority: 5,
      },
    ],
  });
}

/** The same consumers, one row for each host. */
export function hostTable({ empty }) {
  return new DataTable({
    label: "Hosts",
    noun: "host",
    empty,
    key: (host) => host.hostname,
    sort: "-message_ns",
    columns: [
      { id: "host", label: "Host", value: (host) => host.hostname, isSearched: true, className: "name" },
      figureColumn("connection_count", "Connections", 2),
      ...PACE_COLUMNS,
      figureColumn("ready_count", "Ready", 2),
    ],
  });
}

/** What consumers do, by host; their paces must be among their figures (`withPaces`). */
export function byHost(clients) {
  const hosts = new Map();
  for (const client of clients) {
    const name = hostOf(client);
    if (!hosts.has(name)) hosts.set(name, []);
    hosts.get(name).push(client);
  }
  return [...hosts].map(([hostname, members]) => {
    const sum = (figure) => members.reduce((total, each) => total + (each[figure] ?? 0), 0);
    const timed = members.filter((each) => typeof each.message_ns === "number");
    const finishes = members.map((each) => each.last_finish).filter((each) => typeof each === "number");
    return {
      hostname,
      connection_count: members.length,
      finish_rate: members.some((each) => typeof each.finish_rate === "number") ? sum("finish_rate") : null,
      message_ns: timed.length > 0 ? timed.reduce((total, each) => total + each.message_ns, 0) / timed.length : null,
      last_finish: finishes.length > 0 ? Math.max(...finishes) : null,
      now: members[0].now,
      finish_count: sum("finish_count"),
      in_flight_count: sum("in_flight_count"),
      ready_count: sum("ready_count"),
      requeue_count: sum("requeue_count"),
      timeout_count: sum("timeout_count"),
    };
  });
}

/** Consumers with how each gets on, at the time of the document. */
export function withPaces(clients, { paces, time }) {
  return (clients ?? []).map((client) => ({
    ...client,
    now: time,
    ...paces?.[`${client.node} ${client.remote_address}`],
  }));
}

function ofName(client) {
  return `${client.topic_name} / ${client.channel_name}`;
}

function hostOf(client) {
  return client.hostname || client.remote_address.replace(/:\d+$/, "");
}

const clientNodeLink = linkCell(
  (client) => path("nodes", client.node),
  (client) => client.node,
);
const clientNodeColumn = {
  id: "node",
  label: "Node",
  value: (client) => client.node,
  isSearched: true,
  paint: clientNodeLink,
  priority: 3,
};

/** How consumers get on. */
const PACE_COLUMNS = [
  {
    id: "finish_rate",
    label: "Finished/s",
    isNumeric: true,
    value: (row) => row.finish_rate ?? -1,
    text: (row) => format.rate(row.finish_rate),
  },
  {
    id: "message_ns",
    label: "Per message",
    title: "How long a message is held, on the mean, over the last half minute",
    isNumeric: true,
    value: (row) => row.message_ns ?? -1,
    text: (row) => (row.message_ns === 0 ? "≈ 0" : format.duration(row.message_ns)),
  },
  {
    id: "last_finish",
    label: "Last finish",
    title: "When a message was last seen to be finished, since this page was opened",
    isNumeric: true,
    priority: 2,
    value: (row) => -(row.last_finish ?? 0),
    text: lastFinishText,
  },
  figureColumn("in_flight_count", "In flight", 2),
  failureCountColumn("timeout_count", "Timed out", "Messages that were not answered in time, since it connected"),
  failureCountColumn("requeue_count", "Requeued", "Messages that were given back, since it connected"),
];

/** A count that ought to be 0: coloured if it is not. */
function failureCountColumn(id, text, title) {
  return {
    ...figureColumn(id, text, 3),
    title,
    paint(cell, row) {
      setText(cell, format.integer(row[id]));
      setAttribute(cell, "data-kind", row[id] > 0 ? "warning" : null);
    },
  };
}

/** `just now`, `2 s ago`, `never`, or a dash while none was seen. */
function lastFinishText({ last_finish: moment, finish_count: count, now }) {
  if (typeof moment === "number") return now - moment < 1 ? "just now" : `${format.duration((now - moment) * 1e9)} ago`;
  return count === 0 ? "never" : format.MISSING;
}

/** Rows with the rate of each beside its figures; `rates` are by the name that a row has under `key`. */
export function withRates(rows, rates, key) {
  return (rows ?? []).map((row) => ({ ...row, rate: rates?.[row[key]] ?? null }));
}

/** The same with the flow of each. */
export function withFlows(rows, flows, key) {
  return rows.map((row) => ({ ...row, ...flows?.[row[key]] }));
}

function withPause(columns) {
  return may("pause") ? [...columns, pauseColumn] : columns;
}

function withTombstone(columns) {
  return may("tombstone") ? [...columns, tombstoneColumn] : columns;
}

/** How long messages take on a node, at the highest percentile that is tracked. */
const latencyColumn = {
  id: "latency",
  label: "End to end",
  title: "From publishing to finishing, at the highest percentile that the node tracks",
  isNumeric: true,
  priority: 3,
  value: (node) => worstLatency(node.e2e_processing_latency) ?? -1,
  text: (node) => format.duration(worstLatency(node.e2e_processing_latency)),
};

/** How far messages travelled, for clusters that know their zones. */
const deliveryColumn = {
  id: "delivery",
  label: "Zone / region / far",
  title: "Messages delivered within the zone, within the region, and further away",
  isNumeric: true,
  priority: 4,
  value: (node) => node.zone_local_msg_count ?? 0,
  text(node) {
    const parts = [node.zone_local_msg_count ?? 0, node.region_local_msg_count ?? 0, node.global_msg_count ?? 0];
    const total = parts[0] + parts[1] + parts[2];
    return total === 0 ? "–" : parts.map((part) => `${Math.round((100 * part) / total)}%`).join(" / ");
  },
};

/** The name; on a phone the host stands beside it, for there is no room for a column of its own. */
function paintClient(cell, client) {
  const name = cell.firstElementChild ?? cell.appendChild(h("span", {}));
  const aside = cell.children[1] ?? cell.appendChild(h("span", { class: "aside on-phone" }));
  setText(name, client.client_id || client.hostname || client.remote_address);
  setText(aside, client.remote_address);
  setAttribute(cell, "title", `${client.hostname} ${client.remote_address} ${client.user_agent}`);
}

function paintAttributes(cell, client) {
  const attributes = attributesOf(client);
  const mark = JSON.stringify([attributes, client.auth_identity, client.auth_identity_url, client.user_agent]);
  if (cell.dataset.painted === mark) return;
  cell.dataset.painted = mark;
  cell.replaceChildren(...[...attributes, client.user_agent].filter(Boolean).map((text) => label(text)));
  if (!client.authed) return;
  const address = webAddress(client.auth_identity_url);
  const identity = client.auth_identity || "authorized";
  cell.append(address ? h("a", { href: address, rel: "noreferrer" }, identity) : label(identity));
}
