/* Alerts: what is wrong now, what was lately, what is silenced, and the rules that say so, which can be changed here if
 * they are kept in a file. */

import { perform } from "./action.js";
import { AlertRows } from "./alert.js";
import { apiPath, get, put } from "./api.js";
import { may } from "./config.js";
import { ask, confirm } from "./dialog.js";
import { h, setText } from "./dom.js";
import { follow } from "./follow.js";
import * as format from "./format.js";
import { orBanner } from "./notice.js";
import { button, content, label, section } from "./panel.js";
import { askAndSilence, patternText, SilenceList } from "./silence.js";
import { DataTable } from "./table.js";

/** What a rule can look at, and what its threshold counts. */
const CONDITIONS = {
  depth: { text: "messages wait in a channel", unit: "messages" },
  age: { text: "the oldest message of a channel waits", unit: "a duration, such as 30m" },
  no_consumers: { text: "messages wait, and no consumer is connected", unit: "messages" },
  stuck: { text: "messages wait, and consumers finish none", unit: "messages" },
  growing: { text: "a backlog grows", unit: "messages a second" },
  dead_letters: { text: "messages are given up", unit: "messages a second" },
  requeued: { text: "deliveries fail", unit: "deliveries a second" },
  paused: { text: "messages wait in a channel that is paused", unit: "messages" },
  node_silent: { text: "a node does not answer", unit: null },
  node_gone: { text: "a node is gone", unit: null },
  node_unhealthy: { text: "a node is not well", unit: null },
};

export function start() {
  const renew = () => live.refresh();
  const now = new AlertRows({ empty: "Nothing is wrong by these rules.", control: (alert) => silenceButton(alert, renew) });
  const lately = new AlertRows({ empty: "None since this nsqadmin was started." });
  const count = h("span", { class: "count" });
  const silenceList = new SilenceList(renew);
  const book = new RuleBook(renew);
  const live = follow("alerts", {}, (told) => {
    const { alerts = [], resolved = [], left_off: leftOff = 0, silences = [], keeps_silences: keepsSilences } = told;
    const byId = new Map(silences.map((silence) => [silence.id, silence]));
    const firing = alerts
      .filter(({ state }) => state === "firing")
      .map((alert) => ({ ...alert, silence: byId.get(alert.silence) ?? null }));
    const silenced = firing.filter(({ silence }) => silence !== null);
    const pending = alerts.length - firing.length;
    const counts = [
      `${format.integer(firing.length)} firing`,
      silenced.length > 0 && `${format.integer(silenced.length)} of them silenced`,
      pending > 0 && `${format.integer(pending)} not for long enough yet`,
      leftOff > 0 && `${format.integer(leftOff)} more are not followed`,
    ];
    setText(count, counts.filter(Boolean).join(", "));
    now.show([...firing.filter(({ silence }) => silence === null), ...silenced]);
    lately.show(resolved);
    silenceList.show(silences, keepsSilences);
  });
  content.append(
    section("Now", { controls: count }, now.element),
    silenceList.element,
    book.element,
    section("Resolved lately", {}, lately.element),
  );
  book.renew();
}

function silenceButton(alert, onChange) {
  if (alert.silence) return null;
  return button("Silence…", { kind: "quiet", permission: "silence" }, async () => {
    if (await askAndSilence(alert)) onChange();
  });
}

/** The rules, and the buttons that change them. */
class RuleBook {
  #rules = [];
  #version = "";
  #isWritable = false;
  #table;
  #about = h("p", { class: "hint" });
  #add;
  #onChange;

  constructor(onChange) {
    this.#onChange = onChange;
    this.#table = this.#makeTable();
    this.#add = button("Add a rule…", { kind: "primary", permission: "rules" }, () => this.#edit(null));
    if (this.#add) this.#add.hidden = true;
    const file = h("a", { href: apiPath("rules", "prometheus") }, "The same for Prometheus");
    this.element = section("Rules", { controls: [file, this.#add] }, this.#about, this.#table.element);
  }

  renew() {
    return orBanner(async () => this.#show(await get(apiPath("rules"))));
  }

  #show({ rules, version, is_built_in: isBuiltIn, is_writable: isWritable, webhook }) {
    this.#rules = rules;
    this.#version = version;
    this.#isWritable = isWritable && may("rules");
    if (this.#add) this.#add.hidden = !this.#isWritable;
    const told = webhook ? `Alerts are sent to ${webhook}.` : "Alerts are sent nowhere: there is no webhook.";
    const kept = isBuiltIn
      ? "These rules are built in. " + (isWritable ? "" : "Start nsqadmin with --alert-rules-file to have your own. ")
      : "";
    setText(this.#about, kept + told);
    this.#table.setRows(rules.map((rule) => ({ ...rule, isChangeable: this.#isWritable })));
  }

  #makeTable() {
    const text = (id, label_, value, priority = null) => ({ id, label: label_, value, isSearched: true, priority });
    return new DataTable({
      label: "Rules",
      noun: "rule",
      empty: "No rules: nothing is ever wrong.",
      key: (rule) => rule.name,
      sort: "severity",
      columns: [
        text("name", "Rule", (rule) => rule.name),
        { ...text("severity", "Severity", (rule) => rule.severity), paint: paintSeverity },
        text("when", "When", (rule) => CONDITIONS[rule.when].text),
        text("above", "Above", aboveText),
        text("for", "For", (rule) => rule.for, 2),
        text("of", "Of", patternText, 2),
        {
          id: "change",
          label: "Change",
          isUnsortable: true,
          isSilent: true,
          value: () => "",
          paint: (cell, rule) => this.#paintButtons(cell, rule),
        },
      ],
    });
  }

  #paintButtons(cell, rule) {
    if (!rule.isChangeable) return cell.replaceChildren();
    if (cell.dataset.rule === rule.name && cell.firstElementChild) return undefined;
    cell.dataset.rule = rule.name;
    const named = () => this.#rules.find(({ name }) => name === cell.dataset.rule);
    return cell.replaceChildren(
      button("Edit…", { kind: "quiet", title: `Edit ${rule.name}` }, () => this.#edit(named())),
      button("Remove…", { kind: "quiet", title: `Remove ${rule.name}` }, () => this.#remove(named())),
    );
  }

  async #edit(rule) {
    const conditions = Object.entries(CONDITIONS);
    const of = (isOfNodes) => conditions.filter(([when]) => when.startsWith("node_") === isOfNodes);
    const pattern = (id, text) => ({ id, label: text, value: rule?.[id] ?? "*", hint: "* stands for any characters." });
    const values = await ask({
      title: rule ? `Edit the rule ${rule.name}` : "Add a rule",
      explanation: "A rule that holds for long enough is an alert. It is resolved as soon as it holds no more.",
      verb: rule ? "Save" : "Add",
      fields: [
        { id: "name", label: "Name", value: rule?.name ?? "", isRequired: true },
        {
          id: "when",
          label: "When",
          value: rule?.when ?? "depth",
          options: [...of(false), ...of(true)].map(([value, { text }]) => ({ value, label: text })),
        },
        {
          id: "above",
          label: "Above",
          value: String(rule?.above ?? "0"),
          hint: "Messages, or messages a second; of an age a duration, such as 30m. Of nodes it has no meaning.",
        },
        { id: "for", label: "For at least", value: rule?.for ?? "5m", hint: "A duration: 90s, 5m, 1h", isRequired: true },
        {
          id: "severity",
          label: "Severity",
          value: rule?.severity ?? "warning",
          options: ["warning", "critical"].map((value) => ({ value, label: value })),
        },
        pattern("topic", "Topics"),
        pattern("channel", "Channels"),
        pattern("node", "Nodes"),
      ],
    });
    if (values === null) return;
    const others = this.#rules.filter((each) => each !== rule);
    const place = rule ? this.#rules.indexOf(rule) : others.length;
    const rules = [...others.slice(0, place), ruleOf(values), ...others.slice(place)];
    await this.#save(`Saved the rule ${values.name}`, rules);
  }

  async #remove(rule) {
    const isSure = await confirm({
      title: `Remove the rule ${rule.name}?`,
      explanation: "Alerts of this rule are resolved, and there are no more.",
      verb: "Remove",
    });
    if (isSure) await this.#save(`Removed the rule ${rule.name}`, this.#rules.filter((each) => each !== rule));
  }

  async #save(what, rules) {
    const work = async () => {
      this.#show(await put(apiPath("rules"), { rules, version: this.#version }));
      return {};
    };
    if (await perform(what, work)) this.#onChange();
    else this.renew();
  }
}

/** A rule as the server takes it, from what stands in the fields; what does not belong to its condition is left out. */
function ruleOf({ name, when, above, severity, topic, channel, node, for: duration }) {
  const isOfNodes = when.startsWith("node_");
  const threshold = when === "age" ? above.trim() : Number(above);
  const own = isOfNodes ? { node: node.trim() } : { above: threshold, topic: topic.trim(), channel: channel.trim() };
  return { name: name.trim(), when, for: duration.trim(), severity, ...own };
}

function paintSeverity(cell, { severity }) {
  const mark = cell.firstElementChild ?? cell.appendChild(label("", null));
  setText(mark, severity);
  mark.dataset.kind = severity === "critical" ? "problem" : "warning";
}

function aboveText(rule) {
  if (rule.above === undefined) return "";
  return typeof rule.above === "number" ? `${format.compact(rule.above)} ${CONDITIONS[rule.when].unit}` : rule.above;
}
