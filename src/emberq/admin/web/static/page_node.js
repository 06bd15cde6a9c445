/* One nsqd: its work and its memory, its topics, channels and consumers. */

import { askForAbsent } from "./absence.js";
import { drain, tombstone } from "./action.js";
import { Charts } from "./charts.js";
import { channelTable, clientTable, topicTable, withPaces, withRates } from "./cluster_table.js";
import { config } from "./config.js";
import { setAttribute, setText } from "./dom.js";
import { follow } from "./follow.js";
import * as format from "./format.js";
import { orBanner } from "./notice.js";
import { button, content, searchField, section, Tiles } from "./panel.js";
import { failureTiles, netTile, Trend } from "./trend.js";

const { node } = config;

export function start() {
  const topics = topicTable({
    empty: "No topics on this node.",
    onTombstone: async (figures) =>
      (await tombstone({ topic: figures.topic_name, node, figures })) && live.refresh(),
  });
  const channels = channelTable({ empty: "No channels on this node.", ofManyTopics: true });
  const clients = clientTable({ empty: "No consumers on this node.", ofOneNode: true });
  const trend = new Trend();
  const tiles = new Tiles([
    { id: "topics", label: "Topics", text: (all) => format.integer((all.topics ?? []).length) },
    { id: "rate", label: "Published/s", text: (all) => format.rate(all.rates.total) },
    { id: "depth", label: "Depth", text: (all) => format.integer(depthOf(all)) },
    netTile(trend, depthOf),
    ...failureTiles,
    { id: "messages", label: "Messages", text: (all) => format.integer(all.total_messages) },
    { id: "clients", label: "Consumers", text: (all) => format.integer(all.total_clients) },
    {
      id: "memory",
      label: "Memory",
      text: (all) => format.bytes(all.memory?.heap_in_use_bytes),
      detail: ({ memory }) => (memory ? `${format.compact(memory.heap_objects)} objects` : ""),
    },
  ]);
  const charts = new Charts("flow", "depth", "failures", "memory", "gc_pause");
  const title = new NodeTitle(() => live.refresh());
  const live = follow("node", { node }, (document_) => {
    title.show(document_);
    const everyChannel = (document_.topics ?? []).flatMap((topic) => topic.channels ?? []);
    trend.add(document_.time, document_.flow);
    tiles.show(document_);
    charts.add(figuresOf(document_));
    topics.setRows(withRates(document_.topics, document_.rates.topics, "topic_name"));
    channels.setRows(everyChannel);
    clients.setRows(withPaces(everyChannel.flatMap(clientsOf), document_));
  }, () => title.showMissing());
  content.append(
    tiles.element,
    charts.element,
    section("Topics", { controls: searchField(topics, "topics") }, topics.element),
    section("Channels", {}, channels.element),
    section("Consumers", {}, clients.element),
  );
  charts.recall({ node });
}

/** Whether the node is well and takes messages, and the button that drains it or takes that back. */
class NodeTitle {
  #document = null;
  #button;
  #state = document.getElementById("state");

  constructor(refresh) {
    this.#button = button("Drain…", { permission: "drain", kind: "danger-quiet" }, async () => {
      const isDone = await drain({ node, figures: this.#document, isCancelled: this.#document.is_draining });
      if (isDone) refresh();
    });
    if (this.#button === null) return;
    this.#button.hidden = true; // until it is known that there is such a node
    document.getElementById("title-buttons").append(this.#button);
  }

  /** The cluster does not have the node. If it had, the page says what became of it. */
  showMissing() {
    this.#state.hidden = true;
    if (this.#button) this.#button.hidden = true;
    const isThis = (absent) => absent.node === node;
    return orBanner(() => askForAbsent(() => location.reload(), isThis));
  }

  show(document_) {
    this.#document = document_;
    if (this.#button) this.#button.hidden = false;
    const isWell = document_.is_healthy !== false;
    setAttribute(this.#state, "hidden", document_.is_healthy === null);
    setText(this.#state, isWell ? (document_.is_draining ? "draining" : "ready") : document_.health);
    setAttribute(this.#state, "data-kind", isWell ? (document_.is_draining ? "warning" : "good") : "problem");
    if (this.#button === null) return;
    setText(this.#button, document_.is_draining ? "Cancel drain…" : "Drain…");
    setAttribute(this.#button, "class", document_.is_draining ? null : "danger-quiet");
  }
}

function figuresOf(document_) {
  const { time, rates, flow, memory } = document_;
  return { time, rate: rates.total, ...flow, depth: depthOf(document_), ...memory };
}

/** What waits on the node, in topics and channels. */
function depthOf(document_) {
  const topics = document_.topics ?? [];
  return [...topics, ...topics.flatMap((topic) => topic.channels ?? [])].reduce((sum, each) => sum + each.depth, 0);
}

function clientsOf(channel) {
  const { topic_name, channel_name } = channel;
  return (channel.clients ?? []).map((client) => ({ ...client, topic_name, channel_name }));
}
