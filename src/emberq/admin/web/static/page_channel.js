/* One channel: its figures, its nodes, its consumers, the messages that wait in it. */

import { deleteIt, empty, redrive, seek, togglePause } from "./action.js";
import { config, may } from "./config.js";
import { attributesOf, figureColumn, nodeColumn, rateColumn, storageColumn } from "./column.js";
import { h, setAttribute, setText, webAddress } from "./dom.js";
import * as format from "./format.js";
import { graphiteSection } from "./graphite.js";
import { journalSection } from "./journal.js";
import { Live } from "./live.js";
import { peekSection } from "./message.js";
import { banner, warn } from "./notice.js";
import { Charts, content, label, latencyText, loaded, searchField, section, Tiles, worstLatency } from "./panel.js";
import { DataTable } from "./table.js";
import { showState, titleButtons } from "./title.js";

const { topic, channel } = config;

export function start() {
  const nodes = nodeTable();
  const clients = clientTable();
  const tiles = new Tiles([
    { id: "rate", label: "Messages per second", text: (all) => format.rate(all.rates.channel) },
    { id: "depth", label: "Depth", text: (all) => format.integer(all.depth), detail: storage },
    {
      id: "in-flight",
      label: "In flight",
      text: (all) => format.integer(all.in_flight_count),
      detail: (all) => `${format.compact(all.deferred_count)} deferred`,
    },
    {
      id: "failures",
      label: "Requeued",
      text: (all) => format.integer(all.requeue_count),
      detail: (all) => `${format.compact(all.timeout_count)} timed out`,
    },
    { id: "clients", label: "Consumers", text: (all) => format.integer((all.clients ?? []).length) },
    {
      id: "latency",
      label: "End to end",
      text: (all) => format.duration(worstLatency(all.e2e_processing_latency)),
      detail: (all) => latencyText(all.e2e_processing_latency),
    },
  ]);
  const charts = new Charts("rate", "depth", "in_flight", "e2e_p99");
  const journal = journalSection(topic, channel);
  let isPaused = false;
  let nodeNames = [];
  const live = new Live(
    "channel",
    { topic, channel },
    {
      onDocument(document_) {
        document_.rates ??= {};
        isPaused = document_.paused;
        nodeNames = (document_.nodes ?? []).map((node) => node.node);
        warn(document_);
        showState(isPaused);
        tiles.show(document_);
        charts.add(figuresOf(document_));
        const rates = document_.rates.nodes ?? {};
        nodes.setRows((document_.nodes ?? []).map((node) => ({ ...node, rate: rates[node.node] ?? null })));
        clients.setRows(document_.clients ?? []);
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
    togglePause: async () => refresh(await togglePause({ topic, channel, isPaused })),
    empty: async () => refresh(await empty({ topic, channel })),
    deleteIt: () => deleteIt({ topic, channel }),
    more: [
      ["Seek…", "seek", async () => refresh(await seek({ topic, channel, nodes: nodeNames }))],
      ["Redrive…", "redrive", async () => refresh(await redrive({ topic, channel }))],
    ],
  });
  const controls = searchField(clients, "consumers");
  content.append(
    tiles.element,
    charts.element,
    section("Consumers", { controls }, clients.element),
    section("Nodes", {}, nodes.element),
  );
  if (may("peek")) content.append(peekSection(topic, channel, { onDeadLetters: () => offerRedrive(live) }));
  content.append(journal.element);
  if (config.isGraphEnabled) content.append(graphiteSection(topic, channel));
  charts.recall({ topic, channel });
  live.start();
}

function nodeTable() {
  return new DataTable({
    label: "Nodes",
    noun: "node",
    empty: "No node has this channel now.",
    key: (node) => node.node,
    sort: "node",
    columns: [
      nodeColumn,
      rateColumn,
      figureColumn("depth", "Depth"),
      storageColumn,
      figureColumn("in_flight_count", "In flight", 2),
      figureColumn("deferred_count", "Deferred", 3),
      figureColumn("requeue_count", "Requeued", 3),
      figureColumn("timeout_count", "Timed out", 3),
      figureColumn("message_count", "Messages", 2),
      figureColumn("client_count", "Consumers", 2),
      deliveryColumn,
    ],
  });
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

function clientTable() {
  return new DataTable({
    label: "Consumers",
    noun: "consumer",
    empty: "No consumers: messages wait here until one subscribes.",
    key: (client) => `${client.node} ${client.remote_address}`,
    sort: "client",
    columns: [
      {
        id: "client",
        label: "Client",
        value: (client) => `${client.hostname} ${client.client_id} ${client.remote_address}`,
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
      { id: "node", label: "Node", value: (client) => client.node, isSearched: true, priority: 3 },
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

function offerRedrive(live) {
  if (!may("redrive") || document.getElementById("dead-letter-offer")) return;
  const button = h("button", { type: "button", class: "primary" }, "Redrive…");
  button.addEventListener("click", async () => {
    if (await redrive({ topic, channel })) live.refresh();
  });
  const text =
    "These are dead letters: messages that failed too often elsewhere. Once the cause is mended, send them back.";
  document
    .getElementById("section-waiting-messages")
    .closest("section")
    .append(h("div", { class: "offer", id: "dead-letter-offer" }, h("p", {}, text), button));
}

function figuresOf(document_) {
  return {
    time: document_.time,
    rate: document_.rates.channel,
    finish_rate: document_.rates.finished,
    depth: document_.depth,
    in_flight: document_.in_flight_count,
    e2e_p99: worstLatency(document_.e2e_processing_latency),
  };
}

function storage(document_) {
  return `${format.compact(document_.memory_depth)} in memory, ${format.compact(document_.backend_depth)} on disk`;
}
