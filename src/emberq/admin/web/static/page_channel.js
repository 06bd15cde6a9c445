/* One channel: its figures, its nodes, its consumers, the messages that wait in it. */

import { redrive, seek, togglePause } from "./action.js";
import { Charts } from "./charts.js";
import { byHost, channelNodeTable, clientTable, hostTable, withFlows, withPaces, withRates } from "./cluster_table.js";
import { oldestColumn } from "./column.js";
import { config, may } from "./config.js";
import { deadLetterSection } from "./dead_letter.js";
import { h, setAttribute, setText } from "./dom.js";
import { follow } from "./follow.js";
import * as format from "./format.js";
import { graphiteSection } from "./graphite.js";
import { hasCursor, journalSection, journalsOf } from "./journal.js";
import { deadLettersWait, peekSection } from "./message.js";
import { content, latencyTile, searchField, section, Tiles, worstLatency } from "./panel.js";
import { rememberInAddress } from "./table.js";
import { failureTiles, netTile, Trend } from "./trend.js";
import { HARMS, offer, showMissing, showTitle, titleButtons } from "./title.js";

const { topic, channel } = config;
/** Of not asking the server at every letter. */
const SEARCH_DELAY_MS = 300;
const SEEK = "Seek…";
const REDRIVE = "Redrive…";

export function start() {
  document.title = `${topic} / ${document.title}`; // channels of many topics have the same name
  const refresh = () => live.refresh();
  const nodes = channelNodeTable({
    onPause: async (figures) => {
      const { node, paused: isPaused } = figures;
      if (await togglePause({ topic, channel, node, figures, isPaused, refresh })) refresh();
    },
  });
  const trend = new Trend();
  const tiles = new Tiles([
    { id: "rate", label: "In/s", text: (all) => format.rate(all.rates.channel) },
    { id: "depth", label: "Depth", text: (all) => format.integer(all.depth), detail: storage },
    { id: "oldest", label: oldestColumn.label, text: oldestColumn.text },
    netTile(trend, (all) => all.depth),
    ...failureTiles,
    {
      id: "in-flight",
      label: "In flight",
      text: (all) => format.integer(all.in_flight_count),
      detail: (all) => `${format.compact(all.deferred_count)} deferred`,
    },
    { id: "clients", label: "Consumers", text: (all) => format.integer(all.client_count) },
    latencyTile,
  ]);
  const charts = new Charts("flow", "depth", "failures", "in_flight", "e2e_p99");
  const deadLetters = deadLetterSection({ topic, channel, refresh });
  const journal = journalSection(topic, channel);
  const consumers = new ConsumerSection((search) => live.change({ topic, channel, search }));
  const offers = new Offers();
  let nodeNames = [];
  const live = follow("channel", { topic, channel }, (document_) => {
    nodeNames = (document_.nodes ?? []).map((node) => node.node);
    showTitle(document_);
    offers.update(document_);
    trend.add(document_.time, document_.is_incomplete ? null : document_.flow);
    tiles.show(document_);
    charts.add(figuresOf(document_));
    const rated = withRates(document_.nodes, document_.rates.nodes, "node");
    nodes.setRows(withFlows(rated, document_.flows, "node"));
    consumers.show(document_);
    deadLetters.show(document_);
    journal.begin();
  }, showMissing);
  titleButtons({
    topic,
    channel,
    refresh,
    more: [
      {
        label: REDRIVE,
        permission: "redrive",
        action: redrive,
        harm: HARMS.moves,
        does: ({ depth }) => `Dead letters among the ${format.counted(depth, "message")} that wait go back to their topics.`,
      },
      {
        label: SEEK,
        permission: "seek",
        action: () => seek({ topic, channel, nodes: nodeNames }),
        harm: HARMS.repeats,
        does: () => "The channel goes to another place in the journal; how many messages come again is said before.",
      },
    ],
  });
  content.append(
    tiles.element,
    charts.element,
    consumers.element,
    section("Nodes", {}, nodes.element),
  );
  if (may("peek")) content.append(peekSection(topic, channel, { onDeadLetters: () => offers.offerRedrive(live) }));
  content.append(deadLetters.element, journal.element);
  if (config.isGraphEnabled) content.append(graphiteSection(topic, channel));
  charts.recall({ topic, channel });
}

const NO_CONSUMERS = "No consumers: messages wait here until one subscribes.";

/** The consumers, each connection or by host. Of very many the server sends the first ones only; then it is the server
 *  that searches them all. */
class ConsumerSection {
  #clients = clientTable({ empty: NO_CONSUMERS });
  #hosts = hostTable({ empty: NO_CONSUMERS });
  #field;
  #grouping = groupingField(() => this.#showGrouping());
  #note = h("p", { class: "hint", hidden: true });
  #searchOnServer;
  #searched = "";
  #timer = null;
  #areCut = false;

  constructor(searchOnServer) {
    this.#searchOnServer = searchOnServer;
    this.#field = searchField(this.#clients, "consumers", (text) => {
      this.#hosts.search(text);
      this.#searchLater();
    });
    this.#hosts.search(this.#field.value);
    const controls = [this.#field, this.#grouping];
    this.element = section("Consumers", { controls }, this.#note, this.#clients.element, this.#hosts.element);
    this.#showGrouping();
  }

  show(document_) {
    const { client_count: count, clients_matching: found = count } = document_;
    const clients = withPaces(document_.clients, document_);
    const shown = clients.length;
    this.#areCut = shown < found || this.#searched !== "";
    setAttribute(this.#note, "hidden", shown >= found);
    setText(this.#note, `The first ${format.integer(shown)} of ${format.integer(found)}: search to find the others.`);
    this.#clients.setRows(clients);
    this.#hosts.setRows(byHost(clients));
    if (this.#timer === null) this.#searchLater();
  }

  #showGrouping() {
    const isByHost = this.#grouping.value === "host";
    setAttribute(this.#clients.element, "hidden", isByHost);
    setAttribute(this.#hosts.element, "hidden", !isByHost);
  }

  #searchLater() {
    if (!this.#areCut || this.#field.value === this.#searched) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#timer = null;
      this.#searched = this.#field.value;
      this.#searchOnServer(this.#searched);
    }, SEARCH_DELAY_MS);
  }
}

/** Whether consumers are shown one by one or by host; the page's address remembers it. */
function groupingField(onChange) {
  const options = [h("option", { value: "" }, "Each connection"), h("option", { value: "host" }, "By host")];
  const field = h("select", { "aria-label": "Consumers one by one or by host" }, options);
  field.value = new URLSearchParams(location.search).get("by") === "host" ? "host" : "";
  field.addEventListener("change", () => {
    rememberInAddress("by", field.value);
    onChange();
  });
  return field;
}

/** What only some channels can be asked for: to seek, if they have a place in a journal; to redrive, if dead letters
 *  wait in them. Both are found out by a question, which is asked once, and again when there are messages anew. */
class Offers {
  #figures = null;
  #redrive = h("button", { type: "button", class: "primary", disabled: true }, REDRIVE); // until there are figures

  update(figures) {
    const hadMessages = (this.#figures?.depth ?? 0) > 0;
    const isFirst = this.#figures === null;
    this.#figures = figures;
    this.#redrive.disabled = false;
    if (isFirst && may("seek")) this.#lookForJournal();
    if (figures.depth === 0) offer(REDRIVE, false);
    else if (!hadMessages && may("redrive")) this.#lookForDeadLetters();
  }

  async #lookForJournal() {
    const journals = await journalsOf(topic);
    offer(SEEK, journals.some((journal) => hasCursor(journal, channel)));
  }

  async #lookForDeadLetters() {
    offer(REDRIVE, await deadLettersWait(topic, channel));
  }

  /** Below messages that turned out to be dead letters. */
  offerRedrive(live) {
    offer(REDRIVE, true);
    if (!may("redrive") || document.getElementById("dead-letter-offer")) return;
    this.#redrive.addEventListener("click", async () => {
      if (await redrive({ topic, channel, figures: this.#figures })) live.refresh();
    });
    const text =
      "These are dead letters: messages that failed too often elsewhere. Once the cause is mended, send them back.";
    document
      .getElementById("section-waiting-messages")
      .closest("section")
      .append(h("div", { class: "offer", id: "dead-letter-offer" }, h("p", {}, text), this.#redrive));
  }
}

function figuresOf(document_) {
  return {
    time: document_.time,
    isIncomplete: document_.is_incomplete,
    rate: document_.rates.channel,
    ...document_.flow,
    depth: document_.depth,
    in_flight: document_.in_flight_count,
    e2e_p99: worstLatency(document_.e2e_processing_latency),
  };
}

function storage(document_) {
  return `${format.compact(document_.memory_depth)} in memory, ${format.compact(document_.backend_depth)} on disk`;
}
