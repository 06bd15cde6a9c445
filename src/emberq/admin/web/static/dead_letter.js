/* What becomes of messages that no consumer can finish: the policy of a channel, and the way to those it has given up.
 *
 * A policy says after how many deliveries a message goes to which topic. There it waits in that topic's channels, whose
 * pages show it (peek) and send it back (redrive); so this section leads to them. A topic without a channel keeps its
 * messages too, but the pages cannot show them: then one is offered to be made.
 */

import { clearPolicy, create, setPolicy } from "./action.js";
import { ApiError, apiPath, get, path } from "./api.js";
import { h, setText } from "./dom.js";
import * as format from "./format.js";
import { button, label, section, whileInSight } from "./panel.js";

const NO_POLICY =
  "No policy: a message is delivered until a consumer finishes it. With a policy, one that fails too often is put " +
  "aside in a topic of its own.";
const DIFFERENT = "The nodes do not agree; set it anew to have one policy everywhere.";
/** What a channel for looking at dead letters is called unless the reader calls it otherwise. */
export const REVIEW = "review";

/** The section of a channel's page. `show` is to be called with every new document of the channel. */
export function deadLetterSection({ topic, channel, refresh }) {
  const text = h("p", { "data-figure": "policy" }, NO_POLICY);
  const places = h("div", { class: "dead-letter-places" });
  let current = null;
  let givenUp = 0;
  const then = (action) => async () => (await action()) && refresh();
  const change = button("Set policy…", { permission: "policy" }, then(() => setPolicy({ topic, channel, current })));
  const clear = button("Clear policy…", { permission: "policy" }, then(() => clearPolicy({ topic, channel })));
  const controls = [change, clear].filter(Boolean);
  const frame = section("Dead letters", { controls }, text, places);
  let shown = "";
  const renew = async () => {
    const where = current?.dead_letter_topic;
    const waiting = where === undefined ? null : await waitingIn(where);
    const text = JSON.stringify([where, waiting]);
    if (where !== current?.dead_letter_topic || text === shown) return; // an untouched link can be clicked on
    shown = text;
    places.replaceChildren(...(waiting === null ? [] : placesOf(where, waiting, renew)));
  };
  whileInSight(frame, renew);
  const show = (document_) => {
    const before = [current?.dead_letter_topic, givenUp];
    const policies = policiesOf(document_);
    current = policies.length === 1 ? policies[0] : (policies.find((each) => each !== null) ?? null);
    givenUp = document_.dead_letter_count ?? 0;
    setText(text, described(policies, givenUp));
    if (change) setText(change, current === null ? "Set policy…" : "Change policy…");
    if (clear) clear.hidden = current === null;
    if (current?.dead_letter_topic !== before[0] || givenUp !== before[1]) renew();
  };
  return { element: frame, show };
}

/** The policies that the nodes have, each once; null stands for none. */
function policiesOf(document_) {
  const parts = document_.nodes?.length ? document_.nodes : [document_];
  const byText = new Map(parts.map((part) => [JSON.stringify(part.policy ?? null), part.policy ?? null]));
  return [...byText.values()];
}

function described(policies, givenUp) {
  const said = policies.map(sentence);
  const count = givenUp > 0 ? ` ${format.counted(givenUp, "message")} so far.` : "";
  if (policies.length === 1) return policies[0] === null ? NO_POLICY : `${said[0]}${count}`;
  return `${DIFFERENT} ${said.join(" ")}${count}`;
}

function sentence(policy) {
  if (policy === null) return "No policy.";
  const { max_attempts: attempts, dead_letter_topic: topic } = policy;
  return `After ${format.counted(attempts, "delivery", "deliveries")} without success a message goes to topic ${topic}.`;
}

/** What waits in a topic, and in each of its channels; no channels if there is no such topic. */
async function waitingIn(topic) {
  try {
    const { topics } = await get(apiPath("topics"));
    if (!(topics ?? []).includes(topic)) return {};
    const { depth, channels } = await get(apiPath("topics", topic));
    return { depth, channels: (channels ?? []).map((each) => ({ name: each.channel_name, depth: each.depth })) };
  } catch (failure) {
    if (!(failure instanceof ApiError)) throw failure;
    return {};
  }
}

/** Where the dead letters wait, as links to where they can be looked at and sent back. */
function placesOf(topic, { depth, channels }, renew) {
  if (channels === undefined) return nothingYet(topic);
  if (channels.length === 0) return withoutChannel(topic, depth, renew);
  return [h("ul", { class: "plain" }, channels.map((channel) => place(topic, channel)))];
}

function nothingYet(topic) {
  return [h("p", { class: "hint" }, `Nothing has gone there yet: no node has topic ${topic}.`)];
}

function place(topic, { name, depth }) {
  return h(
    "li",
    {},
    h("a", { href: `${path("topics", topic, name)}#section-waiting-messages` }, `${topic} / ${name}`),
    label(`${format.counted(depth, "message")} waiting`, depth > 0 ? "warning" : null),
  );
}

function withoutChannel(topic, depth, renew) {
  const text = `${format.counted(depth, "message")} in topic `;
  const link = h("a", { href: path("topics", topic) }, topic);
  const make = button(`Create channel ${REVIEW}`, { permission: "create" }, async () => {
    if (await create(topic, REVIEW)) renew();
  });
  const hint = ", which has no channel yet: with one they can be looked at and sent back. ";
  return [h("p", { class: "hint" }, text, link, hint, make)];
}
