/* One topic: its figures, its channels, the nodes that have it, its journal, and a form to publish to it. */

import { togglePause, tombstone } from "./action.js";
import { Charts } from "./charts.js";
import { channelTable, topicNodeTable, withFlows, withRates } from "./cluster_table.js";
import { config, may } from "./config.js";
import { follow } from "./follow.js";
import * as format from "./format.js";
import { graphiteSection } from "./graphite.js";
import { journalSection } from "./journal.js";
import { publishSection } from "./message.js";
import { content, latencyTile, searchField, section, Tiles, worstLatency } from "./panel.js";
import { failureTiles, netTile, Trend } from "./trend.js";
import { showMissing, showTitle, titleButtons } from "./title.js";

const { topic } = config;

export function start() {
  const channels = channelTable({
    empty: "No channels yet: messages wait in the topic until a consumer subscribes.",
  });
  const refresh = () => live.refresh();
  const nodes = topicNodeTable({
    onPause: async (figures) => {
      const { node, paused: isPaused } = figures;
      if (await togglePause({ topic, node, figures, isPaused, refresh })) refresh();
    },
    onTombstone: async (figures) => (await tombstone({ topic, node: figures.node, figures })) && live.refresh(),
  });
  const trend = new Trend();
  const tiles = new Tiles([
    { id: "rate", label: "Published/s", text: (all) => format.rate(all.rates.topic) },
    {
      id: "depth",
      label: "Depth",
      text: (all) => format.integer(all.depth + inChannels(all, "depth")),
      detail: whereItWaits,
    },
    netTile(trend, (all) => all.depth + inChannels(all, "depth")),
    ...failureTiles,
    { id: "messages", label: "Messages", text: (all) => format.integer(all.message_count) },
    { id: "channels", label: "Channels", text: (all) => format.integer((all.channels ?? []).length) },
    latencyTile,
  ]);
  const charts = new Charts("flow", "depth", "failures", "in_flight", "e2e_p99");
  const journal = journalSection(topic);
  const live = follow("topic", { topic }, (document_) => {
    showTitle(document_);
    trend.add(document_.time, document_.is_incomplete ? null : document_.flow);
    tiles.show(document_);
    charts.add(figuresOf(document_));
    const rated = withRates(document_.channels, document_.rates.channels, "channel_name");
    channels.setRows(withFlows(rated, document_.flows, "channel_name"));
    nodes.setRows(withRates(document_.nodes, document_.rates.nodes, "node"));
    if (document_.nodes?.length > 0) journal.begin(); // a topic that no node has yet has no journal either
  }, showMissing);
  titleButtons({ topic, refresh });
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
}

function figuresOf(document_) {
  return {
    time: document_.time,
    isIncomplete: document_.is_incomplete,
    rate: document_.rates.topic,
    ...document_.flow,
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
