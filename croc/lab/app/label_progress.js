// The progress of the tokens and of an export, polled until both are done.

import { fetchJson, showMessage } from "./api.js";

const EVERY_MS = 500;
const part = (id) => document.getElementById(id);
let ready = 0;
let isAsking = false;

export async function keepUp({ names }, addPhotographs, showReady) {
  if (isAsking) return;
  isAsking = true;
  try {
    for (;;) {
      const answer = await fetchJson(`/api/progress?since=${ready}`);
      if (answer.ready.length) addPhotographs(answer.ready);
      ready += answer.ready.length;
      const done = ready + answer.skipped.length;
      const isRunning = showExport(answer.export);
      showTokens(done, names.length, answer.skipped);
      showReady(done === names.length && !isRunning, answer.skipped.length);
      if (answer.problem) showMessage(answer.problem);
      if (answer.problem || (done === names.length && !isRunning)) break;
      await new Promise((end) => { setTimeout(end, EVERY_MS); });
    }
  } catch (error) {
    showMessage(error.message);
  } finally {
    isAsking = false;
  }
}

const plural = (number, noun) =>
  `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

function showTokens(done, all, skipped) {
  const bar = part("progress");
  bar.hidden = done === all;
  Object.assign(bar, { max: all, value: done });
  part("progress-text").textContent = done === all ? plural(all - skipped.length, "photograph")
    : `Computing tokens: ${done} of ${plural(all, "photograph")}. Those here can be labeled.`;
  part("skipped").hidden = !skipped.length;
  part("skipped").querySelector("summary").textContent = `${skipped.length} skipped`;
  part("skipped").querySelector("ul").replaceChildren(
    ...skipped.map(([name, why]) => make("li", {}, `${name}: ${why}`)));
}

function showExport({ state, done, head, masks, labeled }) {
  const texts = {
    running: () => `Writing masks: ${done} …`,
    done: () => `Head in ${head}; ${plural(done, "mask")} in ${masks}; ` +
      (labeled[0] ? `training data of ${plural(labeled[0], "photograph")} in ${labeled[1]}.`
        : "no training data, since no photograph is marked done."),
  };
  if (state in texts) part("export-text").textContent = texts[state]();
  return state === "running";
}
