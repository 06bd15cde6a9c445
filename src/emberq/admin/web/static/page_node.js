/* One nsqd: its topics, channels and consumers. */

import { tombstone } from "./action.js";
import { path } from "./api.js";
import { config, may } from "./config.js";
import { attributesOf, figureColumn, nameColumn, rateColumn, storageColumn, tombstoneColumn } from "./column.js";
import * as format from "./format.js";
import { Live } from "./live.js";
import { banner, warn } from "./notice.js";
import { content, loaded, searchField, section, Tiles } from "./panel.js";
import { DataTable } from "./table.js";

const { node } = config;

export function start() {
  const topics = topicTable(async (_action, topic) => {
    if (await tombstone({ topic: topic.topic_name, node })) live.refresh();
  });
  const channels = channelTable();
  const clients = clientTable();
  const tiles = new Tiles([
    { id: "topics", label: "Topics", text: (all) => format.integer((all.topics ?? []).length) },
    { id: "messages", label: "Messages", text: (all) => format.integer(all.total_messages) },
    { id: "clients", label: "Consumers", text: (all) => format.integer(all.total_clients) },
  ]);
  const live = new Live(
    "node",
    { node },
    {
      onDocument(document_) {
        const all = document_.topics ?? [];
        const rates = document_.rates?.topics ?? {};
        const everyChannel = all.flatMap((topic) => topic.channels ?? []);
        warn(document_);
        tiles.show(document_);
        topics.setRows(all.map((topic) => ({ ...topic, rate: rates[topic.topic_name] ?? null })));
        channels.setRows(everyChannel);
        clients.setRows(everyChannel.flatMap(clientsOf));
        loaded();
      },
      onProblem: (text) => {
        banner("problem", text);
        loaded();
      },
    },
  );
  content.append(
    tiles.element,
    section("Topics", { controls: searchField(topics, "topics") }, topics.element),
    section("Channels", {}, channels.element),
    section("Consumers", {}, clients.element),
  );
  live.start();
}

function clientsOf(channel) {
  return (channel.clients ?? []).map((client) => ({
    ...client,
    topic_name: channel.topic_name,
    channel_name: channel.channel_name,
  }));
}

function topicTable(onAction) {
  const name = (topic) => topic.topic_name;
  const columns = [
    nameColumn({ label: "Topic", name, href: (topic) => path("topics", name(topic)) }),
    rateColumn,
    figureColumn("depth", "Depth"),
    storageColumn,
    figureColumn("message_count", "Messages", 2),
    {
      id: "channels",
      label: "Channels",
      value: (topic) => (topic.channels ?? []).length,
      isNumeric: true,
      priority: 2,
    },
  ];
  if (may("tombstone")) columns.push(tombstoneColumn);
  return new DataTable({
    label: "Topics",
    noun: "topic",
    empty: "No topics on this node.",
    key: name,
    sort: "name",
    columns,
    onAction,
  });
}

function channelTable() {
  const name = (channel) => channel.channel_name;
  return new DataTable({
    label: "Channels",
    noun: "channel",
    empty: "No channels on this node.",
    key: (channel) => `${channel.topic_name} ${name(channel)}`,
    sort: "topic",
    columns: [
      nameColumn({ label: "Channel", name, href: (channel) => path("topics", channel.topic_name, name(channel)) }),
      { id: "topic", label: "Topic", value: (channel) => channel.topic_name },
      figureColumn("depth", "Depth"),
      storageColumn,
      figureColumn("in_flight_count", "In flight", 2),
      figureColumn("deferred_count", "Deferred", 3),
      figureColumn("requeue_count", "Requeued", 3),
      figureColumn("timeout_count", "Timed out", 3),
      figureColumn("message_count", "Messages", 2),
      figureColumn("client_count", "Consumers", 2),
    ],
  });
}

function clientTable() {
  return new DataTable({
    label: "Consumers",
    noun: "consumer",
    empty: "No consumers on this node.",
    key: (client) => `${client.topic_name} ${client.channel_name} ${client.remote_address}`,
    sort: "client",
    columns: [
      {
        id: "client",
        label: "Client",
        value: (client) => `${client.client_id || client.hostname} ${client.remote_address}`,
        className: "name",
      },
      { id: "agent", label: "User agent", value: (client) => client.user_agent, priority: 3 },
      { id: "attributes", label: "Attributes", value: (client) => attributesOf(client).join(", "), priority: 3 },
      {
        id: "of",
        label: "Topic / channel",
        value: (client) => `${client.topic_name} / ${client.channel_name}`,
        priority: 2,
      },
      figureColumn("in_flight_count", "In flight"),
      figureColumn("ready_count", "Ready", 2),
      figureColumn("finish_count", "Finished"),
      figureColumn("requeue_count", "Requeued", 3),
      figureColumn("message_count", "Messages", 3),
      {
        id: "connected",
        label: "Connected",
        isNumeric: true,
        priority: 3,
        value: (client) => client.connected,
        text: (client) => format.duration(client.connected),
      },
    ],
  });
}
