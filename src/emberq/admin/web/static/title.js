/* The title of a topic's or a channel's page: whether it is paused, and what can be done to it.
 *
 * The buttons are there while the topic or channel is: from the first document on, until the cluster has it no more.
 * They stand in the order of the harm they can do, and a list below them says of each what it would do now, in numbers.
 */

import { deleteIt, empty, hasJournal, togglePause } from "./action.js";
import * as consequence from "./consequence.js";
import { h, setAttribute, setText } from "./dom.js";
import { button, content, label } from "./panel.js";

/** How much harm an action can do, the least first. */
export const HARMS = {
  undone: { text: "can be undone", kind: "good" },
  moves: { text: "moves messages", kind: null },
  repeats: { text: "repeats or skips messages", kind: "warning" },
  skips: { text: "skips messages", kind: "warning" },
  final: { text: "cannot be undone", kind: "problem" },
  loses: { text: "loses messages", kind: "problem" },
};

const state = document.getElementById("state");
const buttons = document.getElementById("title-buttons");
let actions = [];
let figures = null;
/** Whether the messages stay in a journal; null while that is not known. */
let isJournaled = null;

/** Puts the buttons up that the reader may press; `more` are further ones: { label, permission, action(subject), harm,
 *  does(figures) }. They are offered by `offer`, when it is known that they make sense here.
 *
 *  An action resolves to whether it was done; then `refresh` is called. */
export function titleButtons({ topic, channel, refresh, more = [] }) {
  const then = (action) => async () => (await action({ topic, channel, figures })) && refresh();
  const danger = "danger-quiet";
  const lost = () => (isJournaled ? HARMS.skips : HARMS.loses);
  actions = [
    {
      label: "Pause",
      permission: "pause",
      run: then((subject) => togglePause({ ...subject, isPaused: figures.paused, refresh })),
      harm: () => HARMS.undone,
      does: () => consequence.ofPause({ channel, figures, isPaused: figures.paused }),
      isOffered: true,
    },
    ...more.map((each) => ({ ...each, run: then(each.action), harm: () => each.harm, isOffered: false })),
    {
      label: "Empty…",
      permission: "empty",
      kind: danger,
      run: then(empty),
      harm: lost,
      does: () => consequence.ofEmptying({ channel, figures, isJournaled }),
      isOffered: true,
    },
    {
      label: "Delete…",
      permission: "delete",
      kind: danger,
      run: () => deleteIt({ topic, channel, figures }),
      harm: () => (channel && isJournaled ? HARMS.final : HARMS.loses),
      does: () => consequence.ofDeleting({ channel, figures, isJournaled }),
      isOffered: true,
    },
  ].filter(putUp);
  buttons.hidden = true;
  if (actions.length > 0) putUpList(() => hasJournal(topic, channel));
}

/** Adds the button of an action; false if the reader may not press it. */
function putUp(action) {
  action.button = button(action.label, action, action.run);
  if (action.button) buttons.append(action.button);
  return action.button !== null;
}

/** The list of all actions, each with what it would do; filled when it is opened. */
function putUpList(findJournal) {
  for (const action of actions) {
    action.name = h("button", { type: "button", class: action.kind }, action.label);
    action.name.addEventListener("click", action.run);
    action.mark = label("");
    action.text = h("span", {});
    action.entry = h("li", {}, action.name, action.mark, action.text);
  }
  const rows = h("ul", { class: "plain" }, actions.map((action) => action.entry));
  const list = h("details", { id: "harms", class: "harms", hidden: true }, h("summary", {}, "What would they do?"), rows);
  list.addEventListener("toggle", async () => {
    if (!list.open) return;
    showList();
    isJournaled ??= await findJournal();
    showList();
  });
  buttons.closest(".title").after(list);
}

function showList() {
  const list = document.getElementById("harms");
  if (!list?.open || figures === null) return;
  for (const action of actions) {
    const { text, kind } = action.harm();
    setAttribute(action.entry, "hidden", !action.isOffered);
    setText(action.name, action.button.textContent);
    setText(action.mark, text);
    setAttribute(action.mark, "data-kind", kind);
    setText(action.text, [action.does(figures)].flat().filter(Boolean).join(" "));
  }
}

/** Shows a button of `more` for as long as what it does makes sense. */
export function offer(label_, isOffered) {
  const found = actions.find((each) => each.label === label_);
  if (found === undefined) return;
  found.isOffered = isOffered;
  show();
}

/** The newest document: paused or not, and what the questions behind the buttons speak of. */
export function showTitle(document_) {
  figures = document_;
  content.hidden = false;
  setAttribute(buttons, "hidden", false);
  setAttribute(state, "hidden", !figures.paused);
  setText(state, "paused");
  const pause = actions.find((each) => each.label === "Pause");
  if (pause) setText(pause.button, figures.paused ? "Unpause" : "Pause");
  show();
}

/** The cluster does not have it, or not any more: then nothing on the page is true, or can be done. */
export function showMissing() {
  content.hidden = true;
  setAttribute(buttons, "hidden", true);
  setAttribute(state, "hidden", true);
  figures = null;
  show();
}

function show() {
  for (const action of actions) setAttribute(action.button, "hidden", !action.isOffered);
  const list = document.getElementById("harms");
  if (list) setAttribute(list, "hidden", figures === null);
  showList();
}
