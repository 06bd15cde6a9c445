/* Silences: for a while the webhook is not told of some alerts, because the reader is on it, or expects them. */

import { perform } from "./action.js";
import { apiPath, post, remove } from "./api.js";
import { ask } from "./dialog.js";
import { h, setText } from "./dom.js";
import * as format from "./format.js";
import { button, section } from "./panel.js";

const USUAL_DURATION = "2h";
const PATTERNS = { rule: "Rules", topic: "Topics", channel: "Channels", node: "Nodes" };
const EXPLANATION =
  "Until then the webhook is not told. Afterwards it is told of what is firing still. The pages show everything meanwhile.";

/** Asks for how long and why, and silences this alert; or, without one, what fits the patterns that are asked for. */
export async function askAndSilence(alert = null) {
  const patterns = Object.entries(PATTERNS).map(([id, label]) => {
    return { id, label, value: "*", hint: "* stands for any characters.", isRequired: true };
  });
  const values = await ask({
    title: alert ? `Silence ${alert.rule} of ${alert.node || `${alert.topic} / ${alert.channel}`}?` : "Silence alerts",
    explanation: EXPLANATION,
    verb: "Silence",
    fields: [
      { id: "reason", label: "Reason", isRequired: true, hint: "Others read it beside the alert." },
      { id: "for", label: "For", value: USUAL_DURATION, hint: "A duration: 30m, 2h, 24h", isRequired: true },
      ...(alert ? [] : patterns),
    ],
  });
  if (values === null) return false;
  const named = Object.keys(PATTERNS).map((id) => [id, (alert ?? values)[id].trim()]);
  const covered = Object.fromEntries(named.filter(([, pattern]) => pattern !== ""));
  const told = ({ silence }) => `Silenced ${patternText(silence)} until ${format.serverMoment(silence.until)}`;
  const body = { ...covered, for: values.for.trim(), reason: values.reason };
  return perform(told, () => post(apiPath("silences"), body));
}

/** The silences that hold, and the buttons that begin and end them. */
export class SilenceList {
  #list = h("ul", { class: "plain alerts" });
  #about = h("p", { class: "hint" });
  #onChange;
  #shown = "";

  constructor(onChange) {
    this.#onChange = onChange;
    const begin = button("Silence…", { permission: "silence" }, async () => {
      if (await askAndSilence()) onChange();
    });
    this.element = section("Silences", { controls: begin }, this.#list, this.#about);
  }

  show(silences, isKept) {
    const shown = JSON.stringify(silences);
    if (shown === this.#shown) return; // an untouched list keeps the focus where it is
    this.#shown = shown;
    const none = h("li", { class: "empty" }, "No alert is silenced.");
    this.#list.replaceChildren(...(silences.length > 0 ? silences.map((each) => this.#item(each)) : [none]));
    setText(this.#about, silences.length > 0 && !isKept ? "Without --history-path a restart of nsqadmin ends them." : "");
  }

  #item(silence) {
    const { reason, user, until, alert_count: count } = silence;
    const end = button("End", { kind: "quiet", permission: "silence", title: `End: ${patternText(silence)}` }, () =>
      this.#end(silence),
    );
    return h(
      "li",
      {},
      h("span", {}, h("strong", {}, patternText(silence)), `: ${reason}`, user && ` (${user})`),
      h("span", { class: "since" }, `${format.counted(count, "alert")}, until ${format.serverMoment(until)}`),
      end,
    );
  }

  async #end(silence) {
    const work = () => remove(apiPath("silences", silence.id));
    if (await perform(`Ended the silence of ${patternText(silence)}`, work)) this.#onChange();
  }
}

/** What a rule or a silence is about: `topics orders*, channels billing`. */
export function patternText(patterns) {
  const named = Object.entries(PATTERNS).filter(([id]) => (patterns[id] ?? "*") !== "*");
  return named.map(([id, text]) => `${text.toLowerCase()} ${patterns[id]}`).join(", ") || "all";
}
