/* Where a backlog is going: how fast it grows or shrinks, and when it will be empty or twice as large.
 *
 * Both sides are of one unit, copies of messages, one for each channel (a `flow` of the server). The last half minute
 * counts, because a single look sees bursts and not a direction.
 */

import * as format from "./format.js";

const WINDOW_S = 30;
/** Less than this, as a share of what comes in, is no direction. */
const STEADY_SHARE = 0.01;
const LEAST_RATE = 0.05;

export class Trend {
  #looks = [];

  /** The newest look: when, and the flow, or null if it is not known; then what was before tells nothing any more. */
  add(time, flow) {
    if (!flow) this.#looks = [];
    if (!flow || time <= (this.#looks.at(-1)?.time ?? -Infinity)) return;
    this.#looks.push({ time, flow });
    while (this.#looks[0].time < time - WINDOW_S) this.#looks.shift();
  }

  /** Messages per second that the backlog grows by; null while that is not known. */
  get net() {
    return this.#looks.length === 0 ? null : this.#mean(netOf);
  }

  get isSteady() {
    return Math.abs(this.net) < Math.max(LEAST_RATE, STEADY_SHARE * this.#mean((flow) => flow.in_rate));
  }

  /** `+12 per second` */
  get text() {
    return signed(this.net === null ? null : this.isSteady ? 0 : this.net);
  }

  /** `empty in 3m 20s`, `doubles in 2h 5m` */
  outlook(depth) {
    if (this.net === null) return "";
    if (depth === 0) return "nothing waits";
    if (this.isSteady) return "steady";
    const length = format.duration((depth / Math.abs(this.net)) * 1e9);
    return this.net < 0 ? `empty in ${length}` : `doubles in ${length}`;
  }

  #mean(figure) {
    return this.#looks.reduce((sum, { flow }) => sum + figure(flow), 0) / this.#looks.length;
  }
}

/** What a flow adds to the backlog; null if it is not known. */
export function netOf(flow) {
  const { in_rate: came, finish_rate: finished, dead_letter_rate: givenUp } = flow ?? {};
  return typeof came === "number" ? came - finished - givenUp : null;
}

/** +12, −0.5, 0 */
export function signed(rate) {
  const text = format.rate(rate === null ? null : Math.abs(rate));
  if (rate === null || text === "0" || text === "0.0") return rate === null ? text : "0";
  return `${rate > 0 ? "+" : "−"}${text}`;
}

/** How fast the backlog grows or shrinks, and where that leads; `depthOf` tells what waits now. */
export function netTile(trend, depthOf) {
  return {
    id: "net",
    label: "Net/s",
    text: () => trend.text,
    detail: (all) => trend.outlook(depthOf(all)),
    kind: (all) => (trend.net > 0 && !trend.isSteady && depthOf(all) > 0 ? "warning" : null),
  };
}

/** Messages that were given up, and deliveries that failed: a queue can shrink because of them. */
export const failureTiles = [
  {
    id: "dead-lettered",
    label: "Dead-lettered/s",
    text: (all) => format.rate(all.flow?.dead_letter_rate),
    detail: (all) => (all.dead_letter_count > 0 ? `${format.compact(all.dead_letter_count)} so far` : ""),
    kind: (all) => (all.flow?.dead_letter_rate > 0 ? "problem" : null),
  },
  {
    id: "requeued",
    label: "Requeued/s",
    text: (all) => format.rate(all.flow?.requeue_rate),
    detail: (all) =>
      all.requeue_count === undefined
        ? ""
        : `${format.compact(all.requeue_count)} given back, ${format.compact(all.timeout_count)} timed out`,
    kind: (all) => (all.flow?.requeue_rate > 0 ? "warning" : null),
  },
];
