/* The title of a topic's or a channel's page: whether it is paused, and what can be done to it. */

import { deleteIt, empty, togglePause } from "./action.js";
import { setAttribute, setText } from "./dom.js";
import { button } from "./panel.js";

const state = document.getElementById("state");
const buttons = document.getElementById("title-buttons");
let pauseButton = null;
let isPaused = false;

/** Puts the buttons up that the reader may press; `more` are further ones: [label, permission, action].
 *
 *  An action resolves to whether it was done; then `refresh` is called. */
export function titleButtons({ topic, channel, refresh, more = [] }) {
  const then = (action) => async () => (await action()) && refresh();
  pauseButton = button("Pause", { permission: "pause" }, then(() => togglePause({ topic, channel, isPaused })));
  const danger = "danger-quiet";
  const all = [
    pauseButton,
    ...more.map(([label, permission, action]) => button(label, { permission }, then(action))),
    button("Empty…", { permission: "empty", kind: danger }, then(() => empty({ topic, channel }))),
    button("Delete…", { permission: "delete", kind: danger }, () => deleteIt({ topic, channel })),
  ];
  buttons.append(...all.filter(Boolean));
}

/** Paused or not. */
export function showState(paused) {
  isPaused = paused;
  setAttribute(state, "hidden", !isPaused);
  setText(state, "paused");
  if (pauseButton) setText(pauseButton, isPaused ? "Unpause" : "Pause");
}
