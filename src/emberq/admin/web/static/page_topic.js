/* One topic: its figures, its channels, the nodes that have it, its journal, and a form to publish to it. */

import { deleteIt, empty, togglePause, tombstone } from "./action.js";
import { path } from "./api.js";
import { config, may } from "./config.js";
import * as format from "./format.js";
import { graphiteSection } from "./graphite.js";
import { journalSection } from "./journal.js";
import { Live } from "./live.js";
import { publishSection } from "./message.js";
import { banner, warn } from "./notice.js";
import { Charts, content, latencyText, loaded, searchField, section, Tiles, worstLatency } from "./panel.js";
import { DataTable } from "./table.js";
import { figureColumn, nameColumn, nodeColumn, rateColumn, storageColumn, tombstoneColumn } from "./column.js";
import { showState, titleButtons } from "./title.js";

const { topic } = config;

export function start() {
  const channels = channelTable();
  const nodes = nodeTable(async (_action, row) => {
    if (await tombstone({ topic, node: row.node })) live.refresh();
  });
  const tiles = new Tiles([
    { id: "rate", label: "Messages per second", text: (all) => format.rate(all.rates.topic) },
    {
      id: "depth",
      label: "Depth",
      text: (all) => format.integer(all.depth + inChannels(all, "depth")),
      detail: whereItWaits,
    },
    { id: "messages", label: "Messages", text: (all) => format.integer(all.message_count) },
    { id: "channels", label: "Channels", text: (all) => format.integer((all.channels ?? []).length) },
    {
      id: "latency",
      label: "End to end",
      text: (all) => format.duration(worstLatency(all.e2e_processing_latency)),
      detail: (all) => latencyText(all.e2e_processing_latency),
    },
  ]);
  const charts = new Charts("rate", "depth", "in_flight", "e2e_p99");
  const journal = journalSection(topic);
  let isPaused = false;
  const live = new Live(
    "topic",
    { topic },
    {
      onDocument(document_) {
        document_.rates ??= {};
        isPaused = document_.paused;
        warn(document_);
        showState(isPaused);
        tiles.show(document_);
        charts.add(figuresOf(document_));
        channels.setRows(withRates(document_.channels, document_.rates.channels, "channel_name"));
        nodes.setRows(withRates(document_.nodes, document_.rates.nodes, "node"));
        journal.begin();
        loaded();
      },
      onProblem: (text) => {
        banner("problem", text);
        loaded();
      },
    },
  );
  const refresh = (isDone) => isDone && live.refresh();
  titleButtons({
    togglePause: async () => refresh(await togglePause({ topic, isPaused })),
    empty: async () => refresh(await empty({ topic })),
    deleteIt: () => deleteIt({ topic }),
  });
  const note = "Every channel gets its own copy of each message.";
  content.append(
    tiles.element,
    charts.element,
    section("Channels", { controls: searchField(channels, "channels"), note }, channels.element),
    section("Nodes", {}, nodes.element),
    journal.element,
  );
  if (may("publish")) content.append(publishSection(topic, () => live.refresh()));
  if (config.isGraphEnabled) content.append(graphiteSection(topic));
  charts.recall({ topic });
  live.start();
}

function channelTable() {
  const name = (channel) => channel.channel_name;
  return new DataTable({
    label: "Channels",
    noun: "channel",
    empty: "No channels yet: messages wait in the topic until a consumer subscribes.",
    key: name,
    sort: "name",
    columns: [
      nameColumn({ label: "Channel", name, href: (channel) => path("topics", topic, name(channel)) }),
      rateColumn,
      figureColumn("depth", "Depth"),
      storageColumn,
      figureColumn("in_flight_count", "In flight", 2),
      figureColumn("deferred_count", "Deferred", 3),
      figureColumn("requeue_count", "Requeued", 3),
      figureColumn("timeout_count", "Timed out", 3),
      figureColumn("message_count", "Messages", 3),
      figureColumn("client_count", "Consumers", 2),
    ],
  });
}

function nodeTable(onAction) {
  const columns = [
    nodeColumn,
    rateColumn,
    figureColumn("depth", "Depth"),
    storageColumn,
    figureColumn("message_count", "Messages", 2),
    { id: "channels", label: "Channels", value: (node) => (node.channels ?? []).length, isNumeric: true, priority: 2 },
  ];
  if (may("tombstone")) columns.push(tombstoneColumn);
  return new DataTable({
    label: "Nodes",
    noun: "node",
    empty: "No node has this topic now.",
    key: (node) => node.node,
    sort: "node",
    columns,
    onAction,
  });
}

function withRates(rows, rates = {}, name) {
  return (rows ?? []).map((row) => ({ ...row, rate: rates[row[name]] ?? null }));
}

function figuresOf(document_) {
  return {
    time: document_.time,
    rate: document_.rates.topic,
    finish_rate: Object.values(document_.rates.finished ?? {}).reduce((sum, rate) => sum + (rate ?? 0), 0),
    depth: document_.depth + inChannels(document_, "depth"),
    in_flight: inChannels(document_, "in_flight_count"),
    e2e_p99: worstLatency(document_.e2e_processing_latency),
  };
}

function inChannels(document_, figure) {
  return (document_.channels ?? []).reduce((sum, channel) => sum + channel[figure], 0);
}

function whereItWaits(document_) {
  const [own, others] = [document_.depth, inChannels(document_, "depth")].map(format.compact);
  return `${own} in the topic, ${others} in channels`;
}
