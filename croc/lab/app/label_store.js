// The labels, their changes, undo, and saving: after every change, again if it fails.

import { count, fetchJson, showMessage } from "./api.js";

const RETRY_MS = 2000;
export const ERASER = -1;
export const store = {
  labels: { classes: [], clicks: [], strokes: [], done: [] }, // never changed in place
  chosen: 1, // a class, or ERASER
};
const undoable = [];
let based = 0; // revision of the labels that the server has
let isSaved = true;
let isSaving = false;
let isTold = false; // whether the page's message is about a save
const unanswered = new Set(); // labels whose save failed, though it may have reached the server
let show = null; // called after a change
let showSaved = null; // called with labels that the server has

const labelsOf = ({ classes, clicks, strokes, done }) => ({ classes, clicks, strokes, done });

export function openLabels(start, ...listeners) {
  [show, showSaved] = listeners;
  takeLabels(start);
}

function takeLabels(start) {
  based = start.revision;
  store.labels = labelsOf(start);
  store.chosen = Math.min(store.chosen, store.labels.classes.length - 1);
  show();
  showSaved(store.labels);
}

export const canUndo = () => undoable.length > 0;

export function change(values, chosen = store.chosen) {
  undoable.push({ ...store });
  setLabels({ ...store.labels, ...values }, chosen);
}

// The chosen class stays, unless there are others now.
export function undo() {
  const last = undoable.pop();
  if (!last) return;
  const isSame = last.labels.classes.length === store.labels.classes.length;
  setLabels(last.labels, isSame ? store.chosen : last.chosen);
}

export function choose(chosen) {
  store.chosen = chosen;
  show();
}

function setLabels(labels, chosen) {
  Object.assign(store, { labels, chosen });
  show();
  save();
}

async function save() {
  isSaved = false;
  if (isSaving) return;
  isSaving = true;
  count(1);
  let message = "";
  let isStale = false;
  while (!isSaved) {
    isSaved = true;
    try {
      if (isStale) message = await reload();
      else await send();
      isStale = false;
      if (message || isTold) showMessage(message);
      isTold = message !== "";
    } catch (error) {
      isSaved = false;
      isStale = error.status === 409;
      if (isStale) continue;
      isTold = true;
      showMessage(`${error.message} Your last changes are not saved; trying again.`);
      await new Promise((end) => { setTimeout(end, RETRY_MS); });
    }
  }
  isSaving = false;
  count(-1);
}

async function send() {
  const { labels } = store;
  unanswered.add(JSON.stringify(labels));
  const body = JSON.stringify({ revision: based, ...labels });
  based = (await fetchJson("/api/labels", { method: "POST", body })).revision;
  unanswered.clear();
  showSaved(labels);
}

// The server has other labels than this page: those of another tab, or of a save without an answer.
async function reload() {
  const start = await fetchJson("/api/start");
  if (unanswered.has(JSON.stringify(labelsOf(start)))) {
    based = start.revision;
    isSaved = false;
    return "";
  }
  undoable.length = 0;
  isSaved = true;
  takeLabels(start);
  return "The labels were changed in another tab. Its labels were loaded; "
    + "your last change is lost.";
}

window.addEventListener("beforeunload", (event) => {
  if (isSaving) event.preventDefault();
});
