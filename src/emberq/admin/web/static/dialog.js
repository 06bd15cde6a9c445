/* Questions. A dialog is the browser's own <dialog>: it keeps the focus, closes on Escape and gives the focus back. */

import { h } from "./dom.js";

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

/** Asks for values; resolves to { id: text } or null if the reader thinks better of it.
 *
 *  A field: { id, label, type?, value?, min?, step?, hint?, options?, isRequired?, mustBe?, onlyWith? }
 *  where onlyWith, { id: value }, shows it only while another field has that value.
 */
export function ask({ title, explanation, verb, fields = [], isDangerous = false }) {
  const number = (count += 1);
  const controls = fields.map((field) => {
    const control = controlOf(field, number);
    return { field, control, frame: labelled(field, control) };
  });
  const submit = h("button", { type: "submit", class: isDangerous ? "danger" : "primary" }, verb);
  const cancel = h("button", { type: "button" }, "Cancel");
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", { id: `dialog-title-${number}` }, title),
    explanation ? h("p", { id: `dialog-text-${number}` }, explanation) : null,
    controls.map(({ frame }) => frame),
    h("div", { class: "dialog-buttons" }, cancel, submit),
  );
  const dialog = h(
    "dialog",
    { "aria-labelledby": `dialog-title-${number}`, "aria-describedby": explanation ? `dialog-text-${number}` : null },
    form,
  );
  const check = () => {
    const values = valuesOf(controls);
    for (const { field, frame } of controls) frame.hidden = !isWanted(field, values);
    submit.disabled = controls.some(({ field, control, frame }) => !frame.hidden && !isFilled(field, control));
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
      field.options.map(({ value, label }) => h("option", { value }, label)),
    );
  }
  if (field.type === "textarea") return h("textarea", { ...shared, rows: 6 });
  const { type = "text", value = "", min = null, step = null } = field;
  return h("input", { ...shared, type, value, min, step });
}

function isWanted(field, values) {
  return Object.entries(field.onlyWith ?? {}).every(([id, value]) => values[id] === value);
}

function isFilled(field, control) {
  if (field.mustBe !== undefined) return control.value === field.mustBe;
  return !field.isRequired || control.value.trim() !== "";
}

function valuesOf(controls) {
  return Object.fromEntries(controls.map(({ field, control }) => [field.id, control.value]));
}
