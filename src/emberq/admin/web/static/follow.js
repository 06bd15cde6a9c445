/* Following a view, as every live page does it: what is wrong with a document stands above the page, what is in it on
 * the page, and the first one takes away the sign that figures are on their way. */

import { askForAbsent, showAbsent } from "./absence.js";
import { markCharts } from "./charts.js";
import { Live } from "./live.js";
import { banner, orBanner, warn } from "./notice.js";
import { loaded } from "./panel.js";

/** A first document that takes so long waits for a node, most likely for one that is silent: meanwhile the page says so. */
const SLOW_MS = 1_500;

/** Shows every document of a view from now on; what is returned can be asked for a fresh one. `showMissing` is called
 *  when the cluster does not have what is followed. */
export function follow(view, parameters, show, showMissing = () => {}) {
  const slow = setTimeout(() => orBanner(() => askForAbsent(() => live.refresh())), SLOW_MS);
  const live = new Live(view, parameters, {
    onDocument(document_) {
      clearTimeout(slow);
      document_.rates ??= {};
      warn(document_);
      showAbsent(document_, () => live.refresh());
      markCharts((document_.absent ?? []).map(({ since, node, state }) => ({ time: since, node, state })));
      show(document_);
      loaded();
    },
    onProblem(text, isMissing) {
      clearTimeout(slow);
      banner(isMissing ? "warning" : "problem", text);
      if (isMissing) showMissing();
      loaded();
    },
  });
  return live.start();
}
