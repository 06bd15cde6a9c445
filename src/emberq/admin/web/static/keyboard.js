/* The keyboard:  / search   f find   j k rows   Enter open   g then t h x n c l p a u pages   d dark or light   ? this list */

import { path } from "./api.js";
import { h } from "./dom.js";
import { tables } from "./table.js";

const PAGES = { t: "topics", h: "channels", n: "nodes", c: "counter", l: "lookup", p: "pipelines", a: "alerts", x: "dead_letters", u: "audit" };
const SEQUENCE_MS = 1_000;
const HELP = [
  ["/", "Search this page"],
  ["f", "Find topics, channels, nodes, consumers"],
  ["j  k", "Next or previous row"],
  ["Enter", "Open the row"],
  ["Escape", "Leave the search field, close a dialog"],
  ["g t", "Topics"],
  ["g h", "Channels"],
  ["g x", "Dead letters"],
  ["g n", "Nodes"],
  ["g c", "Counter"],
  ["g l", "Lookup"],
  ["g p", "Pipelines"],
  ["g a", "Alerts"],
  ["g u", "Audit log"],
  ["d", "Dark or light"],
  ["?", "This list"],
];

let prefixedAt = -Infinity;

export function listenToKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (isTyping(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (act(event.key, event.timeStamp)) event.preventDefault();
  });
  document.querySelector("[data-show-keys]")?.addEventListener("click", showHelp);
}

/** `pressedAt` is when the key was pressed: a page that is busy may hear of it later. */
function act(key, pressedAt) {
  const isPrefixed = pressedAt - prefixedAt < SEQUENCE_MS;
  prefixedAt = -Infinity;
  if (isPrefixed && PAGES[key]) location.assign(path(PAGES[key]));
  else if (key === "g") prefixedAt = pressedAt;
  else if (key === "/") return focusOn("input[type=search]");
  else if (key === "f") return focusOn("#find");
  else if (key === "j" || key === "k") return moveRow(key === "j" ? 1 : -1);
  else if (key === "d") document.dispatchEvent(new CustomEvent("toggletheme"));
  else if (key === "?") showHelp();
  else return false;
  return true;
}

function focusOn(selector) {
  const field = document.querySelector(selector);
  field?.focus();
  field?.select();
  return field !== null;
}

function moveRow(step) {
  const table = tables.active ?? tables.find((each) => each.shownCount > 0);
  table?.moveFocus(step);
  return table !== undefined;
}

function showHelp() {
  const rows = HELP.map(([keys, meaning]) =>
    h("tr", {}, h("th", { scope: "row" }, keyCaps(keys)), h("td", {}, meaning)),
  );
  const close = h("button", { class: "primary" }, "Close");
  const dialog = h(
    "dialog",
    { "aria-labelledby": "keys-title" },
    h(
      "form",
      { method: "dialog" },
      h("h2", { id: "keys-title" }, "Keyboard"),
      h("table", { class: "keys" }, rows),
      h("div", { class: "dialog-buttons" }, close),
    ),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function keyCaps(keys) {
  return keys.split(/ +/).map((key) => h("kbd", {}, key));
}

function isTyping(element) {
  return element.matches("input, textarea, select, [contenteditable]");
}
