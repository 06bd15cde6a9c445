/* Dead letters in the whole cluster: every channel that gives up on messages, and where these wait. There they can be
 * looked at and sent back. */

import { create, redrive } from "./action.js";
import { path } from "./api.js";
import { deadLetterColumn, figureColumn, nameColumn, oldestColumn } from "./column.js";
import { may } from "./config.js";
import { REVIEW } from "./dead_letter.js";
import { h, setAttribute, setText } from "./dom.js";
import { exportButtons } from "./export.js";
import { follow } from "./follow.js";
import * as format from "./format.js";
import { content, filterField, searchField, section } from "./panel.js";
import { DataTable, linkCell } from "./table.js";

const FILTERS = {
  all: { label: "All channels", admits: () => true },
  waiting: { label: "With letters waiting", admits: ({ waiting }) => waiting > 0 },
  now: { label: "Giving up now", admits: (row) => row.dead_letter_rate > 0 },
};
const EMPTY =
  "No channel gives up on messages. A channel does so by a policy, which is set on its page: after how many deliveries " +
  "a message goes to which topic.";
const NOTE =
  "Channels that share a dead-letter topic share what waits there. A redrive says what it would do before it is done.";

export function start() {
  const table = letterTable((action, row) => act(action, row, () => live.refresh()));
  const count = h("span", { class: "count" });
  const live = follow("dead_letters", {}, ({ dead_letters: rows }) => {
    table.setRows(rows);
    const places = new Map(rows.map((row) => [placeName(row), row.waiting]));
    const waiting = [...places.values()].reduce((all, each) => all + each, 0);
    setText(count, `${format.counted(waiting, "message")} waiting`);
  });
  const controls = [
    count,
    searchField(table, "channels"),
    filterField(table, "Which channels", FILTERS),
    exportButtons(table, "nsq-dead-letters"),
  ];
  content.append(section("Channels that give up", { controls, note: NOTE }, table.element));
}

async function act(action, row, refresh) {
  const { dead_letter_topic: topic, place: channel, waiting: depth } = row;
  const isDone = action === "create" ? await create(topic, REVIEW) : await redrive({ topic, channel, figures: { depth } });
  if (isDone) refresh();
}

const placeName = ({ dead_letter_topic: topic, place }) => (place ? `${topic} / ${place}` : topic);
const placeHref = ({ dead_letter_topic: topic, place }) =>
  place ? `${path("topics", topic, place)}#section-waiting-messages` : path("topics", topic);
const placeLink = linkCell(placeHref, placeName);

function letterTable(onAction) {
  return new DataTable({
    label: "Dead letters",
    noun: "channel",
    empty: EMPTY,
    key: (row) => `${row.topic_name} ${row.channel_name} ${placeName(row)}`,
    sort: "-waiting",
    remembersInAddress: true,
    onAction,
    columns: [
      nameColumn({
        label: "Topic / channel",
        name: (row) => `${row.topic_name} / ${row.channel_name}`,
        href: (row) => path("topics", row.topic_name, row.channel_name),
      }),
      { ...deadLetterColumn, priority: null },
      figureColumn("dead_letter_count", "Given up", 3),
      {
        id: "attempts",
        label: "After",
        title: "Deliveries before the channel gives up",
        isNumeric: true,
        priority: 4,
        value: ({ max_attempts: attempts }) => attempts ?? -1,
        text: ({ max_attempts: attempts }) => format.integer(attempts),
      },
      { id: "place", label: "Kept in", className: "name", isSearched: true, value: placeName, paint: paintPlace },
      {
        ...figureColumn("waiting", "Waiting"),
        title: "Messages that wait there, also those of other channels with the same dead-letter topic",
      },
      { ...oldestColumn, priority: 2 },
      { id: "actions", label: "Actions", isUnsortable: true, isSilent: true, className: "row-action", value: () => "", paint: paintActions },
    ],
  });
}

function paintPlace(cell, row) {
  if (row.dead_letter_topic) return placeLink(cell, row);
  return cell.replaceChildren("no policy any more");
}

function paintActions(cell, row) {
  const offered = offer(row);
  setAttribute(cell, "data-offered", offered.map(([action]) => action).join(" "));
  if (cell.dataset.painted === cell.dataset.offered + placeName(row)) return;
  cell.dataset.painted = cell.dataset.offered + placeName(row);
  cell.replaceChildren(
    ...offered.map(([action, text]) =>
      action === "peek"
        ? h("a", { href: placeHref(row), "aria-label": `Peek into ${placeName(row)}` }, text)
        : h("button", { type: "button", class: "quiet", "data-action": action, "aria-label": `${text} ${placeName(row)}` }, text),
    ),
  );
}

/** What can be done with what waits in a place. */
function offer({ place, dead_letter_topic: topic, waiting }) {
  if (waiting === 0 || !topic) return [];
  if (!place) return may("create") ? [["create", `Create channel ${REVIEW}`]] : [];
  return [may("peek") && ["peek", "Peek"], may("redrive") && ["redrive", "Redrive…"]].filter(Boolean);
}
