/* One search for all that has a name: topics, channels, nodes and consumers. The first three are at hand; consumers are
 * asked of every node, so they come a little later. */

import { askForAbsent, showAbsent } from "./absence.js";
import { apiPath, get, path } from "./api.js";
import { figureColumn, nameColumn, nodeColumn } from "./column.js";
import { h, setText } from "./dom.js";
import * as format from "./format.js";
import { orBanner, warn } from "./notice.js";
import { content, loaded, section } from "./panel.js";
import { DataTable } from "./table.js";

const searched = (new URLSearchParams(location.search).get("q") ?? "").trim();

const topicName = (row) => row.topic_name;
const channelName = (row) => `${row.topic_name} / ${row.channel_name}`;
const consumerName = (row) => row.client_id || row.hostname || row.remote_address;
const channelHref = (row) => path("topics", row.topic_name, row.channel_name);
const depth = figureColumn("depth", "Depth");
const consumers = figureColumn("client_count", "Consumers");

const KINDS = {
  topics: {
    title: "Topics",
    noun: "topic",
    key: topicName,
    columns: [
      nameColumn({ label: "Topic", name: topicName, href: (row) => path("topics", row.topic_name) }),
      depth,
      figureColumn("channel_count", "Channels"),
    ],
  },
  channels: {
    title: "Channels",
    noun: "channel",
    key: channelName,
    columns: [nameColumn({ label: "Topic / channel", name: channelName, href: channelHref }), depth, consumers],
  },
  nodes: {
    title: "Nodes",
    noun: "node",
    key: (row) => row.node,
    columns: [
      { ...nodeColumn, id: "name" },
      { id: "version", label: "Version", value: (row) => row.version, priority: 2 },
      depth,
      consumers,
    ],
  },
  consumers: {
    title: "Consumers",
    noun: "consumer",
    key: (row) => `${row.node} ${row.remote_address} ${row.topic_name} ${row.channel_name}`,
    columns: [
      nameColumn({
        label: "Client",
        name: consumerName,
        href: (row) => `${channelHref(row)}?q=${encodeURIComponent(row.remote_address)}`,
      }),
      { id: "of", label: "Topic / channel", value: channelName },
      { id: "host", label: "Host", value: (row) => row.hostname, priority: 2 },
      { id: "address", label: "Address", value: (row) => row.remote_address, priority: 2 },
      { id: "node", label: "Node", value: (row) => row.node, priority: 3 },
      figureColumn("in_flight_count", "In flight", 2),
    ],
  },
};

export function start() {
  loaded();
  if (searched === "") {
    content.append(h("p", { class: "empty" }, "Type a name, or parts of it, into the field at the top of the page."));
    document.getElementById("find").focus();
    orBanner(() => askForAbsent(() => location.reload()));
    return;
  }
  const kinds = Object.fromEntries(Object.keys(KINDS).map((kind) => [kind, new Kind(KINDS[kind])]));
  content.append(...Object.values(kinds).map((kind) => kind.element));
  const query = new URLSearchParams({ q: searched });
  orBanner(async () => {
    const found = await get(`${apiPath("search")}?${query}`);
    warn(found);
    showAbsent(found, () => location.reload());
    for (const kind of ["topics", "channels", "nodes"]) kinds[kind].show(found[kind], found.counts[kind]);
  });
  orBanner(async () => {
    const found = await get(`${apiPath("search", "consumers")}?${query}`);
    kinds.consumers.show(found.consumers, found.count);
  });
}

/** What was found of one kind. */
class Kind {
  #table;
  #count = h("span", { class: "count" }, "Looking…");
  #noun;

  constructor({ title, noun, key, columns }) {
    this.#noun = noun;
    this.#table = new DataTable({ label: title, noun, empty: `No ${noun} is called so.`, key, sort: "name", columns });
    this.#table.element.hidden = true;
    this.element = section(title, { controls: this.#count }, this.#table.element);
  }

  show(rows, count) {
    const shown = rows.length < count ? `the first ${format.integer(rows.length)} of ` : "";
    setText(this.#count, shown + format.counted(count, this.#noun));
    this.#table.element.hidden = false;
    this.#table.setRows(rows);
  }
}
