// A cluster keeps its colour while the boxes move: the colours of a new answer are those of the
// clusters that lay at the same places of the photograph in the answer before.

import { clusterAt } from "./tiles.js";

const PLACES = 32; // along each side of the photograph
const NONE = 255;

// For each of `count` clusters the number of its colour; `before` is what this gave the last time.
export function followColours(tiles, row, count, boxes, picture, before) {
  const labels = [0, 1].map((view) => patchLabels(tiles, row + view, count));
  const map = labels.map((own, view) => lookUp(own, tiles.grid, boxes[view], picture));
  const sizes = countAll(labels, count);
  const colours = new Array(count).fill(-1);
  for (const [cluster, colour] of before ? overlaps(map, before) : []) {
    if (colours[cluster] < 0 && !colours.includes(colour)) colours[cluster] = colour;
  }
  const bySize = [...colours.keys()].sort((a, b) => sizes[b] - sizes[a]);
  for (const cluster of bySize) {
    if (colours[cluster] < 0) colours[cluster] = firstFree(colours);
  }
  return { colours, map };
}

// The same for clusters of the merging that the chosen step does not have.
export function extendColours(colours, count) {
  const all = [...colours];
  while (all.length < count) all.push(firstFree(all));
  return all;
}

function firstFree(colours) {
  let colour = 0;
  while (colours.includes(colour)) colour++;
  return colour;
}

function patchLabels(tiles, row, count) {
  return Uint8Array.from({ length: tiles.grid ** 2 }, (_, at) => clusterAt(tiles, row, count, at));
}

function countAll(labels, count) {
  const sizes = new Array(count).fill(0);
  for (const own of labels) for (const label of own) sizes[label]++;
  return sizes;
}

// The cluster at each place of the photograph, where the box covers it.
function lookUp(labels, grid, [x, y, width, height], picture) {
  const map = new Uint8Array(PLACES ** 2).fill(NONE);
  for (let row = 0; row < PLACES; row++) {
    const v = Math.floor(((((row + 0.5) / PLACES) * picture.height - y) / height) * grid);
    if (v < 0 || v >= grid) continue;
    for (let column = 0; column < PLACES; column++) {
      const u = Math.floor(((((column + 0.5) / PLACES) * picture.width - x) / width) * grid);
      if (u >= 0 && u < grid) map[row * PLACES + column] = labels[v * grid + u];
    }
  }
  return map;
}

// Pairs of a cluster and an earlier colour, those that share the most places first.
function overlaps(map, before) {
  const shared = new Map();
  map.forEach((own, view) => own.forEach((label, place) => {
    const old = before.map[view][place];
    if (label === NONE || old === NONE) return;
    const key = label * 256 + before.colours[old];
    shared.set(key, (shared.get(key) ?? 0) + 1);
  }));
  const pairs = [...shared].sort((a, b) => b[1] - a[1]);
  return pairs.map(([key]) => [Math.floor(key / 256), key % 256]);
}
