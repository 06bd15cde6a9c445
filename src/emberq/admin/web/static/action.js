/* What readers may do to the cluster, each with the question that goes before it.
 *
 * A question names topic and channel, and says what would happen, in the figures that the page shows (`figures`, a
 * document of a live view). What cannot be undone wants the name typed in; the rest a plain yes. `perform` tells how it
 * went: the server answers with a warning when some of the nodes did not take part.
 */

import { ApiError, apiPath, get, path, post, remove } from "./api.js";
import * as consequence from "./consequence.js";
import { named } from "./consequence.js";
import { ask, confirm, confirmByName } from "./dialog.js";
import { counted, integer } from "./format.js";
import { hasCursor, journalsOf } from "./journal.js";
import { note, noteOnNextPage } from "./notice.js";

/** How often a message may fail unless the reader says otherwise. */
const USUAL_ATTEMPTS = 5;
/** Messages that are redriven unless the reader says otherwise, and what the server takes at most. */
const USUAL_REDRIVEN = 1_000;
const MAX_REDRIVEN = 10_000;
/** Topics or channels that the server is asked to act on at a time. */
const PORTION = 20;
/** So many failures are told; more would fill the page. */
const TOLD_FAILURES = 3;

/** Does it and says so; false if it was refused. `what` is said of it, or makes what is said from the answer; `say`
 *  shows it. `undo` takes it back, if it can be taken back. */
export async function perform(what, work, { say = note, undo = null } = {}) {
  try {
    const answer = await work();
    const said = typeof what === "string" ? what : what(answer);
    const problems = [answer.message?.replace(/^WARNING: /, ""), ...(answer.failed ?? []).map(failedText)];
    const but = problems.filter(Boolean).join("; ");
    if (but) say(`${said}, but: ${but}`, "warning", { undo });
    else say(`${said}.`, "done", { undo });
    document.dispatchEvent(new CustomEvent("acted"));
    return true;
  } catch (failure) {
    if (!(failure instanceof ApiError)) throw failure;
    note(`Not done: ${readable(failure)}`, "problem");
    return false;
  }
}

function failedText({ topic, channel, node, message }) {
  return `not ${named(topic, channel)}${node ? ` on ${node}` : ""}: ${message}`;
}

export async function create(topic, channel) {
  return perform(`Created ${named(topic, channel)}`, () => post(apiPath("topics"), { topic, channel }));
}

export async function askAndCreate() {
  const values = await ask({
    title: "Create a topic",
    explanation: "With a channel, messages are kept for its consumers from the first one on.",
    verb: "Create",
    fields: [
      { id: "topic", label: "Topic", isRequired: true },
      { id: "channel", label: "Channel (optional)" },
    ],
  });
  return values !== null && create(values.topic.trim(), values.channel.trim());
}

/** Pauses or unpauses a topic, or a channel of it: on all nodes, or on the one that is named. What was done can be
 *  taken back; nodes on which it was so before stay as they were. */
export async function togglePause({ topic, channel, figures, isPaused, node = "", refresh = () => {} }) {
  const verb = isPaused ? "Unpause" : "Pause";
  const isSure = await confirm({
    title: `${verb} ${named(topic, channel)}${node ? ` on ${node}` : ""}?`,
    explanation: consequence.ofPause({ channel, figures, isPaused, node }),
    verb,
  });
  if (!isSure) return false;
  const changed = node ? [{ topic, channel, node }] : changedBy({ topic, channel, figures, isPaused });
  const back = async () => (await actOn(isPaused ? "Pause" : "Unpause", changed)) && refresh();
  const action = verb.toLowerCase();
  const work = node
    ? () => post(apiPath("actions"), { action, targets: changed })
    : () => post(address(topic, channel), { action });
  return perform(`${verb}d ${named(topic, channel)}${node ? ` on ${node}` : ""}`, work, { undo: back });
}

/** What pausing or unpausing changes: all of it, or only the nodes on which it is not so already. */
function changedBy({ topic, channel, figures, isPaused }) {
  const nodes = figures.nodes ?? [];
  const changed = nodes.filter((node) => node.paused === isPaused);
  if (changed.length === 0 || changed.length === nodes.length) return [{ topic, channel }];
  return changed.map(({ node }) => ({ topic, channel, node }));
}

/** Pauses, unpauses or empties topics and channels: { topic, channel?, node? }. It is done in portions, so that the
 *  server can answer each in time; what could not be done is said at the end. */
export async function actOn(verb, targets, { undo = null } = {}) {
  const done = { done: 0, failed: [], warnings: [] };
  const work = async () => {
    for (let start = 0; start < targets.length; start += PORTION) {
      const portion = targets.slice(start, start + PORTION);
      try {
        const answer = await post(apiPath("actions"), { action: verb.toLowerCase(), targets: portion });
        done.done += answer.done;
        done.failed.push(...answer.failed);
        if (answer.message) done.warnings.push(answer.message.replace(/^WARNING: /, ""));
      } catch (failure) {
        if (!(failure instanceof ApiError) || done.done + done.failed.length === 0) throw failure;
        done.failed.push(...portion.map((target) => ({ ...target, message: failure.message })));
      }
    }
    return { failed: done.failed.slice(0, TOLD_FAILURES), message: done.warnings.join("; ") };
  };
  const [{ topic, channel, node }] = targets;
  const one = `${named(topic, channel)}${node ? ` on ${node}` : ""}`;
  const what = () => {
    if (targets.length === 1) return `${past(verb)} ${one}`;
    const kinds = targets.every((target) => target.channel) ? "channel" : "topic";
    return `${past(verb)} ${targets.some((target) => target.node) ? counted(done.done, "part") : counted(done.done, kinds)}`;
  };
  return perform(what, work, { undo });
}

function past(verb) {
  return verb === "Empty" ? "Emptied" : `${verb}d`;
}

export async function empty({ topic, channel, figures }) {
  const isJournaled = await hasJournal(topic, channel);
  const isSure = await confirmByName({
    title: `Empty ${named(topic, channel)}?`,
    explanation: consequence.ofEmptying({ channel, figures, isJournaled }),
    verb: "Empty",
    name: channel || topic,
  });
  if (!isSure) return false;
  return perform(`Emptied ${named(topic, channel)}`, () => post(address(topic, channel), { action: "empty" }));
}

/** Deletes a topic or a channel and, if so wanted, goes to the page above. */
export async function deleteIt({ topic, channel, figures = null, leave = true }) {
  const isJournaled = figures !== null && (await hasJournal(topic, channel));
  const isSure = await confirmByName({
    title: `Delete ${named(topic, channel)}?`,
    explanation: consequence.ofDeleting({ channel, figures, isJournaled }),
    verb: "Delete",
    name: channel || topic,
  });
  if (!isSure) return false;
  const say = leave ? noteOnNextPage : note;
  const isDone = await perform(`Deleted ${named(topic, channel)}`, () => remove(address(topic, channel)), { say });
  if (isDone && leave) location.assign(channel ? path("topics", topic) : path("topics"));
  return isDone;
}

/** Takes a topic away from one node; `figures` are the topic's there. */
export async function tombstone({ topic, node, figures }) {
  const isSure = await confirmByName({
    title: `Tombstone topic ${topic} on ${node}?`,
    explanation: [
      "Consumers stop finding the topic on this node, and the topic is deleted there.",
      ...consequence.ofTopicOnNodes(figures),
      "For taking a node out of service; the topic comes back when something is published to it there.",
    ],
    verb: "Tombstone",
    name: topic,
  });
  if (!isSure) return false;
  return perform(`Tombstoned topic ${topic} on ${node}`, () => remove(apiPath("nodes", node), { topic }));
}

/** Has a node take nothing new and stop when it is empty, or go on as before; `figures` are those of its page. */
export async function drain({ node, figures, isCancelled }) {
  const verb = isCancelled ? "Cancel drain" : "Drain";
  const question = {
    title: isCancelled ? `Cancel the drain of node ${node}?` : `Drain node ${node}?`,
    explanation: isCancelled
      ? "It takes messages again, and does not stop. What consumers have taken meanwhile is done."
      : consequence.ofDraining(figures),
    verb,
  };
  const isSure = await (isCancelled ? confirm(question) : confirmByName({ ...question, name: node }));
  if (!isSure) return false;
  const body = { action: isCancelled ? "cancel_drain" : "drain" };
  const said = (answer) => {
    if (isCancelled) return `Node ${node} takes messages again`;
    const held = counted(answer.message_count ?? 0, "message");
    return `Node ${node} is being drained; it holds ${held} in ${counted(answer.topic_count ?? 0, "topic")}`;
  };
  return perform(said, () => post(apiPath("nodes", node), body));
}

/** Takes a node that is gone off the pages; it comes back by itself when it answers again. */
export async function dismiss(node) {
  const isSure = await confirm({
    title: `Dismiss node ${node}?`,
    explanation: "It is shown to no reader any more, until it comes back. Its figures are in the charts up to its end.",
    verb: "Dismiss",
  });
  if (!isSure) return false;
  return perform(`Dismissed node ${node}`, () => remove(apiPath("absent", node)));
}

/** Moves a channel of a journaled topic to another place in the journal; an offset is one node's own. */
export async function seek({ topic, channel, nodes }) {
  const values = await ask({
    title: `Move ${named(topic, channel)}`,
    explanation: "The channel goes on from there: backwards, messages are delivered again; forwards, some are skipped.",
    verb: "Move",
    isDangerous: true,
    foretell: (chosen) => foretoldSeek(topic, channel, chosen),
    watched: ["to", "time", "offset", "node"],
    fields: [
      {
        id: "to",
        label: "To",
        options: [
          { value: "time", label: "a time" },
          { value: "earliest", label: "the earliest message kept" },
          { value: "latest", label: "the end: only new messages" },
          { value: "offset", label: "an offset" },
        ],
      },
      {
        id: "time",
        label: "Time (yours)",
        type: "datetime-local",
        step: 1,
        hint: "The channel goes on with what was published then or later.",
        isRequired: true,
        onlyWith: { to: "time" },
      },
      {
        id: "offset",
        label: "Offset",
        type: "number",
        min: 0,
        hint: "It means something on one node only: say which below.",
        isRequired: true,
        onlyWith: { to: "offset" },
      },
      {
        id: "node",
        label: "On",
        options: [{ value: "", label: "every node" }, ...nodes.map((node) => ({ value: node, label: node }))],
      },
      { id: "name", label: "Type the channel’s name to confirm", mustBe: channel },
    ],
  });
  if (values === null) return false;
  const { to, node } = placeIn(values);
  const body = { action: "seek", to, ...(node && { node }) };
  return perform(`Moved ${named(topic, channel)} to ${to}`, () => post(address(topic, channel), body));
}

/** How many messages a seek brings again or skips, as a sentence; or why that cannot be said. */
async function foretoldSeek(topic, channel, values) {
  try {
    const query = new URLSearchParams(placeIn(values));
    const { nodes, message: warning } = await get(`${apiPath("seek", topic, channel)}?${query}`);
    const sum = (figure) => (nodes ?? []).reduce((total, node) => total + (node[figure] ?? 0), 0);
    const [again, skipped] = [sum("again"), sum("skipped")];
    const effects = [
      again > 0 && `${counted(again, "message")} ${again === 1 ? "comes" : "come"} again`,
      skipped > 0 && `${counted(skipped, "message")} ${skipped === 1 ? "is" : "are"} skipped`,
    ].filter(Boolean);
    const effect = effects.join(", ") || "No message comes again, and none is skipped";
    return `${effect}; ${integer(sum("waiting"))} will wait.${warning ? ` ${warning}` : ""}`;
  } catch (failure) {
    if (!(failure instanceof ApiError)) throw failure;
    return `It cannot be told what this does: ${failure.message}`;
  }
}

/** What the server is asked for, from what stands in the fields of a seek. */
function placeIn({ to, time, offset, node }) {
  const places = { time: () => new Date(time).toISOString(), offset: () => offset.trim() };
  return { to: places[to]?.() ?? to, node };
}

/** Publishes dead letters of a channel to where they came from. */
export async function redrive({ topic, channel, figures }) {
  const values = await ask({
    title: `Redrive ${named(topic, channel)}`,
    explanation: [
      `${counted(figures.depth, "message")} ${figures.depth === 1 ? "waits" : "wait"} here.`,
      "Each dead letter is published again to the topic it came from, and is done with here. Other messages stay, " +
        "unless you name a topic for them.",
    ],
    verb: "Redrive",
    foretell: (chosen) => foretoldRedrive(topic, channel, chosen),
    watched: ["count", "to"],
    fields: [
      {
        id: "count",
        label: "At most",
        type: "number",
        min: 1,
        max: MAX_REDRIVEN,
        value: String(Math.min(Math.max(figures.depth, 1), USUAL_REDRIVEN)),
        hint: `Messages, over all nodes; up to ${integer(MAX_REDRIVEN)} at a time.`,
        isRequired: true,
      },
      { id: "to", label: "To another topic (optional)" },
    ],
  });
  if (values === null) return false;
  const body = { action: "redrive", count: Number(values.count) };
  if (values.to.trim()) body.to = values.to.trim();
  return perform((answer) => redriven(topic, channel, answer), () => post(address(topic, channel), body));
}

/** What a redrive would do with the messages that are next in line, as a sentence; or why that cannot be said. */
async function foretoldRedrive(topic, channel, { count, to }) {
  try {
    const query = new URLSearchParams({ count, ...(to.trim() && { to: to.trim() }) });
    const { examined, moved, left, topics, waiting } = await get(`${apiPath("redrive", topic, channel)}?${query}`);
    if (examined === 0) return "No message waits, so none goes.";
    const targets = Object.entries(topics).map(([name, times]) => `${integer(times)} to ${name}`);
    const goes = moved > 0 ? `${targets.join(", ")}` : "none goes";
    const stays = left > 0 ? `; ${integer(left)} stay: no dead ${left === 1 ? "letter" : "letters"}` : "";
    const isAll = examined >= Math.min(Number(count), waiting ?? Infinity) || moved >= Number(count);
    const rest = isAll ? "" : " The others are not looked at before they go.";
    return `Of the next ${counted(examined, "message")}: ${goes}${stays}.${rest}`;
  } catch (failure) {
    if (!(failure instanceof ApiError)) throw failure;
    return `It cannot be told what this does: ${failure.message}`;
  }
}

/** What went, what waits, and what could not go. */
function redriven(topic, channel, { moved = 0, left = 0, waiting = null }) {
  const parts = [`Redrove ${counted(moved, "message")} of ${consequence.path(topic, channel)}`];
  if (waiting !== null) parts.push(waiting === 0 ? "none waits" : `${integer(waiting)} still wait`);
  if (left > 0) parts.push(`${integer(left)} could not go: no dead ${left === 1 ? "letter" : "letters"}`);
  return parts.join("; ");
}

/** Says when a channel gives up on a message; `current` is the policy it has now, or null. */
export async function setPolicy({ topic, channel, current }) {
  const values = await ask({
    title: `Dead letters of ${named(topic, channel)}`,
    explanation:
      "A message that was delivered so often and not finished is put aside. It also holds for messages that were " +
      "tried before. The topic is made if it is missing.",
    verb: "Set policy",
    fields: [
      {
        id: "attempts",
        label: "Deliveries at most",
        type: "number",
        min: 1,
        value: String(current?.max_attempts ?? USUAL_ATTEMPTS),
        isRequired: true,
      },
      {
        id: "target",
        label: "Then to topic",
        value: current?.dead_letter_topic ?? `${topic.replace(/#ephemeral$/, "")}.dead`,
        isRequired: true,
      },
    ],
  });
  if (values === null) return false;
  const policy = { max_attempts: Number(values.attempts), dead_letter_topic: values.target.trim() };
  return perform(`Set the policy of ${named(topic, channel)}`, () =>
    post(address(topic, channel), { action: "set_policy", ...policy }),
  );
}

export async function clearPolicy({ topic, channel }) {
  const isSure = await confirm({
    title: `Clear the policy of ${named(topic, channel)}?`,
    explanation: "Messages are delivered until a consumer finishes them, however often they fail. Dead letters stay.",
    verb: "Clear policy",
  });
  if (!isSure) return false;
  return perform(`Cleared the policy of ${named(topic, channel)}`, () =>
    post(address(topic, channel), { action: "clear_policy" }),
  );
}

function address(topic, channel) {
  return channel ? apiPath("topics", topic, channel) : apiPath("topics", topic);
}

const NAMES = "has 1 to 64 letters, digits, dots, underscores and dashes; #ephemeral may stand behind them";
/** What a refusal means, by the word that it begins with. */
const REFUSALS = {
  INVALID_TOPIC: `the name of a topic ${NAMES}`,
  INVALID_CHANNEL: `the name of a channel ${NAMES}`,
  INVALID_DEAD_LETTER_TOPIC: `the name of a topic ${NAMES}`,
  NODE_NOT_FOUND: "no node of the cluster has this address",
  TOPIC_NOT_FOUND: "no node has this topic",
  CHANNEL_NOT_FOUND: "no node has this channel",
  SILENCE_NOT_FOUND: "the silence has ended already",
  RULES_CHANGED: "the rules were changed elsewhere; they are shown as they are now",
};

function readable(failure) {
  const meaning = REFUSALS[failure.message.split(":")[0]];
  if (meaning !== undefined) return `${meaning} (${failure.message}).`;
  if (failure.status === 403) return `you may not do this (${failure.message}).`;
  return failure.message;
}

/** Whether what is emptied or deleted leaves its messages in a journal. */
export async function hasJournal(topic, channel) {
  const journals = await journalsOf(topic);
  return journals.some((journal) => !channel || hasCursor(journal, channel));
}
