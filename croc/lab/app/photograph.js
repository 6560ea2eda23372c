// The photograph and the two boxes on it: by mouse, touch and keyboard.

import { firstBoxes, moveBox, resizeBox, scaleBox } from "./boxes.js";
import { heatLayer, lay } from "./paint.js";
import { change, listen, state } from "./state.js";

const NAMES = ["A", "B"];
const CORNERS = ["nw", "ne", "sw", "se"];
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
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
  image.src = `/api/pictures/${encodeURIComponent(picture.id)}`;
  await image.decode(); // throws if the server has it no longer
  if (turn !== turns) return; // another was chosen meanwhile
  photo.src = image.src;
  try {
    await photo.decode();
  } catch (error) {
    if (turn !== turns) return; // a newer choice took its place
    throw error;
  }
  if (turn !== turns) return;
  photo.alt = `The photograph: ${picture.name}`;
  stage.style.setProperty("--wide", picture.width / picture.height);
  change("picture", {
    picture, boxes: firstBoxes(picture), mode: "clusters", patch: null, pointed: null,
    clusters: [], similarity: [], traces: [],
  });
}

function makeBox(name, number) {
  const box = document.createElement("div");
  box.className = `box box-${number}`;
  box.tabIndex = 0;
  box.setAttribute("role", "application");
  box.setAttribute("aria-roledescription", "crop box");
  const label = document.createElement("span");
  label.className = "label";
  label.textContent = name;
  box.append(label, ...CORNERS.map(makeHandle));
  box.addEventListener("focus", () => lift(number));
  box.addEventListener("keydown", (event) => press(event, number));
  return box;
}

function makeHandle(corner) {
  const handle = document.createElement("span");
  handle.className = `handle ${corner}`;
  return handle;
}

// The one in use lies on top; which one a pointer means is found by `hit`, not by what it touches.
function lift(number) {
  boxes.forEach((box, other) => box.classList.toggle("lifted", other === number));
}

// A corner in reach, the nearest first and of two the lifted box's; else the smaller of the boxes
// around the pointer, so that neither can hide the other.
function hit({ clientX, clientY }) {
  const frame = stage.getBoundingClientRect();
  const scale = state.picture.width / frame.width;
  const [x, y] = [(clientX - frame.left) * scale, (clientY - frame.top) * scale];
  const found = [];
  state.boxes.forEach(([left, top, width, height], number) => {
    const lifted = boxes[number].classList.contains("lifted") ? 1 : 0;
    const reach = Math.min(REACH_PX * scale, Math.min(width, height) / 3); // room to move it
    for (const sides of CORNERS) {
      const dx = x - (sides.includes("w") ? left : left + width);
      const dy = y - (sides.includes("n") ? top : top + height);
      const far = Math.hypot(dx, dy);
      if (far <= reach) found.push({ number, sides, far: far - lifted });
    }
    const inside = x >= left && x <= left + width && y >= top && y <= top + height;
    if (inside) found.push({ number, sides: "", far: width * height + REACH_PX * scale });
  });
  return found.sort((a, b) => a.far - b.far)[0];
}

function setBox(number, box) {
  if (String(box) === String(state.boxes[number])) return;
  change("boxes", { boxes: state.boxes.map((old, n) => (n === number ? box : old)) });
}

function drag(event) {
  const found = event.button ? null : hit(event);
  if (!found) return;
  const { number, sides } = found;
  const box = boxes[number];
  event.preventDefault(); // no selection, no picture carried away
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
  const end = () => {
    box.removeEventListener("pointermove", move);
    box.classList.remove("held");
  };
  box.classList.add("held");
  box.addEventListener("pointermove", move);
  box.addEventListener("pointerup", end, { once: true });
  box.addEventListener("pointercancel", end, { once: true });
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
    box.style.left = `${(100 * x) / width}%`;
    box.style.top = `${(100 * y) / height}%`;
    box.style.width = `${(100 * w) / width}%`;
    box.style.height = `${(100 * h) / height}%`;
    box.setAttribute("aria-label", `Crop ${NAMES[number]}: ${w} by ${h} pixels at ${x}, ${y}. ` +
      "Arrows move it, Shift and arrows resize it, plus and minus scale it.");
  });
}

// The similarities over the whole photograph, of the model whose patch was picked.
function drawWhole() {
  const found = state.mode === "similarity" ? state.similarity[state.patch.model] : null;
  whole.hidden = !found;
  if (!found) return;
  const { width, height } = state.picture;
  const scale = WHOLE_PX / Math.max(width, height);
  [whole.width, whole.height] = [Math.round(width * scale), Math.round(height * scale)];
  const { whole: tiles } = found;
  lay(whole.getContext("2d"),
    heatLayer(tiles, 0, tiles.height, tiles.width, whole.width, whole.height));
}
