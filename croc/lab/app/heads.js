// The row of heads: each with its own small picture of both crops, its K, its shared clusters and
// its mean largest share.

import { clusterLayer, drawCrop, lay } from "./paint.js";
import { photo } from "./photograph.js";
import { clustersOf } from "./shown.js";
import { change, listen, state } from "./state.js";

const SMALL_PX = 72;

export function makeHeads(row, model) {
  let buttons = [];
  listen("answer", () => {
    const found = state.clusters[model];
    if (!found) return;
    if (buttons.length !== found.heads.length) {
      buttons = found.heads.map((_, number) => makeButton(model, number));
      row.replaceChildren(...buttons);
      row.hidden = buttons.length === 1; // the last tokens have no heads
    }
    buttons.forEach((button, number) => drawButton(button, found, number));
    mark(buttons, model);
  });
  listen("head", () => mark(buttons, model));
}

function makeButton(model, number) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "one-head";
  const pair = document.createElement("span");
  pair.className = "pair";
  for (let view = 0; view < 2; view++) {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = SMALL_PX;
    pair.append(canvas);
  }
  const text = document.createElement("span");
  text.className = "small text";
  const counts = document.createElement("span");
  counts.append("", document.createElement("span"));
  text.append(document.createElement("strong"), " ", counts);
  button.append(pair, text);
  button.addEventListener("click", () => {
    change("head", { heads: state.heads.map((old, n) => (n === model ? number : old)) });
  });
  return button;
}

function drawButton(button, found, number) {
  const head = found.heads[number];
  button.querySelectorAll("canvas").forEach((canvas, view) => {
    const context = canvas.getContext("2d");
    drawCrop(context, photo, state.boxes[view], true);
    lay(context, clusterLayer(found.tiles, 2 * number + view, clustersOf(head), SMALL_PX));
  });
  // Counted from 0, as `croc show --heads` does.
  const [name, counts, share] = button.querySelectorAll(".text strong, .text span");
  name.textContent = `Head ${number}`;
  counts.firstChild.textContent = `K ${head.k}, ${head.shared} shared, `;
  share.textContent = `largest share ${head.share.toFixed(2)}`;
}

function mark(buttons, model) {
  const chosen = Math.min(state.heads[model], buttons.length - 1);
  buttons.forEach((button, n) => button.setAttribute("aria-pressed", String(n === chosen)));
}
