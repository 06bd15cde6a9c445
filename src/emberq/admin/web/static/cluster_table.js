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
  rateColumn,
  requeueColumn,
  storageColumn,
  tombstoneColumn,
} from "./column.js";
import { may } from "./config.js";
import { h, setAttribute, setText, webAddress } from "./dom.js";
import * as format from "./format.js";
import { label } from "./panel.js";
import { DataTable } from "./table.js";

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
export function topicNodeTable({ onTombstone }) {
  return new DataTable({
    ...NODES,
    empty: "No node has this topic now.",
    columns: withTombstone([nodeColumn, ...PART_COLUMNS]),
    onAction: (_action, node) => onTombstone(node),
  });
}

/** The nodes that have a channel. */
export function channelNodeTable() {
  return new DataTable({
    ...NODES,
    empty: "No node has this channel now.",
    columns: [nodeColumn, deliveryColumn, rateColumn, ...FLOW_COLUMNS, ...WORK_COLUMNS],
  });
}

const NODES = { label: "Nodes", noun: "node", key: (node) => node.node, sort: "node" };

/** Consumers: of one channel, with the node of each, or of one node, with the channel of each. */
export function clientTable({ empty, ofOneNode = false }) {
  const nodeNameColumn = { id: "node", label: "Node", value: (client) => client.node, isSearched: true, priority: 3 };
  const channelColumn = {
    id: "of",
    label: "Topic / channel",
    value: (client) => `${client.topic_name} / ${client.channel_name}`,
    isSearched: true,
    priority: 2,
  };
  return new DataTable({
    label: "Consumers",
    noun: "consumer",
    empty,
    key: (client) => `${client.node} ${client.remote_address} ${client.topic_name ?? ""} ${client.channel_name ?? ""}`,
    sort: "client",
    columns: [
      {
        id: "client",
        label: "Client",
        value: (client) => `${client.client_id} ${client.hostname} ${client.remote_address}`,
        isSearched: true,
        paint: paintClient,
        className: "name",
      },
      { id: "agent", label: "User agent", value: (client) => client.user_agent, isSearched: true, priority: 2 },
      {
        id: "attributes",
        label: "Attributes",
        value: (client) => `${attributesOf(client).join(" ")} ${client.auth_identity}`,
        isSearched: true,
        paint: paintAttributes,
        priority: 3,
      },
      ofOneNode ? channelColumn : nodeNameColumn,
      figureColumn("in_flight_count", "In flight"),
      figureColumn("ready_count", "Ready", 2),
      figureColumn("finish_count", "Finished"),
      figureColumn("requeue_count", "Requeued", 3),
      figureColumn("message_count", "Messages", 3),
      {
        id: "connected",
        label: "Connected",
        isNumeric: true,
        priority: 2,
        value: (client) => client.connected,
        text: (client) => format.duration(client.connected),
      },
    ],
  });
}

/** Rows with the rate of each beside its figures; `rates` are by the name that a row has under `key`. */
export function withRates(rows, rates, key) {
  return (rows ?? []).map((row) => ({ ...row, rate: rates?.[row[key]] ?? null }));
}

/** The same with the flow of each. */
export function withFlows(rows, flows, key) {
  return rows.map((row) => ({ ...row, ...flows?.[row[key]] }));
}

function withTombstone(columns) {
  return may("tombstone") ? [...columns, tombstoneColumn] : columns;
}

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

function paintClient(cell, client) {
  const name = cell.firstElementChild ?? cell.appendChild(h("span", {}));
  const aside = cell.children[1] ?? cell.appendChild(h("span", { class: "aside" }));
  setText(name, client.client_id || client.hostname || client.remote_address);
  setText(aside, client.remote_address);
  setAttribute(cell, "title", `${client.hostname} ${client.remote_address}`);
}

function paintAttributes(cell, client) {
  const attributes = attributesOf(client);
  const mark = JSON.stringify([attributes, client.auth_identity, client.auth_identity_url]);
  if (cell.dataset.painted === mark) return;
  cell.dataset.painted = mark;
  cell.replaceChildren(...attributes.map((text) => label(text)));
  if (!client.authed) return;
  const address = webAddress(client.auth_identity_url);
  const identity = client.auth_identity || "authorized";
  cell.append(address ? h("a", { href: address, rel: "noreferrer" }, identity) : label(identity));
}
