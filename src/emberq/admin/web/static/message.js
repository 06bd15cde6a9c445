/* Messages as people read them: the next ones of a channel, which stay where they are, and one to publish.
 *
 * A body is bytes. It is shown as indented JSON if it is JSON, as text if it is UTF-8, and as hexadecimal digits
 * otherwise. A dead letter is an envelope around the body that failed: what it says is shown above that body.
 */

import { ApiError, apiPath, get, post } from "./api.js";
import { perform } from "./action.js";
import { h } from "./dom.js";
import * as format from "./format.js";
import { button, label, section } from "./panel.js";

const PEEKED_COUNT = 10;
/** Longer bodies are cut: the page must stay readable. */
const SHOWN_CHARACTERS = 20_000;

/** The next messages of a channel, fetched when the reader asks for them. */
export function peekSection(topic, channel, { onDeadLetters }) {
  const list = h("div", { class: "messages" }, h("p", { class: "empty" }, "Not looked yet."));
  const show = button("Peek", { permission: "peek" }, async () => {
    try {
      const { messages, message: warning } = await get(`${apiPath("peek", topic, channel)}?count=${PEEKED_COUNT}`);
      const cards = (messages ?? []).map(card);
      list.replaceChildren(...(cards.length ? cards : [h("p", { class: "empty" }, "No message waits here.")]));
      if (warning) list.prepend(h("p", { class: "hint" }, warning));
      if (areDeadLetters(messages)) onDeadLetters();
    } catch (failure) {
      if (!(failure instanceof ApiError)) throw failure;
      list.replaceChildren(h("p", { class: "problem", role: "alert" }, failure.message));
    }
  });
  const note = `Shows up to ${PEEKED_COUNT} messages that are next in line. They stay in the channel.`;
  return section("Waiting messages", { controls: show, note }, list);
}

/** Whether there are dead letters among the messages that are next in line. */
export async function deadLettersWait(topic, channel) {
  try {
    const { messages } = await get(`${apiPath("peek", topic, channel)}?count=${PEEKED_COUNT}`);
    return areDeadLetters(messages);
  } catch (failure) {
    if (!(failure instanceof ApiError)) throw failure;
    return false;
  }
}

function areDeadLetters(messages) {
  return (messages ?? []).some((each) => deadLetterIn(bytesOf(each)) !== null);
}

/** A form that publishes one message. */
export function publishSection(topic, onPublished) {
  const body = h("textarea", { id: "publish-body", rows: 5, spellcheck: "false", autocomplete: "off" });
  const defer = h("input", { id: "publish-defer", type: "number", min: 0, value: 0 });
  const submit = h("button", { type: "submit", class: "primary" }, "Publish");
  const form = h(
    "form",
    { class: "publish" },
    h("div", { class: "field" }, h("label", { for: "publish-body" }, "Body"), body),
    h("div", { class: "field" }, h("label", { for: "publish-defer" }, "Deferred by (ms)"), defer),
    submit,
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    const sent = { body: body.value, defer_ms: Number(defer.value) || 0 };
    const isDone = await perform(`Published to ${topic}`, () => post(apiPath("publish", topic), sent));
    submit.disabled = false;
    if (isDone) onPublished();
  });
  return section("Publish a message", { note: "It reaches every channel of this topic, as any other message." }, form);
}

function card(message) {
  const body = bytesOf(message);
  const dead = deadLetterIn(body);
  const facts = [
    format.moment(message.timestamp / 1e6),
    message.attempts ? format.counted(message.attempts, "attempt") : "not yet delivered",
    format.bytes(body.length),
    message.node ?? message.nsqd,
  ];
  return h(
    "article",
    { class: "message" },
    h(
      "header",
      {},
      h("code", {}, message.id),
      facts.filter(Boolean).map((fact) => h("span", {}, fact)),
    ),
    dead ? deadLetterFacts(dead) : null,
    h("pre", { tabindex: "0", "aria-label": `Body of message ${message.id}` }, readable(dead ? bytesOf(dead) : body)),
  );
}

function deadLetterFacts(dead) {
  const origin = `${dead.topic} / ${dead.channel}`;
  return h(
    "p",
    { class: "dead-letter" },
    label("dead letter", "problem"),
    ` from ${origin}, after ${format.counted(dead.attempts, "attempt")}: ${dead.reason}`,
  );
}

function deadLetterIn(body) {
  const envelope = parsed(decoded(body));
  return envelope?.emberq_dead_letter ? envelope : null;
}

/** The body as text that a person can read. */
function readable(body) {
  const text = decoded(body);
  if (text === null) return hexadecimal(body);
  const value = parsed(text);
  const shown = value !== null && typeof value === "object" ? JSON.stringify(value, null, 2) : text;
  return shown.length > SHOWN_CHARACTERS ? `${shown.slice(0, SHOWN_CHARACTERS)}…` : shown;
}

function bytesOf(message) {
  if (typeof message.body_base64 === "string") {
    return Uint8Array.from(atob(message.body_base64), (character) => character.charCodeAt(0));
  }
  return new TextEncoder().encode(message.body ?? "");
}

function decoded(body) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(body);
  } catch {
    return null;
  }
}

function parsed(text) {
  try {
    return text === null ? null : JSON.parse(text);
  } catch {
    return null;
  }
}

/** 16 bytes a line. */
function hexadecimal(body) {
  const lines = [];
  for (let start = 0; start < Math.min(body.length, 4096); start += 16) {
    const part = Array.from(body.subarray(start, start + 16), (byte) => byte.toString(16).padStart(2, "0"));
    lines.push(`${start.toString(16).padStart(6, "0")}  ${part.join(" ")}`);
  }
  if (body.length > 4096) lines.push("…");
  return lines.join("\n");
}
