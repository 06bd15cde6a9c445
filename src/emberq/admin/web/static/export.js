/* What a table shows, as a file: the rows that search and filter leave, in the order in which they stand. */

import { h } from "./dom.js";

/** What a spreadsheet would take for a formula. */
const FORMULA = /^[=+\-@\t\r]/;

/** Two buttons that download the rows of a table: as CSV what its columns say, as JSON what the server told. */
export function exportButtons(table, name) {
  const offer = (kind, type, write) => {
    const title = `Download the rows shown as ${kind}`;
    const button = h("button", { type: "button", class: "quiet", title, "aria-label": title }, kind);
    button.addEventListener("click", () => download(`${name}.${kind.toLowerCase()}`, type, write()));
    return button;
  };
  return h(
    "span",
    { class: "exports" },
    offer("CSV", "text/csv", () => csv(table)),
    offer("JSON", "application/json", () => JSON.stringify(table.shownRows, null, 2)),
  );
}

function csv(table) {
  const columns = table.columns.filter((column) => !column.isUnsortable);
  const lines = [columns.map((column) => column.label), ...table.shownRows.map((row) => columns.map((each) => each.value(row)))];
  return lines.map((line) => line.map(cell).join(",")).join("\r\n") + "\r\n";
}

function cell(value) {
  if (typeof value === "number") return String(value);
  const text = String(value ?? "");
  const harmless = FORMULA.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(harmless) ? `"${harmless.replaceAll('"', '""')}"` : harmless;
}

function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
