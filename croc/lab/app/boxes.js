// Boxes as numbers: [x, y, width, height] in whole pixels, always within the photograph.

export function firstBoxes({ width, height }) {
  const side = Math.round(0.68 * Math.min(width, height));
  const apart = (length, share) => Math.round((length - side) * share);
  return [
    [apart(width, 0.12), apart(height, 0.1), side, side],
    [apart(width, 0.88), apart(height, 0.9), side, side],
  ];
}

export function moveBox([x, y, width, height], dx, dy, picture) {
  return [
    clamp(Math.round(x + dx), 0, picture.width - width),
    clamp(Math.round(y + dy), 0, picture.height - height),
    width, height,
  ];
}

// `sides` names those that follow the pointer: some of n, e, s, w.
export function resizeBox([x, y, width, height], sides, dx, dy, picture, least) {
  let [left, top, right, bottom] = [x, y, x + width, y + height];
  if (sides.includes("w")) left = clamp(Math.round(left + dx), 0, right - least);
  if (sides.includes("e")) right = clamp(Math.round(right + dx), left + least, picture.width);
  if (sides.includes("n")) top = clamp(Math.round(top + dy), 0, bottom - least);
  if (sides.includes("s")) bottom = clamp(Math.round(bottom + dy), top + least, picture.height);
  return [left, top, right - left, bottom - top];
}

// Larger or smaller about its centre.
export function scaleBox([x, y, width, height], factor, picture, least) {
  const wide = clamp(Math.round(width * factor), least, picture.width);
  const high = clamp(Math.round(height * factor), least, picture.height);
  return moveBox([x, y, wide, high], (width - wide) / 2, (height - high) / 2, picture);
}

export const clamp = (value, least, most) => Math.min(Math.max(value, least), most);
