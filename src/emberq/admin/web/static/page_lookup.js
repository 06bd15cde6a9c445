/* What nsqlookupd knows: where it is, and topics that no node has any more; and a form to make new ones. */

import { askForAbsent } from "./absence.js";
import { create, deleteIt } from "./action.js";
import { apiPath, get, newest, path } from "./api.js";
import { config, may } from "./config.js";
import { h } from "./dom.js";
import { orBanner, warn } from "./notice.js";
import { button, content, loaded, section } from "./panel.js";

export function start() {
  const inactive = h("div", { class: "inactive" });
  const ask = newest(() => get(`${apiPath("topics")}?inactive=true`));
  const renew = async () => {
    await orBanner(async () => {
      const document_ = await ask();
      if (document_ === null) return;
      warn(document_);
      await askForAbsent(renew);
      inactive.replaceChildren(...entries(document_.topics ?? {}, renew));
    });
    loaded();
  };
  content.append(
    section("nsqlookupd", {}, lookupds()),
    section("Inactive topics", { note: "nsqlookupd remembers these, but no node has them." }, inactive),
  );
  if (may("create")) content.append(section("Create a topic or channel", {}, creationForm(renew)));
  renew();
}

function lookupds() {
  if (config.lookupds.length === 0) return h("p", { class: "empty" }, "None: this nsqadmin asks its nsqds directly.");
  return h(
    "ul",
    { class: "plain" },
    config.lookupds.map((address) => h("li", {}, h("code", {}, address))),
  );
}

function entries(topics, renew) {
  const names = Object.keys(topics).sort();
  if (names.length === 0) return [h("p", { class: "empty" }, "None.")];
  const removal = (topic, channel) =>
    button("Delete…", { kind: "quiet", permission: "delete", title: `Delete ${channel ?? topic}` }, async () => {
      if (await deleteIt({ topic, channel, leave: false })) renew();
    });
  const channelEntry = (topic, channel) => h("li", {}, h("span", {}, channel), removal(topic, channel));
  return names.map((topic) =>
    h(
      "div",
      { class: "inactive-topic" },
      h("p", {}, h("a", { href: path("topics", topic) }, topic), removal(topic)),
      h(
        "ul",
        { class: "plain" },
        (topics[topic] ?? []).map((channel) => channelEntry(topic, channel)),
      ),
    ),
  );
}

function creationForm(renew) {
  const topic = h("input", {
    id: "create-topic",
    name: "topic",
    required: true,
    autocomplete: "off",
    spellcheck: "false",
  });
  const channel = h("input", { id: "create-channel", name: "channel", autocomplete: "off", spellcheck: "false" });
  const form = h(
    "form",
    { class: "inline" },
    h("div", { class: "field" }, h("label", { for: "create-topic" }, "Topic"), topic),
    h("div", { class: "field" }, h("label", { for: "create-channel" }, "Channel (optional)"), channel),
    h("button", { type: "submit", class: "primary" }, "Create"),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (await create(topic.value.trim(), channel.value.trim())) {
      form.reset();
      renew();
    }
  });
  return form;
}
