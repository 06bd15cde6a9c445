/* A table that stays quick however many rows it has.
 *
 * Only the rows in sight exist as elements, and a few on either side of them; two spacers stand for the rest:
 *
 *     <tbody>  spacer of 412 rows | rows 412 … 451 | spacer of 548 rows  </tbody>
 *
 * All rows are equally high, so which are in sight follows from the scroll position alone. New figures touch only
 * cells whose text changed. One listener serves all rows. While the pointer or the focus is on the rows they keep
 * their places, whatever the figures do: a row must not slip away from under a click.
 *
 * Every cell holds a <div>, in which a long name can make room for what stands beside it; that is what is painted.
 *
 * A column: { id, label, value(row), text(row)?, paint(cell, row)?, isNumeric?, priority?, isSearched?, title? }
 * where `value` is what is sorted by, `text` what is shown (or `paint`, for cells that are more than text), and
 * columns of priority 2, 3 and 4 make room on narrow screens. Those of priority 5 are shown when the reader wants all.
 */

import { h, setAttribute, setText } from "./dom.js";
import { counted } from "./format.js";

const OVERSCAN = 8;
/** So few are all there: the browser's own search finds them, and paper shows them. */
const SMALL_COUNT = 60;
/** The page's header, which covers the topmost rows in sight. */
const COVERED_PX = 100;

export class DataTable {
  #columns;
  #key;
  #noun;
  #empty;
  #remembersInAddress;
  #rows = [];
  #shown = [];
  #elements = new Map();
  #painted = new WeakMap();
  #positions = new Map();
  #words = [];
  #predicate = () => true;
  #sort;
  #isHeld = false;
  #isScheduled = false;
  #current = null;
  #rowHeight = 0;
  #parts;

  /** `sort` is the column's id, with a minus in front for descending. */
  constructor({ label, columns, key, noun, empty, sort, remembersInAddress = false, onAction = () => {} }) {
    this.#columns = columns;
    this.#key = key;
    this.#noun = noun;
    this.#empty = empty;
    this.#remembersInAddress = remembersInAddress;
    const remembered = remembersInAddress ? new URLSearchParams(location.search).get("sort") : null;
    this.#sort = parseSort(remembered ?? sort, columns);
    this.#parts = this.#build(label);
    this.element = this.#parts.root;
    this.#listen(onAction);
    this.#showSort();
    tables.push(this);
  }

  /** Called whenever other rows are shown, or the same with other figures. */
  onArrange = () => {};

  /** What each row is told by. */
  get columns() {
    return this.#columns;
  }

  get shownCount() {
    return this.#shown.length;
  }

  /** The rows that search and filter leave, in sight or not. */
  get shownRows() {
    return [...this.#shown];
  }

  /** New figures for all rows. */
  setRows(rows) {
    this.#rows = rows;
    this.#arrange();
  }

  /** Shows only rows that contain every word of the text. */
  search(text) {
    this.#words = text.toLowerCase().split(/\s+/).filter(Boolean);
    this.#positions.clear();
    this.#arrange();
  }

  /** Shows only rows of which this is true. */
  filter(predicate) {
    this.#predicate = predicate;
    this.#positions.clear();
    this.#arrange();
  }

  /** Moves the focus to the next row, or by -1 to the one before. */
  moveFocus(step) {
    if (this.#shown.length === 0) return;
    const from = this.#shown.findIndex((row) => this.#key(row) === this.#current);
    const index = from < 0 ? 0 : Math.min(Math.max(from + step, 0), this.#shown.length - 1);
    this.#current = this.#key(this.#shown[index]);
    this.#bringIntoSight(index);
    this.#render();
    const row = this.#elements.get(this.#current);
    (row.querySelector("a, button") ?? row).focus({ preventScroll: true });
  }

  #build(label) {
    const header = h("tr", {});
    for (const column of this.#columns) header.append(heading(column));
    const head = h("thead", {}, header);
    const above = h("tr", { class: "spacer", "aria-hidden": "true" });
    const below = h("tr", { class: "spacer", "aria-hidden": "true" });
    const body = h("tbody", {}, above, below);
    const table = h("table", { class: "data", "aria-label": label }, head, body);
    const note = h("p", { class: "empty", hidden: true });
    const more = h("button", { type: "button", class: "quiet all-columns", "aria-pressed": "false" }, "All columns");
    const hasMore = this.#columns.some((column) => column.priority === 5);
    const root = h("div", { class: hasMore ? "table-frame has-more" : "table-frame" }, more, h("div", { class: "table-scroll" }, table), note);
    return { root, table, head, body, above, below, note, more };
  }

  #listen(onAction) {
    const { root, head, body, more } = this.#parts;
    head.addEventListener("click", (event) => {
      const cell = event.target.closest("th[data-column]");
      if (cell) this.#sortBy(cell.dataset.column);
    });
    body.addEventListener("click", (event) => {
      const button = event.target.closest("button[data-action]");
      if (button) onAction(button.dataset.action, this.#rowOf(button));
    });
    body.addEventListener("focusin", (event) => {
      this.#current = event.target.closest("tr")?.dataset.key ?? null;
      tables.active = this;
    });
    const hold = (isHeld) => () => (this.#isHeld = isHeld);
    body.addEventListener("pointerenter", hold(true));
    body.addEventListener("pointerleave", hold(false));
    more.addEventListener("click", () => {
      const isAll = root.classList.toggle("shows-all");
      more.setAttribute("aria-pressed", String(isAll));
    });
    addEventListener("scroll", () => this.#schedule(), { passive: true });
    addEventListener("resize", () => this.#schedule(), { passive: true });
  }

  #rowOf(element) {
    const key = element.closest("tr").dataset.key;
    return this.#rows.find((row) => this.#key(row) === key);
  }

  #sortBy(id) {
    const column = this.#columns.find((each) => each.id === id);
    const isDescending = this.#sort.column === column ? !this.#sort.isDescending : Boolean(column.isNumeric);
    this.#sort = { column, isDescending };
    this.#positions.clear();
    this.#showSort();
    if (this.#remembersInAddress) rememberInAddress("sort", (isDescending ? "-" : "") + id);
    this.#arrange();
  }

  #showSort() {
    for (const cell of this.#parts.head.querySelectorAll("th[data-column]")) {
      const isSorted = cell.dataset.column === this.#sort.column.id;
      setAttribute(cell, "aria-sort", isSorted ? (this.#sort.isDescending ? "descending" : "ascending") : null);
    }
  }

  #arrange() {
    const shown = this.#rows.filter((row) => this.#predicate(row) && this.#hasWords(row));
    const order = this.#isHeld && this.#positions.size > 0 ? this.#keepingPlaces() : this.#bySort();
    shown.sort(order);
    this.#shown = shown;
    this.#positions = new Map(shown.map((row, index) => [this.#key(row), index]));
    this.onArrange();
    this.#schedule();
  }

  #hasWords(row) {
    return this.#words.every((word) =>
      this.#columns.some((column) => column.isSearched && String(column.value(row)).toLowerCase().includes(word)),
    );
  }

  #bySort() {
    const { column, isDescending } = this.#sort;
    const sign = isDescending ? -1 : 1;
    return (a, b) => sign * compare(column.value(a), column.value(b)) || compare(this.#key(a), this.#key(b));
  }

  #keepingPlaces() {
    const place = (row) => this.#positions.get(this.#key(row)) ?? Infinity;
    return (a, b) => compare(place(a), place(b));
  }

  #schedule() {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    requestAnimationFrame(() => {
      this.#isScheduled = false;
      this.#render();
    });
  }

  #render() {
    const [first, end] = this.#inSight();
    const { above, below, table, note } = this.#parts;
    const visible = this.#shown.slice(first, end);
    const spare = this.#takeAway(new Set(visible.map(this.#key)));
    let previous = above;
    visible.forEach((row, index) => {
      const element = this.#elementFor(row, spare);
      setAttribute(element, "aria-rowindex", first + index + 2);
      if (previous.nextSibling !== element) previous.after(element);
      previous = element;
    });
    setHeight(above, first * this.#rowHeight);
    setHeight(below, (this.#shown.length - end) * this.#rowHeight);
    setAttribute(table, "aria-rowcount", this.#shown.length + 1);
    setAttribute(table, "hidden", this.#shown.length === 0);
    setAttribute(note, "hidden", this.#shown.length > 0);
    setText(note, this.#rows.length === 0 ? this.#empty : `None of ${counted(this.#rows.length, this.#noun)} matches.`);
  }

  /** Takes away the rows that are not wanted; returns them, to be filled with others. One with the focus is dropped. */
  #takeAway(wanted) {
    const spare = [];
    for (const [key, element] of this.#elements) {
      if (wanted.has(key)) continue;
      if (!element.contains(document.activeElement)) spare.push(element);
      element.remove();
      this.#elements.delete(key);
    }
    return spare;
  }

  /** First row in sight and the one after the last, with some to spare. */
  #inSight() {
    const count = this.#shown.length;
    if (count <= SMALL_COUNT) return [0, count];
    this.#rowHeight ||= this.#measured();
    const top = this.#parts.above.getBoundingClientRect().top;
    const first = Math.floor((COVERED_PX - top) / this.#rowHeight) - OVERSCAN;
    const end = Math.ceil((innerHeight - top) / this.#rowHeight) + OVERSCAN;
    return [Math.min(Math.max(first, 0), count), Math.min(Math.max(end, 0), count)];
  }

  #measured() {
    setAttribute(this.#parts.table, "hidden", false);
    const element = this.#elementFor(this.#shown[0]);
    this.#parts.above.after(element);
    return element.getBoundingClientRect().height || 1;
  }

  #elementFor(row, spare = []) {
    const key = this.#key(row);
    let element = this.#elements.get(key);
    if (element === undefined) {
      element = spare.pop() ?? h("tr", {}, this.#columns.map(blankCell));
      setAttribute(element, "data-key", key);
      this.#elements.set(key, element);
    }
    if (this.#painted.get(element) === row) return element;
    this.#painted.set(element, row);
    this.#columns.forEach((column, index) => {
      const cell = element.cells[index].firstElementChild;
      if (column.paint) column.paint(cell, row);
      else setText(cell, column.text ? column.text(row) : String(column.value(row)));
    });
    return element;
  }

  #bringIntoSight(index) {
    this.#rowHeight ||= this.#measured();
    const top = this.#parts.above.getBoundingClientRect().top + index * this.#rowHeight;
    const margin = 2 * this.#rowHeight;
    if (top < COVERED_PX + margin) scrollBy(0, top - COVERED_PX - margin);
    else if (top > innerHeight - margin) scrollBy(0, top - innerHeight + margin);
  }
}

/** The tables of the page; `active` is the one that j and k move in. */
export const tables = Object.assign([], { active: null });

/** A cell whose text links to a page. */
export function linkCell(href, text) {
  return (cell, row) => {
    const link = cell.firstElementChild ?? cell.appendChild(h("a", {}));
    setAttribute(link, "href", href(row));
    setAttribute(cell, "title", text(row));
    setText(link, text(row));
  };
}

/** Writes a parameter into the page's address, so that a copied link shows what the reader sees. */
export function rememberInAddress(name, value) {
  const url = new URL(location.href);
  if (value) url.searchParams.set(name, value);
  else url.searchParams.delete(name);
  history.replaceState(null, "", url);
}

function heading(column) {
  const attributes = { scope: "col", class: classesOf(column), title: column.title ?? null };
  if (column.isUnsortable)
    return h("th", attributes, h("span", { class: column.isSilent ? "unseen" : null }, column.label));
  return h("th", { ...attributes, "data-column": column.id }, h("button", { type: "button" }, column.label));
}

function blankCell(column) {
  return h("td", { class: classesOf(column) }, h("div", {}));
}

function classesOf(column) {
  return [column.isNumeric && "number", column.priority && `priority-${column.priority}`, column.className]
    .filter(Boolean)
    .join(" ");
}

function parseSort(text, columns) {
  const isDescending = text.startsWith("-");
  const id = isDescending ? text.slice(1) : text;
  return { column: columns.find((column) => column.id === id) ?? columns[0], isDescending };
}

function setHeight(spacer, pixels) {
  const height = `${pixels}px`;
  if (spacer.style.height !== height) spacer.style.height = height;
}

function compare(a, b) {
  if (a === b) return 0;
  if (typeof a === "number" && typeof b === "number") return a - b;
  return COLLATOR.compare(String(a ?? ""), String(b ?? ""));
}

const COLLATOR = new Intl.Collator("en", { numeric: true });
