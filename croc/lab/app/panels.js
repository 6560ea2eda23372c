// A panel for each model: both crops under their clusters (or similarities), and the heads.

import { clusterLayer, drawCrop, drawPatch, heatLayer, lay } from "./paint.js";
import { photo } from "./photograph.js";
import { ARROWS, change, clamp, listen, NAMES, state } from "./state.js";
import { clusterAt, firstFree, valueAt } from "./tiles.js";

const CROP_PX = 320;
const SMALL_PX = 72;

export function makePanels() {
  document.getElementById("panels").append(...state.start.models.map(makePanel));
}

function makePanel({ name }, model) {
  const leaving = make("button", { type: "button", class: "leave", hidden: "" }, "Clusters");
  leaving.addEventListener("click", leave);
  const crops = NAMES.map((_, view) => makeCrop(model, view));
  const panel = make("section", { class: "card panel", "aria-label": `Clusters of ${name}` },
    make("div", { class: "title" }, make("h2", {}, name), make("span", { class: "soft small summary" }),
      make("span", { class: "soft small scale", hidden: "" }, make("span", { class: "low" }),
        make("i", { "aria-hidden": "true" }), "1"), leaving),
    make("div", { class: "crops" }, ...crops.map((canvas, view) =>
      make("figure", { class: `crop crop-${view}` }, canvas,
        make("span", { class: "label" }, NAMES[view])))),
    make("p", { class: "caption small soft", "aria-live": "polite" }),
    makeHeads(model));
  let scheduled = false;
  listen("picture boxes head mode pointed answer trace", () => {
    if (scheduled) return;
    scheduled = true; // several changes, one drawing
    requestAnimationFrame(() => {
      scheduled = false;
      draw(panel, crops, model);
    });
  });
  return panel;
}

function makeCrop(model, view) {
  const canvas = make("canvas", { width: CROP_PX, height: CROP_PX, tabindex: 0,
    role: "application", "aria-roledescription": "crop",
    "aria-label": `Crop ${NAMES[view]} and its clusters. Arrows move over its patches, ` +
      "Enter shows what is similar to one, Escape goes back." });
  const { grid } = state.start.models[model];
  const patchUnder = (event) => {
    const box = canvas.getBoundingClientRect();
    const along = (share) => clamp(Math.floor(share * grid), 0, grid - 1);
    return along((event.clientY - box.top) / box.height) * grid +
      along((event.clientX - box.left) / box.width);
  };
  const current = () =>
    (state.pointed?.model === model && state.pointed.view === view ? state.pointed.index : null);
  const point = (index) => {
    if (index !== null && index === current()) return;
    change("pointed", { pointed: index === null ? null : { model, view, index } });
  };
  const pick = (index) =>
    change("mode", { mode: "similarity", patch: { model, view, index }, similarity: [] });
  canvas.addEventListener("pointermove", (event) => {
    if (event.pointerType === "mouse") point(patchUnder(event));
  });
  canvas.addEventListener("pointerleave", () => point(null));
  canvas.addEventListener("blur", () => point(null));
  canvas.addEventListener("click", (event) => pick(patchUnder(event)));
  canvas.addEventListener("keydown", (event) => {
    const here = current() ?? Math.floor(grid / 2) * (grid + 1);
    if (event.key in ARROWS) {
      const [dx, dy] = ARROWS[event.key];
      const x = clamp((here % grid) + dx, 0, grid - 1);
      point(clamp(Math.floor(here / grid) + dy, 0, grid - 1) * grid + x);
    } else if (event.key === "Enter" || event.key === " ") pick(here);
    else if (event.key === "Escape") leave();
    else return;
    event.preventDefault();
  });
  return canvas;
}

function leave() {
  change("mode", { mode: "clusters", patch: null });
}

function draw(panel, crops, model) {
  const shown = shownClusters(model);
  const similar = state.mode === "similarity" ? state.similarity[model] : null;
  const { grid } = state.start.models[model];
  const { patch, pointed, mode } = state;
  crops.forEach((canvas, view) => {
    const context = canvas.getContext("2d");
    drawCrop(context, photo, state.boxes[view], Boolean(similar ?? shown));
    if (similar) {
      lay(context, heatLayer(similar.crops, view * grid, grid, grid, CROP_PX, CROP_PX));
    } else if (shown) {
      const { tiles, row, clusters } = shown;
      const highlighted = pointed?.model === model
        ? clusterAt(tiles, row + pointed.view, clusters.length, pointed.index) : -1;
      lay(context, clusterLayer(tiles, row + view, clusters, CROP_PX, highlighted));
    }
    if (mode === "similarity" && patch.view === view) {
      drawPatch(context, samePatch(patch, grid), grid, true);
    }
    if (pointed?.model === model && pointed.view === view) {
      drawPatch(context, pointed.index, grid, false);
    }
  });
  panel.querySelector(".leave").hidden = mode === "clusters";
  panel.querySelector(".summary").textContent = summarize(shown, similar);
  panel.querySelector(".scale").hidden = !similar;
  if (similar) panel.querySelector(".low").textContent = format(similar.low);
  panel.querySelector(".caption").textContent = caption(model, shown, similar);
}

// The chosen patch's position in another model's grid, which may be finer or coarser.
export function samePatch(patch, grid) {
  const from = state.start.models[patch.model].grid;
  const move = (at) => Math.min(Math.floor(((at + 0.5) / from) * grid), grid - 1);
  return move(Math.floor(patch.index / from)) * grid + move(patch.index % from);
}

const format = (value) => value.toFixed(2).replace("-", "−");

function summarize(shown, similar) {
  if (similar || !shown) return similar ? "cosine" : "";
  const { clusters, share } = shown;
  const shared = clusters.filter((cluster) => cluster.valid).length;
  return `K ${clusters.length}, ${shared} shared, largest share ${share.toFixed(2)}`;
}

function caption(model, shown, similar) {
  const { pointed } = state;
  if (pointed?.model !== model || !(similar ?? shown)) {
    return similar ? "Point at a patch for its cosine; click for another."
      : "Point at a cluster to see it in both crops; click for what is similar to a patch.";
  }
  if (similar) {
    const value = valueAt(similar.crops, pointed.view, 0, pointed.index) / 255;
    return `Cosine ${format(similar.low + value * (1 - similar.low))}`;
  }
  const { tiles, row, clusters } = shown;
  const number = clusterAt(tiles, row + pointed.view, clusters.length, pointed.index);
  const [inA, inB] = [row, row + 1].map((at) => Array.from({ length: tiles.grid ** 2 }, (_, index) =>
    clusterAt(tiles, at, clusters.length, index)).filter((cluster) => cluster === number).length);
  const where = clusters[number].valid ? "shared" : "in one crop only, left out";
  return `Cluster ${number + 1} of ${clusters.length}, ${where}: ${inA} patches of A, ${inB} of B`;
}

// The row of heads: each with its own small picture of both crops, its K, its shared clusters and
// its mean largest share.
function makeHeads(model) {
  const row = make("div", { class: "heads", role: "group", "aria-label": "Attention heads" });
  const mark = () => [...row.children].forEach((button, n) => button.setAttribute("aria-pressed",
    String(n === Math.min(state.heads[model], row.children.length - 1))));
  listen("answer", () => {
    const answer = state.clusters[model];
    if (!answer) return;
    if (row.children.length !== answer.heads.length) {
      row.replaceChildren(...answer.heads.map((_, number) => makeButton(model, number)));
      row.hidden = answer.heads.length === 1; // the last tokens have no heads
    }
    [...row.children].forEach((button, number) => drawButton(button, answer, number));
    mark();
  });
  listen("head", mark);
  return row;
}

function makeButton(model, number) {
  const canvas = () => make("canvas", { width: SMALL_PX, height: SMALL_PX });
  const button = make("button", { type: "button", class: "one-head" },
    make("span", { class: "pair" }, canvas(), canvas()),
    // Counted from 0, as `croc show --heads` does.
    make("span", { class: "small text" }, make("strong", {}, `Head ${number}`), " ",
      make("span", { class: "counts" }, "", make("span"))));
  button.addEventListener("click", () =>
    change("head", { heads: state.heads.map((old, n) => (n === model ? number : old)) }));
  return button;
}

function drawButton(button, answer, number) {
  const head = answer.heads[number];
  button.querySelectorAll("canvas").forEach((canvas, view) => {
    const context = canvas.getContext("2d");
    drawCrop(context, photo, state.boxes[view], true);
    lay(context, clusterLayer(answer.tiles, 2 * number + view, clustersOf(head), SMALL_PX));
  });
  const [counts, share] = button.querySelector(".counts").childNodes;
  counts.textContent = `K ${head.k}, ${head.shared} shared, `;
  share.textContent = `largest share ${head.share.toFixed(2)}`;
}

// The palette, then darker versions of it.
function colorOf(number) {
  const { palette } = state.start;
  const color = palette[number % palette.length];
  return number < palette.length ? color : color.map((part) => 0.55 * part);
}

// What the panel of a model shows now: tiles, the row of a crop in them, the clusters (each with its
// color and whether both crops have it), and the mean largest share of a patch.
function shownClusters(model) {
  const answer = state.clusters[model];
  const number = Math.min(state.heads[model], (answer?.heads.length ?? 1) - 1);
  const head = answer?.heads[number];
  const trace = state.mode === "merging" ? state.traces[model] : null;
  if (!trace) {
    return head && { tiles: answer.tiles, row: 2 * number, clusters: clustersOf(head), share: head.share };
  }
  const at = Math.min(state.step, trace.steps.length - 1);
  const step = trace.steps[at];
  // As outside the merging; clusters that the chosen step does not have get the next free colors.
  const colors = [...(head?.painted.colors ?? [])];
  while (colors.length < trace.columns) colors.push(firstFree(colors));
  const clusters = paintWith(step.valid, step.colors.map((color) => colors[color]));
  return { tiles: trace.tiles, row: 2 * at, clusters, share: step.share };
}

const clustersOf = (head) => paintWith(head.valid, head.painted.colors);

const paintWith = (valid, colors) =>
  valid.map((isValid, k) => ({ valid: isValid, color: colorOf(colors[k]) }));
