/* What an action would do, in numbers: what is dropped, who is disconnected, what stays. Made of the figures that the
 * page shows (a document of a live view), so they are those of a moment ago. */

import { counted, listed } from "./format.js";

const NOWHERE = "No node has it: nsqlookupd forgets the name, and no message is lost.";

/** `topic orders`, `channel orders / billing`: the same channel name may be in every topic. */
export function named(topic, channel) {
  return channel ? `channel ${path(topic, channel)}` : `topic ${topic}`;
}

/** `orders / billing` */
export function path(topic, channel) {
  return `${topic} / ${channel}`;
}

/** Of pausing or unpausing; with a node the figures are those of that node. */
export function ofPause({ channel, figures, isPaused, node = "" }) {
  const others = node ? ["The other nodes go on as they are."] : [];
  return [...pausing({ channel, figures, isPaused }), ...others];
}

function pausing({ channel, figures, isPaused }) {
  const waiting = counted(channel ? figures.depth : figures.depth + sum(figures, "depth"), "message");
  if (isPaused) return [`Messages flow again; ${waiting} wait.`];
  const idle = channel
    ? `${counted(figures.client_count, "consumer")} would get no messages`
    : `${counted((figures.channels ?? []).length, "channel")} would get no messages`;
  return [`While it is paused ${idle}; they wait here. ${waiting} wait now.`];
}

/** Of pausing, unpausing or emptying many topics or channels; rows are those of the page. */
export function ofMany(verb, rows, noun) {
  const total = (figure) => rows.reduce((all, row) => all + (row[figure] ?? 0), 0);
  const waiting = counted(rows.reduce((all, row) => all + (row.depth ?? 0) + (row.channel_depth ?? 0), 0), "message");
  const names = listed(rows.map((row) => (row.channel_name ? path(row.topic_name, row.channel_name) : row.topic_name)));
  const which = `${counted(rows.length, noun)}: ${names}.`;
  const consumers = counted(total("client_count"), "consumer");
  if (verb === "Pause") return [which, `${consumers} would get no messages from them; ${waiting} wait now.`];
  if (verb === "Unpause") return [which, `Messages flow again to ${consumers}; ${waiting} wait now.`];
  const held = { waiting: total("depth"), inFlight: total("in_flight_count"), deferred: total("deferred_count") };
  return [which, dropped(held), "Of journaled topics they stay in the journal; of the others this cannot be undone."];
}

/** Of draining a node, by the document of its page: what has to be worked off, and what no consumer comes for. */
export function ofDraining({ topics = [], total_clients: clients = 0 }) {
  const channels = (topics ?? []).flatMap((topic) => topic.channels ?? []);
  const count = (each) => each.depth + each.in_flight_count + each.deferred_count;
  const held = channels.reduce((all, channel) => all + count(channel), 0);
  const own = (topics ?? []).reduce((all, topic) => all + topic.depth, 0);
  const stuck = channels.filter((channel) => count(channel) > 0 && (channel.client_count === 0 || channel.paused));
  const left = stuck.reduce((all, channel) => all + count(channel), 0);
  const unread = (topics ?? []).filter((topic) => topic.depth > 0 && (topic.channels ?? []).length === 0);
  const sentences = [
    "It takes no more messages: publishers have to turn to another node. Consumers go on until nothing is left; then " +
      "the node stops.",
    `${counted(held + own, "message")} in ${counted((topics ?? []).length, "topic")} have to be worked off, by ` +
      `${counted(clients, "consumer")}.`,
  ];
  if (left > 0) {
    const names = listed(stuck.map((channel) => path(channel.topic_name, channel.channel_name)));
    const who = `${counted(stuck.length, "channel")} without consumers, or paused: ${names}`;
    sentences.push(`It will not get empty by itself: ${counted(left, "message")} wait in ${who}.`);
  }
  if (unread.length > 0) {
    const names = listed(unread.map((topic) => topic.topic_name));
    sentences.push(`No channel takes the messages of ${counted(unread.length, "topic")}: ${names}.`);
  }
  if (held + own === 0) sentences.push("Nothing is left in it: it stops at once.");
  return sentences;
}

/** Of emptying, by where the topic keeps its messages. */
export function ofEmptying({ channel, figures, isJournaled }) {
  if (!channel) return ofEmptyingTopic(figures, isJournaled);
  if (!isJournaled) return [`${dropped(heldIn(figures))} This cannot be undone.`];
  const held = heldIn(figures);
  const stay = "They stay in the journal, for as long as its retention keeps them: Seek brings them back.";
  return [`The channel is moved behind the newest message. ${skipped(held)}`, isNone(held) ? null : stay].filter(Boolean);
}

function ofEmptyingTopic(figures, isJournaled) {
  const own = figures.depth;
  const others = sum(figures, "depth");
  const kept = others > 0 ? `What waits in channels stays: ${counted(others, "message")}.` : null;
  const journal = "They stay in the journal, for as long as its retention keeps them: each channel can be moved back.";
  const lost = isJournaled
    ? `${skipped({ waiting: own })} ${own > 0 ? journal : ""}`
    : `${dropped({ waiting: own })} This cannot be undone.`;
  return [`Of the topic itself, not of its channels: ${lost}`, kept].filter(Boolean);
}

/** Of deleting a topic or a channel. Without figures no node has it. */
export function ofDeleting({ channel, figures, isJournaled }) {
  if (!figures) return [NOWHERE];
  if (channel) {
    const stays = "Its place in the journal is forgotten; the messages stay there, for the other channels.";
    return [isJournaled ? stays : dropped(heldIn(figures)), disconnected(figures), "This cannot be undone."];
  }
  return [...ofTopicOnNodes(figures, isJournaled), "Publishing to it makes it anew, without them."];
}

/** Of a topic that goes away, on one node or on all, with everything in it. */
export function ofTopicOnNodes(figures, isJournaled = false) {
  const channels = figures.channels ?? [];
  const held = channels.map(heldIn);
  const waiting = figures.depth + held.reduce((total, each) => total + each.waiting, 0);
  const [inFlight, deferred] = ["inFlight", "deferred"].map((each) => held.reduce((all, one) => all + one[each], 0));
  const consumers = channels.reduce((total, each) => total + each.client_count, 0);
  return [
    `${dropped({ waiting, inFlight, deferred })}${isJournaled ? " The journal goes, too, with all it keeps." : ""}`,
    channels.length > 0
      ? `${counted(channels.length, "channel")}: ${listed(channels.map((each) => each.channel_name))}.`
      : null,
    consumers > 0 ? `${consumersAre(consumers)} disconnected.` : "No consumer is connected.",
  ].filter(Boolean);
}

function heldIn(figures) {
  const { depth: waiting, in_flight_count: inFlight, deferred_count: deferred } = figures;
  return { waiting, inFlight, deferred };
}

function dropped(held) {
  return amount(held, "dropped");
}

function skipped(held) {
  return amount(held, "skipped");
}

/** `5 messages are dropped: 3 waiting, 2 in flight.` */
function amount({ waiting, inFlight = 0, deferred = 0 }, verb) {
  const total = waiting + inFlight + deferred;
  if (isNone({ waiting, inFlight, deferred })) return `No message is in it now, so none is ${verb}.`;
  const parts = [
    [waiting, "waiting"],
    [inFlight, "in flight"],
    [deferred, "deferred"],
  ].flatMap(([count, state]) => (count > 0 ? [`${counted(count, state, state)}`] : []));
  return `${counted(total, "message")} ${total === 1 ? "is" : "are"} ${verb}: ${parts.join(", ")}.`;
}

function isNone({ waiting, inFlight, deferred }) {
  return waiting + inFlight + deferred === 0;
}

function disconnected(figures) {
  const count = figures.client_count;
  if (count === 0) return "No consumer is connected.";
  const hosts = new Map();
  for (const { hostname, remote_address: address, client_id: id } of figures.clients ?? []) {
    const host = hostname || id || address;
    hosts.set(host, (hosts.get(host) ?? 0) + 1);
  }
  const names = [...hosts].sort().map(([host, times]) => (times > 1 ? `${host} (${times})` : host));
  return `${consumersAre(count)} disconnected${names.length > 0 ? `: ${listed(names)}` : ""}.`;
}

function consumersAre(count) {
  return `${counted(count, "consumer")} ${count === 1 ? "is" : "are"}`;
}

function sum(figures, name) {
  return (figures.channels ?? []).reduce((total, channel) => total + channel[name], 0);
}
