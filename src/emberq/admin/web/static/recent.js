/* The last figures of every row of a table, for sparklines: what the server remembers, continued by what the page sees.
 *
 * The server keeps a point every so often and the page sees one more often; it takes as many as the server would, so
 * that all points of a line are equally far apart.
 */

import { ApiError, apiPath, get } from "./api.js";

const KEPT = 30;
const USUAL_INTERVAL_S = 10;

/** The rates of topics. */
export const topicRates = () =>
  new RecentFigures({
    kind: "topics",
    key: (topic) => topic.topic_name,
    figure: (topic) => topic.rate,
    entries: (topics) => Object.entries(topics),
  });

/** The depths of channels, which are kept by topic and channel. */
export const channelDepths = () =>
  new RecentFigures({
    kind: "channels",
    key: (channel) => `${channel.topic_name} ${channel.channel_name}`,
    figure: (channel) => channel.depth,
    entries: (topics) =>
      Object.entries(topics).flatMap(([topic, channels]) =>
        Object.entries(channels).map(([channel, depths]) => [`${topic} ${channel}`, depths]),
      ),
  });

/** Figures without gaps: where one is not known, because a node was silent, the one before it stands. A line that falls
 *  there would tell of messages that were worked off. */
function held(figures) {
  let last = figures.find((figure) => typeof figure === "number") ?? 0;
  return figures.map((figure) => (last = figure ?? last));
}

class RecentFigures {
  #kind;
  #key;
  #figure;
  #entries;
  #byKey = new Map();
  #intervalS = USUAL_INTERVAL_S;
  #addedAt = -Infinity;

  /** `kind` is what the server calls them; `key` and `figure` are of a row, `entries` of what the server answers. */
  constructor({ kind, key, figure, entries }) {
    this.#kind = kind;
    this.#key = key;
    this.#figure = figure;
    this.#entries = entries;
  }

  /** Asks the server for what it remembers; without it the lines begin now. */
  async recall() {
    try {
      const answer = await get(`${apiPath("history")}?${this.#kind}=all`);
      this.#intervalS = answer.interval || USUAL_INTERVAL_S;
      for (const [key, figures] of this.#entries(answer[this.#kind] ?? {})) {
        const seen = this.#byKey.get(key) ?? [];
        this.#byKey.set(key, [...held(figures), ...seen].slice(-KEPT));
      }
    } catch (failure) {
      if (!(failure instanceof ApiError)) throw failure;
    }
  }

  add(time, rows) {
    const isDue = time - this.#addedAt >= this.#intervalS;
    if (isDue) this.#addedAt = time;
    const present = new Set();
    for (const row of rows) {
      const key = this.#key(row);
      const figures = this.#byKey.get(key) ?? [];
      const figure = (row.is_incomplete ? null : this.#figure(row)) ?? figures.at(-1) ?? 0;
      present.add(key);
      if (isDue || figures.length === 0) figures.push(figure);
      else figures[figures.length - 1] = figure; // the newest point is the newest figure
      if (figures.length > KEPT) figures.shift();
      this.#byKey.set(key, figures);
    }
    for (const key of this.#byKey.keys()) if (!present.has(key)) this.#byKey.delete(key);
  }

  of(row) {
    return this.#byKey.get(this.#key(row)) ?? [];
  }
}
