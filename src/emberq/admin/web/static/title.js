/* The title of a topic's or a channel's page: whether it is paused, and what can be done to it.
 *
 * The buttons are there while the topic or channel is: from the first document on, until the cluster has it no more.
 */

import { deleteIt, empty, togglePause } from "./action.js";
import { setAttribute, setText } from "./dom.js";
import { button } from "./panel.js";

const state = document.getElementById("state");
const buttons = document.getElementById("title-buttons");
let pauseButton = null;
let figures = null;

/** Puts the buttons up that the reader may press; `more` are further ones: { label, permission, action(figures) }. They
 *  are offered by `offer`, when it is known that they make sense here.
 *
 *  An action resolves to whether it was done; then `refresh` is called. */
export function titleButtons({ topic, channel, refresh, more = [] }) {
  const then = (action) => async () => (await action({ topic, channel, figures })) && refresh();
  pauseButton = button(
    "Pause",
    { permission: "pause" },
    then((subject) => togglePause({ ...subject, isPaused: figures.paused })),
  );
  const offered = more.map(({ label, permission, action }) => button(label, { permission }, then(action)));
  for (const each of offered) if (each) each.hidden = true;
  const danger = "danger-quiet";
  const all = [
    pauseButton,
    ...offered,
    button("Empty…", { permission: "empty", kind: danger }, then(empty)),
    button("Delete…", { permission: "delete", kind: danger }, () => deleteIt({ topic, channel, figures })),
  ];
  buttons.append(...all.filter(Boolean));
  buttons.hidden = true;
}

/** Shows a button of `more` for as long as what it does makes sense. */
export function offer(label, isOffered) {
  const found = [...buttons.children].find((each) => each.textContent === label);
  if (found) setAttribute(found, "hidden", !isOffered);
}

/** The newest document: paused or not, and what the questions behind the buttons speak of. */
export function showTitle(document_) {
  figures = document_;
  setAttribute(buttons, "hidden", false);
  setAttribute(state, "hidden", !figures.paused);
  setText(state, "paused");
  if (pauseButton) setText(pauseButton, figures.paused ? "Unpause" : "Pause");
}

/** The cluster does not have it, or not any more. */
export function showMissing() {
  setAttribute(buttons, "hidden", true);
  setAttribute(state, "hidden", true);
}
