/* One nsqd: its work and its memory, its topics, channels and consumers. */

import { tombstone } from "./action.js";
import { channelTable, clientTable, topicTable, withRates } from "./cluster_table.js";
import { config } from "./config.js";
import { follow } from "./follow.js";
import * as format from "./format.js";
import { Charts, content, searchField, section, Tiles } from "./panel.js";

const { node } = config;

export function start() {
  const topics = topicTable({
    empty: "No topics on this node.",
    onTombstone: async (figures) =>
      (await tombstone({ topic: figures.topic_name, node, figures })) && live.refresh(),
  });
  const channels = channelTable({ empty: "No channels on this node.", ofManyTopics: true });
  const clients = clientTable({ empty: "No consumers on this node.", ofOneNode: true });
  const tiles = new Tiles([
    { id: "topics", label: "Topics", text: (all) => format.integer((all.topics ?? []).length) },
    { id: "rate", label: "Messages per second", text: (all) => format.rate(all.rates.total) },
    { id: "messages", label: "Messages", text: (all) => format.integer(all.total_messages) },
    { id: "clients", label: "Consumers", text: (all) => format.integer(all.total_clients) },
    {
      id: "memory",
      label: "Memory",
      text: (all) => format.bytes(all.memory?.heap_in_use_bytes),
      detail: ({ memory }) => (memory ? `${format.compact(memory.heap_objects)} objects` : ""),
    },
  ]);
  const charts = new Charts("rate", "depth", "memory", "gc_pause");
  const live = follow("node", { node }, (document_) => {
    const everyChannel = (document_.topics ?? []).flatMap((topic) => topic.channels ?? []);
    tiles.show(document_);
    charts.add(figuresOf(document_, everyChannel));
    topics.setRows(withRates(document_.topics, document_.rates.topics, "topic_name"));
    channels.setRows(everyChannel);
    clients.setRows(everyChannel.flatMap(clientsOf));
  });
  content.append(
    tiles.element,
    charts.element,
    section("Topics", { controls: searchField(topics, "topics") }, topics.element),
    section("Channels", {}, channels.element),
    section("Consumers", {}, clients.element),
  );
  charts.recall({ node });
}

function figuresOf(document_, channels) {
  const depth = [...(document_.topics ?? []), ...channels].reduce((sum, each) => sum + each.depth, 0);
  const { time, rates, memory } = document_;
  return { time, rate: rates.total, finish_rate: rates.finished, depth, ...memory };
}

function clientsOf(channel) {
  const { topic_name, channel_name } = channel;
  return (channel.clients ?? []).map((client) => ({ ...client, topic_name, channel_name }));
}
