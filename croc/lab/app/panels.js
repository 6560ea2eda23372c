// A panel for each model: both crops under their clusters (or similarities), and the heads.

import { makeHeads } from "./heads.js";
import { clusterLayer, drawCrop, drawPatch, heatLayer, lay } from "./paint.js";
import { photo } from "./photograph.js";
import { shownClusters } from "./shown.js";
import { change, listen, modelCount, state } from "./state.js";
import { clusterAt, valueAt } from "./tiles.js";

const CROP_PX = 320;
const NAMES = ["A", "B"];
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

export function makePanels() {
  const panels = Array.from({ length: modelCount() }, (_, model) => makePanel(model));
  document.getElementById("panels").append(...panels);
}

function makePanel(model) {
  const panel = document.createElement("section");
  panel.className = "card panel";
  panel.innerHTML = `<div class="title"><h2></h2><span class="soft small says"></span>
    <span class="soft small scale" hidden><span class="low"></span><i aria-hidden="true"></i>1</span>
    <button type="button" class="leave" hidden>Clusters</button></div>
    <div class="crops"></div>
    <p class="caption small soft" aria-live="polite"></p>
    <div class="heads" role="group" aria-label="Attention heads"></div>`;
  panel.querySelector("h2").textContent = state.start.models[model].name;
  panel.setAttribute("aria-label", `Clusters of ${state.start.models[model].name}`);
  panel.querySelector(".leave").addEventListener("click", leave);
  const crops = NAMES.map((_, view) => makeCrop(model, view));
  panel.querySelector(".crops").append(...crops.map((crop) => crop.parentElement));
  makeHeads(panel.querySelector(".heads"), model);
  let asked = false;
  listen("picture boxes head mode pointed answer trace", () => {
    if (asked) return;
    asked = true; // several changes, one drawing
    requestAnimationFrame(() => {
      asked = false;
      draw(panel, crops, model);
    });
  });
  return panel;
}

function makeCrop(model, view) {
  const figure = document.createElement("figure");
  figure.className = `crop crop-${view}`;
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = CROP_PX;
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-roledescription", "crop");
  canvas.setAttribute("aria-label", `Crop ${NAMES[view]} and its clusters. Arrows move over its ` +
    "patches, Enter shows what is similar to one, Escape goes back.");
  const label = document.createElement("span");
  label.className = "label";
  label.textContent = NAMES[view];
  figure.append(canvas, label);
  const point = (index) => {
    const { pointed } = state;
    const same = pointed && index !== null && pointed.model === model &&
      pointed.view === view && pointed.index === index;
    if (!same) change("pointed", { pointed: index === null ? null : { model, view, index } });
  };
  canvas.addEventListener("pointermove", (event) => {
    if (event.pointerType === "mouse") point(patchUnder(event, canvas, model));
  });
  canvas.addEventListener("pointerleave", () => point(null));
  canvas.addEventListener("blur", () => point(null));
  canvas.addEventListener("click", (event) => pick(model, view, patchUnder(event, canvas, model)));
  canvas.addEventListener("keydown", (event) => press(event, model, view, point));
  return canvas;
}

function patchUnder(event, canvas, model) {
  const { grid } = state.start.models[model];
  const box = canvas.getBoundingClientRect();
  const along = (at, from, length) =>
    Math.min(Math.max(Math.floor(((at - from) / length) * grid), 0), grid - 1);
  return along(event.clientY, box.top, box.height) * grid +
    along(event.clientX, box.left, box.width);
}

function press(event, model, view, point) {
  const { grid } = state.start.models[model];
  const here = state.pointed?.model === model && state.pointed.view === view
    ? state.pointed.index : Math.floor(grid / 2) * (grid + 1);
  const arrow = ARROWS[event.key];
  if (arrow) {
    const within = (value) => Math.min(Math.max(value, 0), grid - 1);
    const [x, y] = [within((here % grid) + arrow[0]), within(Math.floor(here / grid) + arrow[1])];
    point(y * grid + x);
  } else if (event.key === "Enter" || event.key === " ") pick(model, view, here);
  else if (event.key === "Escape") leave();
  else return;
  event.preventDefault();
}

function pick(model, view, index) {
  change("mode", { mode: "similarity", patch: { model, view, index }, similarity: [] });
}

function leave() {
  change("mode", { mode: "clusters", patch: null });
}

function draw(panel, crops, model) {
  const shown = shownClusters(model);
  const similar = state.mode === "similarity" ? state.similarity[model] : null;
  const ready = similar ?? shown;
  crops.forEach((canvas, view) => {
    const context = canvas.getContext("2d");
    drawCrop(context, photo, state.boxes[view], Boolean(ready));
    if (similar) drawSimilar(context, similar, view);
    else if (shown) drawClusters(context, shown, model, view);
    drawMarks(context, model, view);
  });
  panel.querySelector(".leave").hidden = state.mode === "clusters";
  panel.querySelector(".says").textContent = summarise(shown, similar);
  panel.querySelector(".scale").hidden = !similar;
  if (similar) panel.querySelector(".low").textContent = say(similar.low);
  panel.querySelector(".caption").textContent = caption(model, shown, similar);
}

function drawClusters(context, { tiles, row, clusters }, model, view) {
  const { pointed } = state;
  const one = pointed?.model === model
    ? clusterAt(tiles, row + pointed.view, clusters.length, pointed.index) : -1;
  lay(context, clusterLayer(tiles, row + view, clusters, CROP_PX, one));
}

function drawSimilar(context, { crops, grid }, view) {
  lay(context, heatLayer(crops, view * grid, grid, grid, CROP_PX, CROP_PX));
}

function drawMarks(context, model, view) {
  const { grid } = state.start.models[model];
  const { patch, pointed, mode } = state;
  if (mode === "similarity" && patch.view === view) {
    drawPatch(context, samePatch(patch, grid), grid, true);
  }
  if (pointed?.model === model && pointed.view === view) {
    drawPatch(context, pointed.index, grid, false);
  }
}

// The picked patch's place in another model's grid, which may be finer or coarser.
export function samePatch(patch, grid) {
  const own = state.start.models[patch.model].grid;
  const move = (at) => Math.min(Math.floor(((at + 0.5) / own) * grid), grid - 1);
  return move(Math.floor(patch.index / own)) * grid + move(patch.index % own);
}

const say = (value) => value.toFixed(2).replace("-", "−");

function summarise(shown, similar) {
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
    return `Cosine ${say(similar.low + value * (1 - similar.low))}`;
  }
  const { tiles, row, clusters } = shown;
  const one = clusterAt(tiles, row + pointed.view, clusters.length, pointed.index);
  const count = [0, 1].map((view) => patchesOf(tiles, row + view, clusters.length, one));
  const where = clusters[one].valid ? "shared" : "in one crop only, left out";
  return `Cluster ${one + 1} of ${clusters.length}, ${where}: ` +
    `${count[0]} patches of A, ${count[1]} of B`;
}

function patchesOf(tiles, row, count, one) {
  let found = 0;
  for (let index = 0; index < tiles.grid ** 2; index++) {
    if (clusterAt(tiles, row, count, index) === one) found++;
  }
  return found;
}
