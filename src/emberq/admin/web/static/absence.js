/* Nodes that were there and are not. They stand above every page, with what they held: a node that vanished together
 * with its figures would look like work that was done. */

import { dismiss } from "./action.js";
import { apiPath, get, path } from "./api.js";
import { may } from "./config.js";
import { h, setAttribute } from "./dom.js";
import * as format from "./format.js";

let shown = "";

/** Asks for the absent nodes and shows them, on a page that no live view tells of them; `isMeant` says of which. */
export async function askForAbsent(refresh, isMeant = () => true) {
  const { nodes } = await get(apiPath("absent"));
  showAbsent({ absent: nodes.filter(isMeant) }, refresh);
}

/** Shows the absent nodes of a document; `refresh` is called when the reader has dismissed one. */
export function showAbsent({ absent = [], is_incomplete: isIncomplete = false }, refresh) {
  setAttribute(document.getElementById("main"), "data-incomplete", isIncomplete);
  const text = JSON.stringify(absent);
  if (text === shown) return; // what is read aloud is read once
  shown = text;
  document.getElementById("absent").replaceChildren(...absent.map((node) => notice(node, refresh)));
}

function notice(absence, refresh) {
  const { node, hostname, state, was_draining: wasDraining } = absence;
  const isGone = state === "gone";
  const name = hostname ? `${hostname} (${node})` : node;
  const button = h("button", { type: "button", class: "quiet", "aria-label": `Dismiss ${node}` }, "Dismiss");
  button.addEventListener("click", async () => (await dismiss(node)) && refresh());
  return h(
    "div",
    { class: "banner absence", "data-kind": isGone && !wasDraining ? "problem" : "warning", "data-node": node },
    h("p", {}, "Node ", h("a", { href: path("nodes") }, name), sentence(absence)),
    isGone && may("dismiss") ? button : null,
  );
}

/** What became of the node. One that was drained is gone because an operator wanted it. */
function sentence(absence) {
  const isGone = absence.state === "gone";
  if (isGone && absence.was_draining) return " was drained, and has stopped.";
  const heard = `It was last heard of at ${format.serverMoment(absence.since)}${held(absence)}.`;
  return isGone
    ? ` is gone. ${heard} Figures are without it.`
    : ` does not answer. ${heard} Until it answers, sums are without it, and charts have a gap.`;
}

/** What the node held, as far as it is known. */
function held({ depth, topic_count: topics, client_count: clients, held_here: here }) {
  if (depth === null || depth === undefined) return "";
  const parts = [
    `${format.counted(depth, "message")} in ${format.counted(topics, "topic")}`,
    typeof here === "number" ? `${format.integer(here)} of them here` : null,
    `and ${format.counted(clients, "consumer")}`,
  ];
  return ` with ${parts.filter(Boolean).join(", ")}`;
}
