/* Questions. A dialog is the browser's own <dialog>: it keeps the focus, closes on Escape and gives the focus back. */

import { h } from "./dom.js";

const FORETELL_DELAY_MS = 200;

let count = 0;

/** Asks before something that can be put right again. */
export function confirm({ title, explanation, verb }) {
  return ask({ title, explanation, verb });
}

/** Asks before something that cannot: the reader has to type the name of what it is done to. */
export function confirmByName({ title, explanation, verb, name }) {
  const check = { id: "name", label: "Type the name to confirm", mustBe: name };
  return ask({ title, explanation, verb, fields: [check], isDangerous: true });
}

/** Asks for values; resolves to { id: text } or null if the reader thinks better of it. An explanation is a text, or
 *  several.
 *
 *  A field: { id, label, type?, value?, min?, max?, step?, hint?, options?, isRequired?, mustBe?, onlyWith? }
 *  where onlyWith, { id: value }, shows it only while another field has that value.
 *
 *  `foretell(values)` resolves to a sentence on what these values would do, which stands above the buttons; until it is
 *  there the answer cannot be yes. `watched` names the fields that it depends on.
 */
export function ask({ title, explanation, verb, fields = [], isDangerous = false, foretell = null, watched = [] }) {
  const number = (count += 1);
  const explained = [explanation ?? []].flat().map((text) => h("p", {}, text));
  const textId = explained.length > 0 ? `dialog-text-${number}` : null;
  const controls = fields.map((field) => {
    const control = controlOf(field, number);
    return { field, control, frame: labelled(field, control) };
  });
  const foretold = new Foretold(foretell, watched, () => check());
  const submit = h("button", { type: "submit", class: isDangerous ? "danger" : "primary" }, verb);
  const cancel = h("button", { type: "button" }, "Cancel");
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", { id: `dialog-title-${number}` }, title),
    textId && h("div", { id: textId, class: "explanation" }, explained),
    controls.map(({ frame }) => frame),
    foretold.element,
    h("div", { class: "dialog-buttons" }, cancel, submit),
  );
  const dialog = h(
    "dialog",
    { "aria-labelledby": `dialog-title-${number}`, "aria-describedby": textId },
    form,
  );
  const check = () => {
    const values = valuesOf(controls);
    for (const { field, frame } of controls) frame.hidden = !isWanted(field, values);
    const shown = controls.filter(({ frame }) => !frame.hidden);
    const isComplete = (each) => shown.every(({ field, control }) => !each(field) || isFilled(field, control));
    foretold.update(values, isComplete((field) => watched.includes(field.id)));
    submit.disabled = !foretold.isReady || !isComplete(() => true);
  };
  form.addEventListener("input", check);
  cancel.addEventListener("click", () => dialog.close());
  check();
  document.body.append(dialog);
  dialog.showModal();
  (controls[0]?.control ?? cancel).focus();
  return new Promise((resolve) => {
    form.addEventListener("submit", () => {
      dialog.returnValue = "yes";
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "" ? null : valuesOf(controls));
    });
  });
}

/** What the values would do: asked for when they change, and not at every letter. */
class Foretold {
  #foretell;
  #watched;
  #onChange;
  #asked = null;
  #timer = null;
  element;
  isReady;

  constructor(foretell, watched, onChange) {
    this.#foretell = foretell;
    this.#watched = watched;
    this.#onChange = onChange;
    this.isReady = foretell === null;
    this.element = foretell === null ? null : h("p", { class: "foretold", role: "status" });
  }

  update(values, isComplete) {
    if (this.#foretell === null) return;
    const asked = isComplete ? JSON.stringify(this.#watched.map((id) => values[id])) : "";
    if (asked === this.#asked) return;
    this.#asked = asked;
    this.isReady = false;
    clearTimeout(this.#timer);
    this.element.textContent = isComplete ? "Counting…" : "";
    if (isComplete) this.#timer = setTimeout(() => this.#ask(values, asked), FORETELL_DELAY_MS);
  }

  async #ask(values, asked) {
    const text = await this.#foretell(values);
    if (asked !== this.#asked) return; // the reader has changed the values since
    this.element.textContent = text;
    this.isReady = true;
    this.#onChange();
  }
}

function labelled(field, control) {
  const expected = field.mustBe === undefined ? null : h("code", { class: "expected" }, field.mustBe);
  const hint = field.hint ? h("p", { class: "hint", id: `${control.id}-hint` }, field.hint) : null;
  if (hint) control.setAttribute("aria-describedby", hint.id);
  return h("div", { class: "field" }, h("label", { for: control.id }, field.label, expected), control, hint);
}

function controlOf(field, number) {
  const shared = { id: `dialog-${number}-${field.id}`, name: field.id, autocomplete: "off", spellcheck: "false" };
  if (field.options) {
    return h(
      "select",
      shared,
      field.options.map(({ value, label }) => h("option", { value, selected: value === field.value }, label)),
    );
  }
  if (field.type === "textarea") return h("textarea", { ...shared, rows: 6 });
  const { type = "text", value = "", min = null, max = null, step = null } = field;
  return h("input", { ...shared, type, value, min, max, step });
}

function isWanted(field, values) {
  return Object.entries(field.onlyWith ?? {}).every(([id, value]) => values[id] === value);
}

function isFilled(field, control) {
  if (field.mustBe !== undefined) return control.value === field.mustBe;
  return control.validity.valid && (!field.isRequired || control.value.trim() !== "");
}

function valuesOf(controls) {
  return Object.fromEntries(controls.map(({ field, control }) => [field.id, control.value]));
}
