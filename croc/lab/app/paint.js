// Clusters and similarities as transparent layers over a crop, and the crop itself in gray.

import { lineOf, widen } from "./tiles.js";

const TINT = 0.62 * 255;
const FAINT = 0.12 * 255; // of clusters that are not pointed at
const HATCH = 0.85 * 255;
const STRIPES = 16; // across a crop, each a quarter of its period wide

// matplotlib's magma, at five places.
const HEAT = [[0, 0, 4], [81, 18, 124], [183, 55, 121], [252, 137, 97], [252, 253, 191]];

// The photograph's box in a square canvas, without its colours: those are the clusters' now.
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

// Shares upsampled cluster by cluster; a pixel's colour is the mixture, its hatching its strongest.
export function clusterLayer(tiles, row, clusters, size, pointed = -1) {
  const grid = tiles.grid;
  const wide = clusters.map((_, k) => widen(tiles, row * grid, k * grid, grid, grid, size));
  const layer = new ImageData(size, size);
  const line = new Float32Array(size);
  const sums = Array.from({ length: 4 }, () => new Float32Array(size));
  const best = new Float32Array(size);
  const strongest = new Uint8Array(size);
  for (let y = 0; y < size; y++) {
    [...sums, best].forEach((sum) => sum.fill(0));
    strongest.fill(0);
    for (let k = 0; k < clusters.length; k++) {
      lineOf(wide[k], grid, size, y, size, line);
      mix(line, clusters[k].colour, k, sums, best, strongest);
    }
    writeLine(layer, y, sums, strongest, clusters, pointed);
  }
  return layer;
}

function mix(line, [red, green, blue], k, [reds, greens, blues, shares], best, strongest) {
  for (let x = 0; x < line.length; x++) {
    const share = line[x];
    if (!share) continue;
    reds[x] += share * red;
    greens[x] += share * green;
    blues[x] += share * blue;
    shares[x] += share;
    if (share > best[x]) {
      best[x] = share;
      strongest[x] = k;
    }
  }
}

function writeLine(layer, y, [reds, greens, blues, shares], strongest, clusters, pointed) {
  const size = layer.width;
  const period = size / STRIPES;
  for (let x = 0, i = 4 * y * size; x < size; x++, i += 4) {
    const k = strongest[x];
    const faint = pointed >= 0 && k !== pointed;
    if (!clusters[k].valid && !faint && (x + y) % period < period / 4) {
      layer.data[i] = layer.data[i + 1] = layer.data[i + 2] = 20;
      layer.data[i + 3] = HATCH;
      continue;
    }
    const share = shares[x] || 1e-9;
    layer.data[i] = reds[x] / share;
    layer.data[i + 1] = greens[x] / share;
    layer.data[i + 2] = blues[x] / share;
    layer.data[i + 3] = faint ? FAINT : TINT;
  }
}

// One map of rows × columns patches, in the colours of heat.
export function heatLayer(tiles, top, rows, columns, width, height) {
  const wide = widen(tiles, top, 0, rows, columns, width);
  const layer = new ImageData(width, height);
  const line = new Float32Array(width);
  for (let y = 0; y < height; y++) {
    lineOf(wide, rows, width, y, height, line);
    for (let x = 0, i = 4 * y * width; x < width; x++, i += 4) {
      heat(Math.min(line[x] / 255, 1), layer.data, i);
    }
  }
  return layer;
}

function heat(value, data, at) {
  const place = value * (HEAT.length - 1);
  const below = Math.min(Math.floor(place), HEAT.length - 2);
  for (let channel = 0; channel < 3; channel++) {
    const low = HEAT[below][channel];
    data[at + channel] = low + (place - below) * (HEAT[below + 1][channel] - low);
  }
  data[at + 3] = 0.72 * 255;
}

const scratch = document.createElement("canvas");

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
  for (const [width, colour] of [[strong ? 6 : 4, "#000"], [strong ? 3 : 1.5, "#fff"]]) {
    context.lineWidth = width;
    context.strokeStyle = colour;
    context.strokeRect(x + 1, y + 1, side - 2, side - 2);
  }
}
