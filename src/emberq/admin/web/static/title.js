/* The title of a topic's or a channel's page: whether it is paused, and what can be done to it. */

import { setAttribute, setText } from "./dom.js";
import { button } from "./panel.js";

const state = document.getElementById("state");
const buttons = document.getElementById("title-buttons");
let pauseButton = null;

/** Puts the buttons up that the reader may press; `more` are further ones: [label, permission, action]. */
export function titleButtons({ togglePause, empty, deleteIt, more = [] }) {
  pauseButton = button("Pause", { permission: "pause" }, togglePause);
  const all = [
    pauseButton,
    ...more.map(([label, permission, action]) => button(label, { permission }, action)),
    button("Empty…", { permission: "empty", kind: "danger-quiet" }, empty),
    button("Delete…", { permission: "delete", kind: "danger-quiet" }, deleteIt),
  ];
  buttons.append(...all.filter(Boolean));
}

/** Paused or not. */
export function showState(isPaused) {
  setAttribute(state, "hidden", !isPaused);
  setText(state, "paused");
  if (pauseButton) setText(pauseButton, isPaused ? "Unpause" : "Pause");
}
