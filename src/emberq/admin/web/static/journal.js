/* The journal of a topic, node by node: what is kept, and how far each channel is. Asked for every few seconds, as
 * long as it is in sight. */

import { ApiError, apiPath, get } from "./api.js";
import { h } from "./dom.js";
import * as format from "./format.js";
import { section } from "./panel.js";
import { DataTable } from "./table.js";
import { figureColumn, nodeColumn } from "./column.js";

const RENEW_MS = 5_000;

/** Of the whole topic, or only of one channel. `begin` is to be called once it is known that there is such a topic. */
export function journalSection(topic, channel = null) {
  const journals = journalTable();
  const cursors = cursorTable();
  const status = h("p", { class: "hint" });
  const frame = section("Journal", {}, status, journals.element, cursors.element);
  const show = (nodes, text) => {
    status.textContent = text;
    journals.element.hidden = cursors.element.hidden = nodes.length === 0;
    journals.setRows(nodes);
    cursors.setRows(nodes.flatMap((node) => cursorsOf(node, channel)));
  };
  show([], "Looking for a journal…");
  const renew = async () => {
    try {
      const { nodes, message: warning } = await get(apiPath("topics", topic, "journal"));
      const kept = nodes ?? [];
      show(kept, kept.length ? KEPT : warning || NOT_KEPT);
    } catch (failure) {
      if (!(failure instanceof ApiError)) throw failure;
      show([], failure.status === 404 ? NOT_KEPT : failure.message);
    }
  };
  let hasBegun = false;
  const begin = () => {
    if (!hasBegun) whileInSight(frame, renew);
    hasBegun = true;
  };
  return { element: frame, begin };
}

const KEPT = "Messages are kept after delivery, by offset; a channel can be moved back to any of them.";
const NOT_KEPT = "This topic is not journaled: messages are gone once every channel is done with them.";

function journalTable() {
  return new DataTable({
    label: "Journal by node",
    noun: "journal",
    empty: "",
    key: (row) => row.node,
    sort: "node",
    columns: [
      nodeColumn,
      figureColumn("first_offset", "First offset"),
      figureColumn("next_offset", "Next offset"),
      figureColumn("synced_offset", "Synced", 3),
      {
        id: "kept",
        label: "Messages kept",
        isNumeric: true,
        value: keptCount,
        text: (row) => format.integer(keptCount(row)),
        priority: 2,
      },
      {
        id: "bytes",
        label: "Size",
        isNumeric: true,
        value: (row) => row.bytes ?? 0,
        text: (row) => format.bytes(row.bytes),
      },
      countColumn("segments", "Segments"),
      countColumn("gaps", "Gaps", "Damaged stretches, which readers pass over"),
      {
        id: "created",
        label: "Begun",
        value: (row) => row.created ?? "",
        text: (row) => format.moment(Date.parse(row.created)),
        priority: 3,
      },
    ],
  });
}

function cursorTable() {
  return new DataTable({
    label: "Channels in the journal",
    noun: "channel",
    empty: "No channel reads this journal yet.",
    key: (row) => `${row.channel_name} ${row.node}`,
    sort: "channel",
    columns: [
      { id: "channel", label: "Channel", value: (row) => row.channel_name, className: "name" },
      { id: "on", label: "Node", value: (row) => row.node, priority: 2 },
      figureColumn("low_water", "Done below"),
      figureColumn("lag", "Lag"),
    ],
  });
}

/** How many entries a list of the document has. */
function countColumn(id, label, title = null) {
  const count = (row) => (row[id] ?? []).length;
  return { id, label, title, priority: 3, isNumeric: true, value: count, text: (row) => format.integer(count(row)) };
}

function keptCount(row) {
  return (row.next_offset ?? 0) - (row.first_offset ?? 0);
}

function cursorsOf(node, channel) {
  return (node.channels ?? [])
    .filter((cursor) => channel === null || cursor.channel_name === channel)
    .map((cursor) => ({ ...cursor, node: node.node }));
}

/** Calls at once and then at intervals, but not while the element is out of sight or the tab is hidden. */
function whileInSight(element, action) {
  let isInSight = false;
  new IntersectionObserver((entries) => {
    const was = isInSight;
    isInSight = entries.at(-1).isIntersecting;
    if (isInSight && !was) action();
  }).observe(element);
  setInterval(() => isInSight && !document.hidden && action(), RENEW_MS);
}
