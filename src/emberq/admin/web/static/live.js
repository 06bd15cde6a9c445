/* The document of a view, kept fresh without a reload.
 *
 *   streaming   an EventSource on /api/live brings every new document        the header says "Live"
 *   polling     where streams do not get through (a proxy that buffers),     "Polling"
 *               the same document is asked for again and again; a stream
 *               is tried anew now and then
 *   waiting     nothing arrives: what stands on the page is old              "Reconnecting"
 *   paused      the tab is hidden: nothing is asked for at all               "Paused"
 *
 * Figures that come late, because a daemon is slow to answer, are not live: then the header says how old they are.
 */

import { ApiError, apiPath, get } from "./api.js";
import { config } from "./config.js";
import { setAttribute, setText } from "./dom.js";
import { duration } from "./format.js";

const LABELS = { streaming: "Live", polling: "Polling", waiting: "Reconnecting…", paused: "Paused" };
const POLL_MS = 5_000;
const STREAM_RETRY_MS = 30_000;
/** A stream that is open but silent for so long does not get through. */
const SILENCE_MS = 15_000;

/** Figures are old when so many more should have come, and not before so much time: a page may be busy, too. */
const MAX_AGE_INTERVALS = 2;
const LEAST_AGE_MS = 3_000;

const followed = new Set();
const shown = { state: null, gatheredAtMs: Infinity };
setInterval(() => shown.state !== null && showState(shown.state), 1_000);

/** Asks for nothing any more: who logs out would be refused. */
export function stopFollowing() {
  for (const live of followed) live.stop();
}

/** Follows a view: onDocument(document) for each new one, onProblem(text, isMissing) when there is none to be had;
 *  isMissing says that the cluster answered, and does not have it. */
export class Live {
  #query;
  #view;
  #onDocument;
  #onProblem;
  #source = null;
  #timers = new Set();

  constructor(view, parameters, { onDocument, onProblem }) {
    this.#view = view;
    this.#query = new URLSearchParams({ view, ...parameters }).toString();
    this.#onDocument = onDocument;
    this.#onProblem = onProblem;
  }

  start() {
    followed.add(this);
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.#stream()));
    this.#stream();
    return this;
  }

  /** Until the tab is shown again. */
  stop() {
    this.#end();
    showState("paused");
  }

  /** Follows the same view with other parameters. */
  change(parameters) {
    this.#query = new URLSearchParams({ view: this.#view, ...parameters }).toString();
    this.#stream();
  }

  /** Asks at once: after an action, the reader wants to see what it did. */
  async refresh() {
    try {
      this.#show(await get(`${apiPath("view")}?${this.#query}`));
      return true;
    } catch (failure) {
      if (!(failure instanceof ApiError)) throw failure;
      this.#onProblem(failure.message, failure.status === 404);
      return failure.status === 404;
    }
  }

  #show(document_) {
    shown.gatheredAtMs = document_.time * 1000;
    this.#onDocument(document_);
  }

  #stream() {
    this.#end();
    const source = new EventSource(`${apiPath("live")}?${this.#query}`);
    this.#source = source;
    let silence = this.#after(SILENCE_MS, () => this.#poll());
    source.addEventListener(this.#view, (event) => {
      this.#cancel(silence);
      silence = this.#after(SILENCE_MS + 2 * config.liveIntervalMs, () => this.#poll());
      this.#show(JSON.parse(event.data));
      showState("streaming");
    });
    source.addEventListener("problem", (event) => {
      const { message, is_missing: isMissing } = JSON.parse(event.data);
      this.#cancel(silence);
      silence = this.#after(SILENCE_MS + 2 * config.liveIntervalMs, () => this.#poll());
      showState(isMissing ? "streaming" : "waiting");
      this.#onProblem(message, isMissing);
    });
    source.addEventListener("error", () => {
      if (source.readyState === EventSource.CLOSED) this.#poll();
      else showState("waiting"); // the browser tries again by itself
    });
  }

  #poll() {
    this.#end();
    const ask = async () => {
      showState((await this.refresh()) ? "polling" : "waiting");
      this.#after(POLL_MS, ask);
    };
    ask();
    this.#after(STREAM_RETRY_MS, () => this.#stream());
  }

  #end() {
    this.#source?.close();
    this.#source = null;
    for (const timer of this.#timers) clearTimeout(timer);
    this.#timers.clear();
  }

  #after(milliseconds, action) {
    const timer = setTimeout(() => {
      this.#timers.delete(timer);
      action();
    }, milliseconds);
    this.#timers.add(timer);
    return timer;
  }

  #cancel(timer) {
    clearTimeout(timer);
    this.#timers.delete(timer);
  }
}

/** Shows what is said of the figures, now and as they grow old. */
function showState(state) {
  shown.state = state;
  const indicator = document.getElementById("live-state");
  const ageMs = Date.now() - config.clockAheadMs - shown.gatheredAtMs;
  const isOld = ageMs > MAX_AGE_INTERVALS * config.liveIntervalMs + LEAST_AGE_MS;
  setAttribute(indicator, "data-state", isOld && state === "streaming" ? "waiting" : state);
  setText(indicator.lastElementChild, isOld ? `${LABELS[state]} · ${duration(ageMs * 1e6)} old` : LABELS[state]);
  setAttribute(document.getElementById("main"), "data-old", isOld);
}
