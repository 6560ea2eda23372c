// Maps arrive as tiles of gray in one PNG: a row for each head (or step) and crop, a column for
// each cluster. Here they become numbers, and smooth maps of any size.

export async function readTiles(url, grid) {
  const image = new Image();
  image.src = url;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = image.width;
  canvas.height = image.height;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(image, 0, 0);
  const pixels = context.getImageData(0, 0, image.width, image.height).data;
  const gray = new Uint8Array(image.width * image.height);
  for (let i = 0; i < gray.length; i++) gray[i] = pixels[4 * i];
  return { gray, width: image.width, height: image.height, grid };
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

const kept = new Map();

// For each of `size` pixels over `count` patches: four patches and their weights (Keys' cubic).
export function cubicTaps(count, size) {
  const key = `${count} ${size}`;
  if (!kept.has(key)) kept.set(key, makeTaps(count, size));
  return kept.get(key);
}

function makeTaps(count, size) {
  const index = new Int32Array(4 * size);
  const weight = new Float32Array(4 * size);
  for (let x = 0; x < size; x++) {
    const centre = ((x + 0.5) * count) / size - 0.5;
    const first = Math.floor(centre) - 1;
    for (let tap = 0; tap < 4; tap++) {
      index[4 * x + tap] = Math.min(Math.max(first + tap, 0), count - 1);
      weight[4 * x + tap] = cubic(Math.abs(centre - first - tap));
    }
  }
  return { index, weight };
}

function cubic(x) {
  if (x >= 2) return 0;
  return x < 1 ? (1.5 * x - 2.5) * x * x + 1 : ((-0.5 * x + 2.5) * x - 4) * x + 2;
}

// A tile of rows × columns patches, starting at (top, left), with its lines widened to `size`.
export function widen(tiles, top, left, rows, columns, size) {
  const { index, weight } = cubicTaps(columns, size);
  const wide = new Float32Array(rows * size);
  for (let row = 0; row < rows; row++) {
    const start = (top + row) * tiles.width + left;
    for (let x = 0, i = 0; x < size; x++, i += 4) {
      wide[row * size + x] =
        weight[i] * tiles.gray[start + index[i]] +
        weight[i + 1] * tiles.gray[start + index[i + 1]] +
        weight[i + 2] * tiles.gray[start + index[i + 2]] +
        weight[i + 3] * tiles.gray[start + index[i + 3]];
    }
  }
  return wide;
}

// Line y of a widened tile, made as tall as `height`, added into `line` and kept above 0.
export function lineOf(wide, rows, size, y, height, line) {
  const { index, weight } = cubicTaps(rows, height);
  const [a, b, c, d] = [0, 1, 2, 3].map((tap) => index[4 * y + tap] * size);
  const [p, q, r, s] = weight.subarray(4 * y, 4 * y + 4);
  for (let x = 0; x < size; x++) {
    const value = p * wide[a + x] + q * wide[b + x] + r * wide[c + x] + s * wide[d + x];
    line[x] = value > 0 ? value : 0;
  }
}
