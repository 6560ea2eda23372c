// Maps arrive as tiles of gray in one PNG: a row for each head (or step) and crop, a column for
// each cluster. Here they become numbers, and colors that follow the clusters.

export async function readTiles(url, grid) {
  const image = new Image();
  image.src = url;
  await image.decode();
  const { width, height } = image;
  const gray = enlarge(image, 0, 0, height, width, width, height).filter((_, i) => i % 4 === 0);
  return { image, gray, width, height, grid };
}

const scratch = make("canvas").getContext("2d", { willReadFrequently: true });

// RGBA of a part of an image, smoothly enlarged by the browser.
export function enlarge(image, top, left, rows, columns, width, height) {
  Object.assign(scratch.canvas, { width, height }); // which also clears it
  scratch.imageSmoothingQuality = "high";
  scratch.drawImage(image, left, top, columns, rows, 0, 0, width, height);
  return scratch.getImageData(0, 0, width, height).data;
}

// The value, 0 … 255, of a patch in the tile at (row, column).
export function valueAt(tiles, row, column, index) {
  const { gray, width, grid } = tiles;
  const y = row * grid + Math.floor(index / grid);
  return gray[y * width + column * grid + (index % grid)];
}

// The cluster that a patch belongs to most.
export function clusterAt(tiles, row, count, index) {
  let best = 0;
  for (let k = 1; k < count; k++) {
    if (valueAt(tiles, row, k, index) > valueAt(tiles, row, best, index)) best = k;
  }
  return best;
}

// A cluster keeps its color while the boxes move: the colors of a new answer are those of the
// clusters at the same positions of the photograph in the previous answer.
const PLACES = 32; // along each side of the photograph
const NONE = 255;

// For each of `count` clusters the number of its color; `before` is the previous result.
export function followColors(tiles, row, count, boxes, picture, before) {
  const sizes = new Array(count).fill(0);
  const map = [0, 1].map((view) => {
    const labels = Uint8Array.from({ length: tiles.grid ** 2 }, (_, index) =>
      clusterAt(tiles, row + view, count, index));
    for (const label of labels) sizes[label]++;
    return lookUp(labels, tiles.grid, boxes[view], picture);
  });
  const colors = new Array(count).fill(-1);
  for (const [cluster, color] of before ? overlaps(map, before) : []) {
    if (colors[cluster] < 0 && !colors.includes(color)) colors[cluster] = color;
  }
  const bySize = [...colors.keys()].sort((a, b) => sizes[b] - sizes[a]);
  for (const cluster of bySize) {
    if (colors[cluster] < 0) colors[cluster] = firstFree(colors);
  }
  return { colors, map };
}

export function firstFree(colors) {
  let color = 0;
  while (colors.includes(color)) color++;
  return color;
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

// Pairs of a cluster and an earlier color, those that share the most places first.
function overlaps(map, before) {
  const shared = new Map();
  map.forEach((labels, view) => labels.forEach((label, place) => {
    const old = before.map[view][place];
    if (label === NONE || old === NONE) return;
    const key = label * 256 + before.colors[old];
    shared.set(key, (shared.get(key) ?? 0) + 1);
  }));
  return [...shared].sort((a, b) => b[1] - a[1]).map(([key]) => [key >> 8, key % 256]);
}
