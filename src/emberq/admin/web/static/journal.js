/* The journal of a topic, node by node: what is kept, and how far each channel is. Asked for every few seconds, as
 * long as it is in sight. */

import { ApiError, apiPath, get, path } from "./api.js";
import { countColumn, figureColumn, nameColumn, nodeColumn } from "./column.js";
import { h } from "./dom.js";
import * as format from "./format.js";
import { section, whileInSight } from "./panel.js";
import { DataTable } from "./table.js";

/** Of the whole topic, or only of one channel. `begin` is to be called once it is known that there is such a topic. */
export function journalSection(topic, channel = null) {
  const journals = journalTable();
  const cursors = cursorTable(topic);
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
      const { nodes, message: warning } = await get(apiPath("journal", topic));
      const kept = nodes ?? [];
      const problems = kept.filter((row) => row.problem).map((row) => `${row.node}: ${row.problem}`);
      show(kept, kept.length ? [KEPT, ...problems].join(" ") : warning || NOT_KEPT);
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

/** The journals of a topic, one for each node that keeps one; none if that cannot be found out. */
export async function journalsOf(topic) {
  try {
    const { nodes } = await get(apiPath("journal", topic));
    return nodes ?? [];
  } catch (failure) {
    if (!(failure instanceof ApiError)) throw failure;
    return [];
  }
}

/** Whether a channel has a place in a journal; ephemeral ones have none. */
export function hasCursor(journal, channel) {
  return cursorsOf(journal, channel).length > 0;
}

const KEPT =
  "Messages are kept after delivery, by offset; a channel can be moved back to any of them. For how long is said when " +
  "nsqd is started (--journal-retention-time, --journal-retention-bytes, --journal-max-bytes), and cannot be changed here.";
const NOT_KEPT = "This topic is not journaled: messages are gone once every channel is done with them.";

const SYNC =
  "When a publish is confirmed: always: when it is on the disk; interval, never: when the operating system has it";

const STATE = "A journal takes no messages after a failed sync, and on a disk that was full when nsqd was started";

const RETENTION = "What is older, or more than that, goes once every channel has passed it";

function journalTable() {
  return new DataTable({
    label: "Journal by node",
    noun: "journal",
    empty: "",
    key: (row) => row.node,
    sort: "node",
    columns: [
      nodeColumn,
      { id: "state", label: "State", value: (row) => (row.problem ? "takes no messages" : "well"), title: STATE },
      figureColumn("first_offset", "First offset", 3),
      figureColumn("next_offset", "Next offset", 2),
      figureColumn("synced_offset", "On disk below", 4),
      {
        id: "kept",
        label: "Messages",
        isNumeric: true,
        value: keptCount,
        text: (row) => format.integer(keptCount(row)),
      },
      {
        id: "bytes",
        label: "Size",
        isNumeric: true,
        value: (row) => row.bytes ?? 0,
        text: (row) => format.bytes(row.bytes),
      },
      momentColumn("oldest", "Oldest message", 2),
      momentColumn("newest", "Newest message", 3),
      momentColumn("created", "Begun", 4),
      countColumn("segments", "Files", { priority: 3 }),
      countColumn("gaps", "Gaps", { priority: 3, title: "Damaged stretches, which readers pass over" }),
      { id: "sync", label: "Sync", value: (row) => row.sync ?? "–", title: SYNC, priority: 3 },
      { id: "retention", label: "Retention", value: retentionOf, title: RETENTION },
    ],
  });
}

function cursorTable(topic) {
  const name = (row) => row.channel_name;
  return new DataTable({
    label: "Channels in the journal",
    noun: "channel",
    empty: "No channel reads this journal yet.",
    key: (row) => `${name(row)} ${row.node}`,
    sort: "channel",
    columns: [
      nameColumn({ id: "channel", label: "Channel", name, href: (row) => path("topics", topic, name(row)) }),
      { id: "on", label: "Node", value: (row) => row.node },
      figureColumn("low_water", "Done below", 2),
      figureColumn("lag", "Lag"),
    ],
  });
}

/** A time straight from the document, in RFC 3339. */
function momentColumn(id, label, priority = null) {
  return { id, label, priority, value: (row) => row[id] ?? "", text: (row) => format.moment(Date.parse(row[id])) };
}

/** `24 h`, `10.0 MB`, `24 h or 10.0 MB`; an nsqd that does not say is an older one. */
function retentionOf({ retention }) {
  if (!retention) return "–";
  const limits = [
    retention.time_ms === null ? null : format.period(retention.time_ms),
    retention.bytes === null ? null : format.bytes(retention.bytes),
  ].filter(Boolean);
  return limits.join(" or ") || "everything";
}

function keptCount(row) {
  return (row.next_offset ?? 0) - (row.first_offset ?? 0);
}

function cursorsOf(node, channel) {
  return (node.channels ?? [])
    .filter((cursor) => channel === null || cursor.channel_name === channel)
    .map((cursor) => ({ ...cursor, node: node.node }));
}
