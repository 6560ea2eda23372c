// Clusters and similarities as transparent layers over a crop, and the crop itself in gray.

import { enlarge } from "./tiles.js";

const TINT = 0.62 * 255;
const FAINT = 0.12 * 255; // of clusters that are not pointed at
const HATCH = 0.85 * 255;
const STRIPES = 16; // across a crop, each a quarter of its period wide

// matplotlib's magma, at five places.
const HEAT = [[0, 0, 4], [81, 18, 124], [183, 55, 121], [252, 137, 97], [252, 253, 191]];

// The photograph's box in a square canvas, without its colors: those are the clusters' now.
export function drawCrop(context, photo, box, gray) {
  const { width, height } = context.canvas;
  context.globalCompositeOperation = "source-over";
  context.imageSmoothingQuality = "high";
  context.drawImage(photo, ...box, 0, 0, width, height);
  if (!gray) return;
  context.globalCompositeOperation = "saturation";
  context.fillStyle = "#808080";
  context.fillRect(0, 0, width, height);
  context.globalCompositeOperation = "source-over";
}

// Shares enlarged cluster by cluster; a pixel's color is the mixture, its hatching its strongest.
export function clusterLayer({ image, grid }, row, clusters, size, pointed = -1) {
  const sums = new Float32Array(4 * size * size); // red, green, blue and share
  const best = new Uint8Array(size * size);
  const strongest = new Uint8Array(size * size);
  clusters.forEach(({ color: [red, green, blue] }, k) => {
    const shares = enlarge(image, row * grid, k * grid, grid, grid, size, size);
    for (let i = 0; i < shares.length; i += 4) {
      const share = shares[i];
      if (!share) continue;
      sums[i] += share * red;
      sums[i + 1] += share * green;
      sums[i + 2] += share * blue;
      sums[i + 3] += share;
      if (share > best[i / 4]) {
        best[i / 4] = share;
        strongest[i / 4] = k;
      }
    }
  });
  const layer = new ImageData(size, size);
  const period = size / STRIPES;
  for (let i = 0; i < sums.length; i += 4) {
    const k = strongest[i / 4];
    const faint = pointed >= 0 && k !== pointed;
    const diagonal = ((i / 4) % size) + Math.floor(i / 4 / size);
    const hatched = !clusters[k].valid && !faint && diagonal % period < period / 4;
    for (let c = 0; c < 3; c++) layer.data[i + c] = hatched ? 20 : sums[i + c] / (sums[i + 3] || 1);
    layer.data[i + 3] = hatched ? HATCH : faint ? FAINT : TINT;
  }
  return layer;
}

// One map of rows × columns patches, in the colors of heat.
export function heatLayer({ image }, top, rows, columns, width, height) {
  const values = enlarge(image, top, 0, rows, columns, width, height);
  const layer = new ImageData(width, height);
  for (let i = 0; i < values.length; i += 4) {
    const place = (values[i] / 255) * (HEAT.length - 1);
    const below = Math.min(Math.floor(place), HEAT.length - 2);
    for (let c = 0; c < 3; c++) {
      const low = HEAT[below][c];
      layer.data[i + c] = low + (place - below) * (HEAT[below + 1][c] - low);
    }
    layer.data[i + 3] = 0.72 * 255;
  }
  return layer;
}

const scratch = make("canvas");

// putImageData would replace what is there; this lays it over.
export function lay(context, layer) {
  scratch.width = layer.width;
  scratch.height = layer.height;
  scratch.getContext("2d").putImageData(layer, 0, 0);
  context.drawImage(scratch, 0, 0, context.canvas.width, context.canvas.height);
}

// A frame around one patch, light on dark so that it is seen on anything.
export function drawPatch(context, index, grid, strong) {
  const side = context.canvas.width / grid;
  const [x, y] = [(index % grid) * side, Math.floor(index / grid) * side];
  for (const [width, color] of [[strong ? 6 : 4, "#000"], [strong ? 3 : 1.5, "#fff"]]) {
    context.lineWidth = width;
    context.strokeStyle = color;
    context.strokeRect(x + 1, y + 1, side - 2, side - 2);
  }
}
