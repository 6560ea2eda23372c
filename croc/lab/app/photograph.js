// The photograph and the two boxes on it: by mouse, touch and keyboard.

import { heatLayer, lay } from "./paint.js";
import { ARROWS, change, clamp, listen, NAMES, state } from "./state.js";

const CORNERS = ["nw", "ne", "sw", "se"];
const SCALES = { "+": 1.08, "=": 1.08, "-": 1 / 1.08, "−": 1 / 1.08 };
const KEY_STEP = 0.02; // of the photograph's longer side
const REACH_PX = 18; // of a corner, for a finger
const WHOLE_PX = 480;

export const photo = document.getElementById("photo");
const stage = document.getElementById("stage");
const whole = document.getElementById("whole");
const boxes = NAMES.map(makeBox);

export function showPhotograph() {
  stage.append(...boxes);
  stage.addEventListener("pointerdown", drag);
  listen("boxes picture", place);
  listen("answer mode boxes picture", drawWhole);
}

let turns = 0;

export async function choosePicture(picture) {
  const turn = ++turns;
  const image = new Image();
  image.src = `/api/pictures/${picture.id}`;
  await image.decode(); // throws if the server no longer has it
  if (turn !== turns) return; // another was chosen meanwhile
  photo.src = image.src;
  await photo.decode().catch(() => {}); // rejects where a newer choice takes its place
  if (turn !== turns) return;
  photo.alt = `The photograph: ${picture.name}`;
  stage.style.setProperty("--wide", picture.width / picture.height);
  change("picture", {
    picture, boxes: firstBoxes(picture), mode: "clusters", patch: null, pointed: null,
    clusters: [], similarity: [], traces: [],
  });
}

function makeBox(name, number) {
  const box = make("div", { class: `box box-${number}`, tabindex: 0, role: "application",
    "aria-roledescription": "crop box" }, make("span", { class: "label" }, name),
  ...CORNERS.map((corner) => make("span", { class: `handle ${corner}` })));
  // The box in use is on top; `hit` decides which one the pointer means.
  box.addEventListener("focus", () =>
    boxes.forEach((other) => other.classList.toggle("lifted", other === box)));
  box.addEventListener("keydown", (event) => press(event, number));
  return box;
}

// The nearest corner in reach, preferring the lifted box's; else the smaller of the boxes
// around the pointer, so that neither can hide the other.
function hit({ clientX, clientY }) {
  const frame = stage.getBoundingClientRect();
  const scale = state.picture.width / frame.width;
  const [x, y] = [(clientX - frame.left) * scale, (clientY - frame.top) * scale];
  const targets = [];
  state.boxes.forEach(([left, top, width, height], number) => {
    const lifted = boxes[number].classList.contains("lifted") ? 1 : 0;
    const reach = Math.min(REACH_PX * scale, Math.min(width, height) / 3); // room to move it
    for (const sides of CORNERS) {
      const dx = x - (sides.includes("w") ? left : left + width);
      const dy = y - (sides.includes("n") ? top : top + height);
      const far = Math.hypot(dx, dy);
      if (far <= reach) targets.push({ number, sides, far: far - lifted });
    }
    const inside = x >= left && x <= left + width && y >= top && y <= top + height;
    if (inside) targets.push({ number, sides: "", far: width * height + REACH_PX * scale });
  });
  return targets.sort((a, b) => a.far - b.far)[0];
}

function setBox(number, box) {
  if (String(box) === String(state.boxes[number])) return;
  change("boxes", { boxes: state.boxes.map((old, n) => (n === number ? box : old)) });
}

function drag(event) {
  const target = event.button ? null : hit(event);
  if (!target) return;
  const { number, sides } = target;
  const box = boxes[number];
  event.preventDefault(); // neither select nor drag the picture
  box.focus({ preventScroll: true });
  box.setPointerCapture(event.pointerId);
  const [start, from] = [state.boxes[number], [event.clientX, event.clientY]];
  const move = (moved) => {
    const scale = state.picture.width / stage.clientWidth;
    const [dx, dy] = [(moved.clientX - from[0]) * scale, (moved.clientY - from[1]) * scale];
    setBox(number, sides
      ? resizeBox(start, sides, dx, dy, state.picture, state.start.limits.box_px)
      : moveBox(start, dx, dy, state.picture));
  };
  box.classList.add("dragged");
  box.onpointermove = move;
  box.onpointerup = box.onpointercancel = () => {
    box.onpointermove = null;
    box.classList.remove("dragged");
  };
}

function press(event, number) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { picture, start } = state;
  const box = state.boxes[number];
  const arrow = ARROWS[event.key];
  const least = start.limits.box_px;
  const step = Math.max(1, Math.round(KEY_STEP * Math.max(picture.width, picture.height)));
  if (arrow) {
    const [dx, dy] = arrow.map((way) => way * step);
    setBox(number, event.shiftKey
      ? resizeBox(box, "se", dx, dy, picture, least) : moveBox(box, dx, dy, picture));
  } else if (event.key in SCALES) {
    setBox(number, scaleBox(box, SCALES[event.key], picture, least));
  } else return;
  event.preventDefault();
}

function place() {
  const { width, height } = state.picture;
  boxes.forEach((box, number) => {
    const [x, y, w, h] = state.boxes[number];
    const sides = { left: x / width, top: y / height, width: w / width, height: h / height };
    for (const [side, share] of Object.entries(sides)) box.style[side] = `${100 * share}%`;
    box.setAttribute("aria-label", `Crop ${NAMES[number]}: ${w} by ${h} pixels at ${x}, ${y}. ` +
      "Arrows move it, Shift and arrows resize it, plus and minus scale it.");
  });
}

// The similarities over the whole photograph, of the model with the chosen patch.
function drawWhole() {
  const answer = state.mode === "similarity" ? state.similarity[state.patch.model] : null;
  whole.hidden = !answer;
  if (!answer) return;
  const { width, height } = state.picture;
  const scale = WHOLE_PX / Math.max(width, height);
  [whole.width, whole.height] = [Math.round(width * scale), Math.round(height * scale)];
  const tiles = answer.whole;
  lay(whole.getContext("2d"),
    heatLayer(tiles, 0, tiles.height, tiles.width, whole.width, whole.height));
}

// Boxes as numbers: [x, y, width, height] in whole pixels, always within the photograph.

function firstBoxes({ width, height }) {
  const side = Math.round(0.68 * Math.min(width, height));
  const apart = (length, share) => Math.round((length - side) * share);
  return [
    [apart(width, 0.12), apart(height, 0.1), side, side],
    [apart(width, 0.88), apart(height, 0.9), side, side],
  ];
}

function moveBox([x, y, width, height], dx, dy, picture) {
  return [
    clamp(Math.round(x + dx), 0, picture.width - width),
    clamp(Math.round(y + dy), 0, picture.height - height),
    width, height,
  ];
}

// `sides` names those that follow the pointer: some of n, e, s, w.
function resizeBox([x, y, width, height], sides, dx, dy, picture, least) {
  let [left, top, right, bottom] = [x, y, x + width, y + height];
  if (sides.includes("w")) left = clamp(Math.round(left + dx), 0, right - least);
  if (sides.includes("e")) right = clamp(Math.round(right + dx), left + least, picture.width);
  if (sides.includes("n")) top = clamp(Math.round(top + dy), 0, bottom - least);
  if (sides.includes("s")) bottom = clamp(Math.round(bottom + dy), top + least, picture.height);
  return [left, top, right - left, bottom - top];
}

// Larger or smaller about its center.
function scaleBox([x, y, width, height], factor, picture, least) {
  const wide = clamp(Math.round(width * factor), least, picture.width);
  const high = clamp(Math.round(height * factor), least, picture.height);
  return moveBox([x, y, wide, high], (width - wide) / 2, (height - high) / 2, picture);
}
