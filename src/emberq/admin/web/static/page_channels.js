/* All channels of all topics in one table. What needs attention comes first, with the reasons. */

import { path } from "./api.js";
import { bulkActions } from "./bulk.js";
import { deadLetterColumn, figureColumn, nameColumn, netColumn, oldestColumn, paintWithSparkline, requeueColumn } from "./column.js";
import { h, setAttribute, setText } from "./dom.js";
import { exportButtons } from "./export.js";
import { follow } from "./follow.js";
import * as format from "./format.js";
import { content, filterField, label, searchField, section } from "./panel.js";
import { channelDepths } from "./recent.js";
import { DataTable } from "./table.js";

/** What the reasons are called, and how grave they are. */
const REASONS = {
  dead_letters: { text: "dead letters", kind: "problem" },
  stuck: { text: "nothing finishes", kind: "problem" },
  no_consumers: { text: "no consumers", kind: "problem" },
  growing: { text: "growing", kind: "warning" },
  requeued: { text: "requeued", kind: "warning" },
  paused: { text: "paused", kind: "warning" },
};
/** More than any depth: what needs attention is sorted by reason first, and then by depth. */
const DEEPEST = 2 ** 40;

const FILTERS = {
  all: { label: "All channels", admits: () => true },
  attention: { label: "Need attention", admits: (channel) => channel.attention > 0 },
  backlog: { label: "With a backlog", admits: (channel) => channel.depth > 0 },
  growing: { label: "Growing", admits: (channel) => has(channel, "growing") },
  idle: { label: "Without consumers", admits: (channel) => channel.client_count === 0 },
  failing: { label: "With failures", admits: (channel) => has(channel, "dead_letters") || has(channel, "requeued") },
  paused: { label: "Paused", admits: (channel) => channel.paused || channel.topic_paused },
};

export function start() {
  const recent = channelDepths();
  const table = channelTable(recent);
  const count = h("span", { class: "count" });
  const live = follow("channels", {}, ({ channels, time }) => {
    recent.add(time, channels);
    table.setRows(channels);
    const urgent = channels.filter((channel) => channel.attention > 0).length;
    setText(count, `${format.counted(channels.length, "channel")}, ${urgent === 0 ? "none" : urgent} to look at`);
  });
  const controls = [
    count,
    searchField(table, "channels"),
    filterField(table, "Which channels", FILTERS),
    exportButtons(table, "nsq-channels"),
  ];
  const bulk = bulkActions(table, { noun: "channel", refresh: () => live.refresh(), canEmpty: true });
  content.append(section("All channels", { controls }, bulk, table.element));
  recent.recall();
}

const name = (channel) => `${channel.topic_name} / ${channel.channel_name}`;
const nameOfChannel = nameColumn({
  label: "Topic / channel",
  name,
  href: (channel) => path("topics", channel.topic_name, channel.channel_name),
});

function channelTable(recent) {
  return new DataTable({
    label: "Channels",
    noun: "channel",
    empty: "No channels yet. A channel appears when a consumer subscribes to it, or is created.",
    key: (channel) => `${channel.topic_name} ${channel.channel_name}`,
    sort: "-attention",
    remembersInAddress: true,
    columns: [
      { ...nameOfChannel, paint: (cell, channel) => nameOfChannel.paint(cell, { ...channel, paused: false }) },
      {
        id: "attention",
        label: "Attention",
        title: "Why the channel may need you; the most urgent come first",
        isNumeric: true,
        className: "reasons",
        value: (channel) => (channel.attention ?? 0) * DEEPEST + channel.depth,
        paint: paintReasons,
      },
      {
        id: "depth",
        label: "Depth",
        title: "Messages that wait, and how many they were in the last minutes",
        isNumeric: true,
        value: (channel) => channel.depth,
        paint: paintWithSparkline(recent, depthText),
        className: "with-spark",
      },
      netColumn,
      { ...oldestColumn, priority: 2 },
      rateColumnOf("in_rate", "In/s", "Messages that come to the channel", 3),
      rateColumnOf("finish_rate", "Out/s", "Messages that consumers finish", 4),
      { ...requeueColumn, priority: 3 },
      deadLetterColumn,
      figureColumn("in_flight_count", "In flight", 4),
      figureColumn("client_count", "Consumers", 2),
      figureColumn("node_count", "Nodes", 4),
    ],
  });
}

function rateColumnOf(id, text, title, priority) {
  const value = (channel) => channel[id] ?? -1;
  return { id, label: text, title, isNumeric: true, priority, value, text: (channel) => format.rate(channel[id]) };
}

function depthText(channel) {
  return (channel.is_incomplete ? "≥ " : "") + format.integer(channel.depth);
}

function paintReasons(cell, channel) {
  const reasons = channel.reasons ?? [];
  const painted = reasons.join(" ");
  if (cell.dataset.painted === painted) return;
  setAttribute(cell, "data-painted", painted);
  cell.replaceChildren(...reasons.map((reason) => label(REASONS[reason].text, REASONS[reason].kind)));
}

function has(channel, reason) {
  return (channel.reasons ?? []).includes(reason);
}
