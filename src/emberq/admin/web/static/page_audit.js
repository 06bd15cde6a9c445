/* The audit log: who did what, on what, how many messages it was about, and what came of it.
 *
 * The server filters, because the log is long; what is filtered by stands in the page's address. The search field then
 * narrows what is shown. */

import { askForAbsent } from "./absence.js";
import { ApiError, apiPath, get, newest, path } from "./api.js";
import { h, setText } from "./dom.js";
import { exportButtons } from "./export.js";
import * as format from "./format.js";
import { banner, orBanner } from "./notice.js";
import { button, content, label, loaded, searchField, section } from "./panel.js";
import { DataTable, rememberInAddress } from "./table.js";

const FIELDS = [
  { id: "user", label: "User" },
  { id: "action", label: "Action", placeholder: "pause_*" },
  { id: "topic", label: "Topic", placeholder: "orders*" },
  { id: "since", label: "From", type: "datetime-local" },
  { id: "until", label: "Until before", type: "datetime-local" },
];
const FIRST_COUNT = 500;
const MAX_COUNT = 5_000;
const KINDS = { done: "good", failed: "problem", refused: "warning" };

export function start() {
  const table = lineTable();
  const count = h("span", { class: "count", role: "status" });
  const about = h("p", { class: "hint" });
  const form = filterForm();
  const more = button("Show older lines", {}, () => show(MAX_COUNT));
  const ask = newest((query) => get(`${apiPath("audit")}?${query}`));
  const show = async (most) => {
    try {
      const answer = await ask(new URLSearchParams({ count: most, ...filterIn(form) }));
      if (answer === null) return;
      const { lines, has_more: hasMore, has_file: hasFile } = answer;
      table.setRows(lines.map((line, index) => ({ ...line, index })));
      setText(count, `${hasMore ? "the newest " : ""}${format.counted(lines.length, "line")}`);
      setText(about, hasFile ? WITH_FILE : WITHOUT_FILE);
      more.hidden = !hasMore || most === MAX_COUNT;
      banner("warning", "");
    } catch (failure) {
      if (!(failure instanceof ApiError)) throw failure;
      banner("problem", failure.status === 403 ? "Only users with the role admin may see the audit log." : failure.message);
    }
    loaded();
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const filter = filterIn(form);
    for (const { id } of FIELDS) rememberInAddress(id, filter[id]);
    show(FIRST_COUNT);
  });
  more.hidden = true;
  const controls = [count, searchField(table, "lines"), exportButtons(table, "nsqadmin-audit")];
  content.append(section("What was done", { controls }, about, form, table.element, more));
  show(FIRST_COUNT);
  orBanner(() => askForAbsent(() => location.reload()));
}

const WITH_FILE = "Every action, also those that failed or were refused, logins and peeks; in a field * stands for any characters.";
const WITHOUT_FILE = `${WITH_FILE} Only the last lines since nsqadmin was started: with --audit-log-file they are kept.`;

function filterForm() {
  const given = new URLSearchParams(location.search);
  const fields = FIELDS.map(({ id, label: text, type = "text", placeholder = null }) => {
    const control = `audit-${id}`;
    const said = given.get(id) ?? "";
    const value = type === "text" ? said : localTime(said);
    const field = h("input", { id: control, name: id, type, placeholder, value, autocomplete: "off", spellcheck: "false" });
    return h("div", { class: "field" }, h("label", { for: control }, text), field);
  });
  return h("form", { class: "inline peek" }, fields, h("button", { type: "submit" }, "Show"));
}

/** What stands in the fields, as the server wants to be asked. */
function filterIn(form) {
  const filled = [...new FormData(form)].map(([id, value]) => [id, value.trim()]).filter(([, value]) => value !== "");
  const isTime = (id) => id === "since" || id === "until";
  return Object.fromEntries(filled.map(([id, value]) => [id, isTime(id) ? new Date(value).toISOString() : value]));
}

/** A moment as the field wants it: in the reader's time zone, to the minute. */
function localTime(text) {
  const milliseconds = Date.parse(text);
  return Number.isNaN(milliseconds) ? "" : format.moment(milliseconds).slice(0, 16).replace(" ", "T");
}

function lineTable() {
  const text = (id, label_, value, priority = null) => ({ id, label: label_, value, isSearched: true, priority });
  return new DataTable({
    label: "Audit log",
    noun: "line",
    empty: "No such line.",
    key: ({ index }) => String(index),
    sort: "-time",
    remembersInAddress: true,
    columns: [
      { ...text("time", "Time", ({ time }) => time), text: ({ time }) => format.moment(Date.parse(time)) },
      { ...text("user", "User", userText), text: userText },
      text("action", "Action", ({ action }) => action ?? ""),
      { ...text("of", "Of", ofText), className: "name", paint: paintOf },
      {
        id: "count",
        label: "Messages",
        title: "How many messages were dropped, moved or shown, where that is known",
        isNumeric: true,
        value: ({ count }) => count ?? -1,
        text: ({ count }) => (count === undefined ? "" : format.integer(count)),
      },
      { ...text("outcome", "Result", ({ outcome }) => outcome ?? ""), paint: paintOutcome },
      { ...text("message", "Details", detailText, 2), className: "detail" },
      text("remote", "Address", ({ remote }) => remote ?? "", 4),
    ],
  });
}

function detailText({ detail, message }) {
  return [detail, message].filter(Boolean).join("; ");
}

function userText({ user, is_known: isKnown }) {
  if (!user) return "";
  return isKnown === false ? `${user} (not proved)` : user;
}

function ofText({ topic, channel, node }) {
  const what = [topic, channel].filter(Boolean).join(" / ");
  return [what, node].filter(Boolean).join(" on ");
}

function paintOf(cell, line) {
  const { topic, channel, node } = line;
  const place = topic ? ["topics", topic, channel].filter(Boolean) : node ? ["nodes", node] : null;
  cell.replaceChildren(place === null ? "" : h("a", { href: path(...place) }, ofText(line)));
}

function paintOutcome(cell, { outcome = "" }) {
  cell.replaceChildren(label(outcome, KINDS[outcome] ?? null));
}
