/* All topics: the cluster's figures, and a table that is searched, filtered and sorted in the browser. */

import { askAndCreate } from "./action.js";
import { AlertList } from "./alert.js";
import { path } from "./api.js";
import { bulkActions } from "./bulk.js";
import { Charts } from "./charts.js";
import {
  deadLetterColumn,
  figureColumn,
  nameColumn,
  netColumn,
  paintWithSparkline,
  requeueColumn,
} from "./column.js";
import { h, setText } from "./dom.js";
import { exportButtons } from "./export.js";
import { follow } from "./follow.js";
import * as format from "./format.js";
import { button, content, filterField, searchField, section, Tiles } from "./panel.js";
import { topicRates } from "./recent.js";
import { DataTable } from "./table.js";
import { failureTiles, netTile, Trend } from "./trend.js";

const FILTERS = {
  all: { label: "All topics", admits: () => true },
  backlog: { label: "With a backlog", admits: (topic) => totalDepth(topic) > 0 },
  idle: { label: "Without consumers", admits: (topic) => topic.client_count === 0 || idleChannels(topic).length > 0 },
  failing: { label: "With dead letters", admits: (topic) => topic.dead_letter_rate > 0 },
  paused: { label: "Paused", admits: (topic) => topic.paused || pausedChannels(topic).length > 0 },
};

export function start() {
  const recent = topicRates();
  const trend = new Trend();
  const table = topicTable(recent);
  const tiles = new Tiles([
    { id: "topics", label: "Topics", text: (all) => format.integer(all.count) },
    { id: "rate", label: "Published/s", text: (all) => format.rate(all.rate) },
    { id: "depth", label: "Depth", text: (all) => format.integer(all.depth) },
    netTile(trend, (all) => all.depth),
    ...failureTiles,
    { id: "in-flight", label: "In flight", text: (all) => format.integer(all.in_flight) },
    { id: "clients", label: "Consumers", text: (all) => format.integer(all.clients) },
  ]);
  const alerts = new AlertList();
  const charts = new Charts("flow", "depth", "failures", "in_flight");
  const count = h("span", { class: "count" });
  const live = follow("topics", {}, (document_) => {
    const topics = document_.topics ?? [];
    alerts.show(document_);
    recent.add(document_.time, topics);
    const all = { ...sum(topics), rate: document_.rates.total, flow: document_.flow };
    trend.add(document_.time, document_.is_incomplete ? null : document_.flow);
    tiles.show(all);
    charts.add({ time: document_.time, isIncomplete: document_.is_incomplete, ...all, ...document_.flow });
    table.setRows(topics);
    setText(count, format.counted(topics.length, "topic"));
  });
  const create = button("Create topic…", { kind: "primary", permission: "create" }, async () => {
    if (await askAndCreate()) live.refresh();
  });
  const controls = [
    count,
    searchField(table, "topics"),
    filterField(table, "Which topics", FILTERS),
    exportButtons(table, "nsq-topics"),
    create,
  ];
  const bulk = bulkActions(table, { noun: "topic", refresh: () => live.refresh() });
  content.append(
    alerts.element,
    tiles.element,
    charts.element,
    section("All topics", { controls }, bulk, table.element),
  );
  charts.recall();
  recent.recall();
}

const name = (topic) => topic.topic_name;
const nameOfTopic = nameColumn({ label: "Topic", name, href: (topic) => path("topics", name(topic)) });

/** The name, and behind it what is wrong with channels of the topic. */
function paintName(cell, topic) {
  nameOfTopic.paint(cell, topic);
  const marks = [
    mark(topic, pausedChannels(topic), (what) => `${what} paused`),
    topic.idle_depth > 0
      ? mark(topic, idleChannels(topic), (what) => `${what} without consumers: ${format.compact(topic.idle_depth)}`)
      : null,
    topic.is_incomplete ? { text: "incomplete", href: path("nodes") } : null,
  ].filter(Boolean);
  const shown = cell.querySelectorAll(".channel-mark");
  const areSame =
    shown.length === marks.length && marks.every(({ text, href }, index) =>
      shown[index].textContent === text && shown[index].getAttribute("href") === href);
  if (areSame) return;
  for (const old of shown) old.remove();
  cell.append(...marks.map(({ text, href }) => h("a", { class: "channel-mark", href }, text)));
}

/** A link to the channel that is meant or, if there are several, to their topic. */
function mark(topic, channels, text) {
  if (channels.length === 0) return null;
  if (channels.length === 1) return { text: text(channels[0]), href: path("topics", name(topic), channels[0]) };
  return { text: text(format.counted(channels.length, "channel")), href: path("topics", name(topic)) };
}

function topicTable(recent) {
  return new DataTable({
    label: "Topics",
    noun: "topic",
    empty: "No topics yet. A topic appears when something is published to it, or is created here.",
    key: name,
    sort: "name",
    remembersInAddress: true,
    columns: [
      { ...nameOfTopic, paint: paintName },
      {
        id: "rate",
        label: "Msgs/s",
        value: (topic) => topic.rate ?? 0,
        isNumeric: true,
        paint: paintWithSparkline(recent, (topic) => format.rate(topic.rate)),
        className: "with-spark",
      },
      {
        id: "depth",
        label: "Depth",
        title: "Messages that wait in the topic and its channels",
        value: totalDepth,
        text: (topic) => (topic.is_incomplete ? "≥ " : "") + format.integer(totalDepth(topic)),
        isNumeric: true,
      },
      netColumn,
      deadLetterColumn,
      requeueColumn,
      figureColumn("in_flight_count", "In flight", 2),
      figureColumn("deferred_count", "Deferred", 3),
      figureColumn("channel_count", "Channels", 2),
      figureColumn("client_count", "Consumers", 2),
      figureColumn("node_count", "Nodes", 3),
      figureColumn("message_count", "Messages", 3),
    ],
  });
}

function idleChannels(topic) {
  return topic.idle_channels ?? [];
}

function pausedChannels(topic) {
  return topic.paused_channels ?? [];
}

function totalDepth(topic) {
  return (topic.depth ?? 0) + (topic.channel_depth ?? 0);
}

function sum(topics) {
  const all = { count: topics.length, depth: 0, in_flight: 0, clients: 0 };
  for (const topic of topics) {
    all.depth += totalDepth(topic);
    all.in_flight += topic.in_flight_count ?? 0;
    all.clients += topic.client_count ?? 0;
  }
  return all;
}
