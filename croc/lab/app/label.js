// The labeling page: classes, clicks and masks. After every change the labels are saved, then the
// masks on screen are requested, and others once they are scrolled into view.

import { count, fetchJson, showMessage } from "./api.js";
import { keepUp } from "./label_progress.js";
import { canUndo, change, choose, ERASER, openLabels, store, undo } from "./label_store.js";
import {
  addTile, drawDots, pointedTile, showDone, sortTiles, tiles, visible,
} from "./label_tiles.js";
import {
  openViewer, prepareViewer, showViewed, toggleBrush, turnPage, viewedPhoto,
} from "./label_viewer.js";

const AT_ONCE = 12; // masks per request: few, so that the first appear soon
const VIEWER_PX = 1280; // longer side of the mask of one that is viewed

const part = (id) => document.getElementById(id);
let start = null;
let revision = 0; // of what the masks depend on
let masked = {}; // the labels of that revision

async function begin() {
  start = await fetchJson("/api/start");
  part("about").textContent =
    `${start.folder}, with ${start.weights}; labels in ${start.to}/labels.json`;
  part("add").addEventListener("click", addClass);
  for (const id of ["undo", "viewer-undo"]) part(id).addEventListener("click", undo);
  for (const id of ["eraser", "viewer-eraser"]) {
    part(id).addEventListener("click", () => choose(ERASER));
  }
  part("uncertain").addEventListener("click", sortByCertainty);
  part("by-name").addEventListener("click", () => {
    sortTiles((a, b) => a.index - b.index);
    part("by-name").hidden = true;
  });
  part("size").addEventListener("input", () =>
    part("tiles").style.setProperty("--tall", `${part("size").value}rem`));
  const opacities = ["opacity", "viewer-opacity"].map(part);
  for (const slider of opacities) {
    slider.addEventListener("input", () => {
      for (const other of opacities) other.value = slider.value;
      document.body.style.setProperty("--opacity", slider.value);
    });
  }
  part("not-done").addEventListener("change", show);
  part("export").addEventListener("click", () => {
    fetchJson("/api/export", { method: "POST", body: "{}" })
      .then(() => keepUp(start, addPhotographs, showReady))
      .catch((error) => showMessage(error.message));
  });
  document.addEventListener("keydown", press);
  prepareViewer({ grid: start.grid, click, paint, toggleDone,
    color: () => store.labels.classes[store.chosen]?.color ?? "#fff",
    changed: () => {
      showPhotographs();
      refresh();
    } });
  openLabels(start, show, showSaved);
  keepUp(start, addPhotographs, showReady);
}

// Labels.

function showSaved(saved) {
  if (["classes", "clicks", "strokes"].every((part) => saved[part] === masked[part])) return;
  masked = saved;
  revision++;
  refresh();
}

// A click on a photograph, in shares of its width and height; one on the same patch is replaced.
function click(photo, x, y) {
  const [rows, columns] = start.grid;
  const { labels, chosen } = store;
  const inPhoto = labels.clicks.filter((other) => other.photo === photo);
  let old = inPhoto.find((other) => Math.floor(other.x * columns) === Math.floor(x * columns) &&
    Math.floor(other.y * rows) === Math.floor(y * rows));
  if (chosen === ERASER) {
    const distance = (other) => Math.hypot((other.x - x) * columns, (other.y - y) * rows);
    [old] = inPhoto.filter((other) => distance(other) < 2)
      .sort((a, b) => distance(a) - distance(b));
    if (!old) return;
  }
  const clicks = labels.clicks.filter((other) => other !== old);
  if (chosen !== ERASER) clicks.push({ photo, x, y, class: chosen });
  change({ clicks });
}

// With the eraser, the predicted mask comes back.
function paint(photo, stroke) {
  const { labels, chosen } = store;
  const number = chosen === ERASER ? null : chosen;
  change({ strokes: [...labels.strokes, { photo, class: number, ...stroke }] });
}

function addClass() {
  const { classes } = store.labels;
  const used = classes.map(({ color }) => color.toLowerCase());
  const names = classes.map(({ name }) => name);
  const color = start.palette.find((free) => !used.includes(free)) ?? start.palette[0];
  let name = classes.length;
  while (names.includes(`class ${name}`)) name++;
  change({ classes: [...classes, { name: `class ${name}`, color }] }, classes.length);
  rename(classes.length);
}

// A chosen class stays chosen; instead of the removed one, it is the one before.
function removeClass(number) {
  const { labels, chosen } = store;
  const [clicks, strokes] = [labels.clicks, labels.strokes].map((entries) =>
    entries.filter((entry) => entry.class !== number).map((entry) =>
      (entry.class > number ? { ...entry, class: entry.class - 1 } : entry)));
  const classes = labels.classes.filter((_, n) => n !== number);
  change({ classes, clicks, strokes }, chosen >= number ? chosen - 1 : chosen);
}

const setClass = (number, values) => change({ classes: store.labels.classes.map(
  (old, n) => (n === number ? { ...old, ...values } : old)) });

function toggleDone(name) {
  const { done } = store.labels;
  change({ done: done.includes(name) ? done.filter((other) => other !== name) : [...done, name] });
}

function press(event) {
  if (event.target.matches("input[type=text]") || event.altKey) return;
  const photo = viewedPhoto() ?? pointedTile();
  if (event.ctrlKey || event.metaKey) {
    if (event.key !== "z") return;
    undo();
  } else if (event.key === "e") choose(ERASER);
  else if (event.key === "f" && photo) toggleDone(photo.name);
  else if (event.key === "b" && viewedPhoto()) toggleBrush();
  else if ("ad".includes(event.key) && viewedPhoto()) turnPage(event.key === "a" ? -1 : 1);
  else if (event.key === "Enter" && photo && !viewedPhoto() && !event.target.matches("button")) {
    openViewer(photo);
  }
  else if (event.key >= "1" && event.key <= String(Math.min(9, store.labels.classes.length))) {
    choose(Number(event.key) - 1);
  } else return;
  event.preventDefault();
}

// The page.

function show() {
  const { labels, chosen } = store;
  part("classes").replaceChildren(...labels.classes.map(makeClass));
  part("viewer-classes").replaceChildren(...labels.classes.map((entry, number) =>
    makeChoice(number, make("span", { class: "name" }, entry.name), entry.color)));
  for (const id of ["eraser", "viewer-eraser"]) {
    part(id).setAttribute("aria-pressed", String(chosen === ERASER));
  }
  for (const id of ["undo", "viewer-undo"]) part(id).disabled = !canUndo();
  document.body.classList.toggle("erasing", chosen === ERASER);
  showPhotographs();
  showReady();
}

// `ready`: whether all photographs have their tokens. The first of them standardize the features,
// so masks that were made before may have changed a little.
let allReady = false;
let unreadable = 0;
function showReady(ready = allReady, skipped = unreadable) {
  if (ready && !allReady) {
    revision++;
    refresh();
  }
  allReady = ready;
  unreadable = skipped;
  const { labels, chosen } = store;
  const marked = new Set(labels.done); // some may not be in the folder any more
  const done = start.names.filter((name) => marked.has(name)).length;
  part("done-count").textContent = `${done} of ${start.names.length - skipped} done`;
  const isFitted = new Set(labels.clicks.map((entry) => entry.class)).size > 1;
  part("hint").hidden = isFitted;
  part("hint").textContent = labels.clicks.length
    ? "Now click a patch of another class: masks appear once two classes have a click."
    : `Click a patch of ${labels.classes[Math.max(chosen, 0)].name} in any photograph, then one ` +
      "of another class. Masks of all photographs follow.";
  part("uncertain").disabled = part("brush").disabled = !isFitted;
  part("export").disabled = !isFitted || !ready;
}

function makeClass({ name, color }, number) {
  const swatch = make("input", { type: "color", value: color, "aria-label": `Color of ${name}` });
  swatch.addEventListener("change", () => setClass(number, { color: swatch.value }));
  const { labels } = store;
  const clicks = labels.clicks.filter((entry) => entry.class === number).length;
  const choosing = makeChoice(number, make("span", { class: "name" }, name),
    null, make("span", { class: "soft clicks" }, String(clicks)));
  const renaming = make("button", { type: "button", class: "small-button rename",
    "aria-label": `Rename ${name}` }, "✎");
  renaming.addEventListener("click", () => rename(number));
  const removing = make("button", { type: "button", class: "small-button remove",
    "aria-label": `Remove ${name} and its clicks`, disabled: labels.classes.length < 3 }, "×");
  removing.addEventListener("click", () => removeClass(number));
  return make("li", {}, swatch, choosing, renaming, number ? removing : null);
}

function makeChoice(number, title, color, more = null) {
  const button = make("button", { type: "button", class: "choose",
    "aria-pressed": String(number === store.chosen),
    title: number < 9 ? `Key ${number + 1}` : null }, title, more);
  if (color) button.style.setProperty("--color", color);
  button.addEventListener("click", () => choose(number));
  return button;
}

function rename(number) {
  const row = part("classes").children[number];
  const { name } = store.labels.classes[number];
  const field = make("input", { type: "text", value: name, maxlength: 80, "aria-label": "Name" });
  let done = false;
  const end = (keep) => {
    if (done) return; // removing the field blurs it
    done = true;
    const changed = field.value.trim();
    const isTaken = store.labels.classes.some((other) => other.name === changed);
    if (keep && changed && !isTaken) setClass(number, { name: changed });
    else show();
    if (keep && isTaken && changed !== name) {
      showMessage(`There is already a class called ${changed}.`);
    }
  };
  field.addEventListener("blur", () => end(true));
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === "Escape") end(event.key === "Enter");
  });
  row.querySelector(".choose").replaceWith(field);
  field.select();
}

// Photographs and their masks.

function addPhotographs(ready) {
  for (const [index, height, width] of ready) {
    addTile({ index, name: start.names[index], wide: width / height }, start.grid,
      { click, open: openViewer, toggleDone, changed: refresh });
  }
  showPhotographs();
}

function showPhotographs() {
  const { classes, clicks, done } = store.labels;
  const shown = viewedPhoto() ? [viewedPhoto(), ...tiles] : tiles;
  drawDots(shown, clicks, classes.map(({ color }) => color));
  showDone(done, part("not-done").checked);
  showViewed(store.labels);
}

let refreshing = false;

async function refresh() {
  if (refreshing) return;
  refreshing = true;
  count(1);
  try {
    for (;;) {
      const shown = viewedPhoto() ? [viewedPhoto()] : visible();
      const stale = shown.filter((tile) => tile.revision !== revision).slice(0, AT_ONCE);
      if (!stale.length) break;
      const requested = revision;
      const photographs = stale.map((tile) => tile.index);
      const { masks } = await fetchJson("/api/masks",
        { method: "POST", body: JSON.stringify({ photographs, px: viewedPhoto() && VIEWER_PX }) });
      for (const tile of stale) {
        tile.revision = requested;
        tile.show(masks[tile.index]);
      }
    }
  } catch (error) {
    showMessage(error.message);
  } finally {
    refreshing = false;
    count(-1);
  }
}

async function sortByCertainty() {
  count(1);
  part("uncertain").disabled = true;
  try {
    const { certainty } = await fetchJson("/api/order", { method: "POST", body: "{}" });
    sortTiles((a, b) => (certainty[a.index] ?? 2) - (certainty[b.index] ?? 2));
    part("by-name").hidden = false;
  } catch (error) {
    showMessage(error.message);
  } finally {
    part("uncertain").disabled = false;
    count(-1);
  }
}

begin().catch((error) => showMessage(error.message));
