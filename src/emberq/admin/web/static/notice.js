/* What the page has to say: a banner for as long as something is wrong, a note in the corner for what was just done. */

import { ApiError } from "./api.js";
import { h, setAttribute, setText } from "./dom.js";

const NOTE_MS = 6_000;
/** A note that can be answered stays until the reader has had the time for it. */
const ANSWERABLE_NOTE_MS = 30_000;
const KEPT_NOTES = "notes";

/** Shows a partial failure or a problem above the content, or takes it away for "". */
export function banner(kind, text) {
  const element = document.getElementById("banner");
  setAttribute(element, "hidden", text === "");
  setAttribute(element, "data-kind", kind);
  setText(element, text);
}

/** Does the work; what the server has against it stands above the content. */
export async function orBanner(work) {
  try {
    await work();
  } catch (failure) {
    if (!(failure instanceof ApiError)) throw failure;
    banner("problem", failure.message);
  }
}

/** A document's own warning: some nodes did not answer, the figures are those of the others. Of nodes that are known to
 *  be silent the page says so anyway (see absence.js). */
export function warn({ message = "", absent = [] }) {
  const known = absent.filter(({ state }) => state === "silent").map(({ node }) => node);
  const isKnown = (problem) => known.some((node) => problem.includes(`//${node}/`));
  const problems = message.replace(/^WARNING: /, "").split("; ");
  const warning = problems.filter((problem) => !isKnown(problem)).join("; ");
  banner("warning", warning && `Some of the cluster did not answer; figures are incomplete. ${warning}`);
}

/** Says what was done, or why it was not. `undo`, a function, is offered as a button. */
export function note(text, kind = "done", { undo = null } = {}) {
  const region = document.getElementById("notes");
  const close = h("button", { type: "button", class: "quiet", "aria-label": "Dismiss" }, "×");
  const back = undo && h("button", { type: "button", class: "undo" }, "Undo");
  const element = h("div", { class: "note", "data-kind": kind }, h("span", {}, text), back, close);
  close.addEventListener("click", () => element.remove());
  back?.addEventListener("click", () => {
    element.remove();
    undo();
  });
  region.append(element);
  if (kind === "done") setTimeout(() => element.remove(), undo ? ANSWERABLE_NOTE_MS : NOTE_MS);
}

/** The same on the page that is opened next: what was done leads away from this one. */
export function noteOnNextPage(text, kind = "done") {
  sessionStorage.setItem(KEPT_NOTES, JSON.stringify([...keptNotes(), { text, kind }]));
}

/** Says what the page before has left to be said. */
export function showKeptNotes() {
  const kept = keptNotes();
  sessionStorage.removeItem(KEPT_NOTES);
  for (const { text, kind } of kept) note(text, kind);
}

function keptNotes() {
  return JSON.parse(sessionStorage.getItem(KEPT_NOTES) ?? "[]");
}
