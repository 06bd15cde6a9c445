/* What can be done to all rows that a table shows: the reader narrows the list by search and filter, and acts once.
 *
 * The rows are those of the moment in which the button was pressed; the question names them and says what would happen.
 * Pausing and unpausing can be taken back; emptying wants the number of rows typed in.
 */

import { actOn } from "./action.js";
import * as consequence from "./consequence.js";
import { ask, confirm } from "./dialog.js";
import { h, setAttribute, setText } from "./dom.js";
import { counted } from "./format.js";
import { button } from "./panel.js";

/** Buttons for all rows that the table shows; `noun` is `channel` or `topic`. `update` is to be called when the rows may
 *  have changed. */
export function bulkActions(table, { noun, refresh, canEmpty = false }) {
  const count = h("span", { class: "hint" });
  const act = (verb) => async () => {
    const rows = rowsFor(verb, table.shownRows);
    if (rows.length > 0 && (await isWanted(verb, rows, noun))) await perform(verb, rows, refresh);
  };
  const offered = [
    ["Pause", { permission: "pause" }],
    ["Unpause", { permission: "pause" }],
    ...(canEmpty ? [["Empty", { permission: "empty", kind: "danger-quiet" }]] : []),
  ];
  const buttons = new Map(
    offered.map(([verb, options]) => [verb, button(`${verb} all…`, options, act(verb))]).filter(([, each]) => each),
  );
  const element = h("div", { class: "bulk", role: "group", "aria-label": "All that are shown" }, count, [
    ...buttons.values(),
  ]);
  const update = () => {
    const rows = table.shownRows;
    setText(count, `${counted(rows.length, noun)} shown:`);
    for (const [verb, each] of buttons) setAttribute(each, "disabled", rowsFor(verb, rows).length === 0);
    setAttribute(element, "hidden", buttons.size === 0);
  };
  table.onArrange = update;
  update();
  return element;
}

/** Those of the rows that would be changed by it. */
function rowsFor(verb, rows) {
  if (verb === "Pause") return rows.filter((row) => !row.paused);
  if (verb === "Unpause") return rows.filter((row) => row.paused);
  return rows.filter((row) => row.depth + (row.in_flight_count ?? 0) + (row.deferred_count ?? 0) > 0);
}

async function isWanted(verb, rows, noun) {
  const title = `${verb} ${counted(rows.length, noun)}?`;
  const explanation = consequence.ofMany(verb, rows, noun);
  if (verb !== "Empty") return confirm({ title, explanation, verb });
  const check = { id: "number", label: `Type how many ${noun}s`, mustBe: String(rows.length) };
  return ask({ title, explanation, verb, fields: [check], isDangerous: true });
}

async function perform(verb, rows, refresh) {
  const targets = rows.map((row) => ({ topic: row.topic_name, channel: row.channel_name ?? "" }));
  const opposite = { Pause: "Unpause", Unpause: "Pause" }[verb];
  const undo = opposite ? async () => (await actOn(opposite, targets)) && refresh() : null;
  if (await actOn(verb, targets, { undo })) refresh();
}
