/* The settings of all nodes, option by option, and in which of them nodes differ. */

import { askForAbsent } from "./absence.js";
import { apiPath, get } from "./api.js";
import { h, setText } from "./dom.js";
import { exportButtons } from "./export.js";
import * as format from "./format.js";
import { orBanner, warn } from "./notice.js";
import { content, filterField, label, loaded, searchField, section } from "./panel.js";
import { DataTable } from "./table.js";

const FILTERS = {
  all: { label: "All options", admits: () => true },
  differing: { label: "Where nodes differ", admits: (option) => differs(option) },
  surprising: {
    label: "Where they should not",
    admits: (option) => differs(option) && !option.is_own,
  },
};

export async function start() {
  const table = settingTable();
  const count = h("span", { class: "count" });
  const controls = [
    count,
    searchField(table, "options"),
    filterField(table, "Which options", FILTERS),
    exportButtons(table, "nsq-settings"),
  ];
  const note =
    "Addresses, folders and places are each node’s own. A value is given as nsqd’s /config tells it; durations in ns. " +
    "nsqd takes its settings when it is started: limits (topic_limits) and retention (journal_…) cannot be changed here.";
  content.append(section("Settings of all nodes", { controls, note }, table.element));
  await orBanner(async () => {
    const document_ = await get(apiPath("settings"));
    warn(document_);
    table.setRows(document_.options);
    const surprising = document_.options.filter(FILTERS.surprising.admits).length;
    const differing = surprising === 0 ? "none differs" : `${format.counted(surprising, "option")} differ`;
    setText(count, `${format.counted(document_.nodes.length, "node")}, ${differing}`);
    await askForAbsent(() => location.reload());
  });
  loaded();
}

function differs({ values }) {
  return values.length > 1;
}

function settingTable() {
  return new DataTable({
    label: "Settings",
    noun: "option",
    empty: "No node tells its settings.",
    key: ({ option }) => option,
    sort: "option",
    remembersInAddress: true,
    columns: [
      { id: "option", label: "Option", value: ({ option }) => option, isSearched: true, paint: paintOption },
      { id: "value", label: "Most nodes", value: ({ values }) => written(values[0].value), isSearched: true },
      { id: "others", label: "Others", value: others, isSearched: true },
    ],
  });
}

function paintOption(cell, option) {
  const name = cell.firstElementChild ?? cell.appendChild(h("code", {}));
  setText(name, option.option);
  const mark = cell.querySelector(".label");
  if (differs(option) && !option.is_own && mark === null) cell.append(label("differs", "warning"));
  if (!differs(option) || option.is_own) mark?.remove();
}

function others({ values }) {
  return values.slice(1).map(({ value, nodes }) => `${written(value)} on ${format.listed(nodes)}`).join("; ");
}

/** A value as it is read by people; an option that the node does not have is null. */
function written(value) {
  if (value === null) return "not there";
  if (value === "") return "(empty)";
  return typeof value === "string" ? value : JSON.stringify(value);
}
