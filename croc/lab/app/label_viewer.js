// One photograph, as large as the window or larger.

import { makeBrush } from "./label_brush.js";
import { makeStage, tiles } from "./label_tiles.js";

const part = (id) => document.getElementById(id);
const viewer = part("viewer");
const note = part("message");
let viewed = null;
let settings = null;
const isBrushing = () => viewer.classList.contains("brushing");

export const viewedPhoto = () => (viewer.open ? viewed : null);

// `actions`: grid, click, paint, color, toggleDone, and changed, which is called once another
// photograph is shown, or none.
export function prepareViewer(actions) {
  settings = actions;
  part("previous").addEventListener("click", () => turnPage(-1));
  part("next").addEventListener("click", () => turnPage(1));
  part("viewer-done").addEventListener("click", () => settings.toggleDone(viewed.name));
  part("brush").addEventListener("click", toggleBrush);
  part("close").addEventListener("click", () => viewer.close());
  part("zoom").addEventListener("input", () =>
    viewer.style.setProperty("--zoom", part("zoom").value));
  viewer.addEventListener("close", () => {
    part("main").prepend(note);
    settings.changed();
  });
}

export function openViewer(tile) {
  const { index, name, wide } = tile;
  const { grid, click, color, paint } = settings;
  const photo = makeStage(tile, `/api/photographs/${index}/full`, grid,
    (...place) => isBrushing() || click(...place));
  const clear = makeBrush(photo.stage, isBrushing, color, (stroke) => paint(name, stroke));
  const show = (answer) => {
    photo.show(answer);
    clear();
  };
  viewed = { ...photo, show, index, name, tile };
  viewer.style.setProperty("--wide", wide);
  part("viewer-name").textContent = name;
  part("viewer-certainty").replaceChildren(photo.certainty);
  part("looking").replaceChildren(photo.stage);
  for (const [id, step] of [["previous", -1], ["next", 1]]) part(id).disabled = !neighbor(step);
  if (!viewer.open) {
    viewer.prepend(note); // on top, too
    viewer.showModal();
  }
  settings.changed();
}

// The next one that is not hidden, in the order of the page.
function neighbor(step) {
  let place = tiles.indexOf(viewed.tile);
  do place += step; while (tiles[place]?.node.hidden);
  return tiles[place];
}

export function turnPage(step) {
  const next = neighbor(step);
  if (next) openViewer(next);
}

export function toggleBrush() {
  if (part("brush").disabled && !isBrushing()) return;
  const isOn = viewer.classList.toggle("brushing");
  part("brush").setAttribute("aria-pressed", String(isOn));
}

export function showViewed({ done }) {
  if (viewed) part("viewer-done").setAttribute("aria-pressed", String(done.includes(viewed.name)));
}
