/* Messages as people read them: the next ones of a channel, which stay where they are, and one to publish.
 *
 * A body is bytes. It is shown as indented JSON if it is JSON, as text if it is UTF-8 without control characters, and as
 * hexadecimal digits otherwise. A dead letter is an envelope around the body that failed: what it says is shown above that body.
 */

import { ApiError, apiPath, get, newest, post } from "./api.js";
import { perform } from "./action.js";
import { config } from "./config.js";
import { h } from "./dom.js";
import * as format from "./format.js";
import { button, label, section } from "./panel.js";

const PEEKED_COUNT = 10;
/** Longer bodies are cut: the page must stay readable. */
const SHOWN_CHARACTERS = 20_000;

/** The next messages of a channel, fetched when the reader asks for them: a page at a time, and only those that the
 *  reader wants to see. */
export function peekSection(topic, channel, { onDeadLetters }) {
  const list = h("div", { class: "messages" }, h("p", { class: "empty" }, "Not looked yet."));
  const position = h("span", { class: "count", role: "status" });
  const form = filterForm();
  let skipped = 0;
  const ask = newest((query) => get(`${apiPath("peek", topic, channel)}?${query}`));
  const show = async () => {
    try {
      const answer = await ask(new URLSearchParams({ count: PEEKED_COUNT, skip: skipped, ...filterIn(form) }));
      if (answer === null) return;
      const { messages, examined, matched, message: warning } = answer;
      const cards = (messages ?? []).map(card);
      const none = examined > 0 ? `None of the next ${format.integer(examined)} is such a message.` : "No message waits here.";
      list.replaceChildren(...(cards.length ? cards : [h("p", { class: "empty" }, none)]));
      if (warning) list.prepend(h("p", { class: "hint" }, warning));
      showPosition(cards.length, matched ?? cards.length, examined);
      if (areDeadLetters(messages)) onDeadLetters();
    } catch (failure) {
      if (!(failure instanceof ApiError)) throw failure;
      list.replaceChildren(h("p", { class: "problem", role: "alert" }, failure.message));
    }
  };
  const turn = (pages) => () => {
    skipped = Math.max(skipped + pages * PEEKED_COUNT, 0);
    return show();
  };
  const previous = button("Previous", {}, turn(-1));
  const next = button("Next", {}, turn(1));
  const fold = button("Collapse all", {}, () => {
    const areOpen = list.querySelector("details[open]") !== null;
    for (const each of list.querySelectorAll("details")) each.open = !areOpen;
    fold.textContent = areOpen ? "Expand all" : "Collapse all";
  });
  const pager = h("div", { class: "pager", hidden: true }, position, previous, next, fold);
  const showPosition = (count, matched, examined) => {
    pager.hidden = matched === 0;
    const first = count === 0 ? 0 : skipped + 1;
    const of = examined > matched ? `${format.integer(matched)} of ${format.integer(examined)}` : format.integer(matched);
    position.textContent = `${first} to ${skipped + count} of ${of}`;
    previous.disabled = skipped === 0;
    next.disabled = skipped + count >= matched;
    fold.textContent = "Collapse all";
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    skipped = 0;
    show();
  });
  const note = "The messages that are next in line: up to a hundred of each node. They stay in the channel.";
  return section("Waiting messages", { note }, form, pager, list);
}

const FILTERS = [
  { id: "text", label: "Text", placeholder: "anywhere in the body" },
  { id: "path", label: "JSON member", placeholder: "customer.name=Ada" },
  { id: "min_attempts", label: "Attempts, at least", type: "number" },
  { id: "min_age", label: "Older than (s)", type: "number" },
];

function filterForm() {
  const fields = FILTERS.map(({ id, label: text, type = "text", placeholder = null }) => {
    const control = `peek-${id}`;
    const attributes = { id: control, name: id, type, placeholder, min: type === "number" ? 0 : null };
    const field = h("input", { ...attributes, autocomplete: "off", spellcheck: "false" });
    return h("div", { class: "field" }, h("label", { for: control }, text), field);
  });
  return h("form", { class: "inline peek" }, fields, h("button", { type: "submit" }, "Peek"));
}

/** What stands in the fields, as the server wants to be asked. */
function filterIn(form) {
  return Object.fromEntries([...new FormData(form)].filter(([, value]) => value.trim() !== ""));
}

/** Whether there are dead letters among the messages that are next in line. It is not a peek, which would be in the
 *  audit log although the reader did not ask for it. */
export async function deadLettersWait(topic, channel) {
  try {
    return (await get(`${apiPath("redrive", topic, channel)}?count=1`)).moved > 0;
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
  const whole = bytesOf(message);
  const dead = deadLetterIn(whole);
  const body = dead ? bytesOf(dead) : whole;
  const facts = [
    format.moment(message.timestamp / 1e6),
    `${format.duration(Math.max(Date.now() - config.clockAheadMs - message.timestamp / 1e6, 0) * 1e6)} ago`,
    message.attempts ? format.counted(message.attempts, "attempt") : "not yet delivered",
    format.bytes(whole.length),
    message.node ?? message.nsqd,
  ];
  const shown = h("pre", { tabindex: "0", role: "region", "aria-label": `Body of message ${message.id}` }, readable(body));
  const asHex = button("Hex", { kind: "quiet" }, () => {
    const isHex = asHex.getAttribute("aria-pressed") !== "true";
    asHex.setAttribute("aria-pressed", String(isHex));
    shown.textContent = isHex ? hexadecimal(body) : readable(body);
  });
  asHex.setAttribute("aria-pressed", "false");
  const copy = button("Copy", { kind: "quiet" }, () => copyText(shown.textContent, copy));
  return h(
    "details",
    { class: "message", open: true },
    h("summary", {}, h("code", {}, message.id), facts.filter(Boolean).map((fact) => h("span", {}, fact))),
    dead ? deadLetterFacts(dead) : null,
    h("div", { class: "message-tools" }, copy, asHex),
    shown,
  );
}

/** Puts a text into the clipboard. Where a page may not, because it is not served by HTTPS, the old way is left. */
async function copyText(text, pressed) {
  let isDone = false;
  try {
    await navigator.clipboard.writeText(text);
    isDone = true;
  } catch {
    const field = h("textarea", { class: "unseen", readonly: true });
    field.value = text;
    document.body.append(field);
    field.select();
    isDone = document.execCommand("copy");
    field.remove();
  }
  pressed.textContent = isDone ? "Copied" : "Not copied";
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

/** Characters that no text has. */
const UNREADABLE = /[\u0000-\u0008\u000b\u000c\u000e-\u001f]/;

/** The body as text that a person can read. */
function readable(body) {
  const text = decoded(body);
  if (text === null || UNREADABLE.test(text)) return hexadecimal(body);
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

/** 16 bytes a line, with what they are in ASCII. */
function hexadecimal(body) {
  const lines = [];
  for (let start = 0; start < Math.min(body.length, 4096); start += 16) {
    const part = [...body.subarray(start, start + 16)];
    const digits = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = part.map((byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${start.toString(16).padStart(6, "0")}  ${digits.padEnd(47)}  ${text}`);
  }
  if (body.length > 4096) lines.push("…");
  return lines.join("\n");
}
