// The clusters that a model's panel shows now, each with its colour and whether both crops have it.

import { extendColours } from "./colours.js";
import { state } from "./state.js";

// Palette, then darker, for what is beyond it.
function colourOf(number) {
  const { palette } = state.start;
  const colour = palette[number % palette.length];
  return number < palette.length ? colour : colour.map((part) => 0.55 * part);
}

// What the panel of a model shows now: tiles, the row of a crop in them, the clusters, and the
// mean largest share of a patch.
export function shownClusters(model) {
  const trace = state.mode === "merging" ? state.traces[model] : null;
  if (trace) {
    const number = Math.min(state.step, trace.steps.length - 1);
    const step = trace.steps[number];
    const colours = extendColours(chosenColours(model), trace.columns);
    const clusters = paintWith(step.valid, step.colours.map((number) => colours[number]));
    return { tiles: trace.tiles, row: 2 * number, clusters, share: step.share };
  }
  const found = state.clusters[model];
  if (!found) return null;
  const number = Math.min(state.heads[model], found.heads.length - 1);
  const head = found.heads[number];
  return { tiles: found.tiles, row: 2 * number, clusters: clustersOf(head), share: head.share };
}

// Those of the head's clusters outside of the merging.
function chosenColours(model) {
  const heads = state.clusters[model]?.heads ?? [];
  return heads[Math.min(state.heads[model], heads.length - 1)]?.painted.colours ?? [];
}

export const clustersOf = (head) => paintWith(head.valid, head.painted.colours);

const paintWith = (valid, colours) =>
  valid.map((kept, k) => ({ valid: kept, colour: colourOf(colours[k]) }));
