// A tile for each photograph: its picture, its mask, the clicks, and the patch under the pointer.

import { ARROWS, clamp } from "./state.js";

export const tiles = [];
const onScreen = new Set();
const root = document.getElementById("tiles");
const watched = new Map(); // from a node to what is called when it comes into view
const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const { tile, changed } = watched.get(target);
    if (isIntersecting) onScreen.add(tile);
    else onScreen.delete(tile);
    changed();
  }
}, { rootMargin: "100px" });

// From top to bottom.
export const visible = () => tiles.filter((tile) => onScreen.has(tile));

export function sortTiles(compare) {
  tiles.sort(compare);
  root.append(...tiles.map((tile) => tile.node));
  window.scrollTo({ top: 0 });
}

// The one under the pointer or with the focus.
let pointed = null;
export const pointedTile = () => (pointed?.node.hidden ? null : pointed);

export function addTile(photo, grid, { click, open, toggleDone, changed }) {
  const { name, wide } = photo;
  const tile = { ...photo, ...makeStage(photo, `/api/photographs/${photo.index}`, grid, click) };
  tile.done = make("button", { type: "button", class: "done", "aria-label": `${name} is done`,
    title: "Done (key F)" }, "✓");
  tile.done.addEventListener("click", () => toggleDone(name));
  const title = make("button", { type: "button", class: "name",
    title: `${name}: open (Enter)` }, name);
  title.addEventListener("click", () => open(tile));
  const node = make("figure", { class: "tile" }, tile.stage,
    make("figcaption", {}, title, tile.certainty, tile.done));
  node.style.setProperty("--wide", wide);
  for (const kind of ["pointerenter", "focusin"]) {
    node.addEventListener(kind, () => { pointed = tile; });
  }
  node.addEventListener("pointerleave", () => {
    pointed = tiles.find((other) => other.node.contains(document.activeElement)) ?? null;
  });
  tile.node = node;
  tiles.push(tile);
  root.append(node);
  watched.set(node, { tile, changed });
  observer.observe(node);
}

// A photograph with its mask and clicks, on which patches can be clicked.
export function makeStage({ name }, src, [rows, columns], click) {
  const mask = make("img", { class: "mask", alt: "", draggable: "false", hidden: "" });
  const dots = make("div", { class: "dots" });
  const patch = make("div", { class: "patch", hidden: "" });
  const stage = make("div", { class: "stage", tabindex: 0, role: "application",
    "aria-roledescription": "photograph", "aria-label": `${name}. Arrows move over its patches, ` +
      "space labels one with the chosen class." },
  make("img", { src, alt: "", loading: "lazy", draggable: "false" }), mask, dots, patch);
  const certainty = make("span", { class: "certainty", title:
    "Certainty: mean margin between the two most probable classes of a patch" });
  const show = (answer) => {
    mask.hidden = !answer;
    if (answer) mask.src = answer.mask;
    certainty.textContent = answer ? `${Math.round(100 * answer.certainty)}%` : "";
  };

  let place = null; // column and row of the patch that is pointed at
  const point = (column, row) => {
    place = [clamp(column, 0, columns - 1), clamp(row, 0, rows - 1)];
    Object.assign(patch.style, {
      left: `${(100 * place[0]) / columns}%`, top: `${(100 * place[1]) / rows}%`,
      width: `${100 / columns}%`, height: `${100 / rows}%`,
    });
    patch.hidden = false;
  };
  stage.addEventListener("pointermove", (event) => {
    const [x, y] = sharesOf(event, stage);
    point(Math.floor(x * columns), Math.floor(y * rows));
  });
  for (const kind of ["pointerleave", "blur"]) {
    stage.addEventListener(kind, () => { patch.hidden = true; });
  }
  stage.addEventListener("click", (event) => click(name, ...sharesOf(event, stage)));
  stage.addEventListener("keydown", (event) => {
    const [column, row] = place ?? [Math.floor(columns / 2), Math.floor(rows / 2)];
    if (event.key in ARROWS) {
      point(column + ARROWS[event.key][0], row + ARROWS[event.key][1]);
    } else if (event.key === " ") click(name, (column + 0.5) / columns, (row + 0.5) / rows);
    else return;
    event.preventDefault();
  });
  return { stage, dots, certainty, show, revision: -1 };
}

// Where an event is, in shares of the width and height.
export function sharesOf(event, stage) {
  const box = stage.getBoundingClientRect();
  return [clamp((event.clientX - box.left) / box.width, 0, 0.9999),
    clamp((event.clientY - box.top) / box.height, 0, 0.9999)];
}

export function drawDots(shown, clicks, colors) {
  const byName = Map.groupBy(clicks, (click) => click.photo);
  for (const { name, dots } of shown) {
    const inPhoto = byName.get(name) ?? [];
    if (!inPhoto.length && !dots.childElementCount) continue;
    dots.replaceChildren(...inPhoto.map((click) => {
      const dot = make("span", { class: "dot" });
      Object.assign(dot.style, { left: `${100 * click.x}%`, top: `${100 * click.y}%`,
        background: colors[click.class] });
      return dot;
    }));
  }
}

export function showDone(names, hide) {
  const all = new Set(names);
  for (const { name, node, done } of tiles) {
    done.setAttribute("aria-pressed", String(all.has(name)));
    node.hidden = hide && all.has(name);
  }
}
