/* The last rates of every topic, for sparklines: what the server remembers, continued by what the page sees.
 *
 * The server keeps a point every so often and the page sees one more often; it takes as many as the server would, so
 * that all points of a line are equally far apart.
 */

import { ApiError, apiPath, get } from "./api.js";

const KEPT = 30;
const USUAL_INTERVAL_S = 10;

export class RecentRates {
  #byTopic = new Map();
  #intervalS = USUAL_INTERVAL_S;
  #addedAt = -Infinity;

  /** Asks the server for what it remembers; without it the lines begin now. */
  async recall() {
    try {
      const { interval, topics } = await get(`${apiPath("history")}?topics=all`);
      this.#intervalS = interval || USUAL_INTERVAL_S;
      for (const [topic, rates] of Object.entries(topics ?? {})) {
        const seen = this.#byTopic.get(topic) ?? [];
        this.#byTopic.set(topic, [...rates.map((rate) => rate ?? 0), ...seen].slice(-KEPT));
      }
    } catch (failure) {
      if (!(failure instanceof ApiError)) throw failure;
    }
  }

  add(time, topics) {
    const isDue = time - this.#addedAt >= this.#intervalS;
    if (isDue) this.#addedAt = time;
    const present = new Set();
    for (const { topic_name: name, rate } of topics) {
      present.add(name);
      const rates = this.#byTopic.get(name) ?? [];
      if (isDue || rates.length === 0) rates.push(rate ?? 0);
      else rates[rates.length - 1] = rate ?? 0; // the newest point is the newest rate
      if (rates.length > KEPT) rates.shift();
      this.#byTopic.set(name, rates);
    }
    for (const name of this.#byTopic.keys()) if (!present.has(name)) this.#byTopic.delete(name);
  }

  of(topic) {
    return this.#byTopic.get(topic) ?? [];
  }
}
