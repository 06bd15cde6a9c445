/* What readers may do to the cluster, each with the question that goes before it.
 *
 * What cannot be undone wants the name typed in; the rest a plain yes. `perform` tells how it went: the server answers
 * with a warning when some of the nodes did not take part.
 */

import { ApiError, apiPath, path, post, remove } from "./api.js";
import { ask, confirm, confirmByName } from "./dialog.js";
import { counted } from "./format.js";
import { note } from "./notice.js";

/** How often a message may fail unless somebody says otherwise. */
const USUAL_ATTEMPTS = 5;

/** Does it and says so; false if it was refused. `what` is said of it, or makes what is said from the answer. */
export async function perform(what, work) {
  try {
    const answer = await work();
    const said = typeof what === "string" ? what : what(answer);
    if (answer.message) note(`${said}, but: ${answer.message.replace(/^WARNING: /, "")}`, "warning");
    else note(`${said}.`);
    return true;
  } catch (failure) {
    if (!(failure instanceof ApiError)) throw failure;
    note(`Not done: ${readable(failure)}`, "problem");
    return false;
  }
}

export async function create(topic, channel) {
  const what = channel ? `Created channel ${channel} of ${topic}` : `Created topic ${topic}`;
  return perform(what, () => post(apiPath("topics"), { topic, channel }));
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

/** Pauses or unpauses a topic, or a channel of it. */
export async function togglePause({ topic, channel, isPaused }) {
  const verb = isPaused ? "Unpause" : "Pause";
  const effect = channel ? "its consumers get no messages" : "its channels get no messages";
  const isSure = await confirm({
    title: `${verb} ${named(topic, channel)}?`,
    explanation: isPaused ? "Messages flow again." : `While it is paused ${effect}; they wait here.`,
    verb,
  });
  if (!isSure) return false;
  return perform(`${verb}d ${named(topic, channel)}`, () =>
    post(address(topic, channel), { action: verb.toLowerCase() }),
  );
}

export async function empty({ topic, channel }) {
  const isSure = await confirmByName({
    title: `Empty ${named(topic, channel)}?`,
    explanation: "All messages that wait in it are thrown away, on every node. This cannot be undone.",
    verb: "Empty",
    name: channel || topic,
  });
  if (!isSure) return false;
  return perform(`Emptied ${named(topic, channel)}`, () => post(address(topic, channel), { action: "empty" }));
}

/** Deletes a topic or a channel and, if so wanted, goes to the page above. */
export async function deleteIt({ topic, channel, leave = true }) {
  const isSure = await confirmByName({
    title: `Delete ${named(topic, channel)}?`,
    explanation: channel
      ? "The channel and all messages that wait in it are gone on every node; its consumers are disconnected."
      : "The topic, its channels and all their messages are gone on every node. Publishing to it makes it anew.",
    verb: "Delete",
    name: channel || topic,
  });
  if (!isSure) return false;
  const isDone = await perform(`Deleted ${named(topic, channel)}`, () => remove(address(topic, channel)));
  if (isDone && leave) location.assign(channel ? path("topics", topic) : path("topics"));
  return isDone;
}

export async function tombstone({ topic, node }) {
  const isSure = await confirmByName({
    title: `Tombstone ${topic} on ${node}?`,
    explanation:
      "Consumers stop finding the topic on this node, and the topic is deleted there with all its messages. " +
      "For taking a node out of service; the topic comes back when something is published to it there.",
    verb: "Tombstone",
    name: topic,
  });
  if (!isSure) return false;
  return perform(`Tombstoned ${topic} on ${node}`, () => remove(apiPath("nodes", node), { topic }));
}

/** Moves a channel of a journaled topic to another place in the journal; an offset is one node's own. */
export async function seek({ topic, channel, nodes }) {
  const values = await ask({
    title: `Move channel ${channel}`,
    explanation: "The channel goes on from there: backwards, messages are delivered again; forwards, some are skipped.",
    verb: "Move",
    isDangerous: true,
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
        value: localNow(),
        hint: "The channel goes on with what was published then or later.",
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
  const to = { time: () => new Date(values.time).toISOString(), offset: () => values.offset.trim() };
  const target = to[values.to]?.() ?? values.to;
  const body = { action: "seek", to: target };
  if (values.node) body.node = values.node;
  return perform(`Moved ${channel} to ${target}`, () => post(address(topic, channel), body));
}

/** Publishes dead letters of a channel to where they came from. */
export async function redrive({ topic, channel }) {
  const values = await ask({
    title: `Redrive ${channel}`,
    explanation: "Messages that wait here are published again to the topic each came from, and are done with here.",
    verb: "Redrive",
    fields: [
      { id: "count", label: "At most", type: "number", min: 1, value: "1000", hint: "Messages, over all nodes." },
      { id: "to", label: "To another topic (optional)" },
    ],
  });
  if (values === null) return false;
  const body = { action: "redrive", count: Number(values.count) || 1000 };
  if (values.to.trim()) body.to = values.to.trim();
  const said = ({ moved, left }) => `Redrove ${counted(moved ?? 0, "message")}, ${left ?? 0} left`;
  return perform(said, () => post(address(topic, channel), body));
}

/** Says when a channel gives up on a message; `current` is the policy it has now, or null. */
export async function setPolicy({ topic, channel, current }) {
  const values = await ask({
    title: `Dead letters of ${channel}`,
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
  return perform(`Set the policy of ${channel}`, () =>
    post(address(topic, channel), { action: "set_policy", ...policy }),
  );
}

export async function clearPolicy({ topic, channel }) {
  const isSure = await confirm({
    title: `Clear the policy of ${channel}?`,
    explanation: "Messages are delivered until somebody finishes them, however often they fail. Dead letters stay.",
    verb: "Clear policy",
  });
  if (!isSure) return false;
  return perform(`Cleared the policy of ${channel}`, () => post(address(topic, channel), { action: "clear_policy" }));
}

function address(topic, channel) {
  return channel ? apiPath("topics", topic, channel) : apiPath("topics", topic);
}

function named(topic, channel) {
  return channel ? `channel ${channel}` : `topic ${topic}`;
}

function readable(failure) {
  if (failure.status === 403) return `you may not do this (${failure.message}).`;
  return failure.message;
}

/** Now, as a datetime-local field spells it. */
function localNow() {
  const now = new Date();
  return new Date(now.getTime() - now.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}
